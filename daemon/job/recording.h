/*
 * Brings the flight recorders of all of a job's nodes together for a client: a small message asks
 * each member, which answers with its clock at once, and then with its records.
 *
 * The happy path: EVENT_RECORDS, asks, answers, ACTION_RECORDS. A member that is down, or does not
 * answer in RECORDING_WAIT_US, is in the outcome as one that gave no answer. A daemon of an older
 * version does not know the message, and gives none either.
 */
#ifndef ADTOPK_JOB_RECORDING_H
#define ADTOPK_JOB_RECORDING_H

#include "daemon/job/model.h"
#include "proto/peer.pb-c.h"

#define RECORDING_WAIT_US UINT64_C(2000000)
#define RECORDING_TOTAL 65536u /* records of all nodes together */
#define RECORDING_FORMAT 1u    /* of packed records and their kinds */

/** A client asks. Errors: STATE, MEMORY. */
enum adtopk_status recording_request(
    struct core *core, const struct event *event, struct error *err);

/** A member asks; a member answers. */
void recording_asked(struct job *job, uint16_t from, const Adtopk__PeerRecordsAsk *ask);
void recording_answered(struct job *job, uint16_t from, const Adtopk__PeerRecords *answer);

/** When recording_check_time() has something to do; UINT64_MAX: never. */
uint64_t recording_deadline(const struct job *job);
void recording_check_time(struct job *job);

void recording_drop(struct job *job);

#endif

/*
 * Brings the flight recorders of all of a job's nodes together for a client. A small message asks
 * each member, which answers with its clock at once, and then with its newest records. A message
 * for each further piece asks for those before.
 *
 * Records must not take the line from the job's own messages. So a member sends one piece of a few
 * KiB, and is then left alone for RECORDING_REST times as long as that took. That way a trace gets
 * an eighth of a line, or less where others use it. The member keeps no state.
 *
 * The happy path: EVENT_RECORDS, asks, answers, ACTION_RECORDS. A member that is down, or does not
 * answer in RECORDING_WAIT_US, is in the outcome as one that gave no answer. Where pieces are
 * missing when no more came for that time, or after RECORDING_LONGEST_US, the outcome has the
 * newest records and says how many are missing. A daemon of an older version does not know the
 * message, and gives none either.
 */
#ifndef ADTOPK_JOB_RECORDING_H
#define ADTOPK_JOB_RECORDING_H

#include "daemon/job/model.h"
#include "proto/peer.pb-c.h"

#define RECORDING_WAIT_US UINT64_C(2000000)
#define RECORDING_LONGEST_US UINT64_C(10000000)
#define RECORDING_REST 7u
#define RECORDING_PIECE_MIN 128u  /* records of a piece at first, and at least */
#define RECORDING_PIECE_MAX 1024u /* at most: 32 KiB */
#define RECORDING_TOTAL 65536u    /* records of all nodes together */
#define RECORDING_FORMAT 1u       /* of packed records and their kinds */

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

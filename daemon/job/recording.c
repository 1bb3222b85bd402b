#include "daemon/job/recording.h"

#include <stdlib.h>

#include "daemon/job/actions.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"
#include "daemon/link/link.h"

#define RECORDING_FRAMING 256u /* bytes of a message around its records */
#define RECORDING_UNREAD_MAX                                                                       \
    (RECORDER_MAX * RECORD_PACKED) /* bytes that wait for a node that asks */

/* ------------------------------------------------------------------ the node that asks */

static struct recorded *recording_create(const struct job *job)
{
    const unsigned nodes = job->in_force.nodes;
    struct recorded *records = calloc(1, sizeof(*records) + nodes * sizeof(records->part[0]));

    for (unsigned i = 0; records != NULL && i < nodes; i++) {
        records->part[records->parts++].node = job->in_force.node[i];
    }
    return records;
}

static uint32_t recording_most(const struct job *job)
{
    const uint32_t most = RECORDING_TOTAL / job->in_force.nodes;

    return most < RECORDER_MAX ? most : RECORDER_MAX;
}

/* Asks all members that are up. */
static void recording_ask(struct job *job)
{
    struct recording *recording = &job->figures.recording;
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerRecordsAsk ask = ADTOPK__PEER_RECORDS_ASK__INIT;

    ask.number = ++recording->number;
    ask.most = recording_most(job);
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RECORDS_ASK;
    message.records_ask = &ask;
    recording->awaited = 0;
    for (unsigned i = 0; i < recording->records->parts; i++) {
        struct recorded_part *part = &recording->records->part[i];

        part->asked_us = job->core->now_us;
        if (part->node != job->core->config.node && job_peer_is_up(job, part->node)) {
            recording->awaited++;
            peer_offer(job, part->node, &message);
        }
    }
}

/* Adds this node's own records. Without memory it has none, as other nodes. */
static void recording_add_own(struct job *job, struct recorded *records)
{
    const uint32_t most = recording_most(job);

    for (unsigned i = 0; i < records->parts; i++) {
        struct recorded_part *part = &records->part[i];

        if (part->node == job->core->config.node) {
            part->record = malloc(most * sizeof(*part->record));
            part->answered = part->record != NULL;
            part->asked_us = part->answered_us = part->heard_us = job->core->now_us;
            part->records =
                part->answered ? recorder_read(&job->figures.recorder, part->record, most) : 0;
        }
    }
}

static void recording_finish(struct job *job)
{
    struct recorded *records = job->figures.recording.records;

    job->figures.recording.records = NULL;
    recording_add_own(job, records);
    ticket_answer(job, &job->figures.recording.ticket,
        &(struct action){.type = ACTION_RECORDS, .recorded = records}, NULL);
}

enum adtopk_status recording_request(
    struct core *core, const struct event *event, struct error *err)
{
    struct job *job = job_by_number(core, event->asked.job);

    if (job == NULL || job->view == 0 || job_ended(job)) {
        return error_set(err, ADTOPK_ERR_STATE, "the job is not running: there is no trace of it");
    }
    if (job->figures.recording.ticket != NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "job '%s' is just being traced", job->key.name);
    }
    job->figures.recording.ticket = ticket_create(event->asked.ticket);
    job->figures.recording.records = recording_create(job);
    if (job->figures.recording.ticket == NULL || job->figures.recording.records == NULL) {
        recording_drop(job);
        return error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for a trace of job '%s'", job->key.name);
    }
    job->figures.recording.due_us = core->now_us + RECORDING_WAIT_US;
    recording_ask(job);
    if (job->figures.recording.awaited == 0) {
        recording_finish(job);
    }
    return ADTOPK_OK;
}

uint64_t recording_deadline(const struct job *job)
{
    return job->figures.recording.ticket != NULL ? job->figures.recording.due_us : UINT64_MAX;
}

void recording_check_time(struct job *job)
{
    if (job->core->now_us >= recording_deadline(job)) {
        recording_finish(job);
    }
}

void recording_drop(struct job *job)
{
    ticket_free(job->figures.recording.ticket);
    recorded_free(job->figures.recording.records);
    job->figures.recording.ticket = NULL;
    job->figures.recording.records = NULL;
}

/* ------------------------------------------------------------------ answers */

static struct recorded_part *recording_part(const struct job *job, uint16_t node)
{
    for (unsigned i = 0;
         job->figures.recording.ticket != NULL && i < job->figures.recording.records->parts; i++) {
        if (job->figures.recording.records->part[i].node == node) {
            return &job->figures.recording.records->part[i];
        }
    }
    return NULL;
}

static bool recording_is_valid(const struct job *job, const Adtopk__PeerRecords *answer)
{
    return answer->packed.len % RECORD_PACKED == 0 &&
           answer->packed.len / RECORD_PACKED <= recording_most(job);
}

/* Without memory the node's records are missing. */
static void recording_take(struct recorded_part *part, const Adtopk__PeerRecords *answer)
{
    const uint32_t count = (uint32_t)(answer->packed.len / RECORD_PACKED);

    part->record = malloc((count > 0 ? count : 1) * sizeof(*part->record));
    part->answered = part->record != NULL && answer->format == RECORDING_FORMAT;
    if (part->answered) {
        part->records = count;
        recorder_unpack(answer->packed.data, count, part->record);
    }
}

/* An answer to an earlier question, or a second one, means nothing any more. While somebody waits
 * for one there is a view. */
void recording_answered(struct job *job, uint16_t from, const Adtopk__PeerRecords *answer)
{
    struct recorded_part *part = recording_part(job, from);

    if (part == NULL || answer->number != job->figures.recording.number || part->record != NULL) {
        job->core->late_messages++;
    } else if (!recording_is_valid(job, answer)) {
        job->core->bad_messages++;
    } else if (!answer->whole) {
        part->answered_us = answer->clock_us;
        part->heard_us = job->core->now_us;
    } else {
        recording_take(part, answer);
        if (--job->figures.recording.awaited == 0) {
            recording_finish(job);
        }
    }
}

/* ------------------------------------------------------------------ the nodes that are asked */

static uint32_t recording_fits(const struct job *job, uint32_t most)
{
    const size_t longest = job->core->config.links.max_control_message;
    const size_t fits = longest > RECORDING_FRAMING + 2 * CORE_KEY_SIZE
                            ? (longest - RECORDING_FRAMING - 2 * CORE_KEY_SIZE) / RECORD_PACKED
                            : 0;
    const uint32_t room = fits < RECORDER_MAX ? (uint32_t)fits : RECORDER_MAX;

    return most < room ? most : room;
}

static void recording_send(struct job *job, uint16_t to, Adtopk__PeerRecords *answer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;

    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RECORDS;
    message.records = answer;
    peer_offer(job, to, &message);
}

/* Fills in the records; without memory there are none. */
static void recording_pack(const struct job *job, uint32_t most, Adtopk__PeerRecords *answer)
{
    struct flight_record *record = malloc((most > 0 ? most : 1) * sizeof(*record));
    uint32_t count = record != NULL ? recorder_read(&job->figures.recorder, record, most) : 0;

    answer->packed.data = count > 0 ? malloc((size_t)count * RECORD_PACKED) : NULL;
    if (answer->packed.data != NULL) {
        recorder_pack(record, count, answer->packed.data);
        answer->packed.len = (size_t)count * RECORD_PACKED;
    }
    free(record);
}

/* A node that asks without reading gets no more answers: they would take memory without end. */
void recording_asked(struct job *job, uint16_t from, const Adtopk__PeerRecordsAsk *ask)
{
    Adtopk__PeerRecords answer = ADTOPK__PEER_RECORDS__INIT;

    if (membership_index(&job->in_force, from) < 0) {
        job->core->bad_messages++;
        return;
    }
    if (links_queued_control(job->core->links, from) > RECORDING_UNREAD_MAX) {
        return;
    }
    answer.number = ask->number;
    answer.format = RECORDING_FORMAT;
    answer.clock_us = job->core->now_us;
    recording_send(job, from, &answer);
    recording_pack(job, recording_fits(job, ask->most), &answer);
    answer.whole = 1;
    recording_send(job, from, &answer);
    free(answer.packed.data);
}

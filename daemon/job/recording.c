#include "daemon/job/recording.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/job/actions.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/peer.h"
#include "daemon/job/ticket.h"
#include "daemon/link/link.h"

#define RECORDING_FRAMING 256u /* bytes of a message around its records */
#define RECORDING_FAST_US                                                                          \
    10000u /* the next piece is larger if one took less, see recording_rest() */

/* Bytes that may wait for a node that asks. */
#define RECORDING_UNREAD_MAX (8u * RECORDING_PIECE_MAX * RECORD_PACKED)

static uint32_t recording_least(uint64_t a, uint32_t b)
{
    return a < b ? (uint32_t)a : b;
}

/* ------------------------------------------------------------------ the node that asks */

static struct recorded *recording_create(const struct job *job)
{
    const unsigned nodes = job->in_force.nodes;
    struct recorded *records = calloc(1, sizeof(*records) + nodes * sizeof(records->part[0]));

    for (unsigned i = 0; records != NULL && i < nodes; i++) {
        records->part[records->parts++] = (struct recorded_part){.node = job->in_force.node[i],
            .asked_us = job->core->now_us,
            .next_us = UINT64_MAX,
            .piece = RECORDING_PIECE_MIN};
    }
    return records;
}

/* Asks a member for its newest records, or for those before the ones that are there. */
static void recording_ask(struct job *job, struct recorded_part *part)
{
    const struct recording *recording = &job->figures.recording;
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;
    Adtopk__PeerRecordsAsk ask = ADTOPK__PEER_RECORDS_ASK__INIT;

    part->piece = recording_least(part->piece, recording->room - part->records);
    part->asked = true;
    part->sent_us = job->core->now_us;
    part->next_us = UINT64_MAX;
    ask.number = recording->number;
    ask.most = part->piece;
    ask.before = part->first;
    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RECORDS_ASK;
    message.records_ask = &ask;
    peer_offer(job, part->node, &message);
}

/* Asks all members that are up. */
static void recording_begin(struct job *job)
{
    struct recording *recording = &job->figures.recording;

    recording->number++;
    recording->awaited = 0;
    recording->room = recording_least(RECORDING_TOTAL / job->in_force.nodes, RECORDER_MAX);
    recording->due_us = job->core->now_us + RECORDING_WAIT_US;
    recording->last_us = job->core->now_us + RECORDING_LONGEST_US;
    for (unsigned i = 0; i < recording->records->parts; i++) {
        struct recorded_part *part = &recording->records->part[i];

        if (part->node != job->core->config.node && job_peer_is_up(job, part->node)) {
            recording->awaited++;
            part->daemon = links_incarnation(job->core->links, part->node);
            recording_ask(job, part);
        }
    }
}

/* Adds this node's own records. Without memory it has none, as other nodes. */
static void recording_add_own(const struct job *job, struct recorded_part *part)
{
    const uint32_t room = job->figures.recording.room;
    struct recorder_piece piece = {.count = 0};

    part->record = malloc(room * sizeof(*part->record));
    part->answered = part->record != NULL;
    part->asked_us = part->answered_us = part->heard_us = job->core->now_us;
    if (part->answered) {
        piece = recorder_read(&job->figures.recorder, 0, room, part->record);
    }
    part->records = piece.count;
    part->missing = piece.older;
}

/* No more pieces come. If some are missing although there is room for them, there was no time: the
 * node may also have gone on for 64 steps meanwhile. */
static void recording_close(struct recorded_part *part)
{
    part->late = part->records < part->room;
    if (part->records > 0) {
        (void)memmove(part->record, part->record + (part->room - part->records),
            part->records * sizeof(*part->record));
    }
}

static void recording_finish(struct job *job)
{
    struct recorded *records = job->figures.recording.records;

    job->figures.recording.records = NULL;
    for (unsigned i = 0; i < records->parts; i++) {
        struct recorded_part *part = &records->part[i];

        if (part->node == job->core->config.node) {
            recording_add_own(job, part);
        } else {
            recording_close(part);
        }
        recorded_trim(part);
    }
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
    recording_begin(job);
    if (job->figures.recording.awaited == 0) {
        recording_finish(job);
    }
    return ADTOPK_OK;
}

uint64_t recording_deadline(const struct job *job)
{
    const struct recording *recording = &job->figures.recording;
    uint64_t deadline_us = recording->due_us;

    if (recording->ticket == NULL) {
        return UINT64_MAX;
    }
    for (unsigned i = 0; i < recording->records->parts; i++) {
        const uint64_t next_us = recording->records->part[i].next_us;

        deadline_us = next_us < deadline_us ? next_us : deadline_us;
    }
    return deadline_us;
}

void recording_check_time(struct job *job)
{
    const struct recording *recording = &job->figures.recording;

    if (job->core->now_us < recording_deadline(job)) {
        return;
    }
    if (job->core->now_us >= recording->due_us) {
        recording_finish(job);
        return;
    }
    for (unsigned i = 0; i < recording->records->parts; i++) {
        if (recording->records->part[i].next_us <= job->core->now_us) {
            recording_ask(job, &recording->records->part[i]);
        }
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

static bool recording_is_valid(const struct recorded_part *part, const Adtopk__PeerRecords *answer)
{
    return answer->packed.len % RECORD_PACKED == 0 &&
           answer->packed.len / RECORD_PACKED <= part->piece;
}

/* Whether the piece ends where those that are there begin. */
static bool recording_continues(
    const struct recorded_part *part, const Adtopk__PeerRecords *answer, uint32_t count)
{
    return part->record == NULL ||
           (answer->first + count == part->first && count <= part->room - part->records);
}

/* Puts a piece before those that are there. False: there is none, or no memory for it. */
static bool recording_take(const struct recording *recording, struct recorded_part *part,
    const Adtopk__PeerRecords *answer)
{
    const uint32_t count = (uint32_t)(answer->packed.len / RECORD_PACKED);

    if (answer->format != RECORDING_FORMAT || !recording_continues(part, answer, count)) {
        return false;
    }
    if (part->record == NULL) {
        part->room = recording_least((uint64_t)count + answer->older, recording->room);
        part->record = malloc((part->room > 0 ? part->room : 1) * sizeof(*part->record));
        part->answered = part->record != NULL;
    }
    if (!part->answered || count == 0) {
        return false;
    }
    part->records += count;
    part->first = answer->first;
    part->missing = answer->older;
    recorder_unpack(answer->packed.data, count, part->record + (part->room - part->records));
    return true;
}

/* When the next piece is due, and how large it is. It should take 10 ms of the line, as a part of
 * a bulk message does; below 128 records the messages around them would weigh more. */
static void recording_rest(struct recorded_part *part, uint64_t now_us)
{
    const uint64_t took_us = now_us - part->sent_us;

    part->next_us = now_us + RECORDING_REST * took_us;
    if (took_us < RECORDING_FAST_US && part->piece <= RECORDING_PIECE_MAX / 2) {
        part->piece *= 2;
    } else if (took_us > 4 * RECORDING_FAST_US && part->piece >= 2 * RECORDING_PIECE_MIN) {
        part->piece /= 2;
    }
}

/* A daemon that was restarted meanwhile numbers its records anew. */
static bool recording_is_same_daemon(const struct job *job, const struct recorded_part *part)
{
    return links_incarnation(job->core->links, part->node) == part->daemon;
}

static void recording_heard(
    struct job *job, struct recorded_part *part, const Adtopk__PeerRecords *answer)
{
    struct recording *recording = &job->figures.recording;

    part->asked = false;
    recording->due_us = job->core->now_us + RECORDING_WAIT_US < recording->last_us
                            ? job->core->now_us + RECORDING_WAIT_US
                            : recording->last_us;
    if (recording_is_same_daemon(job, part) && recording_take(recording, part, answer) &&
        part->missing > 0 && part->records < part->room) {
        recording_rest(part, job->core->now_us);
    } else if (--recording->awaited == 0) {
        recording_finish(job);
    }
}

/* An answer to an earlier question, or a second one, means nothing any more. While somebody waits
 * for one there is a view. */
void recording_answered(struct job *job, uint16_t from, const Adtopk__PeerRecords *answer)
{
    struct recorded_part *part = recording_part(job, from);

    if (part == NULL || answer->number != job->figures.recording.number || !part->asked) {
        job->core->late_messages++;
    } else if (!recording_is_valid(part, answer)) {
        job->core->bad_messages++;
    } else if (answer->whole) {
        recording_heard(job, part, answer);
    } else {
        part->answered_us = answer->clock_us;
        part->heard_us = job->core->now_us;
    }
}

/* ------------------------------------------------------------------ the nodes that are asked */

static uint32_t recording_fits(const struct job *job, uint32_t most)
{
    const size_t longest = job->core->config.links.max_control_message;
    const size_t fits = longest > RECORDING_FRAMING + 2 * CORE_KEY_SIZE
                            ? (longest - RECORDING_FRAMING - 2 * CORE_KEY_SIZE) / RECORD_PACKED
                            : 0;

    return recording_least(recording_least(fits, RECORDING_PIECE_MAX), most);
}

static void recording_send(struct job *job, uint16_t to, Adtopk__PeerRecords *answer)
{
    Adtopk__PeerMessage message = ADTOPK__PEER_MESSAGE__INIT;

    message.kind_case = ADTOPK__PEER_MESSAGE__KIND_RECORDS;
    message.records = answer;
    peer_offer(job, to, &message);
}

/* Fills in the records; without memory there are none. */
static void recording_pack(
    const struct job *job, const Adtopk__PeerRecordsAsk *ask, Adtopk__PeerRecords *answer)
{
    const uint32_t most = recording_fits(job, ask->most);
    struct flight_record *record = malloc((most > 0 ? most : 1) * sizeof(*record));
    struct recorder_piece piece = {.count = 0};

    if (record != NULL) {
        piece = recorder_read(&job->figures.recorder, ask->before, most, record);
        answer->packed.data = piece.count > 0 ? malloc((size_t)piece.count * RECORD_PACKED) : NULL;
    }
    if (answer->packed.data != NULL) {
        recorder_pack(record, piece.count, answer->packed.data);
        answer->packed.len = (size_t)piece.count * RECORD_PACKED;
        answer->first = piece.first;
        answer->older = piece.older;
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
    if (ask->before == 0) {
        recording_send(job, from, &answer);
    }
    recording_pack(job, ask, &answer);
    answer.whole = 1;
    recording_send(job, from, &answer);
    free(answer.packed.data);
}

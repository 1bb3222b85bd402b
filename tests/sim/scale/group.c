/*
 * See group.h. A member produces a phase when it has the frames of the phase before and has
 * computed on them. The receivers of a frame share it, and it is dropped when the phase is used up.
 */
#include "tests/sim/scale/group.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/hash.h"
#include "kernels/base/quantise.h"

struct frame {
    uint8_t *bytes;
    size_t size;
    unsigned phase;
    unsigned references;
};

struct member {
    struct exchange exchange;
    struct exchange_tensor tensor;
    struct exchange_memory memory;
    struct exchange_input *input; /* [phase * members + from] */
    struct frame **frame;
    unsigned phase;
    unsigned missing; /* frames of the phase */
    bool done;
    double time;     /* until when it computes */
    uint64_t *taken; /* [phase]: received bytes */
    uint64_t messages, bytes, headers, sent;
};

struct group {
    const struct collective_ops *ops;
    struct group_input input;
    unsigned members, phases, finishing;
    uint64_t steps;
    double compute; /* seconds a byte */
    uint16_t *node;
    struct member *member;
    struct fabric *fabric;
    unsigned done;
    char *text;
};

/* ------------------------------------------------------------------ input */

static double unit(uint64_t hash)
{
    return (double)(hash >> 11) * 0x1p-53;
}

/* Entry i's place, as a share of all places: denser in the first eighth. */
static double warp(const struct group_input *input, double x)
{
    double dense = input->first_eighth;

    return x < dense ? x / dense / 8 : 0.125 + (x - dense) / (1 - dense) * 0.875;
}

/* One entry in each of `entries` stretches, so that lists are sorted. */
static void make_list(const struct group *group, unsigned m, struct sparse *sent)
{
    const struct group_input *input = &group->input;
    uint64_t step = hash_mix(input->seed + group->steps), count = 0;
    float size = (float)pow(input->drift, (double)group->steps);

    for (uint64_t i = 0; i < input->entries; i++) {
        uint64_t common = hash_mix(step ^ (i + 1) * 0x9e3779b97f4a7c15u);
        uint64_t own = hash_mix(common + (m + 1) * 0xbf58476d1ce4e5b9u);
        bool shared = unit(hash_mix(common + 1)) < input->overlap;
        double x = ((double)i + unit(shared ? common : own)) / (double)input->entries;
        uint64_t position = (uint64_t)(warp(input, x) * (double)input->numel);
        float value = expf(3 * (float)unit(hash_mix((shared ? common : own) + 2)));
        if (position >= input->numel || (count > 0 && position <= sent->position[count - 1])) {
            continue;
        }
        sent->position[count] = (uint32_t)position;
        sent->value[count] = size * value * (0.5f + (float)unit(hash_mix(own + 3))) *
                             (common & 1 || shared ? 1.0f : -1.0f);
        count++;
    }
    sent->count = count;
    quantise_values(
        sent->value, count, (enum quantisation)group->member[m].exchange.value, group->steps);
}

static bool make_input(struct group *group, unsigned m)
{
    struct exchange_tensor *tensor = &group->member[m].tensor;
    uint64_t entries = group->input.entries, update = entries * group->members;
    bool finishes = m < group->finishing;
    bool rounds = group->member[m].exchange.value != PAYLOAD_VALUE_F32;
    uint64_t returned = rounds ? 2 * entries : 0;

    update = update < group->input.numel ? update : group->input.numel;
    *tensor = (struct exchange_tensor){
        .shape = {.view = {1, group->input.numel, 1}, .max_count = entries},
        .numel = group->input.numel,
        .memory = &group->member[m].memory,
        .sent = {.position = malloc(entries * 4 + 1),
            .value = malloc(entries * 4 + 1),
            .capacity = entries},
        .rests = {.position = malloc(returned * 4 + 1),
            .value = malloc(returned * 4 + 1),
            .capacity = returned},
    };
    if (finishes) {
        tensor->update = (struct sparse){.position = malloc(update * 4 + 1),
            .value = malloc(update * 4 + 1),
            .capacity = update};
    }
    if (tensor->sent.position == NULL || tensor->sent.value == NULL ||
        tensor->rests.position == NULL || tensor->rests.value == NULL ||
        (finishes && (tensor->update.position == NULL || tensor->update.value == NULL))) {
        return false;
    }
    make_list(group, m, &tensor->sent);
    return true;
}

static void drop_input(struct member *member)
{
    free(member->tensor.sent.position);
    free(member->tensor.sent.value);
    free(member->tensor.rests.position);
    free(member->tensor.rests.value);
    free(member->tensor.update.position);
    free(member->tensor.update.value);
    member->tensor = (struct exchange_tensor){0};
}

/* ------------------------------------------------------------------ frames */

static void frame_unref(struct frame *frame)
{
    if (frame != NULL && --frame->references == 0) {
        free(frame->bytes);
        free(frame);
    }
}

static void drop_frames(const struct group *group, struct member *member, unsigned phase)
{
    for (unsigned m = 0; m < group->members; m++) {
        unsigned at = phase * group->members + m;
        frame_unref(member->frame[at]);
        member->frame[at] = NULL;
        member->input[at] = (struct exchange_input){0};
    }
}

static bool fail(const struct group *group, const char *text)
{
    (void)snprintf(group->text, ERROR_TEXT_SIZE, "%s", text);
    return false;
}

/* Sends the frames that a member has produced. */
static bool send_frames(struct group *group, unsigned self)
{
    struct member *member = &group->member[self];
    struct exchange *exchange = &member->exchange;
    bool sent = true;

    for (unsigned i = 0; sent && i < exchange->outgoing_count; i++) {
        struct exchange_frame *out = &exchange->outgoing[i];
        struct frame *frame = malloc(sizeof(*frame));
        if (frame == NULL) {
            return fail(group, "no memory for a frame");
        }
        *frame = (struct frame){.bytes = out->frame.bytes,
            .size = out->frame.size,
            .phase = member->phase,
            .references = 1};
        out->frame = (struct payload_writer){0};
        for (unsigned r = 1; sent && r < group->members; r++) {
            unsigned to = (self + r) % group->members;
            struct fabric_message message = {
                .from = self, .to = to, .bytes = frame->size, .cargo = frame};
            if (out->to == EXCHANGE_ALL || out->to == to) {
                member->sent += frame->size - PAYLOAD_HEADER_SIZE;
                sent = fabric_send(group->fabric, member->time, &message) ||
                       fail(group, "no memory for a message");
                frame->references += sent;
            }
        }
        frame_unref(frame);
    }
    exchange_drop_frames(exchange);
    return sent;
}

/* Goes on while nothing is missing. */
static bool advance(struct group *group, unsigned self, double now)
{
    struct member *member = &group->member[self];
    struct error error = {ADTOPK_OK, ""};

    while (member->missing == 0 && !member->done) {
        member->time = now > member->time ? now : member->time;
        member->time += group->compute * (double)member->taken[member->phase];
        if (member->phase + 1 == group->phases) {
            member->done = true;
            group->done++;
            return true;
        }
        member->phase++;
        if (group->ops->produce(&member->exchange, member->phase, &error) != ADTOPK_OK) {
            return fail(group, error.text);
        }
        drop_frames(group, member, member->phase - 1);
        if (!send_frames(group, self)) {
            return false;
        }
        for (unsigned m = 0; m < group->members; m++) {
            member->missing += group->ops->expects(&member->exchange, member->phase, m) &&
                               member->input[member->phase * group->members + m].bytes == NULL;
        }
    }
    return true;
}

static bool receive(struct group *group, const struct fabric_message *message, double now)
{
    struct member *member = &group->member[message->to];
    struct frame *frame = message->cargo;
    unsigned at = frame->phase * group->members + message->from;
    bool due = frame->phase == member->phase;

    if (member->frame[at] != NULL || frame->phase < member->phase ||
        (due && !group->ops->expects(&member->exchange, frame->phase, message->from))) {
        frame_unref(frame);
        return fail(group, "a member got a frame that it does not expect");
    }
    member->messages++;
    member->headers += PAYLOAD_HEADER_SIZE;
    member->bytes += frame->size - PAYLOAD_HEADER_SIZE;
    member->taken[frame->phase] += frame->size - PAYLOAD_HEADER_SIZE;
    member->frame[at] = frame;
    member->input[at] = (struct exchange_input){.bytes = frame->bytes, .size = frame->size};
    member->missing -= due;
    return advance(group, message->to, now);
}

/* ------------------------------------------------------------------ a step */

static bool begin(struct group *group, unsigned m)
{
    struct member *member = &group->member[m];
    struct exchange *exchange = &member->exchange;
    struct error error = {ADTOPK_OK, ""};

    if (!make_input(group, m)) {
        return fail(group, "no memory for the lists");
    }
    exchange->header = (struct payload_header){
        .run = 1, .number = group->steps, .view = 1, .source = group->node[m]};
    member->phase = 0;
    member->missing = 0;
    member->done = false;
    member->time = 0;
    (void)memset(member->taken, 0, group->phases * sizeof(*member->taken));
    member->messages = member->bytes = member->headers = member->sent = 0;
    if (group->ops->produce(exchange, 0, &error) != ADTOPK_OK) {
        return fail(group, error.text);
    }
    for (unsigned from = 0; from < group->members; from++) {
        member->missing += group->ops->expects(exchange, 0, from);
    }
    return send_frames(group, m) && advance(group, m, 0);
}

static bool same_update(const struct sparse *a, const struct sparse *b)
{
    return a->count == b->count && memcmp(a->position, b->position, a->count * 4) == 0 &&
           memcmp(a->value, b->value, a->count * 4) == 0;
}

static bool finish(struct group *group)
{
    for (unsigned m = 0; m < group->finishing; m++) {
        struct error error = {ADTOPK_OK, ""};
        if (group->ops->finish(&group->member[m].exchange, &error) != ADTOPK_OK) {
            return fail(group, error.text);
        }
        if (!same_update(&group->member[m].tensor.update, &group->member[0].tensor.update)) {
            return fail(group, "two members have different sums");
        }
    }
    return true;
}

/* All members would remember the same from their sum as this one. */
static bool share_memory(struct group *group)
{
    const struct exchange_memory *first = &group->member[0].memory;

    for (unsigned m = group->finishing; m < group->members; m++) {
        struct exchange_memory *memory = &group->member[m].memory;
        uint32_t *cut = memory->cut;
        if (first->cuts > 0) {
            cut = realloc(memory->cut, first->cuts * sizeof(*cut));
            if (cut == NULL) {
                return fail(group, "no memory for what a member remembers");
            }
            (void)memcpy(cut, first->cut, first->cuts * sizeof(*cut));
        }
        *memory = *first;
        memory->cut = cut;
    }
    return true;
}

static void measure(const struct group *group, struct group_step *step)
{
    double members = group->members;
    uint64_t first = 0, first_max = 0;

    for (unsigned m = 0; m < group->members; m++) {
        const struct member *member = &group->member[m];
        step->seconds = member->time > step->seconds ? member->time : step->seconds;
        step->entries += (double)member->tensor.sent.count;
        step->bytes += (double)member->bytes;
        step->headers += (double)member->headers;
        first += member->taken[0];
        first_max = member->taken[0] > first_max ? member->taken[0] : first_max;
        step->bytes_max = member->bytes > step->bytes_max ? member->bytes : step->bytes_max;
        step->sent_max = member->sent > step->sent_max ? member->sent : step->sent_max;
        step->messages = member->messages > step->messages ? member->messages : step->messages;
    }
    step->entries /= members;
    step->bytes /= members;
    step->headers /= members;
    step->imbalance = first > 0 ? (double)first_max * members / (double)first : 1;
    step->update = group->member[0].tensor.update.count;
}

static bool exchange_all(struct group *group)
{
    struct fabric_message message;
    double now;
    bool good = true;

    for (unsigned m = 0; good && m < group->members; m++) {
        good = begin(group, m);
    }
    while (good && fabric_next(group->fabric, &message, &now)) {
        good = receive(group, &message, now);
    }
    if (good && group->done < group->members) {
        good = fail(group, "some members wait for frames that nobody sent");
    }
    return good && finish(group) && share_memory(group);
}

/* After a step that failed, messages may still be on their way. */
static void drop_under_way(struct group *group)
{
    struct fabric_message message;
    double now;

    while (group->fabric != NULL && fabric_next(group->fabric, &message, &now)) {
        frame_unref(message.cargo);
    }
    fabric_close(group->fabric);
    group->fabric = NULL;
}

bool group_run(struct group *group, const struct fabric_links *links, struct group_step *step,
    char text[ERROR_TEXT_SIZE])
{
    bool good;

    *step = (struct group_step){0};
    group->text = text;
    group->done = 0;
    group->fabric = fabric_open(links, group->members);
    good = group->fabric != NULL ? exchange_all(group) : fail(group, "no memory for links");
    if (good) {
        measure(group, step);
    }
    drop_under_way(group);
    for (unsigned m = 0; m < group->members; m++) {
        for (unsigned phase = 0; phase < group->phases; phase++) {
            drop_frames(group, &group->member[m], phase);
        }
        exchange_drop(&group->member[m].exchange);
        drop_input(&group->member[m]);
    }
    group->steps++;
    return good;
}

/* ------------------------------------------------------------------ the group */

struct group *group_open(const struct collective_ops *ops, unsigned members,
    const struct group_input *input, unsigned finishing)
{
    struct group *group = calloc(1, sizeof(*group));
    bool good = group != NULL;

    if (!good) {
        return NULL;
    }
    *group = (struct group){.ops = ops,
        .members = members,
        .input = *input,
        .finishing = finishing < members ? finishing : members,
        .node = calloc(members, sizeof(*group->node)),
        .member = calloc(members, sizeof(*group->member))};
    good = group->node != NULL && group->member != NULL;
    for (unsigned m = 0; good && m < members; m++) {
        struct member *member = &group->member[m];
        group->node[m] = (uint16_t)m;
        member->exchange = (struct exchange){.ops = ops,
            .members = members,
            .self = m,
            .node = group->node,
            .value = PAYLOAD_VALUE_BF16,
            .scale = 1.0f / (float)members,
            .tensors = 1,
            .tensor = &member->tensor};
        group->phases = ops->phases(&member->exchange);
        member->input = calloc((size_t)group->phases * members, sizeof(*member->input));
        member->frame = calloc((size_t)group->phases * members, sizeof(*member->frame));
        member->taken = calloc(group->phases, sizeof(*member->taken));
        member->exchange.input = member->input;
        good = member->input != NULL && member->frame != NULL && member->taken != NULL;
    }
    if (!good) {
        group_close(group);
        return NULL;
    }
    return group;
}

void group_encode(struct group *group, enum payload_index index, enum payload_value value)
{
    for (unsigned m = 0; m < group->members; m++) {
        group->member[m].exchange.index = index;
        group->member[m].exchange.value = value;
    }
}

void group_compute(struct group *group, double seconds_a_byte)
{
    group->compute = seconds_a_byte;
}

void group_close(struct group *group)
{
    for (unsigned m = 0; group != NULL && group->member != NULL && m < group->members; m++) {
        free(group->member[m].memory.cut);
        free(group->member[m].input);
        free(group->member[m].frame);
        free(group->member[m].taken);
    }
    if (group != NULL) {
        free(group->node);
        free(group->member);
        free(group);
    }
}

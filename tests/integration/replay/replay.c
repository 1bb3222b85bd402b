/*
 * Replays gradients through the library, as one rank of four, and compares every update with the
 * reference.
 *
 *     test-replay CAPTURE LAYOUT ADDRESS JOB RANK STEPS RULE DENSITY POLICY
 *
 * After the commit it prints "committed" and reads a line: for each tensor a 1 if the daemon says
 * that it is sent dense, else a 0; or "-", and this rank compares nothing. At the end it prints the
 * number of elements and list entries compared, of the elements that differ, a hash of all updates,
 * and the largest loss of the reference. A list that differs from the dense form ends the program.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/replay/capture.h"
#include "tests/integration/replay/rank.h"
#include "tests/integration/replay/reference.h"
#include "tests/integration/replay/tape.h"

struct replay {
    struct capture capture;
    struct rank *rank;
    struct reference *reference; /* [tensors]; NULL: nothing is compared */
    unsigned number;
    uint64_t elements, entries, sets, values, hash;
};

static void replay_hash(struct replay *replay, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        replay->hash = (replay->hash ^ ((const uint8_t *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
}

/* The list has each index once and what the dense form has there; elsewhere that is 0. */
static int replay_forms_agree(const struct rank_update *update, uint64_t numel)
{
    uint8_t *seen = tape_need(numel, 1);
    int agree = 1;

    for (uint64_t i = 0; i < update->count; i++) {
        const uint32_t at = update->index[i];
        agree = agree && at < numel && !seen[at] &&
                memcmp(&update->dense[at], &update->value[i], sizeof(float)) == 0;
        seen[at < numel ? at : 0] = 1;
    }
    for (uint64_t i = 0; i < numel; i++) {
        agree = agree && (seen[i] || update->dense[i] == 0);
    }
    free(seen);
    return agree;
}

/* In the list are the elements that some node selected. */
static void replay_compare(
    struct replay *replay, struct reference *reference, const struct rank_update *update)
{
    uint64_t selected = 0, listed = 0;

    for (uint64_t i = 0; i < reference->numel; i++) {
        replay->values += !(update->dense[i] == reference->update[i]);
        selected += reference->in_list[i];
    }
    for (uint64_t i = 0; i < update->count; i++) {
        listed += reference->in_list[update->index[i]];
    }
    if (update->index != NULL) {
        replay->sets += update->count - listed + (selected - listed);
    }
    replay->elements += reference->numel;
    replay->entries += update->count;
}

static void replay_refer(struct replay *replay, uint64_t step, uint32_t t)
{
    const struct capture_tensor *tensor = &replay->capture.tensor[t];
    const float *gradient[REFERENCE_RANKS];

    for (unsigned rank = 0; rank < REFERENCE_RANKS; rank++) {
        gradient[rank] = capture_gradient(&replay->capture, step, rank) + tensor->offset;
    }
    reference_step(&replay->reference[t], gradient);
}

static int replay_step(struct replay *replay, uint64_t step)
{
    const struct capture *capture = &replay->capture;
    const float *gradient = capture_gradient(capture, step, replay->number);

    for (uint32_t t = 0; t < capture->header.tensors; t++) {
        if (!rank_push(replay->rank, t, gradient + capture->tensor[t].offset)) {
            return 0;
        }
    }
    if (!rank_step(replay->rank)) {
        return 0;
    }
    for (uint32_t t = 0; t < capture->header.tensors; t++) {
        const uint64_t numel = capture->tensor[t].numel;
        struct rank_update update;
        if (!rank_update(replay->rank, t, &update)) {
            return 0;
        }
        if (update.dense == NULL || (update.index != NULL && !replay_forms_agree(&update, numel))) {
            (void)fprintf(stderr, "the forms of %s differ\n", capture->tensor[t].name);
            return 0;
        }
        replay_hash(replay, update.dense, numel * sizeof(float));
        if (replay->reference != NULL) {
            replay_refer(replay, step, t);
            replay_compare(replay, &replay->reference[t], &update);
        }
    }
    return 1;
}

/* Reads which tensors are dense; false: nonsense. */
static int replay_begin(struct replay *replay, enum reference_rule rule, double density)
{
    const struct capture *capture = &replay->capture;
    const uint32_t tensors = capture->header.tensors;
    char *line = tape_need(tensors + 2, 1);
    int done = fgets(line, (int)tensors + 2, stdin) != NULL;

    if (done && line[0] != '-') {
        done = strspn(line, "01") == tensors;
        replay->reference = tape_need(tensors, sizeof(*replay->reference));
        for (uint32_t t = 0; done && t < tensors; t++) {
            reference_init(&replay->reference[t], rule, density, line[t] == '1',
                capture->tensor[t].dims, capture->tensor[t].shape);
        }
    }
    free(line);
    return done;
}

static int replay_open(struct replay *replay, char **argv)
{
    const struct capture *capture = &replay->capture;

    replay->rank = rank_open(argv[3], argv[4], (int)replay->number, REFERENCE_RANKS, argv[9]);
    for (uint32_t t = 0; replay->rank != NULL && t < capture->header.tensors; t++) {
        const struct capture_tensor *tensor = &capture->tensor[t];
        if (!rank_register(replay->rank, tensor->name, tensor->dims, tensor->shape)) {
            return 0;
        }
    }
    return replay->rank != NULL && rank_commit(replay->rank);
}

static void replay_report(struct replay *replay)
{
    double loss = 0;

    for (uint32_t t = 0; replay->reference != NULL && t < replay->capture.header.tensors; t++) {
        loss = fmax(loss, reference_loss(&replay->reference[t]));
        reference_free(&replay->reference[t]);
    }
    free(replay->reference);
    (void)printf("%llu %llu %llu %llu %016llx %g\n", (unsigned long long)replay->elements,
        (unsigned long long)replay->entries, (unsigned long long)replay->sets,
        (unsigned long long)replay->values, (unsigned long long)replay->hash, loss);
}

static int replay_rule(const char *name, enum reference_rule *rule)
{
    static const char *const names[] = {"topk", "fibre", "row", "longest", "chunk"};

    for (unsigned i = 0; i < 5; i++) {
        if (strcmp(names[i], name) == 0) {
            *rule = (enum reference_rule)i;
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct replay replay = {.hash = UINT64_C(0xcbf29ce484222325)};
    enum reference_rule rule;
    uint64_t steps;

    if (argc != 10 || !replay_rule(argv[7], &rule)) {
        (void)fprintf(
            stderr, "usage: %s CAPTURE LAYOUT ADDRESS JOB RANK STEPS RULE DENSITY POLICY\n", *argv);
        return 2;
    }
    replay.number = (unsigned)strtoul(argv[5], NULL, 10);
    steps = strtoull(argv[6], NULL, 10);
    if (!capture_open(&replay.capture, argv[1]) || !capture_cut(&replay.capture, argv[2]) ||
        !replay_open(&replay, argv)) {
        return 1;
    }
    (void)printf("committed\n");
    (void)fflush(stdout);
    if (!replay_begin(&replay, rule, strtod(argv[8], NULL))) {
        return 1;
    }
    for (uint64_t step = 0; step < steps; step++) {
        if (!replay_step(&replay, step)) {
            return 1;
        }
    }
    replay_report(&replay);
    rank_close(replay.rank);
    capture_close(&replay.capture);
    return 0;
}

/*
 * Fuzz target: what a killed daemon left in its store, spoiled. The file's last page is right, as
 * after a fault of memory. The next core may refuse the store, or go on with wrong numbers. It does
 * not crash, hang, or leave the store's bounds.
 *
 * The input is a byte that picks the policy, a byte that picks the moment of the kill, and the
 * changes: part, two bytes of place, four more bits of place and of value.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/peer_host.h"

#define CHANGE 4u
#define CHANGES_MAX 16u
#define STEPS 3u /* before the kill, at most */

enum { REFLEXES = REFLEX_JOIN | REFLEX_STATE | REFLEX_COMMIT | REFLEX_FRAME | REFLEX_COPY };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const policies[] = {
    "{\"density\":0.1,\"bucket_bytes\":600}",
    "{\"density\":0.1,\"scope\":\"rank\",\"values\":\"f32\"}",
    "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"dense_collective\":\"ring\"}",
    "{\"sparsifier\":\"topk\",\"residual\":\"bf16\",\"density\":0.2}",
    "{\"sparsifier\":\"topk\",\"momentum\":0.9,\"density\":0.2}",
    "{\"sparsifier\":\"sidco\",\"density\":0.1}",
    "{\"sparse_collective\":\"oktopk\",\"density\":0.1,\"sparsifier\":\"dgc\"}",
    "{\"sparse_collective\":\"balanced\",\"interleave\":true,\"estimate\":true,\"density\":0.1}",
};

static void store_push(struct pair *pair, uint32_t tensors)
{
    for (uint32_t t = 0; t < tensors && pair->session != 0; t++) {
        struct event event = {.type = EVENT_RANK_PUSH};

        pair_fill(pair, t, (uint8_t)(t + pair->step + 1));
        event.step.tensor = t;
        event.step.number = pair->step;
        pair_event(pair, event);
        pair_pump(pair);
    }
}

static void store_step(struct pair *pair)
{
    struct event event = {.type = EVENT_RANK_STEP_END};

    store_push(pair, HOST_TENSORS);
    if (pair->session != 0) {
        event.step.number = pair->step;
        pair_event(pair, event);
        pair_pump(pair);
    }
}

/* One change of a byte. Most changes are near the beginning, where the records lie. */
static void store_spoil(struct host_memory *memory, const uint8_t *change)
{
    struct host_area *area =
        change[0] % 16 == 15 ? &memory->results : &memory->store[change[0] % 16 % CORE_STORE_PARTS];
    const uint64_t place = change[1] | (uint64_t)change[2] << 8 | (uint64_t)(change[0] / 16) << 16;

    if (area->bytes != NULL && area->size > 0) {
        area->bytes[place % area->size] ^= change[3];
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct pair pair; /* large */

    if (size < 2) {
        return 0;
    }
    pair_init(&pair, data[0] & 1 ? 2 : 0, policies[data[0] / 2 % 8], REFLEXES);
    for (unsigned i = 0; i < 1 + data[1] % STEPS; i++) {
        store_step(&pair);
    }
    pair.host.hold = (data[1] & 64) != 0; /* killed while computes wait */
    store_push(&pair, data[1] / 4 % (HOST_TENSORS + 1));
    for (unsigned i = 0; i < CHANGES_MAX && size - 2 >= (i + 1) * CHANGE; i++) {
        store_spoil(&pair.host.memory, data + 2 + (size_t)i * CHANGE);
    }
    pair.host.hold = false;
    pair_restart_core(&pair);
    for (unsigned i = 0; i < 2; i++) {
        store_step(&pair);
    }
    pair_event(&pair, (struct event){.type = EVENT_VERIFY, .asked = {.job = pair.job}});
    pair_pump(&pair);
    pair_free(&pair);
    return 0;
}

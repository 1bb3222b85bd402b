#include "tests/cuda/driver/sides.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/unit/arrays.h"

struct sides sides = {.size = {100, 5000, SIDES_LARGE}};

/* ------------------------------------------------------------------ set-up */

static void sides_wake(void *context)
{
    const uint64_t one = 1;

    (void)context;
    (void)!write(sides.wakes, &one, sizeof(one));
}

uint64_t sides_first(unsigned tensor)
{
    uint64_t first = 0;

    for (unsigned t = 0; t < tensor; t++) {
        first += chunk_count(sides.size[t]) * CHUNK; /* engine_cuda.alignment */
    }
    return first;
}

uint64_t sides_progress(unsigned tensor)
{
    uint64_t first = 0;

    for (unsigned t = 0; t < tensor; t++) {
        first += (progress_size(sides.size[t]) + 63) / 64 * 64;
    }
    return first;
}

static uint64_t sides_entries(unsigned tensor)
{
    return sides.size[tensor] / 10;
}

static void sides_make(struct side *side)
{
    const uint64_t all = sides_first(TENSORS);

    *side = (struct side){.memory = {.job = JOB,
                              .gradients = side->gradients,
                              .shards = 1,
                              .batches = 1,
                              .shard_end = {{TENSORS}}}};
    side->memory.store[MAIN] = calloc(2, sides_progress(TENSORS));
    side->memory.store[RANK] = calloc(all, sizeof(float));
    side->memory.store[RESIDUALS] = calloc(all, sizeof(float));
    side->memory.store[OTHER] = calloc(all, sizeof(float));
    side->memory.store[VELOCITIES] = calloc(2 * all, sizeof(float));
    side->memory.store[NEXT_VELOCITIES] = calloc(all, sizeof(float));
    side->list = calloc(2 * all, sizeof(float));
    side->read = calloc(all, sizeof(float));
    assert_true(engine_batch_init(&side->batch, &side->memory, 4 * TENSORS, 2 * TENSORS * RANKS));
    for (unsigned r = 0; r < RANKS; r++) {
        side->gradients[r] = (const uint8_t *)sides.gradient[r];
    }
}

static void sides_drop(struct side *side)
{
    free(side->memory.store[MAIN]);
    free(side->memory.store[RANK]);
    free(side->memory.store[RESIDUALS]);
    free(side->memory.store[OTHER]);
    free(side->memory.store[VELOCITIES]);
    free(side->memory.store[NEXT_VELOCITIES]);
    free(side->list);
    free(side->read);
    engine_batch_free(&side->batch);
}

struct device_part sides_part(unsigned number, uint64_t size)
{
    return (struct device_part){.job = JOB,
        .owner = OWNER,
        .number = number,
        .size = size,
        .residuals = number != MAIN,
        .rounded = number == RESIDUALS || number == OTHER};
}

uint64_t sides_size(unsigned number)
{
    const uint64_t residuals = sides_first(TENSORS) * sizeof(float);

    return number == MAIN         ? 2 * sides_progress(TENSORS)
           : number == VELOCITIES ? 2 * residuals
                                  : residuals;
}

void sides_open_part(unsigned number, uint64_t size)
{
    const struct device_part part = sides_part(number, size);
    struct error err;

    assert_int_equal(
        device_open_part(sides.device, &part, &(struct device_left){.store = 0}, &err), ADTOPK_OK);
}

void sides_prepare(uint64_t largest)
{
    sides.size[TENSORS - 1] = largest;
    for (unsigned r = 0; r < RANKS; r++) {
        sides.gradient[r] = calloc(sides_first(TENSORS), sizeof(float));
    }
    sides_make(&sides.host);
    sides_make(&sides.cuda);
    sides.wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

void sides_start(const char *streams, const char *fails, unsigned patience_ms)
{
    /* A worker whose kernels run under a sanitizer on a busy machine takes long, but is no hung
     * one. */
    const unsigned patience = patience_ms == 0 ? CASES(1, 10) * DEVICE_PATIENCE_MS : patience_ms;
    const struct device_config config = {
        .program = getenv("ADTOPK_DEVICE_PROGRAM"), .patience_ms = patience, .wake = sides_wake};
    struct error err;

    (void)setenv("ADTOPK_TEST_CUDA_STREAMS", streams, 1);
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", fails, 1);
    sides.trouble[0] = '\0';
    sides.device = device_create(&config, &err);
    if (sides.device == NULL) {
        fail_msg("%s", err.text);
    }
}

void sides_open(const char *streams, const char *fails, unsigned patience_ms, uint64_t largest)
{
    static const unsigned numbers[] = {MAIN, RANK, RESIDUALS, VELOCITIES};

    sides_prepare(largest);
    sides_start(streams, fails, patience_ms);
    for (unsigned i = 0; i < 4; i++) {
        sides_open_part(numbers[i], sides_size(numbers[i]));
    }
}

void sides_close(void)
{
    device_stop(sides.device);
    device_drop_part(sides.device, JOB, MAIN);
    device_destroy(sides.device);
    sides_drop(&sides.host);
    sides_drop(&sides.cuda);
    for (unsigned r = 0; r < RANKS; r++) {
        free(sides.gradient[r]);
    }
    (void)close(sides.wakes);
}

/* ------------------------------------------------------------------ orders */

bool sides_is_rounded(unsigned t)
{
    return sides.rounded && t != SIDES_F32;
}

struct engine_order *sides_order(struct side *side, enum engine_kind kind, unsigned t)
{
    struct engine_order *order = engine_batch_add(&side->batch, kind);

    order->tensor = t;
    order->numel = sides.size[t];
    order->dtype = DTYPE_F32;
    order->residual.element = (struct engine_place){RESIDUALS, sides_first(t) * sizeof(float)};
    order->residual.progress = (struct engine_place){MAIN, sides_progress(t)};
    order->stamp = 0;
    order->residual.rounded = sides_is_rounded(t);
    order->residual.salt = 17 + t;
    order->residual.number = t;
    return order;
}

/* Where the velocity of the node's residual lies, or of the rank's behind those. */
struct engine_place sides_velocity(unsigned t, bool rank)
{
    const uint64_t first = (rank ? sides_first(TENSORS) : 0) + sides_first(t);

    return (struct engine_place){VELOCITIES, first * sizeof(float)};
}

/* Some tensors have velocities. */
bool sides_moves(unsigned t)
{
    return t % 2 == 0 && !sides_is_rounded(t);
}

static struct engine_list sides_list(const struct side *side, unsigned t)
{
    return (struct engine_list){.position = engine_here(side->list + 2 * sides_first(t)),
        .value = engine_here(side->list + 2 * sides_first(t) + sides_entries(t)),
        .count = sides_entries(t)};
}

/* What ADD has selected. */
struct engine_list sides_selected(const struct side *side, unsigned t)
{
    struct engine_list list = sides_list(side, t);

    list.count = side->selected[t];
    return list;
}

uint32_t sides_sparsifier(const char *name)
{
    uint32_t number = 0;

    while (strcmp(sparsifier_table[number]->name, name) != 0) {
        number++;
    }
    return number;
}

void sides_add(struct side *side, unsigned t, uint64_t stamp)
{
    struct engine_order *order = sides_order(side, ENGINE_ADD, t);

    order->stamp = stamp;
    order->ledger = engine_here(side->ledger[t]);
    order->add = (struct engine_add){.selects = true,
        .sparsifier = sides_sparsifier("topk"),
        .shape = {.dims = 2, .size = {1, sides.size[t]}},
        .params = {.density = 0.1, .beta = 1, .gamma = 1},
        .turn = stamp,
        .hints = engine_here(side->hints[t]),
        .list = sides_list(side, t)};
    if (sides_moves(t)) {
        order->add.params.momentum = 0.9;
        order->residual.momentum = sides_velocity(t, false);
    } else if (!sides_is_rounded(t)) {
        order->add.params.beta = 0.75;
        order->lost = engine_here(side->lost[t]);
    }
    for (unsigned r = 0; r < RANKS; r++) {
        engine_batch_part(&side->batch)->element =
            (struct engine_place){ENGINE_GRADIENTS + r, sides_first(t) * sizeof(float)};
    }
}

void sides_add_plain(struct side *side, unsigned t, uint64_t stamp, const char *sparsifier)
{
    struct engine_order *order;

    sides_add(side, t, stamp);
    order = &side->batch.order[side->batch.count - 1];
    order->residual.momentum = engine_nowhere;
    order->lost = engine_nowhere;
    order->add.params.momentum = 0;
    order->add.params.beta = 1;
    order->add.sparsifier = sides_sparsifier(sparsifier);
    order->add.shape = (struct tensor_shape){2, {sides.size[t] / 20, 20}};
}

void sides_leave(struct side *side, unsigned t)
{
    struct engine_order *order = sides_order(side, ENGINE_LEAVE, t);

    order->leave =
        (struct engine_leave){.view = {.fibres = 1, .length = sides.size[t], .stride = 1},
            .sent = sides_selected(side, t),
            .accepted = engine_nowhere,
            .before = sides_list(side, t).value,
            .masks = sides_moves(t)};
    if (sides_moves(t)) {
        order->residual.momentum = sides_velocity(t, false);
    }
}

void sides_read(struct side *side, unsigned t)
{
    struct engine_order *order = sides_order(side, ENGINE_READ, t);

    order->gather = (struct engine_gather){.list = {.position = engine_nowhere,
                                               .value = engine_here(side->read + sides_first(t)),
                                               .count = sides.size[t]}};
    (void)sides_order(side, ENGINE_SUMS, t);
}

static void sides_run_host(void)
{
    const struct parallel alone = {.threads = 0};

    engine_host.run(NULL, &sides.host.batch, &alone);
}

/* Waits for the next thing that is not just a line for the log. */
struct device_event sides_event(void)
{
    struct pollfd wait = {.fd = sides.wakes, .events = POLLIN};
    struct device_event event;
    uint64_t ignored;

    for (;;) {
        while (device_take(sides.device, &event)) {
            if (event.type == DEVICE_TROUBLE) {
                (void)snprintf(sides.trouble, sizeof(sides.trouble), "%s", event.text);
            } else if (event.type != DEVICE_NOTE) {
                return event;
            }
        }
        assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
        (void)!read(sides.wakes, &ignored, sizeof(ignored));
    }
}

void sides_wait_for_use(uint64_t residuals)
{
    struct device_info info;

    assert_true(device_info(sides.device, 0, &info));
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && info.use.residuals != residuals;
         waited_ms++) {
        (void)usleep(1000);
        assert_true(device_info(sides.device, 0, &info));
    }
    assert_int_equal(info.use.residuals, residuals);
}

void sides_kill(void)
{
    const struct timespec moment = {.tv_nsec = (long)random_below(20000000)};
    struct device_worker_info info;

    (void)nanosleep(&moment, NULL);
    assert_true(device_worker_info(sides.device, 0, &info));
    if (info.pid > 0) {
        (void)kill(info.pid, SIGKILL);
    }
}

void sides_forget(void)
{
    struct device_worker_info info;
    char path[] = "/tmp/adtopk-forgets-XXXXXX";
    const int file = mkstemp(path);

    assert_true(file >= 0);
    (void)close(file);
    (void)setenv("ADTOPK_TEST_CUDA_FORGETS", path, 1);
    assert_true(device_worker_info(sides.device, 0, &info));
    (void)kill(info.pid, SIGKILL);
    while (info.losses == 0) {
        (void)usleep(1000);
        assert_true(device_worker_info(sides.device, 0, &info));
    }
    (void)unlink(path);
    (void)unsetenv("ADTOPK_TEST_CUDA_FORGETS");
}

void sides_lose_on_host(void)
{
    const uint64_t bytes = sides_first(TENSORS) * sizeof(float);

    (void)memset(sides.host.memory.store[RESIDUALS], 0, bytes);
    (void)memset(sides.host.memory.store[RANK], 0, bytes);
    (void)memset(sides.host.memory.store[VELOCITIES], 0, 2 * bytes);
}

void sides_losses_told(bool told)
{
    for (unsigned i = 0; i < sides.cuda.batch.count; i++) {
        assert_int_equal(sides.cuda.batch.result[i].emptied, told);
        sides.cuda.batch.result[i].emptied = 0;
    }
}

void sides_compare(void)
{
    const uint64_t all = sides_first(TENSORS);

    assert_int_equal(sides.cuda.batch.count, sides.host.batch.count);
    for (unsigned i = 0; i < sides.cuda.batch.count; i++) {
        assert_memory_equal(
            &sides.cuda.batch.result[i], &sides.host.batch.result[i], sizeof(struct engine_result));
    }
    assert_true(memcmp(sides.cuda.list, sides.host.list, 2 * all * sizeof(float)) == 0);
    assert_true(memcmp(sides.cuda.read, sides.host.read, all * sizeof(float)) == 0);
    assert_memory_equal(sides.cuda.ledger, sides.host.ledger, sizeof(sides.host.ledger));
    assert_memory_equal(sides.cuda.lost, sides.host.lost, sizeof(sides.host.lost));
    engine_batch_clear(&sides.cuda.batch);
    engine_batch_clear(&sides.host.batch);
}

/* Both sides carry their batch out. */
void sides_run(void (*beside)(void))
{
    struct device_event event;

    sides_run_host();
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    if (beside != NULL) {
        beside();
    }
    event = sides_event();
    if (event.type != DEVICE_DONE) {
        fail_msg("the device did not carry the batch out: %s", sides.trouble);
    }
    assert_ptr_equal(event.batch, &sides.cuda.batch);
}

/* One step of all tensors, on both sides. */
void sides_step(uint64_t number, void (*beside)(void))
{
    struct side *const side[] = {&sides.host, &sides.cuda};

    for (unsigned r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < sides_first(TENSORS); i++) {
            sides.gradient[r][i] = random_value();
        }
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_add(&sides.host, t, number);
        sides_add(&sides.cuda, t, number);
    }
    sides_run(beside);
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned t = 0; t < TENSORS; t++) {
            side[s]->selected[t] = side[s]->batch.result[t].count;
        }
    }
    sides_compare();
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_leave(&sides.host, t);
        sides_read(&sides.host, t);
        sides_leave(&sides.cuda, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(beside);
    sides_compare();
}

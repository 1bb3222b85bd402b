/*
 * The engine cuda against the engine of this processor: the same orders leave the same bits,
 * whatever becomes of the worker. One job with three tensors of different sizes; the largest goes
 * through staging memory many times over.
 */
#include "daemon/device/device.h"

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/unit/arrays.h"

#define TENSORS 3u
#define RANKS 8u
#define JOB 7u
#define OWNER 1000u
#define WAIT_MS 60000

#define LARGE 600000u /* its gradients are more than all staging memory */
#define MEDIUM 60000u

static uint64_t sizes[TENSORS] = {100, 5000, LARGE};

enum { MAIN = 0, RANK = 1, RESIDUALS = 4, OTHER = 5 }; /* the parts of the store that are used */

/* A job's memory on one side. */
struct side {
    struct engine_memory memory;
    const uint8_t *gradients[RANKS];
    float *list; /* positions, then values, of each tensor */
    float *read; /* what READ has read, all tensors */
    double ledger[TENSORS][2];
    float hints[TENSORS][1];
    uint64_t selected[TENSORS];
    struct engine_batch batch;
};

static struct device *device;
static int wakes;
static struct side host, cuda;
static float *gradient[RANKS];
static char trouble[ERROR_TEXT_SIZE]; /* the last that was told */

/* ------------------------------------------------------------------ set-up */

static void wake(void *context)
{
    const uint64_t one = 1;

    (void)context;
    (void)!write(wakes, &one, sizeof(one));
}

static uint64_t first_of(unsigned tensor)
{
    uint64_t first = 0;

    for (unsigned t = 0; t < tensor; t++) {
        first += chunk_count(sizes[t]) * CHUNK; /* engine_cuda.alignment */
    }
    return first;
}

static uint64_t progress_of(unsigned tensor)
{
    uint64_t first = 0;

    for (unsigned t = 0; t < tensor; t++) {
        first += (progress_size(sizes[t]) + 63) / 64 * 64;
    }
    return first;
}

static uint64_t entries_of(unsigned tensor)
{
    return sizes[tensor] / 10;
}

static void make_side(struct side *side)
{
    const uint64_t all = first_of(TENSORS);

    *side = (struct side){.memory = {.job = JOB, .gradients = side->gradients}};
    side->memory.store[MAIN] = calloc(2, progress_of(TENSORS));
    side->memory.store[RANK] = calloc(all, sizeof(float));
    side->memory.store[RESIDUALS] = calloc(all, sizeof(float));
    side->memory.store[OTHER] = calloc(all, sizeof(float));
    side->list = calloc(2 * all, sizeof(float));
    side->read = calloc(all, sizeof(float));
    assert_true(engine_batch_init(&side->batch, &side->memory, 4 * TENSORS, 2 * TENSORS * RANKS));
    for (unsigned r = 0; r < RANKS; r++) {
        side->gradients[r] = (const uint8_t *)gradient[r];
    }
}

static void drop_side(struct side *side)
{
    free(side->memory.store[MAIN]);
    free(side->memory.store[RANK]);
    free(side->memory.store[RESIDUALS]);
    free(side->memory.store[OTHER]);
    free(side->list);
    free(side->read);
    engine_batch_free(&side->batch);
}

static void open_part(unsigned number, uint64_t size)
{
    const struct device_part part = {
        .job = JOB, .owner = OWNER, .number = number, .size = size, .residuals = number != MAIN};
    struct error err;

    assert_int_equal(device_open_part(device, &part, &err), ADTOPK_OK);
}

static void open_device(
    const char *streams, const char *fails, unsigned patience_ms, uint64_t largest)
{
    const struct device_config config = {
        .program = getenv("ADTOPK_DEVICE_PROGRAM"), .patience_ms = patience_ms, .wake = wake};
    struct error err;

    sizes[TENSORS - 1] = largest;
    (void)setenv("ADTOPK_TEST_CUDA_STREAMS", streams, 1);
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", fails, 1);
    for (unsigned r = 0; r < RANKS; r++) {
        gradient[r] = calloc(first_of(TENSORS), sizeof(float));
    }
    make_side(&host);
    make_side(&cuda);
    wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    trouble[0] = '\0';
    device = device_create(&config, &err);
    if (device == NULL) {
        fail_msg("%s", err.text);
    }
    open_part(MAIN, 2 * progress_of(TENSORS));
    open_part(RANK, first_of(TENSORS) * sizeof(float));
    open_part(RESIDUALS, first_of(TENSORS) * sizeof(float));
}

static void close_device(void)
{
    device_stop(device);
    device_drop_part(device, JOB, MAIN);
    device_destroy(device);
    drop_side(&host);
    drop_side(&cuda);
    for (unsigned r = 0; r < RANKS; r++) {
        free(gradient[r]);
    }
    (void)close(wakes);
}

/* ------------------------------------------------------------------ orders */

static struct engine_order *add_order(struct side *side, enum engine_kind kind, unsigned t)
{
    struct engine_order *order = engine_batch_add(&side->batch, kind);

    order->tensor = t;
    order->numel = sizes[t];
    order->dtype = DTYPE_F32;
    order->residual.element = (struct engine_place){RESIDUALS, first_of(t) * sizeof(float)};
    order->residual.progress = (struct engine_place){MAIN, progress_of(t)};
    order->stamp = 0;
    order->residual.rounded = false;
    order->residual.salt = 0;
    order->residual.number = t;
    return order;
}

static struct engine_list list_of(const struct side *side, unsigned t)
{
    return (struct engine_list){.position = engine_here(side->list + 2 * first_of(t)),
        .value = engine_here(side->list + 2 * first_of(t) + entries_of(t)),
        .count = entries_of(t)};
}

/* What ADD has selected. */
static struct engine_list selected_list(const struct side *side, unsigned t)
{
    struct engine_list list = list_of(side, t);

    list.count = side->selected[t];
    return list;
}

/* The number of a sparsifier in the table. */
static uint32_t topk(void)
{
    uint32_t number = 0;

    while (strcmp(sparsifier_table[number]->name, "topk") != 0) {
        number++;
    }
    return number;
}

static void order_add(struct side *side, unsigned t, uint64_t stamp)
{
    struct engine_order *order = add_order(side, ENGINE_ADD, t);

    order->stamp = stamp;
    order->ledger = engine_here(side->ledger[t]);
    order->add = (struct engine_add){.selects = true,
        .sparsifier = topk(),
        .shape = {.dims = 1, .size = {sizes[t]}},
        .params = {.density = 0.1, .beta = 1, .gamma = 1},
        .turn = stamp,
        .hints = engine_here(side->hints[t]),
        .list = list_of(side, t)};
    for (unsigned r = 0; r < RANKS; r++) {
        engine_batch_part(&side->batch)->element =
            (struct engine_place){ENGINE_GRADIENTS + r, first_of(t) * sizeof(float)};
    }
}

static void order_leave(struct side *side, unsigned t)
{
    struct engine_order *order = add_order(side, ENGINE_LEAVE, t);

    order->leave = (struct engine_leave){.view = {.fibres = 1, .length = sizes[t], .stride = 1},
        .sent = selected_list(side, t),
        .accepted = engine_nowhere,
        .kept = list_of(side, t).value};
}

static void order_read(struct side *side, unsigned t)
{
    struct engine_order *order = add_order(side, ENGINE_READ, t);

    order->gather = (struct engine_gather){.list = {.position = engine_nowhere,
                                               .value = engine_here(side->read + first_of(t)),
                                               .count = sizes[t]}};
    (void)add_order(side, ENGINE_SUMS, t);
}

static void run_host(void)
{
    const struct parallel alone = {.threads = 0};

    engine_host.run(NULL, &host.batch, &alone);
}

/* Waits for the next thing that is not just a line for the log. */
static struct device_event next_event(void)
{
    struct pollfd wait = {.fd = wakes, .events = POLLIN};
    struct device_event event;
    uint64_t ignored;

    for (;;) {
        while (device_take(device, &event)) {
            if (event.type == DEVICE_TROUBLE) {
                (void)snprintf(trouble, sizeof(trouble), "%s", event.text);
            } else if (event.type != DEVICE_NOTE) {
                return event;
            }
        }
        assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
        (void)!read(wakes, &ignored, sizeof(ignored));
    }
}

static void compare(void)
{
    const uint64_t all = first_of(TENSORS);

    assert_int_equal(cuda.batch.count, host.batch.count);
    for (unsigned i = 0; i < cuda.batch.count; i++) {
        assert_memory_equal(
            &cuda.batch.result[i], &host.batch.result[i], sizeof(struct engine_result));
    }
    assert_true(memcmp(cuda.list, host.list, 2 * all * sizeof(float)) == 0);
    assert_true(memcmp(cuda.read, host.read, all * sizeof(float)) == 0);
    assert_memory_equal(cuda.ledger, host.ledger, sizeof(host.ledger));
    engine_batch_clear(&cuda.batch);
    engine_batch_clear(&host.batch);
}

/* Both sides carry their batch out. */
static void run_both(void (*beside)(void))
{
    struct device_event event;

    run_host();
    engine_cuda.submit(device, &cuda.batch);
    if (beside != NULL) {
        beside();
    }
    event = next_event();
    assert_int_equal(event.type, DEVICE_DONE);
    assert_ptr_equal(event.batch, &cuda.batch);
}

/* One step of all tensors, on both sides. */
static void step(uint64_t number, void (*beside)(void))
{
    struct side *const sides[] = {&host, &cuda};

    for (unsigned r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < first_of(TENSORS); i++) {
            gradient[r][i] = random_value();
        }
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        order_add(&host, t, number);
        order_add(&cuda, t, number);
    }
    run_both(beside);
    for (unsigned s = 0; s < 2; s++) {
        for (unsigned t = 0; t < TENSORS; t++) {
            sides[s]->selected[t] = sides[s]->batch.result[t].count;
        }
    }
    compare();
    for (unsigned t = 0; t < TENSORS; t++) {
        order_leave(&host, t);
        order_read(&host, t);
        order_leave(&cuda, t);
        order_read(&cuda, t);
    }
    run_both(beside);
    compare();
}

/* ------------------------------------------------------------------ all kinds of orders */

/* The residual of a tensor in another part than the node's. */
static struct engine_place place_in(unsigned part, unsigned t)
{
    return (struct engine_place){part, first_of(t) * sizeof(float)};
}

/* The order is for the residual of a rank. */
static void of_rank(struct engine_order *order, unsigned t)
{
    order->residual.element = place_in(RANK, t);
    order->residual.progress.offset = progress_of(TENSORS) + progress_of(t);
}

/* Gradients come into the node's residual, or a rank's, and the k largest of each fibre are
 * selected, or none. */
static void kinds_add(struct side *side, uint64_t stamp, bool rank, enum engine_kind kind)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order;

        order_add(side, t, stamp);
        order = &side->batch.order[side->batch.count - 1];
        order->kind = kind;
        order->add.unscale = 0.5f;
        order->add.sparsifier = 0;
        while (strcmp(sparsifier_table[order->add.sparsifier]->name, "adtopk") != 0) {
            order->add.sparsifier++;
        }
        order->add.shape = (struct tensor_shape){2, {sizes[t] / 20, 20}};
        order->add.selects = kind == ENGINE_ADD;
        if (rank) {
            of_rank(order, t);
        }
    }
}

/* The rank's residual comes to the node's. */
static void kinds_join(struct side *side, uint64_t stamp)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = add_order(side, ENGINE_JOIN, t);

        order->stamp = stamp;
        engine_batch_part(&side->batch)->element = place_in(RANK, t);
    }
}

/* As if the tensor had been sent whole. */
static void kinds_take(struct side *side, uint64_t stamp)
{
    const struct engine_rest none = {
        .rounded = engine_nowhere, .low = engine_nowhere, .exact = engine_nowhere};

    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = add_order(side, ENGINE_TAKE, t);

        order->stamp = stamp;
        order->take =
            (struct engine_take_out){.values = QUANTISE_BF16, .sums = none, .update = none};
        order->take.update.exact = engine_here(side->read + first_of(t));
        order->take.update.count = sizes[t] / 2;
        order->take.update.unscale = 2;
        order->take.update.shrink = 1;
    }
}

static struct view kinds_view(unsigned t)
{
    return (struct view){.fibres = sizes[t] / 20, .length = 20, .stride = 1};
}

/* The elements of a list are read. */
static void kinds_gather(struct side *side)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = add_order(side, ENGINE_GATHER, t);

        order->gather =
            (struct engine_gather){.view = kinds_view(t), .list = selected_list(side, t)};
    }
}

/* Some of a list leaves the residual of node and rank, then it comes back. */
static void kinds_lists(struct side *side)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        const struct engine_list list = selected_list(side, t);
        struct engine_order *order = add_order(side, ENGINE_LEAVE, t);

        order->leave = (struct engine_leave){.view = kinds_view(t),
            .sent = list,
            .accepted = engine_here(side->read),
            .kept = engine_nowhere};
        for (unsigned p = 0; p < 2; p++) {
            struct engine_part *part = engine_batch_part(&side->batch);
            part->element = place_in(p == 0 ? RESIDUALS : RANK, t);
            part->list = list;
        }
        order = add_order(side, ENGINE_RETURN, t);
        order->back = (struct engine_return){.view = kinds_view(t),
            .list = list,
            .taken = engine_nowhere,
            .kept = list.value,
            .sent = list,
            .own = list,
            .accepted = engine_here(side->read)};
    }
}

/* All residuals are copied into the other part and read there, and the rank's with its sums. */
static void kinds_read(struct side *side, unsigned part)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = add_order(side, ENGINE_CONVERT, t);

        order->convert = (struct engine_convert){.element = place_in(OTHER, t)};
        order->residual.element = place_in(part, t);
        order_read(side, t);
        order = &side->batch.order[side->batch.count - 2];
        order->residual.element = place_in(OTHER, t);
        order[1].residual.element = place_in(OTHER, t);
    }
}

/* Both sides do the same; results and what was read are compared. */
static void kinds_run(void (*beside)(void))
{
    run_both(beside);
    for (unsigned t = 0; t < TENSORS && host.batch.order[0].kind == ENGINE_ADD; t++) {
        host.selected[t] = host.batch.result[t].count;
        cuda.selected[t] = cuda.batch.result[t].count;
    }
    compare();
    for (unsigned part = RANK; part <= RESIDUALS; part += RESIDUALS - RANK) {
        kinds_read(&host, part);
        kinds_read(&cuda, part);
        run_both(beside);
        compare();
    }
}

#define KINDS_RUN(orders, beside, ...)                                                             \
    do {                                                                                           \
        orders(&host, ##__VA_ARGS__);                                                              \
        orders(&cuda, ##__VA_ARGS__);                                                              \
        kinds_run(beside);                                                                         \
    } while (0)

static void all_kinds(uint64_t stamp, void (*beside)(void))
{
    for (unsigned r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < first_of(TENSORS); i++) {
            gradient[r][i] = random_value();
        }
    }
    KINDS_RUN(kinds_add, beside, stamp + 1, false, ENGINE_ADD);
    KINDS_RUN(kinds_add, beside, stamp + 1, true, ENGINE_ADD);
    KINDS_RUN(kinds_gather, beside);
    KINDS_RUN(kinds_lists, beside);
    KINDS_RUN(kinds_take, beside, stamp + 2);
    KINDS_RUN(kinds_add, beside, stamp + 3, true, ENGINE_WITHDRAW);
    KINDS_RUN(kinds_join, beside, stamp + 4);
}

/* ------------------------------------------------------------------ tests */

static void same_bits(const char *streams, uint64_t largest)
{
    open_device(streams, "", 0, largest);
    for (uint64_t number = 1; number < 4; number++) {
        step(number, NULL);
    }
    assert_string_equal(trouble, "");
    close_device();
}

static void test_late(void **state)
{
    (void)state;
    same_bits("late", LARGE);
}

static void test_early(void **state)
{
    (void)state;
    same_bits("early", MEDIUM);
}

static void test_chance(void **state)
{
    (void)state;
    same_bits("chance:3", MEDIUM);
}

/* Kills the worker after a random time: in a batch, before it or behind it. */
static void kill_worker(void)
{
    const struct timespec moment = {.tv_nsec = (long)random_below(20000000)};
    struct device_worker_info info;

    (void)nanosleep(&moment, NULL);
    assert_true(device_worker_info(device, 0, &info));
    if (info.pid > 0) {
        (void)kill(info.pid, SIGKILL);
    }
}

static void test_killed(void **state)
{
    struct device_worker_info info;

    (void)state;
    open_device("late", "", 0, MEDIUM);
    for (uint64_t number = 1; number < 41; number++) {
        step(number, kill_worker);
    }
    assert_true(device_worker_info(device, 0, &info));
    assert_true(info.starts > 10);
    assert_non_null(strstr(trouble, "it was killed by signal 9. It is started again"));
    close_device();
}

static void test_all_kinds(void **state)
{
    (void)state;
    open_device("late", "", 0, MEDIUM);
    open_part(OTHER, first_of(TENSORS) * sizeof(float));
    for (uint64_t number = 0; number < 3; number++) {
        all_kinds(10 * number, NULL);
    }
    assert_string_equal(trouble, "");
    close_device();
}

static void test_all_kinds_killed(void **state)
{
    (void)state;
    open_device("late", "", 0, MEDIUM);
    open_part(OTHER, first_of(TENSORS) * sizeof(float));
    for (uint64_t number = 0; number < 4; number++) {
        all_kinds(10 * number, kill_worker);
    }
    close_device();
}

static void test_hangs(void **state)
{
    struct device_event event;
    struct engine_order *order;

    (void)state;
    open_device("early", "cuLaunchKernel:1:hang", 300, MEDIUM);
    order = add_order(&cuda, ENGINE_SUMS, 0);
    order->stamp = 1;
    engine_cuda.submit(device, &cuda.batch);
    event = next_event();
    assert_int_equal(event.type, DEVICE_LOST);
    assert_non_null(strstr(event.text, "failed 3 times in a row, the last time: it has not "
                                       "finished sums on GPU-"));
    assert_non_null(strstr(event.text, "for 300 ms: it hangs in a call of the driver"));
    event = next_event();
    assert_int_equal(event.type, DEVICE_DONE);
    assert_int_equal(cuda.batch.result[0].status, ADTOPK_ERR_MEMORY);
    close_device();
}

/* A stop does not wait for a worker that hangs. */
static void test_stops_meanwhile(void **state)
{
    (void)state;
    open_device("early", "cuLaunchKernel:1:hang", 0, MEDIUM);
    (void)add_order(&cuda, ENGINE_SUMS, 0);
    engine_cuda.submit(device, &cuda.batch);
    close_device();
}

/* No room on the device for an order's copies: it says so, and so does the next of its tensor. */
static void test_no_room(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "16000000", 1);
    open_device("late", "", 0, LARGE);
    order_add(&cuda, 2, 1);
    order_leave(&cuda, 2);
    order_add(&cuda, 1, 1);
    order_add(&host, 1, 1);
    run_both(NULL);
    assert_int_equal(cuda.batch.result[0].status, ADTOPK_ERR_MEMORY);
    assert_int_equal(cuda.batch.result[1].status, ADTOPK_ERR_MEMORY);
    assert_int_equal(cuda.batch.result[2].status, ADTOPK_OK);
    assert_memory_equal(&cuda.batch.result[2], &host.batch.result[0], sizeof(struct engine_result));
    close_device();
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
}

/* Memory of a job that is gone is given back, and new memory is clear. */
static void test_parts_come_and_go(void **state)
{
    struct device_info info;

    (void)state;
    open_device("late", "", 0, MEDIUM);
    step(1, NULL);
    device_drop_part(device, JOB, RESIDUALS);
    open_part(RESIDUALS, first_of(TENSORS) * sizeof(float));
    (void)memset(host.memory.store[RESIDUALS], 0, first_of(TENSORS) * sizeof(float));
    step(2, NULL);
    assert_true(device_info(device, 0, &info));
    assert_int_equal(info.jobs, 1);
    device_drop_part(device, JOB, MAIN);
    device_drop_part(device, JOB, RANK);
    device_drop_part(device, JOB, RESIDUALS);
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && info.reserved > 0; waited_ms++) {
        (void)usleep(1000);
        assert_true(device_info(device, 0, &info));
    }
    assert_int_equal(info.reserved, 0);
    close_device();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_chance),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_all_kinds_killed),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_stops_meanwhile),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_parts_come_and_go),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The engine cuda against the engine of this processor: the same orders leave the same bits,
 * whatever becomes of the worker. One job with three tensors of different sizes; the largest goes
 * through staging memory many times over.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/device/page.h"
#include "kernels/kernels.h"
#include "tests/cuda/driver/sides.h"
#include "tests/host/sanitized.h"
#include "tests/unit/arrays.h"

/* ------------------------------------------------------------------ all kinds of orders */

/* The residual of a tensor in another part than the node's. */
static struct engine_place place_in(unsigned part, unsigned t)
{
    return (struct engine_place){part, sides_first(t) * sizeof(float)};
}

/* The order is for the residual of a rank. */
static void of_rank(struct engine_order *order, unsigned t)
{
    order->residual.element = place_in(RANK, t);
    order->residual.progress.offset = sides_progress(TENSORS) + sides_progress(t);
}

/* Gradients come into the node's residual, or a rank's, and the k largest of each fibre are
 * selected, or none. */
static void kinds_add(struct side *side, uint64_t stamp, bool rank, enum engine_kind kind)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order;

        sides_add(side, t, stamp);
        order = &side->batch.order[side->batch.count - 1];
        order->kind = kind;
        order->add.unscale = 0.5f;
        order->add.sparsifier = sides_sparsifier("adtopk");
        order->add.shape = (struct tensor_shape){2, {sides.size[t] / 20, 20}};
        order->add.selects = kind == ENGINE_ADD;
        if (sides_moves(t)) {
            order->add.params.momentum = 0.5;
            order->add.params.nesterov = rank;
            order->residual.momentum = sides_velocity(t, rank);
        }
        if (rank) {
            of_rank(order, t);
        }
    }
}

/* The velocities of node and rank become one, or zeros, which is read. */
static void kinds_carry(struct side *side)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = sides_order(side, ENGINE_CARRY, t);

        order->carry.momentum = place_in(NEXT_VELOCITIES, t);
        for (unsigned r = 0; sides_moves(t) && r < 2; r++) {
            engine_batch_part(&side->batch)->momentum = sides_velocity(t, r > 0);
        }
        sides_read(side, t);
        order[1].residual.element = place_in(NEXT_VELOCITIES, t);
        order[2].residual.element = place_in(NEXT_VELOCITIES, t);
    }
}

/* The rank's residual comes to the node's. */
static void kinds_join(struct side *side, uint64_t stamp)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = sides_order(side, ENGINE_JOIN, t);

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
        struct engine_order *order = sides_order(side, ENGINE_TAKE, t);

        order->stamp = stamp;
        order->take =
            (struct engine_take_out){.values = QUANTISE_BF16, .sums = none, .update = none};
        order->take.update.exact = engine_here(side->read + sides_first(t));
        order->take.update.count = sides.size[t] / 2;
        order->take.update.unscale = 2;
        order->take.update.shrink = 1;
    }
}

static struct view kinds_view(unsigned t)
{
    return (struct view){.fibres = sides.size[t] / 20, .length = 20, .stride = 1};
}

/* The elements of a list are read. */
static void kinds_gather_one(struct side *side, unsigned t)
{
    struct engine_order *order = sides_order(side, ENGINE_GATHER, t);

    order->gather = (struct engine_gather){.view = kinds_view(t), .list = sides_selected(side, t)};
}

static void kinds_gather(struct side *side)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        kinds_gather_one(side, t);
    }
}

/* Some of a list leaves the residual of node and rank, then it comes back. */
static void kinds_lists(struct side *side)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        const struct engine_list list = sides_selected(side, t);
        struct engine_order *order = sides_order(side, ENGINE_LEAVE, t);

        order->leave = (struct engine_leave){.view = kinds_view(t),
            .sent = list,
            .accepted = engine_here(side->read),
            .before = engine_nowhere,
            .masks = sides_moves(t)};
        for (unsigned p = 0; p < 2; p++) {
            struct engine_part *part = engine_batch_part(&side->batch);
            part->element = place_in(p == 0 ? RESIDUALS : RANK, t);
            part->momentum = sides_velocity(t, p > 0);
            part->list = list;
        }
        order = sides_order(side, ENGINE_RETURN, t);
        order->back = (struct engine_return){.view = kinds_view(t),
            .list = list,
            .taken = engine_nowhere,
            .before = list.value,
            .sent = list,
            .own = list,
            .accepted = engine_here(side->read)};
    }
}

/* All residuals are copied into the other part and read there, and the rank's with its sums. */
static void kinds_read(struct side *side, unsigned part)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = sides_order(side, ENGINE_CONVERT, t);

        order->convert = (struct engine_convert){.element = place_in(OTHER, t)};
        order->residual.element = place_in(part, t);
        sides_read(side, t);
        order = &side->batch.order[side->batch.count - 2];
        order->residual.element = place_in(OTHER, t);
        order[1].residual.element = place_in(OTHER, t);
    }
}

/* Both sides do the same; results and what was read are compared. */
static void kinds_run(void (*beside)(void))
{
    sides_run(beside);
    for (unsigned t = 0; t < TENSORS && sides.host.batch.order[0].kind == ENGINE_ADD; t++) {
        sides.host.selected[t] = sides.host.batch.result[t].count;
        sides.cuda.selected[t] = sides.cuda.batch.result[t].count;
    }
    sides_compare();
    for (unsigned part = RANK; part <= RESIDUALS; part += RESIDUALS - RANK) {
        kinds_read(&sides.host, part);
        kinds_read(&sides.cuda, part);
        sides_run(beside);
        sides_compare();
    }
}

#define KINDS_RUN(orders, beside, ...)                                                             \
    do {                                                                                           \
        orders(&sides.host, ##__VA_ARGS__);                                                        \
        orders(&sides.cuda, ##__VA_ARGS__);                                                        \
        kinds_run(beside);                                                                         \
    } while (0)

static void all_kinds(uint64_t stamp, void (*beside)(void))
{
    for (unsigned r = 0; r < RANKS; r++) {
        for (uint64_t i = 0; i < sides_first(TENSORS); i++) {
            sides.gradient[r][i] = random_value();
        }
    }
    KINDS_RUN(kinds_add, beside, stamp + 1, false, ENGINE_ADD);
    KINDS_RUN(kinds_add, beside, stamp + 1, true, ENGINE_ADD);
    KINDS_RUN(kinds_gather, beside);
    KINDS_RUN(kinds_lists, beside);
    KINDS_RUN(kinds_take, beside, stamp + 2);
    KINDS_RUN(kinds_carry, beside);
    KINDS_RUN(kinds_add, beside, stamp + 3, true, ENGINE_WITHDRAW);
    KINDS_RUN(kinds_carry, beside);
    KINDS_RUN(kinds_join, beside, stamp + 4);
}

/* ------------------------------------------------------------------ tests */

static void same_bits(const char *streams, uint64_t largest)
{
    sides_open(streams, "", 0, largest);
    for (uint64_t number = 1; number < 4; number++) {
        sides_step(number, NULL);
    }
    assert_string_equal(sides.trouble, "");
    sides_close();
}

static struct device_worker_info worker_info(void)
{
    struct device_worker_info info;

    assert_true(device_worker_info(sides.device, 0, &info));
    return info;
}

/* An ADD of all tensors. */
static void together_add(struct side *side, uint64_t stamp, const char *sparsifier)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_add_plain(side, t, stamp, sparsifier);
    }
}

/* Elements of all tensors are read at these positions. However many tensors, all positions are
 * copied at once, and so are all values. */
static void copied_together(void)
{
    struct device_worker_info before = worker_info(), after;

    for (unsigned t = 0; t < TENSORS; t++) {
        kinds_gather_one(&sides.host, t);
        kinds_gather_one(&sides.cuda, t);
    }
    sides_run(NULL);
    after = worker_info();
    assert_int_equal(after.launches - before.launches, 2);
    assert_int_equal(after.copies - before.copies, 2);
    sides_compare();
}

/* However many tensors, a kernel is launched once. */
static void launched_together(uint64_t stamp, const char *sparsifier, unsigned expected)
{
    const uint64_t before = worker_info().launches;

    together_add(&sides.host, stamp, sparsifier);
    together_add(&sides.cuda, stamp, sparsifier);
    sides_run(NULL);
    assert_int_equal(worker_info().launches - before, expected);
    for (unsigned t = 0; t < TENSORS; t++) {
        sides.host.selected[t] = sides.host.batch.result[t].count;
        sides.cuda.selected[t] = sides.cuda.batch.result[t].count;
    }
    sides_compare();
}

static void test_launches(void **state)
{
    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    launched_together(1, "topk", 5);
    launched_together(2, "adtopk", 5);
    copied_together();
    sides_close();
}

/* Orders that are in both batches. */
static void launched_whole(unsigned expected)
{
    const uint64_t before = worker_info().launches;

    sides_run(NULL);
    assert_int_equal(worker_info().launches - before, expected);
    sides_compare();
}

/* The same where whole residuals are read, summed, converted, joined and carried over. */
static void test_launches_of_whole_residuals(void **state)
{
    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_first(TENSORS) * sizeof(float));
    sides_open_part(NEXT_VELOCITIES, sides_first(TENSORS) * sizeof(float));
    launched_together(1, "topk", 5);
    kinds_read(&sides.host, RESIDUALS);
    kinds_read(&sides.cuda, RESIDUALS);
    launched_whole(3 + 2 + 3); /* CONVERT, READ, SUMS */
    kinds_join(&sides.host, 2);
    kinds_join(&sides.cuda, 2);
    launched_whole(7);
    kinds_carry(&sides.host);
    kinds_carry(&sides.cuda);
    launched_whole(4 + 3 + 4 + 2 + 3); /* CARRY: the second tensor begins without a velocity */
    sides_close();
}

static void test_late(void **state)
{
    (void)state;
    same_bits("late", SIDES_LARGE);
}

static void test_early(void **state)
{
    (void)state;
    same_bits("early", SIDES_MEDIUM);
}

static void test_chance(void **state)
{
    (void)state;
    same_bits("chance:3", SIDES_MEDIUM);
}

static void test_killed(void **state)
{
    struct device_worker_info info;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    for (uint64_t number = 1; number < CASES(41, 11); number++) {
        sides_step(number, sides_kill);
    }
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_true(info.starts > CASES(10, 3));
    assert_non_null(strstr(sides.trouble, "it was killed by signal 9. It is started again"));
    sides_close();
}

/* Memory that was lost is zeros. Gradients that were in it are not withdrawn, later ones are. */
static void test_lost_memory(void **state)
{
    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_first(TENSORS) * sizeof(float));
    sides_step(1, NULL);
    sides_forget();
    sides_lose_on_host();
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_add(&sides.cuda, t, 2);
        sides.cuda.batch.order[sides.cuda.batch.count - 1].kind = ENGINE_WITHDRAW;
    }
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    assert_int_equal(sides_event().type, DEVICE_DONE);
    sides_losses_told(true);
    engine_batch_clear(&sides.cuda.batch);
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(NULL);
    sides_losses_told(false);
    sides_compare();
    kinds_add(&sides.host, 3, true, ENGINE_ADD);
    kinds_add(&sides.cuda, 3, true, ENGINE_ADD);
    kinds_run(NULL);
    KINDS_RUN(kinds_add, NULL, 4, true, ENGINE_WITHDRAW);
    sides_close();
}

static void test_all_kinds(void **state)
{
    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_first(TENSORS) * sizeof(float));
    sides_open_part(NEXT_VELOCITIES, sides_first(TENSORS) * sizeof(float));
    for (uint64_t number = 0; number < CASES(3, 1); number++) {
        all_kinds(10 * number, NULL);
    }
    assert_string_equal(sides.trouble, "");
    sides_close();
}

static void test_all_kinds_killed(void **state)
{
    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_first(TENSORS) * sizeof(float));
    sides_open_part(NEXT_VELOCITIES, sides_first(TENSORS) * sizeof(float));
    for (uint64_t number = 0; number < CASES(4, 1); number++) {
        all_kinds(10 * number, sides_kill);
    }
    sides_close();
}

/* The worker hangs amid the inputs of an order, while its feeder waits for room for more of them.
 */
static void test_hangs(void **state)
{
    struct device_event event;

    (void)state;
    sides_open("early", "cuMemcpyHtoDAsync_v2:6:hang", 300, SIDES_LARGE);
    sides_add(&sides.cuda, TENSORS - 1, 1);
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    event = sides_event();
    assert_int_equal(event.type, DEVICE_LOST);
    assert_int_equal(event.job, JOB);
    assert_non_null(strstr(event.text, "failed 3 times in a row, the last time: it has not "
                                       "finished add on GPU-"));
    assert_non_null(strstr(event.text, "for 300 ms: it hangs in a call of the driver"));
    event = sides_event();
    assert_int_equal(event.type, DEVICE_DONE);
    assert_int_equal(sides.cuda.batch.result[0].status, ADTOPK_ERR_MEMORY);
    sides_close();
}

/* Writes the beat of the worker that runs, as it would while it waits for NCCL. Its page is a file
 * of this process. The feeder may be about to close that, so it is opened anew. */
static bool forge_beat(void)
{
    bool forged = false;

    for (int number = 3; number < 64; number++) {
        struct stat file;
        struct page *page = MAP_FAILED;
        char path[32];
        int descriptor;

        (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", number);
        descriptor = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
        if (descriptor < 0) {
            continue;
        }
        if (fstat(descriptor, &file) == 0 && file.st_size == (off_t)sizeof(*page)) {
            page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
        }
        if (page != MAP_FAILED) {
            (void)atomic_fetch_add(&page->beat, 1);
            (void)munmap(page, sizeof(*page));
            forged = true;
        }
        (void)close(descriptor);
    }
    return forged;
}

/* A worker that hangs is found, whatever it claims. */
static void test_beats_and_hangs(void **state)
{
    struct device_event event = {.type = DEVICE_NOTE};
    unsigned forged = 0;

    (void)state;
    sides_open("early", "cuLaunchKernel:1:hang", 300, SIDES_MEDIUM);
    sides_order(&sides.cuda, ENGINE_SUMS, 0)->stamp = 1;
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    for (unsigned turn = 0; turn < 20000 && event.type != DEVICE_LOST; turn++) {
        forged += forge_beat();
        (void)usleep(1000);
        (void)device_take(sides.device, &event);
    }
    assert_int_equal(event.type, DEVICE_LOST);
    assert_true(forged > 0);
    assert_non_null(strstr(event.text, "it hangs in a call of the driver"));
    assert_int_equal(sides_event().type, DEVICE_DONE);
    sides_close();
}

/* A worker that brings positions which no tensor has is ended, and the next one selects. It has
 * read four marks before, and a step has four copies: the lists of three runs, and what READ reads.
 */
static void test_spoilt(void **state)
{
    (void)state;
    sides_open("early", "cuMemcpyDtoHAsync_v2:10:9999", 0, SIDES_MEDIUM);
    for (uint64_t number = 1; number < 5; number++) {
        sides_step(number, NULL);
    }
    assert_non_null(strstr(sides.trouble, "it selected elements that tensor number"));
    sides_close();
}

/* An operation waits for the batch of another job. Meanwhile its own job ends. */
static void test_job_ends_before_its_operation(void **state)
{
    const struct device_part part = {.job = JOB + 1, .owner = OWNER, .size = 4096};
    uint8_t name[CARGO_NAME_SIZE * CARGO_DEVICES];
    struct cargo cargo = {
        .kind = CARGO_NAME, .job = JOB + 1, .group = {.devices = 1}, .input = name};
    struct device_event event;
    struct error err;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    assert_int_equal(
        device_open_part(sides.device, &part, &(struct device_left){.store = 0}, &err), ADTOPK_OK);
    sides_order(&sides.cuda, ENGINE_SUMS, 0)->stamp = 1;
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    device_carrier.start(sides.device, &cargo);
    device_drop_part(sides.device, JOB + 1, 0);
    assert_int_equal(sides_event().type, DEVICE_DONE);
    event = sides_event();
    assert_int_equal(event.type, DEVICE_CARRIED);
    assert_ptr_equal(event.cargo, &cargo);
    assert_int_equal(cargo.error.code, ADTOPK_ERR_STATE);
    sides_close();
}

/* A stop does not wait for a worker that hangs. */
static void test_stops_meanwhile(void **state)
{
    (void)state;
    sides_open("early", "cuLaunchKernel:1:hang", 0, SIDES_MEDIUM);
    (void)sides_order(&sides.cuda, ENGINE_SUMS, 0);
    engine_cuda.submit(sides.device, &sides.cuda.batch);
    sides_close();
}

/* Nor for one that hangs when it begins, and no job hears of it. */
static void test_stops_when_it_begins(void **state)
{
    struct device_event event;
    struct device_worker_info info = {.starts = 0};

    (void)state;
    sides_open("early", "cuMemImportFromShareableHandle:1:hang", 0, SIDES_MEDIUM);
    while (info.starts == 0) {
        (void)usleep(1000);
        assert_true(device_worker_info(sides.device, 0, &info));
    }
    device_stop(sides.device);
    while (device_take(sides.device, &event)) {
        assert_int_equal(event.type, DEVICE_NOTE);
    }
    assert_true(device_worker_info(sides.device, 0, &info));
    assert_int_equal(info.starts, 1);
    device_destroy(sides.device);
    sides_start("early", "", 0);
    sides_close();
}

/* No room on the device for an order's copies: it says so, and so does the next of its tensor. */
static void test_no_room(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "19000000", 1);
    sides_open("late", "", 0, SIDES_LARGE);
    sides_add(&sides.cuda, 2, 1);
    sides_leave(&sides.cuda, 2);
    sides_add(&sides.cuda, 1, 1);
    sides_add(&sides.host, 1, 1);
    sides_run(NULL);
    assert_int_equal(sides.cuda.batch.result[0].status, ADTOPK_ERR_MEMORY);
    assert_int_equal(sides.cuda.batch.result[1].status, ADTOPK_ERR_MEMORY);
    assert_int_equal(sides.cuda.batch.result[2].status, ADTOPK_OK);
    assert_memory_equal(
        &sides.cuda.batch.result[2], &sides.host.batch.result[0], sizeof(struct engine_result));
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
}

/* Memory of a job that is gone is given back, and new memory is clear. */
static void test_parts_come_and_go(void **state)
{
    struct device_info info;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    sides_step(1, NULL);
    device_drop_part(sides.device, JOB, RESIDUALS);
    sides_open_part(RESIDUALS, sides_first(TENSORS) * sizeof(float));
    (void)memset(sides.host.memory.store[RESIDUALS], 0, sides_first(TENSORS) * sizeof(float));
    sides_step(2, NULL);
    assert_true(device_info(sides.device, 0, &info));
    assert_int_equal(info.jobs, 1);
    device_drop_part(sides.device, JOB, MAIN);
    device_drop_part(sides.device, JOB, RANK);
    device_drop_part(sides.device, JOB, RESIDUALS);
    device_drop_part(sides.device, JOB, VELOCITIES);
    sides_wait_for_use(0);
    sides_close();
}

/* Waits until memory of the stand-in's device holds nothing but zeros. */
static void wait_for_zeros(int descriptor, uint64_t size)
{
    uint8_t *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, descriptor, 0);
    uint64_t zeros = 0;

    assert_true(bytes != MAP_FAILED);
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && zeros < size; waited_ms++) {
        (void)usleep(1000);
        for (zeros = 0; zeros < size && bytes[zeros] == 0; zeros++) {
        }
    }
    assert_int_equal(zeros, size);
    (void)munmap(bytes, size);
}

/* What a rank has written into its arena is gone when the daemon gives the memory back. */
static void test_memory_is_cleared(void **state)
{
    struct device_arena arena = {.job = JOB + 1, .owner = OWNER, .base = &arena, .size = 4096};
    const struct device_part part = {.job = JOB + 1, .owner = OWNER, .size = 4096};
    struct device_info info;
    struct error err;
    uint64_t before;
    int descriptor;

    (void)state;
    sides_open("late", "", 0, SIDES_MEDIUM);
    assert_true(device_info(sides.device, 0, &info));
    before = info.use.residuals;
    arena.gpu = info.device.uuid;
    assert_int_equal(device_open_arena(sides.device, &arena, &err), ADTOPK_OK);
    descriptor = dup(arena.descriptor);
    assert_int_equal(pwrite(descriptor, "gradient", 8, 0), 8);
    assert_int_equal(
        device_open_part(sides.device, &part, &(struct device_left){.store = 0}, &err), ADTOPK_OK);
    sides_step(1, NULL); /* behind it the worker has mapped both */
    device_drop_arena(sides.device, arena.base);
    device_drop_part(sides.device, JOB + 1, 0);
    wait_for_zeros(descriptor, arena.size);
    sides_wait_for_use(before); /* the part is given back behind it */
    (void)close(descriptor);
    sides_close();
}

/* A user has a share of the device's memory, for residuals and gradients together; root has all. */
static void test_share_of_user(void **state)
{
    struct device_part part = {.job = JOB + 1, .owner = OWNER + 1};
    struct device_arena arena = {.job = JOB + 1, .owner = OWNER + 1, .base = &arena};
    struct device_info info;
    struct error err;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "200000000", 1);
    sides_open("early", "", 0, SIDES_MEDIUM);
    assert_true(device_info(sides.device, 0, &info));
    device_limit_users(sides.device, 50);
    arena.gpu = info.device.uuid;
    arena.size = part.size = info.device.memory / 100 * 30;
    assert_int_equal(device_open_arena(sides.device, &arena, &err), ADTOPK_OK);
    assert_int_equal(device_open_part(sides.device, &part, &(struct device_left){.store = 0}, &err),
        ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(err.text, "user 1001 has "));
    assert_non_null(strstr(err.text, " more for residuals, but one user may have "));
    assert_non_null(strstr(err.text, "(user_memory: 50 %)"));
    arena.size = part.size;
    assert_int_equal(device_open_arena(sides.device, &arena, &err), ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(err.text, " more for gradients, but one user may have "));
    arena.owner = 0;
    assert_int_equal(device_open_arena(sides.device, &arena, &err), ADTOPK_OK);
    sides_close();
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launches),
        cmocka_unit_test(test_launches_of_whole_residuals),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_chance),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_all_kinds),
        cmocka_unit_test(test_lost_memory),
        cmocka_unit_test(test_all_kinds_killed),
        cmocka_unit_test(test_hangs),
        cmocka_unit_test(test_beats_and_hangs),
        cmocka_unit_test(test_spoilt),
        cmocka_unit_test(test_job_ends_before_its_operation),
        cmocka_unit_test(test_stops_meanwhile),
        cmocka_unit_test(test_stops_when_it_begins),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_parts_come_and_go),
        cmocka_unit_test(test_memory_is_cleared),
        cmocka_unit_test(test_share_of_user),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * What two processes lose that share a GPU. One runs a trainer's kind of kernels, arithmetic with a
 * block on every multiprocessor. The other one runs a worker's kind, r += g. Each runs alone first,
 * then both at once. If their kernels run side by side, that takes as long as the longer one alone.
 * If the GPU switches between them it takes as long as both, one after the other.
 *
 * A process has one context, so each side is a child, which opens the device itself.
 */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/gpu.h"
#include "tests/gpu/measure.h"

#define ROUNDS 200000u /* of the arithmetic: about a millisecond */
#define LAUNCHES 200u
#define ELEMENTS (UINT64_C(25) << 20)
#define ADD_BLOCKS 8u /* per multiprocessor */
#define LOOK_US 50

enum { TRAINER, WORKER, SIDES };
enum turn { WAIT, TRAINER_ALONE, WORKER_ALONE, BOTH, END, TURNS = END };

/* Both children and their parent have it. */
struct shared {
    _Atomic unsigned turn;
    _Atomic unsigned done;             /* sides that are through with it */
    _Atomic unsigned launches;         /* of the worker */
    double began[SIDES], ended[SIDES]; /* in the last turn, microseconds */
    char name[GPU_NAME];
    struct error err[SIDES];
};

struct side {
    struct shared *shared;
    unsigned number; /* TRAINER or WORKER */
    bool brief;
    struct gpu gpu;
    struct bench_work work;
    struct bench_add add;
};

/* ------------------------------------------------------------------ a child */

static bool side_open(struct side *side, const char *device)
{
    const uint64_t elements = side->brief ? 4096 : ELEMENTS;
    struct gpu *gpu = &side->gpu;
    struct error *err = &side->shared->err[side->number];

    if (gpu_open(gpu, device, err) != ADTOPK_OK) {
        return false;
    }
    (void)memcpy(side->shared->name, gpu->name, sizeof(gpu->name));
    side->work = (struct bench_work){.rounds = side->brief ? 10 : ROUNDS,
        .out =
            gpu_memory(gpu, (uint64_t)gpu->device.multiprocessors * GPU_THREADS * sizeof(float))};
    side->add = (struct bench_add){.n = elements,
        .r = gpu_memory(gpu, elements * sizeof(float)),
        .g = gpu_memory(gpu, elements * sizeof(float))};
    *err = gpu->err;
    return side->work.out != NULL && side->add.r != NULL && side->add.g != NULL;
}

static bool side_launch(struct side *side)
{
    struct gpu *gpu = &side->gpu;
    const unsigned processors = gpu->device.multiprocessors;

    return side->number == TRAINER
               ? gpu_run(gpu, GPU_bench_work, processors, &side->work)
               : gpu_run(gpu, GPU_bench_add, ADD_BLOCKS * processors, &side->add);
}

/* Runs kernels, and waits for them. */
static bool side_run(struct side *side, unsigned launches)
{
    double ignored;
    bool ok = gpu_start(&side->gpu);

    for (unsigned i = 0; i < launches && ok; i++) {
        ok = side_launch(side);
    }
    return ok && gpu_stop(&side->gpu, &ignored);
}

static bool side_turn(struct side *side, enum turn turn)
{
    struct shared *shared = side->shared;
    const unsigned trainers = side->brief ? 3 : LAUNCHES;
    bool ok = true;

    if (turn == BOTH || turn == (side->number == TRAINER ? TRAINER_ALONE : WORKER_ALONE)) {
        shared->began[side->number] = clock_us_between(0, clock_ns());
        ok = side_run(side, side->number == TRAINER ? trainers : atomic_load(&shared->launches));
        shared->ended[side->number] = clock_us_between(0, clock_ns());
    }
    return ok;
}

/* The child: it is through with turn WAIT when it is ready. */
static int side_main(struct side *side, const char *device)
{
    struct shared *shared = side->shared;
    unsigned turn = WAIT;
    bool ok;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    ok = side_open(side, device) && side_run(side, 2);
    while (ok && turn != END) {
        atomic_fetch_add(&shared->done, 1);
        while (atomic_load(&shared->turn) == turn) {
            (void)usleep(LOOK_US);
        }
        turn = atomic_load(&shared->turn);
        ok = turn == END || side_turn(side, (enum turn)turn);
    }
    if (!ok && shared->err[side->number].code == ADTOPK_OK) {
        shared->err[side->number] = side->gpu.err;
    }
    gpu_close(&side->gpu);
    return ok ? 0 : 1;
}

/* ------------------------------------------------------------------ the parent */

/* Until both sides are through with the turn. False: one has failed. */
static bool overlap_wait(struct shared *shared)
{
    int status;

    while (atomic_load(&shared->done) < SIDES) {
        if (waitpid(-1, &status, WNOHANG) > 0) {
            return false;
        }
        (void)usleep(LOOK_US);
    }
    return true;
}

static bool overlap_turn(struct shared *shared, enum turn turn, double took_ms[TURNS])
{
    double began = INFINITY, ended = 0;

    atomic_store(&shared->done, 0);
    atomic_store(&shared->turn, turn);
    if (!overlap_wait(shared)) {
        return false;
    }
    for (unsigned s = 0; s < SIDES; s++) {
        if (turn == BOTH || turn == (s == TRAINER ? TRAINER_ALONE : WORKER_ALONE)) {
            began = fmin(began, shared->began[s]);
            ended = fmax(ended, shared->ended[s]);
        }
    }
    took_ms[turn] = (ended - began) * 1e-3;
    return true;
}

/* So many launches of the worker that it takes about as long as the trainer. */
static bool overlap_balance(struct shared *shared, bool brief, double took_ms[TURNS])
{
    double each;

    atomic_store(&shared->launches, brief ? 3 : LAUNCHES);
    if (!overlap_turn(shared, TRAINER_ALONE, took_ms) ||
        !overlap_turn(shared, WORKER_ALONE, took_ms)) {
        return false;
    }
    each = took_ms[WORKER_ALONE] / (brief ? 3 : LAUNCHES);
    atomic_store(&shared->launches, (unsigned)fmin(fmax(took_ms[TRAINER_ALONE] / each, 1), 1e5));
    return brief || overlap_turn(shared, WORKER_ALONE, took_ms);
}

static void overlap_print(const struct shared *shared, const double took_ms[TURNS])
{
    const double longer = fmax(took_ms[TRAINER_ALONE], took_ms[WORKER_ALONE]);
    const double shorter = fmin(took_ms[TRAINER_ALONE], took_ms[WORKER_ALONE]);

    (void)printf("%s\n", shared->name);
    figure_print(
        &(struct figure){"trainer's kernels alone", "ms", took_ms[TRAINER_ALONE], NAN, NAN});
    figure_print(&(struct figure){"worker's kernels alone", "ms", took_ms[WORKER_ALONE], NAN, NAN});
    figure_print(
        &(struct figure){"trainer's and worker's at once", "ms", took_ms[BOTH], longer, NAN});
    figure_print(&(struct figure){"trainer's, beside the worker's", "ms",
        (shared->ended[TRAINER] - shared->began[TRAINER]) * 1e-3, took_ms[TRAINER_ALONE], NAN});
    figure_print(&(struct figure){
        "lost overlap", "% of the shorter", 100 * (took_ms[BOTH] - longer) / shorter, NAN, NAN});
}

static bool overlap_run(const struct measure *measure, struct shared *shared)
{
    double took_ms[TURNS] = {0};
    bool ok;

    for (unsigned s = 0; s < SIDES; s++) {
        const pid_t pid = fork(); /* before the first call of the driver */

        if (pid == 0) {
            static struct side side;

            side = (struct side){.shared = shared, .number = s, .brief = measure->brief};
            _exit(side_main(&side, measure->device));
        }
        if (pid < 0) {
            atomic_store(&shared->turn, END); /* for the other one */
            return false;
        }
    }
    ok = overlap_wait(shared) && overlap_balance(shared, measure->brief, took_ms) &&
         overlap_turn(shared, BOTH, took_ms);
    atomic_store(&shared->turn, END);
    if (ok) {
        overlap_print(shared, took_ms);
    }
    return ok;
}

bool overlap_measure(const struct measure *measure, struct error *err)
{
    struct shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool ok;

    (void)error_set(err, ADTOPK_ERR_SYSTEM, "one of the two processes has ended, or was not made");
    if (shared == MAP_FAILED) {
        return false;
    }
    ok = overlap_run(measure, shared);
    for (unsigned s = 0; s < SIDES && !ok; s++) {
        *err = shared->err[s].code != ADTOPK_OK ? shared->err[s] : *err;
    }
    while (waitpid(-1, NULL, 0) > 0) {
    }
    (void)munmap(shared, sizeof(*shared));
    return ok;
}

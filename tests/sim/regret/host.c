/*
 * See host.h. Happy path: an event goes to the core, and the computes that it requests wait for a
 * worker. When a compute begins it is done at once, and its end is noted; at that time the core is
 * told.
 *
 * Failures: a refused request and a job that ends are errors with the core's sentence. A step that
 * is withdrawn is an error, too.
 */
#include "tests/sim/regret/host.h"
#include "tests/host/inside.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/compute/settle.h"
#include "daemon/compute/work_round.h"
#include "daemon/job/model.h"
#include "tests/bench/perf/clock.h"

#define SMALL_COMPUTE (64u << 10) /* bytes: as daemon/loop/loop.c */
#define GUESSED_BYTES_A_US 4096u  /* as daemon/loop/workers.c */
#define SESSION 1u
#define PAGE 4096u

/* Links as the daemon has them by default. */
static const struct links_config links = {.part_size = 1u << 20,
    .window = 8u << 20,
    .max_control_message = 1u << 20,
    .max_bulk_message = UINT64_C(1) << 32,
    .heartbeat_us = 1000000,
    .timeout_us = 5000000,
    .resend_us = 200000};

struct arena {
    void *bytes;
    uint64_t size;
};

/* A compute that is done, and when that will be known. */
struct running {
    struct compute *compute;
    struct share_job *job; /* NULL: it ran on the loop */
    uint64_t guess;
    unsigned workers;
    double spent_us, end_us;
};

struct host {
    struct host_config config;
    struct core *core;
    struct arena gradients, results, store[CORE_STORE_PARTS];
    struct share waiting;
    struct running *running;
    unsigned count, capacity;
    unsigned busy;  /* workers */
    double loop_us; /* until then the loop computes */
    bool ready;
    uint64_t steps;
    bool failed;
    struct error error;
};

/* ------------------------------------------------------------------ memory */

static void *arena_open(struct arena *arena, uint64_t size, bool *existing, struct error *err)
{
    *existing = arena->bytes != NULL && arena->size == size;
    if (*existing) {
        return arena->bytes;
    }
    free(arena->bytes);
    arena->size = size;
    size = (size + PAGE - 1) / PAGE * PAGE;
    arena->bytes = aligned_alloc(PAGE, size > 0 ? size : PAGE);
    if (arena->bytes == NULL) {
        (void)error_set(
            err, ADTOPK_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)size);
        return NULL;
    }
    return memset(arena->bytes, 0, size > 0 ? size : PAGE);
}

static const void *memory_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    struct host *host = context;
    bool existing;

    (void)session;
    (void)batch; /* there is one */
    return arena_open(&host->gradients, size, &existing, err);
}

static void *memory_results(
    void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)batch;
    return arena_open(&host->results, size, existing, err);
}

static void *memory_store(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    struct host *host = context;

    (void)job;
    (void)shown;
    return arena_open(&host->store[part], size, existing, err);
}

static void memory_drop_store(void *context, uint64_t job, unsigned part)
{
    struct host *host = context;

    (void)job;
    free(host->store[part].bytes);
    host->store[part] = (struct arena){0};
}

/* Arenas are the host's and end with it. */
static void memory_release_session(void *context, session_id session)
{
    (void)context;
    (void)session;
}

static void memory_release_job(void *context, uint64_t job)
{
    (void)context;
    (void)job;
}

/* ------------------------------------------------------------------ what computes take */

/* The table has the time of a whole bucket between phases: each of those computes takes an equal
 * share. */
static double round_ns(const struct costs *costs, const struct round *round, enum stage stage)
{
    const struct plan *plan = round->job->plan;
    enum choice choice = plan->tensor[round->tensor[0]].choice;
    unsigned between = round->phases > 1 ? round->phases - 1 : 1;
    uint64_t elements = 0;
    double ns;

    for (unsigned i = 0; i < round->tensors; i++) {
        elements += round->job->tensor[round->tensor[i]].numel;
    }
    ns = costs_of(costs, choice, stage, elements, round->tensors);
    return stage == COSTS_COMBINE ? ns / between : ns;
}

static double settle_ns(const struct costs *costs, const struct job *job)
{
    uint64_t elements[CHOICES] = {0};
    unsigned tensors[CHOICES] = {0};
    double ns = 0;

    for (uint32_t t = 0; t < job->tensors; t++) {
        elements[job->plan->tensor[t].choice] += job->tensor[t].numel;
        tensors[job->plan->tensor[t].choice]++;
    }
    for (unsigned c = 0; c < CHOICES; c++) {
        ns += costs_of(costs, (enum choice)c, COSTS_SETTLE, elements[c], tensors[c]);
    }
    return ns;
}

/* False for a compute that is no part of a step. */
static bool stage_of(const struct compute *compute, enum stage *stage)
{
    static const struct {
        const struct work_kind *kind;
        enum stage stage;
    } known[] = {{&work_select, COSTS_SELECT}, {&work_combine, COSTS_COMBINE},
        {&work_reduce, COSTS_REDUCE}, {&work_settle, COSTS_SETTLE}};

    for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (((const struct work *)compute)->kind == known[i].kind) {
            *stage = known[i].stage;
            return true;
        }
    }
    return false;
}

/* Runs it and returns its time on one thread. */
static double run_compute(const struct host *host, struct compute *compute)
{
    const struct work *work = (const struct work *)compute;
    const struct costs *costs = host->config.costs;
    const uint64_t begin = clock_ns();
    struct host_compute done;
    bool known = stage_of(compute, &done.stage);

    compute->run(compute);
    done.ns = (double)(clock_ns() - begin);
    if (known && host->config.computed != NULL) {
        host->config.computed(host->config.computed_context, &done);
    }
    if (costs == NULL || !known) {
        return costs == NULL ? done.ns : 0;
    }
    return done.stage == COSTS_SETTLE ? settle_ns(costs, work->job)
                                      : round_ns(costs, work->round, done.stage);
}

/* ------------------------------------------------------------------ workers */

static void fail(struct host *host, const struct error *error)
{
    host->failed = true;
    host->error = *error;
}

/* There is room for it: see submit(). */
static void note_end(struct host *host, struct running running)
{
    host->running[host->count++] = running;
    host->busy += running.workers;
}

/* In how many equal parts a compute is worth being cut. */
static unsigned parts_of(const struct compute *compute)
{
    uint64_t parts = compute->bytes / (3 * sizeof(float) * ENGINE_RANGE); /* of one local rank */

    return parts > 1 ? (unsigned)parts : 1;
}

static void begin_next(struct host *host, double now_us)
{
    struct share_item *item = share_next(&host->waiting, NULL, NULL);
    struct compute *compute =
        (struct compute *)((uintptr_t)item - offsetof(struct compute, waiting));
    struct running running = {.compute = compute, .guess = 1 + compute->bytes / GUESSED_BYTES_A_US};
    unsigned idle = host->config.workers - host->busy, wanted = parts_of(compute);

    share_charge(&host->waiting, item, running.guess);
    running.job = share_hold(item);
    share_remove(&host->waiting, item);
    idle -= host->waiting.items < idle ? (unsigned)host->waiting.items : idle - 1;
    running.workers = wanted < idle ? wanted : idle;
    compute->thread = 1;
    running.spent_us = 1e-3 * run_compute(host, compute) / running.workers;
    running.end_us = now_us + running.spent_us;
    note_end(host, running);
}

static bool make_room(struct host *host)
{
    unsigned wanted = host->count + (unsigned)host->waiting.items + 1;
    struct running *grown;

    if (wanted <= host->capacity) {
        return true;
    }
    grown = realloc(host->running, 2 * wanted * sizeof(*grown));
    if (grown != NULL) {
        host->running = grown;
        host->capacity = 2 * wanted;
    }
    return grown != NULL;
}

static void submit(struct host *host, struct compute *compute, double now_us)
{
    struct running running = {.compute = compute};
    struct error error;

    if (!make_room(host) || (compute->bytes > SMALL_COMPUTE &&
                                !share_put(&host->waiting, &compute->waiting, &compute->class))) {
        (void)error_set(&error, ADTOPK_ERR_MEMORY, "no memory for a compute");
        fail(host, &error);
        return;
    }
    if (compute->bytes <= SMALL_COMPUTE) {
        compute->thread = 0;
        running.spent_us = 1e-3 * run_compute(host, compute);
        host->loop_us = fmax(host->loop_us, now_us) + running.spent_us;
        running.end_us = host->loop_us;
        note_end(host, running);
    }
    while (host->busy < host->config.workers && host->waiting.items > 0) {
        begin_next(host, now_us);
    }
}

/* ------------------------------------------------------------------ the core */

static void drain(struct host *host, double now_us)
{
    struct action action;
    struct error error;

    while (core_next_action(host->core, &action)) {
        if (action.type == ACTION_COMPUTE) {
            submit(host, action.compute, now_us);
        } else if (action.type == ACTION_READY) {
            host->ready = true;
        } else if (action.type == ACTION_STEP && action.status == ADTOPK_OK) {
            host->steps = action.number + 1;
        } else if (action.type == ACTION_STEP) {
            (void)error_set(&error, action.status, "step %llu was withdrawn",
                (unsigned long long)action.number);
            fail(host, &error);
        } else if (action.type == ACTION_FAILED) {
            fail(host, action.error);
        }
    }
}

static bool tell(struct host *host, struct event *event, double now_us, struct error *err)
{
    enum adtopk_status status;

    event->now_us = (uint64_t)now_us;
    event->session = SESSION;
    status = core_event(host->core, event, err);
    drain(host, now_us);
    return status == ADTOPK_OK;
}

static void run_parts(void *context, unsigned caller,
    void (*part)(void *arg, unsigned p, unsigned thread), void *arg, unsigned parts)
{
    (void)context;
    for (unsigned p = 0; p < parts; p++) {
        part(arg, p, caller);
    }
}

struct host *host_open(const struct host_config *config, double now_us, struct error *err)
{
    struct host *host = calloc(1, sizeof(*host));
    struct core_config core = {.node = (uint16_t)config->number,
        .incarnation = config->number + 1,
        .links = links,
        .memory = {.context = host,
            .gradients = memory_gradients,
            .results = memory_results,
            .store = memory_store,
            .drop_store = memory_drop_store,
            .release_session = memory_release_session,
            .release_job = memory_release_job},
        .parallel = {.run = run_parts, .threads = config->workers + 1},
        .transmit = config->transmit,
        .transmit_context = config->transmit_context,
        .policy = config->policy};

    if (host == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a node");
        return NULL;
    }
    host->config = *config;
    host->core = core_create(&core, err);
    for (unsigned n = 0; host->core != NULL && n < config->nodes; n++) {
        if (n != config->number) {
            (void)core_add_peer(host->core, (uint16_t)n, (uint64_t)now_us);
        }
    }
    if (host->core == NULL) {
        host_close(host);
        return NULL;
    }
    return host;
}

void host_close(struct host *host)
{
    if (host == NULL) {
        return;
    }
    core_destroy(host->core);
    share_reset(&host->waiting);
    free(host->gradients.bytes);
    free(host->results.bytes);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        free(host->store[part].bytes);
    }
    free(host->running);
    free(host);
}

bool host_join(struct host *host, double now_us, struct error *err)
{
    const struct shapes *shapes = host->config.shapes;
    struct event open = {.type = EVENT_RANK_OPEN}, commit = {.type = EVENT_RANK_COMMIT},
                 mapped = {.type = EVENT_RANK_MAPPED};
    bool ok;

    open.open.key = (struct job_key){.name = "regret", .run_id = "0"};
    open.open.rank = host->config.number;
    open.open.world_size = host->config.nodes;
    ok = tell(host, &open, now_us, err);
    for (unsigned t = 0; ok && t < shapes->count; t++) {
        struct tensor_spec spec = {.dtype = DTYPE_F32, .shape = shapes->tensor[t].shape};
        struct event tensor = {.type = EVENT_RANK_REGISTER, .spec = &spec};

        (void)strcpy(spec.name, shapes->tensor[t].name); /* names of models are shorter */
        ok = tell(host, &tensor, now_us, err);
    }
    return ok && tell(host, &commit, now_us, err) && tell(host, &mapped, now_us, err);
}

float *host_gradient(const struct host *host, unsigned tensor)
{
    struct tensor_layout layout = {0};

    (void)inside_layout(host->core, SESSION, tensor, &layout);
    return (float *)(void *)((uint8_t *)host->gradients.bytes + layout.gradient_offset);
}

bool host_push(struct host *host, unsigned tensor, double now_us, struct error *err)
{
    struct event event = {.type = EVENT_RANK_PUSH};

    event.step.tensor = tensor;
    event.step.number = host->steps;
    return tell(host, &event, now_us, err);
}

bool host_end_step(struct host *host, double now_us, struct error *err)
{
    struct event event = {.type = EVENT_RANK_STEP_END};

    event.step.number = host->steps;
    return tell(host, &event, now_us, err);
}

void host_packet(struct host *host, uint16_t from, enum link_lane lane, const uint8_t *bytes,
    size_t size, double now_us)
{
    struct event event = {.type = EVENT_PACKET};

    event.packet.peer = from;
    event.packet.lane = lane;
    event.packet.bytes = bytes;
    event.packet.size = size;
    (void)tell(host, &event, now_us, NULL); /* faults of packets are counted */
}

/* ------------------------------------------------------------------ time */

double host_next(const struct host *host)
{
    uint64_t deadline = core_deadline(host->core);
    double next = deadline != UINT64_MAX ? (double)deadline : INFINITY;

    for (unsigned i = 0; i < host->count; i++) {
        next = fmin(next, host->running[i].end_us);
    }
    return next;
}

static void end_compute(struct host *host, unsigned at, double now_us)
{
    struct running running = host->running[at];
    struct event event = {.type = EVENT_COMPUTE_DONE};

    host->running[at] = host->running[--host->count];
    host->busy -= running.workers;
    running.compute->took_us = (uint64_t)running.spent_us + 1;
    if (running.job != NULL) {
        double spent = fmax(1, running.spent_us * running.workers);
        share_correct(running.job, (int64_t)spent - (int64_t)running.guess);
    }
    event.compute = running.compute;
    (void)tell(host, &event, now_us, NULL);
    while (host->busy < host->config.workers && host->waiting.items > 0) {
        begin_next(host, now_us);
    }
}

void host_turn(struct host *host, double now_us)
{
    struct event timer = {.type = EVENT_TIMER};
    unsigned first = 0;

    for (unsigned i = 1; i < host->count; i++) {
        first = host->running[i].end_us < host->running[first].end_us ? i : first;
    }
    if (host->count > 0 && host->running[first].end_us <= now_us) {
        end_compute(host, first, now_us);
    } else {
        (void)tell(host, &timer, now_us, NULL);
    }
}

bool host_ready(const struct host *host)
{
    return host->ready;
}

uint64_t host_steps(const struct host *host)
{
    return host->steps;
}

const struct error *host_failure(const struct host *host)
{
    return host->failed ? &host->error : NULL;
}

const char *host_plan(const struct host *host)
{
    return host->core->jobs != NULL ? host->core->jobs->plan->policy.plan : "";
}

/*
 * A rank: open, register, commit, then push and wait until all steps are done, close.
 * Failures: whatever the client library reports; the first rank to fail writes the sentence into
 * the diary and ends with 1, and crew_wait() kills the others.
 */
#include "tests/bench/perf/training.h"

#include <adtopk/adtopk.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/bench/perf/clock.h"
#include "tests/bench/perf/data.h"

#define POLICY_SIZE 160

/* What a rank's process works on. */
struct post {
    const struct training *training;
    struct diary *diary;
};

uint64_t training_shape(uint64_t *count)
{
    uint64_t columns = 1;

    while (columns * columns < *count) {
        columns *= 2;
    }
    *count -= *count % columns;
    return columns;
}

static size_t diary_size(const struct training *training)
{
    return sizeof(struct diary) + (size_t)training->steps * training->ranks * sizeof(struct stamp);
}

static void tell(struct diary *diary, unsigned rank, const char *what)
{
    if (!atomic_flag_test_and_set(&diary->told)) {
        (void)snprintf(diary->problem, sizeof(diary->problem), "rank %u: %.200s", rank, what);
    }
}

/* The policy of the job. */
static void write_policy(const struct training *training, char text[POLICY_SIZE])
{
    char values[48] = "";

    if (training->values != NULL) {
        (void)snprintf(values, sizeof(values), ", \"%s\": \"%s\"",
            training->density < 1 ? "values" : "dense_values", training->values);
    }
    if (training->density < 1) {
        (void)snprintf(text, POLICY_SIZE, "{\"sparsifier\": \"adtopk\", \"density\": %.9g%s}",
            training->density, values);
    } else {
        (void)snprintf(text, POLICY_SIZE, "{\"sparsifier\": \"dense\"%s}", values);
    }
}

static enum adtopk_status join(
    const struct training *training, unsigned rank, adtopk_context **context)
{
    char address[NODES_PATH_SIZE];
    char policy[POLICY_SIZE];
    const struct adtopk_options options = {.size = sizeof options,
        .address = address,
        .job = training->job,
        .run_id = "0",
        .rank = (int)rank,
        .has_rank = 1,
        .world_size = (int)training->ranks,
        .policy = policy};

    nodes_address(training->nodes, training->spread ? rank : 0, address);
    write_policy(training, policy);
    return adtopk_open(&options, context);
}

static enum adtopk_status prepare(
    const struct training *training, unsigned rank, adtopk_context *context)
{
    char name[16];
    uint64_t count = training->count;
    const uint64_t columns = training_shape(&count);
    const struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = name, .dims = 2, .shape = {count / columns, columns}};
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned t = 0; t < training->tensors && status == ADTOPK_OK; t++) {
        (void)snprintf(name, sizeof(name), "w%u", t);
        status = adtopk_register(context, &spec, NULL);
    }
    if (status == ADTOPK_OK) {
        status = adtopk_commit(context);
    }
    for (unsigned t = 0; t < training->tensors && status == ADTOPK_OK; t++) {
        data_fill(adtopk_gradient(context, t), count, DATA_NORMAL, rank + 1 + t * training->ranks);
    }
    return status;
}

/* The time on cores so far of this process and, in the first rank there, of its node's daemon. */
static uint64_t cpu_ns(const struct training *training, unsigned rank)
{
    const bool first = training->spread || rank == 0;
    struct timespec own = {0}, daemon = {0};
    clockid_t clock;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own);
    if (first && clock_getcpuclockid(training->nodes->pid[rank], &clock) == 0) {
        (void)clock_gettime(clock, &daemon);
    }
    return (uint64_t)(own.tv_sec + daemon.tv_sec) * 1000000000 +
           (uint64_t)(own.tv_nsec + daemon.tv_nsec);
}

static enum adtopk_status push_all(const struct training *training, adtopk_context *context)
{
    enum adtopk_status status = ADTOPK_OK;

    for (unsigned t = 0; t < training->tensors && status == ADTOPK_OK; t++) {
        status = adtopk_push_tensor(context, t, NULL);
    }
    return status;
}

static enum adtopk_status train(
    const struct training *training, unsigned rank, adtopk_context *context, struct diary *diary)
{
    const uint64_t all = training->warmup + training->steps;
    enum adtopk_status status = ADTOPK_OK;
    uint64_t since_ns = 0;

    for (uint64_t step = 0; step < all && status == ADTOPK_OK; step++) {
        uint64_t pushed;

        if (step == training->warmup) {
            since_ns = cpu_ns(training, rank);
        }
        if (training->pause_us > 0) {
            process_sleep_us(training->pause_us);
        }
        pushed = clock_ns();
        status = push_all(training, context);
        if (status == ADTOPK_OK) {
            status = adtopk_step_wait(context);
        }
        if (status == ADTOPK_OK && step >= training->warmup) {
            const struct stamp stamp = {pushed, clock_ns()};

            diary->stamp[(step - training->warmup) * training->ranks + rank] = stamp;
        }
    }
    atomic_fetch_add(&diary->cpu_ns, cpu_ns(training, rank) - since_ns);
    return status;
}

static int rank_main(void *context, unsigned rank)
{
    const struct post *post = context;
    adtopk_context *ctx = NULL;
    enum adtopk_status status = join(post->training, rank, &ctx);

    if (status == ADTOPK_OK) {
        status = prepare(post->training, rank, ctx);
    }
    if (status == ADTOPK_OK) {
        status = train(post->training, rank, ctx, post->diary);
    }
    if (status != ADTOPK_OK) {
        tell(post->diary, rank, adtopk_message(ctx));
    }
    adtopk_close(ctx);
    return status == ADTOPK_OK ? 0 : 1;
}

enum adtopk_status training_run(
    const struct training *training, struct diary **diary, struct error *err)
{
    struct crew crew = {.count = 0};
    struct post post = {.training = training, .diary = data_map(diary_size(training))};
    enum adtopk_status status = ADTOPK_OK;

    *diary = post.diary;
    if (post.diary == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the times of %llu steps",
            (unsigned long long)training->steps);
    }
    for (unsigned rank = 0; rank < training->ranks && status == ADTOPK_OK; rank++) {
        status = crew_start(&crew, rank_main, &post, rank, err);
    }
    if (status == ADTOPK_OK) {
        status = crew_wait(&crew, err);
    } else {
        crew_kill(&crew);
    }
    if (status == ADTOPK_ERR_STATE && post.diary->problem[0] != '\0') {
        status = error_set(err, status, "%s", post.diary->problem);
    }
    if (status != ADTOPK_OK) {
        training_free(training, post.diary);
        *diary = NULL;
    }
    return status;
}

double training_cpu_us(const struct training *training, const struct diary *diary)
{
    return (double)atomic_load(&diary->cpu_ns) * 1e-3 / (double)training->steps;
}

void training_free(const struct training *training, struct diary *diary)
{
    data_unmap(diary, diary_size(training));
}

/* The last push and the last return of a step; false if some rank has not finished it. */
static bool step_ends(const struct stamp *stamps, unsigned ranks, struct stamp *last)
{
    bool finished = true;

    *last = (struct stamp){0};
    for (unsigned rank = 0; rank < ranks; rank++) {
        finished = finished && stamps[rank].done != 0;
        last->pushed = stamps[rank].pushed > last->pushed ? stamps[rank].pushed : last->pushed;
        last->done = stamps[rank].done > last->done ? stamps[rank].done : last->done;
    }
    return finished;
}

bool training_times(
    const struct training *training, const struct diary *diary, bool whole, struct series *times)
{
    bool ok = true;

    for (uint64_t step = 0; step < training->steps && ok; step++) {
        const struct stamp *stamps = &diary->stamp[step * training->ranks];
        struct stamp last;

        if (!step_ends(stamps, training->ranks, &last)) {
            continue;
        }
        for (unsigned rank = 0; rank < training->ranks && !whole && ok; rank++) {
            ok = series_add(times, clock_us_between(last.pushed, stamps[rank].done));
        }
        ok = ok && (!whole || series_add(times, clock_us_between(last.pushed, last.done)));
    }
    return ok;
}

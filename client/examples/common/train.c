/* Trains data-parallel: the loop to copy. Read train_step() first. */
#include "train.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "drift.h"
#include "exchange.h"
#include "optimiser.h"
#include "options.h"
#include "report.h"
#include "sampler.h"
#include "saved.h"
#include "task.h"

enum {
    REPORT_EVERY = 10,   /* number of steps whose losses are added up over the ranks at once */
    WITHDRAWN_LIMIT = 20 /* steps in a row after which training has plainly diverged */
};

struct trainer {
    struct options options;
    struct optimiser_options optimiser_options;
    const struct train_observer *observer; /* NULL: none */
    struct task *task;
    const struct tensor *tensors; /* their values: where gradients are taken, and tests made */
    float **parameters;           /* what is trained, the same on all ranks */
    size_t count;                 /* of the tensors */
    struct sampler *sampler;
    size_t *tested; /* numbers of a batch of test examples */
    struct exchange *exchange;
    struct optimiser *optimiser;
    struct drift *drift;   /* NULL: gradients are exchanged in every step */
    struct report *report; /* rank 0 only */
    int rank;              /* -1 until it has joined */
    int world;
    uint64_t first; /* step from which it goes on */
    struct report_step recent[REPORT_EVERY];
    size_t recent_count;
    unsigned withdrawn_in_a_row;
    struct report_final final;
};

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int train_fail(const struct trainer *trainer, const char *what)
{
    if (trainer->rank < 0) {
        fprintf(stderr, "%s: %s\n", task_options.program, what);
    } else {
        fprintf(stderr, "%s: rank %d: %s\n", task_options.program, trainer->rank, what);
    }
    return -1;
}

static int train_exchange_failed(const struct trainer *trainer)
{
    return train_fail(trainer, exchange_message(trainer->exchange));
}

/* The first example of the global batch that belongs to a rank. */
static size_t train_share(const struct trainer *trainer, int rank)
{
    return (size_t)(trainer->options.batch * (uint64_t)rank / (uint64_t)trainer->world);
}

/* The next gradients are taken ahead of the parameters, as far as the policy says. */
static int train_look_ahead(struct trainer *trainer, float rate)
{
    for (size_t t = 0; t < trainer->count; t++) {
        const struct optimiser_reach reach = trainer->drift
                                                 ? drift_reach(trainer->drift)
                                                 : optimiser_reach(trainer->optimiser, t, rate);
        if (exchange_look_ahead(trainer->exchange, t, trainer->parameters[t], &reach,
                trainer->tensors[t].values) != 0) {
            return train_exchange_failed(trainer);
        }
    }
    if (trainer->drift) {
        drift_begin(trainer->drift, exchange_gradients(trainer->exchange));
    }
    return 0;
}

/* Tests, and the hash of the parameters, are of the parameters themselves. */
static void train_look_here(struct trainer *trainer)
{
    for (size_t t = 0; t < trainer->count; t++) {
        memcpy(trainer->tensors[t].values, trainer->parameters[t],
            tensor_size(&trainer->tensors[t]) * sizeof(float));
    }
}

static int train_apply(struct trainer *trainer, uint64_t step, float rate)
{
    const struct train_observer *observer = trainer->observer;
    if (observer &&
        observer->step(observer->self, &trainer->options, trainer->exchange, step) != 0) {
        return -1;
    }
    for (size_t t = 0; t < trainer->count; t++) {
        const float *update = exchange_update(trainer->exchange, t);
        if (!update) {
            return train_exchange_failed(trainer);
        }
        if (trainer->drift) {
            drift_apply(trainer->drift, t, trainer->parameters[t], update);
        } else {
            optimiser_apply(trainer->optimiser, t, trainer->parameters[t], update, rate);
        }
    }
    return train_look_ahead(trainer, rate);
}

/* A gradient of a step that the rank takes alone. */
static int train_keep(void *context, size_t tensor)
{
    (void)context;
    (void)tensor;
    return 0;
}

static int train_backward(struct trainer *trainer)
{
    /* The mean over the ranks of (world / batch * sum over own examples) is the mean over the
     * global batch. This holds even if the ranks' shares differ by one. */
    const float scale = (float)trainer->world / (float)trainer->options.batch;
    struct exchange *exchange = trainer->exchange;
    struct model *model = task_model(trainer->task);
    return trainer->drift
               ? model_backward(model, scale, drift_gradients(trainer->drift), train_keep, NULL)
               : model_backward(
                     model, scale, exchange_gradients(exchange), exchange_push, exchange);
}

/* The rank's own step. After the last one before an exchange, pushes the drift. */
static int train_drift(struct trainer *trainer, float rate, int exchanges)
{
    float *const *gradients = drift_gradients(trainer->drift);
    for (size_t t = 0; t < trainer->count; t++) {
        optimiser_apply(trainer->optimiser, t, trainer->tensors[t].values, gradients[t], rate);
        if (exchanges) {
            drift_take(trainer->drift, t, exchange_gradients(trainer->exchange)[t]);
            if (exchange_push(trainer->exchange, t) != 0) {
                return -1;
            }
        }
    }
    return 0;
}

/* Whether what was computed in this step is exchanged in it. */
static int train_exchanges(const struct trainer *trainer, uint64_t step)
{
    const uint64_t every = trainer->drift ? trainer->options.drift.steps : 1;
    return (step + 1) % every == 0 || step + 1 == trainer->options.steps;
}

/* What a step that was exchanged leads to. A drift that is withdrawn may come from an optimiser
 * whose moments are not finite, so all ranks begin again from the shared parameters. */
static int train_end(struct trainer *trainer, uint64_t step, float rate, enum exchange_step outcome)
{
    if (outcome == EXCHANGE_ACCEPTED) {
        return train_apply(trainer, step, rate);
    }
    if (trainer->drift) {
        optimiser_forget(trainer->optimiser);
        return train_look_ahead(trainer, rate);
    }
    return 0;
}

/* One training step. Gradients leave for the daemon while the backward pass still runs; nothing is
 * applied before the whole step is accepted. */
static int train_step(struct trainer *trainer, uint64_t step, struct report_step *record)
{
    const int exchanges = train_exchanges(trainer, step);
    const float rate = optimiser_rate(&trainer->optimiser_options, step);

    const double start = seconds_now();
    const size_t begin = train_share(trainer, trainer->rank);
    const size_t end = train_share(trainer, trainer->rank + 1);
    const struct score score = task_forward(
        trainer->task, TASK_TRAIN, sampler_batch(trainer->sampler, step) + begin, end - begin);
    if (train_backward(trainer) != 0 ||
        (trainer->drift && train_drift(trainer, rate, exchanges) != 0)) {
        return train_exchange_failed(trainer);
    }

    const double computed = seconds_now();
    const enum exchange_step outcome =
        exchanges ? exchange_wait(trainer->exchange) : EXCHANGE_ACCEPTED;
    if (outcome == EXCHANGE_FAILED) {
        return train_exchange_failed(trainer);
    }

    const double waited = seconds_now();
    if (exchanges && train_end(trainer, step, rate, outcome) != 0) {
        return -1;
    }
    *record = (struct report_step){.step = step,
        .loss = score.loss / (double)score.predictions * (double)(end - begin),
        .lr = rate,
        .withdrawn = outcome == EXCHANGE_WITHDRAWN,
        .seconds = {computed - start, waited - computed, seconds_now() - waited}};
    return 0;
}

/* Adds up the losses of the recent steps over the ranks, and reports them. */
static int train_report(struct trainer *trainer)
{
    float losses[REPORT_EVERY];
    for (size_t i = 0; i < trainer->recent_count; i++) {
        losses[i] = (float)trainer->recent[i].loss;
    }
    if (exchange_sum(trainer->exchange, losses, trainer->recent_count) != 0) {
        return train_exchange_failed(trainer);
    }
    for (size_t i = 0; i < trainer->recent_count; i++) {
        trainer->recent[i].loss = losses[i] / (double)trainer->options.batch;
    }
    if (trainer->report) {
        report_steps(trainer->report, trainer->recent, trainer->recent_count);
    }
    trainer->recent_count = 0;
    return 0;
}

static int train_account(struct trainer *trainer, const struct report_step *record)
{
    struct report_phases *totals = &trainer->final.totals;
    totals->compute += record->seconds.compute;
    totals->wait += record->seconds.wait;
    totals->apply += record->seconds.apply;
    trainer->final.withdrawn += (uint64_t)record->withdrawn;
    if (train_exchanges(trainer, record->step)) {
        trainer->withdrawn_in_a_row = record->withdrawn ? trainer->withdrawn_in_a_row + 1 : 0;
    }
    if (trainer->withdrawn_in_a_row == WITHDRAWN_LIMIT) {
        return train_fail(trainer, "the gradients are not finite any more; try a lower --lr");
    }
    return 0;
}

/* Tests about `most` examples, evenly spread over the test set. */
static struct report_test train_test(struct trainer *trainer, size_t most)
{
    const size_t total = task_count(trainer->task, TASK_TEST), batch = trainer->options.batch;
    const size_t stride = total / most + (total % most != 0);
    size_t *examples = trainer->tested;
    struct score sum = {0};
    for (size_t next = 0; next < total;) {
        size_t count = 0;
        for (; count < batch && next < total; next += stride) {
            examples[count++] = next;
        }
        const struct score score = task_forward(trainer->task, TASK_TEST, examples, count);
        sum.loss += score.loss;
        sum.correct += score.correct;
        sum.predictions += score.predictions;
    }
    const double predictions = (double)sum.predictions;
    return (struct report_test){(double)sum.correct / predictions, sum.loss / predictions};
}

static struct saved train_saved(struct trainer *trainer)
{
    struct saved saved = {.tensors = trainer->tensors,
        .count = trainer->count,
        .parameters = trainer->parameters,
        .optimiser = trainer->optimiser};
    saved.statistics = task_statistics(trainer->task, &saved.statistics_count);
    return saved;
}

/* One rank writes what is equal on all ranks, the daemons' gradients go beside it. The checkpoint
 * counts when both are there. */
static int train_save(struct trainer *trainer, uint64_t step)
{
    const char *folder = trainer->options.checkpoint;
    const struct saved saved = train_saved(trainer);
    char path[SAVED_PATH], error[SAVED_ERROR] = "";
    const int first = exchange_is_first(trainer->exchange);
    float failed = first > 0 && saved_write(&saved, folder, step, error) != 0 ? 1 : 0;

    if (failed > 0) {
        (void)train_fail(trainer, error);
    }
    if (first < 0 || exchange_sum(trainer->exchange, &failed, 1) != 0) {
        return train_exchange_failed(trainer);
    }
    if (failed > 0) {
        return -1;
    }
    if (saved_folder(folder, step, path) != 0 || exchange_save(trainer->exchange, path) != 0) {
        return train_exchange_failed(trainer);
    }
    return first > 0 && saved_note(folder, step, error) != 0 ? train_fail(trainer, error) : 0;
}

/* Goes on from the last checkpoint. */
static int train_resume(struct trainer *trainer)
{
    const char *folder = trainer->options.checkpoint;
    const struct saved saved = train_saved(trainer);
    char path[SAVED_PATH], error[SAVED_ERROR] = "";

    if (saved_latest(folder, &trainer->first, error) != 0 ||
        saved_read(&saved, folder, trainer->first, error) != 0) {
        return train_fail(trainer, error);
    }
    if (exchange_check_equal(trainer->exchange, trainer->first) != 0 ||
        saved_folder(folder, trainer->first, path) != 0 ||
        exchange_load(trainer->exchange, path) != 0) {
        return train_exchange_failed(trainer);
    }
    return train_look_ahead(
        trainer, optimiser_rate(&trainer->optimiser_options, trainer->first - 1));
}

/* Saves a checkpoint when it is time, at the end, or when an operator has asked for one. */
static int train_save_due(struct trainer *trainer, uint64_t step)
{
    const struct options *options = &trainer->options;
    const int planned = step % options->checkpoint_every == 0 || step == options->steps;
    const int due = options->checkpoint ? exchange_checkpoint_due(trainer->exchange) : 0;
    if (due < 0) {
        return train_exchange_failed(trainer);
    }
    return due || (options->checkpoint && planned) ? train_save(trainer, step) : 0;
}

static int train_loop(struct trainer *trainer)
{
    const uint64_t steps = trainer->options.steps;
    const double start = seconds_now();
    for (uint64_t step = trainer->first; step < steps; step++) {
        struct report_step *record = &trainer->recent[trainer->recent_count];
        if (train_step(trainer, step, record) != 0) {
            return -1;
        }
        const uint64_t every = trainer->options.evaluate_every;
        if (trainer->report && every > 0 && (step + 1) % every == 0) {
            record->tested = 1;
            train_look_here(trainer);
            record->test = train_test(trainer, task_options.tested);
            if (train_look_ahead(trainer, (float)record->lr) != 0) {
                return -1;
            }
        }
        if (train_save_due(trainer, step + 1) != 0) {
            return -1;
        }
        trainer->recent_count++;
        if (train_account(trainer, record) != 0) {
            return -1;
        }
        if (trainer->recent_count == REPORT_EVERY || step + 1 == steps) {
            if (train_report(trainer) != 0) {
                return -1;
            }
        }
    }
    trainer->final.seconds = seconds_now() - start;
    return 0;
}

/* Each rank tests with what all ranks gathered. */
static int train_share_statistics(struct trainer *trainer)
{
    size_t count = 0;
    float *statistics = task_statistics(trainer->task, &count);
    if (exchange_sum(trainer->exchange, statistics, count) != 0) {
        return train_exchange_failed(trainer);
    }
    for (size_t i = 0; i < count; i++) {
        statistics[i] /= (float)trainer->world;
    }
    return 0;
}

static int train_finish(struct trainer *trainer)
{
    trainer->final.steps = trainer->options.steps;
    trainer->final.world = trainer->world;
    train_look_here(trainer);
    trainer->final.parameter_hash = tensors_hash(trainer->tensors, trainer->count);
    if (exchange_check_equal(trainer->exchange, trainer->final.parameter_hash) != 0) {
        return train_exchange_failed(trainer);
    }
    if (train_share_statistics(trainer) != 0) {
        return -1;
    }
    if (!trainer->report) {
        printf("rank %d: parameters %016" PRIx64 ", the same as on all ranks\n", trainer->rank,
            trainer->final.parameter_hash);
        return 0;
    }
    trainer->final.test = train_test(trainer, SIZE_MAX);
    report_final(trainer->report, &trainer->final);
    return 0;
}

static void train_free(float **copies, size_t count)
{
    for (size_t t = 0; copies && t < count; t++) {
        free(copies[t]);
    }
    free(copies);
}

/* Memory for a copy of every tensor; NULL without. */
static float **train_copies(const struct trainer *trainer)
{
    float **copies = calloc(trainer->count, sizeof *copies);
    for (size_t t = 0; copies && t < trainer->count; t++) {
        copies[t] = malloc(tensor_size(&trainer->tensors[t]) * sizeof(float));
        if (!copies[t]) {
            train_free(copies, t);
            return NULL;
        }
    }
    return copies;
}

static int train_create(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    char error[TASK_ERROR_SIZE] = "";
    trainer->task = task_create(options, error);
    if (!trainer->task) {
        return train_fail(trainer, error);
    }
    const size_t examples = task_count(trainer->task, TASK_TRAIN);
    if (options->batch > examples) {
        snprintf(error, sizeof error, "--batch is above the %zu training examples", examples);
        return train_fail(trainer, error);
    }
    if (task_build(trainer->task, options) != 0) {
        return train_fail(trainer, "no memory");
    }
    trainer->tensors = model_tensors(task_model(trainer->task), &trainer->count);
    trainer->optimiser_options = (struct optimiser_options){.kind = options->optimiser,
        .lr = options->lr,
        .momentum = 0.9f,
        .corrected = options->corrected,
        .weight_decay = options->weight_decay,
        .warmup = options->warmup,
        .steps = options->steps};
    trainer->sampler = sampler_create(examples, options->batch, options->seed);
    trainer->optimiser =
        optimiser_create(&trainer->optimiser_options, trainer->tensors, trainer->count);
    if (options->drift.steps > 0) {
        trainer->drift = drift_create(&options->drift, trainer->tensors, trainer->count);
    }
    trainer->tested = malloc(options->batch * sizeof *trainer->tested);
    trainer->parameters = train_copies(trainer);
    if (!trainer->sampler || !trainer->optimiser || !trainer->tested || !trainer->parameters ||
        (options->drift.steps > 0 && !trainer->drift)) {
        return train_fail(trainer, "no memory");
    }
    return 0;
}

static int train_check_options(const struct trainer *trainer)
{
    char words[EXCHANGE_WORDS];
    options_words(&trainer->options, words, sizeof words);
    return exchange_check_words(trainer->exchange, words);
}

/* Joins the other ranks; from here on all have the same parameters. */
static int train_join(struct trainer *trainer)
{
    const struct options *options = &trainer->options;
    trainer->exchange = exchange_open(&options->exchange, trainer->tensors, trainer->count);
    if (!trainer->exchange) {
        return train_fail(trainer, "no memory");
    }
    if (exchange_failed(trainer->exchange)) {
        return train_exchange_failed(trainer);
    }

    trainer->rank = exchange_rank(trainer->exchange);
    trainer->world = exchange_world(trainer->exchange);
    if (train_check_options(trainer) != 0) {
        return train_exchange_failed(trainer);
    }
    if (options->batch < (uint64_t)trainer->world) {
        return train_fail(trainer, "--batch is below the number of ranks");
    }
    if (trainer->rank == 0) {
        trainer->report = report_open(task_options.program, options->log, options->steps);
        if (!trainer->report) {
            return -1;
        }
    }
    tensors_init(trainer->tensors, trainer->count, options->seed);
    if (exchange_share_parameters(trainer->exchange) != 0) {
        return train_exchange_failed(trainer);
    }
    for (size_t t = 0; t < trainer->count; t++) {
        memcpy(trainer->parameters[t], trainer->tensors[t].values,
            tensor_size(&trainer->tensors[t]) * sizeof(float));
    }
    if (trainer->drift) {
        drift_begin(trainer->drift, exchange_gradients(trainer->exchange));
    }
    return options->resume ? train_resume(trainer) : 0;
}

static int train_run(struct trainer *trainer)
{
    if (train_create(trainer) != 0 || train_join(trainer) != 0 || train_loop(trainer) != 0) {
        return -1;
    }
    return train_finish(trainer);
}

static int train_destroy(struct trainer *trainer)
{
    exchange_close(trainer->exchange);
    optimiser_destroy(trainer->optimiser);
    drift_destroy(trainer->drift);
    sampler_destroy(trainer->sampler);
    free(trainer->tested);
    train_free(trainer->parameters, trainer->count);
    task_destroy(trainer->task);
    options_free(&trainer->options);
    return report_close(trainer->report);
}

int train_main(int argc, char **argv, const struct train_observer *observer)
{
    struct trainer trainer = {.observer = observer, .rank = -1};
    int result = 0;
    switch (options_read(&trainer.options, &task_options, argc, argv)) {
    case OPTIONS_HELP: break;
    case OPTIONS_ERROR: result = 2; break;
    case OPTIONS_RUN: result = train_run(&trainer) != 0; break;
    }
    if (train_destroy(&trainer) != 0 && result == 0) {
        result = 1;
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: standard output: cannot write\n", task_options.program);
        result = result == 0 ? 1 : result;
    }
    return result;
}

/*
 * A rank that follows commands. Each line on standard input is a command. For each the program
 * prints one line, "ok ..." or "error NAME SENTENCE". The table below lists the commands.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/dtype.h"
#include "proto/keyfile.h"
#include "tests/integration/ahead.h"
#include "tests/integration/gradients.h"

#define TRAINER_MAX_TENSORS 65536
#define TRAINER_WORDS 8
#define TRAINER_HASH 0xcbf29ce484222325u

struct trainer_tensor {
    enum adtopk_dtype dtype;
    uint64_t numel;
    bool pushed;
    double *given; /* sums of gradients over the accepted steps, per element; NULL: not kept */
    double *got;
    float *scratch;       /* the dense form of a list */
    const void *gradient; /* the gradient's memory, since its commit */
};

struct trainer {
    adtopk_context *context;
    struct trainer_tensor tensor[TRAINER_MAX_TENSORS];
    uint32_t tensors;
    struct gradients_source source;
    uint64_t skipped; /* the gradients of step s are number s + skipped of the stream */
    uint64_t poison_step;
    uint32_t poison_tensor;
    float poison; /* 0: none */
    float scale;  /* the loss scale; 0: none is given */
    bool totals;
    FILE *trace;
    uint64_t hash;
    uint64_t accepted, withdrawn;
    char problem[256];         /* the fault of an update */
    struct adtopk_update held; /* the update of `hold` */
};

static bool trainer_fail(const struct trainer *trainer, enum adtopk_status status)
{
    printf("error %s %s\n", adtopk_status_name(status),
        trainer->problem[0] != '\0' ? trainer->problem : adtopk_message(trainer->context));
    return false;
}

static bool trainer_refuse(const char *why)
{
    printf("error usage %s\n", why);
    return false;
}

static bool trainer_done(const struct trainer *trainer, enum adtopk_status status)
{
    return status == ADTOPK_OK ? printf("ok\n") > 0 : trainer_fail(trainer, status);
}

/* ---- joining ---- */

static bool trainer_open(struct trainer *trainer, char **word)
{
    const struct adtopk_options options = {.size = sizeof options,
        .address = word[1],
        .job = word[2],
        .run_id = word[3],
        .rank = atoi(word[4]),
        .has_rank = 1,
        .world_size = atoi(word[5]),
        .policy = strcmp(word[6], "-") == 0 ? NULL : word[6]};

    trainer->source.rank = strtoull(word[4], NULL, 10);
    return trainer_done(trainer, adtopk_open(&options, &trainer->context));
}

/* "-" means no keys. */
static bool trainer_keys(struct trainer *trainer, char **word)
{
    (void)trainer;
    return setenv("ADTOPK_KEY_FILE", strcmp(word[1], "-") != 0 ? word[1] : "", 1) == 0 &&
           setenv("ADTOPK_SERVER_KEY", strcmp(word[2], "-") != 0 ? word[2] : "", 1) == 0 &&
           printf("ok\n") > 0;
}

static bool trainer_keygen(struct trainer *trainer, char **word)
{
    char key[KEYFILE_KEY_SIZE];
    struct error err = {.code = ADTOPK_OK};

    (void)trainer;
    return keyfile_generate(word[1], key, &err) == ADTOPK_OK ? printf("ok %s\n", key) > 0
                                                             : trainer_refuse(err.text);
}

/* A form of updates; "+pending" behind it asks for the residual as well. */
static unsigned trainer_forms(const char *word)
{
    const size_t length = strcspn(word, "+");
    const unsigned pending = word[length] == '+' ? ADTOPK_FORM_PENDING : 0;

    static const struct {
        const char *word;
        unsigned forms;
    } forms[] = {{"list", ADTOPK_FORM_LIST}, {"dense", ADTOPK_FORM_DENSE},
        {"dense16", ADTOPK_FORM_DENSE16}, {"both16", ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE16}};

    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if (strlen(forms[i].word) == length && strncmp(word, forms[i].word, length) == 0) {
            return forms[i].forms | pending;
        }
    }
    return ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE | pending;
}

static bool trainer_register(struct trainer *trainer, char **word)
{
    struct trainer_tensor *tensor = &trainer->tensor[trainer->tensors];
    struct adtopk_tensor_spec spec = {
        .size = sizeof spec, .name = word[1], .forms = trainer_forms(word[3])};
    enum adtopk_status status;

    if (trainer->tensors == TRAINER_MAX_TENSORS) {
        return trainer_refuse("too many tensors");
    }
    spec.dtype = strcmp(word[2], "f16") == 0    ? ADTOPK_F16
                 : strcmp(word[2], "bf16") == 0 ? ADTOPK_BF16
                                                : ADTOPK_F32;
    *tensor = (struct trainer_tensor){.dtype = spec.dtype, .numel = 1};
    for (char *size = word[4]; size != NULL && spec.dims < ADTOPK_MAX_DIMS;) {
        char *end;
        spec.shape[spec.dims] = strtoull(size, &end, 10);
        tensor->numel *= spec.shape[spec.dims++];
        size = *end == 'x' ? end + 1 : NULL;
    }
    status = adtopk_register(trainer->context, &spec, NULL);
    trainer->tensors += status == ADTOPK_OK;
    return trainer_done(trainer, status);
}

static bool trainer_commit(struct trainer *trainer, char **word)
{
    const enum adtopk_status status = adtopk_commit(trainer->context);

    (void)word;
    for (uint32_t t = 0; status == ADTOPK_OK && t < trainer->tensors; t++) {
        struct trainer_tensor *tensor = &trainer->tensor[t];
        if (tensor->scratch != NULL) { /* from an earlier commit */
            if (tensor->gradient != adtopk_gradient(trainer->context, t)) {
                return trainer_refuse("a gradient has moved");
            }
            continue;
        }
        tensor->gradient = adtopk_gradient(trainer->context, t);
        tensor->scratch = calloc(tensor->numel, sizeof(float));
        tensor->given = trainer->totals ? calloc(tensor->numel, sizeof(double)) : NULL;
        tensor->got = trainer->totals ? calloc(tensor->numel, sizeof(double)) : NULL;
        if (tensor->scratch == NULL ||
            (trainer->totals && (tensor->given == NULL || tensor->got == NULL))) {
            return trainer_refuse("no memory");
        }
    }
    return trainer_done(trainer, status);
}

/* ---- the updates of a step ---- */

static bool trainer_gradients(struct trainer *trainer, char **word)
{
    trainer->source.kind = strcmp(word[1], "integer") == 0  ? GRADIENTS_INTEGER
                           : strcmp(word[1], "random") == 0 ? GRADIENTS_RANDOM
                                                            : GRADIENTS_ZERO;
    trainer->source.seed = strtoull(word[2], NULL, 10);
    return printf("ok\n") > 0;
}

static bool trainer_poison(struct trainer *trainer, char **word)
{
    trainer->poison_step = strtoull(word[1], NULL, 10);
    trainer->poison_tensor = (uint32_t)strtoul(word[2], NULL, 10);
    trainer->poison = strcmp(word[3], "nan") == 0 ? NAN : INFINITY;
    return printf("ok\n") > 0;
}

static bool trainer_scale(struct trainer *trainer, char **word)
{
    trainer->scale = strtof(word[1], NULL);
    return printf("ok\n") > 0;
}

static float trainer_factor(const struct trainer *trainer)
{
    return trainer->scale != 0 ? trainer->scale : 1;
}

static bool trainer_skip(struct trainer *trainer, char **word)
{
    trainer->skipped += strtoull(word[1], NULL, 10);
    return printf("ok\n") > 0;
}

static bool trainer_totals(struct trainer *trainer, char **word)
{
    (void)word;
    trainer->totals = true;
    return printf("ok\n") > 0;
}

static bool trainer_trace(struct trainer *trainer, char **word)
{
    trainer->trace = fopen(word[1], "wb");
    return trainer->trace != NULL ? printf("ok\n") > 0 : trainer_refuse("cannot write the trace");
}

/* ---- steps ---- */

static enum adtopk_status trainer_push_tensor(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = t, .scale = trainer->scale};
    void *gradient = adtopk_gradient(trainer->context, t);
    const uint64_t step = adtopk_step(trainer->context);

    trainer->source.step = step + trainer->skipped;
    for (uint64_t i = 0; gradient != NULL && i < tensor->numel; i++) {
        gradients_store(gradient, tensor->dtype, i,
            trainer_factor(trainer) * gradients_value(&trainer->source, tensor->dtype, t, i));
    }
    if (gradient != NULL && trainer->poison != 0 && trainer->poison_step == step &&
        trainer->poison_tensor == t) {
        gradients_store(gradient, tensor->dtype, tensor->numel - 1, trainer->poison);
    }
    tensor->pushed = true;
    return trainer->scale != 0 ? adtopk_push(trainer->context, &push)
                               : adtopk_push_tensor(trainer->context, t, NULL);
}

static bool trainer_push(struct trainer *trainer, char **word)
{
    return trainer_done(
        trainer, trainer_push_tensor(trainer, (uint32_t)strtoul(word[1], NULL, 10)));
}

struct trainer_pusher {
    struct trainer *trainer;
    uint32_t tensor;
    enum adtopk_status status;
};

static void *trainer_push_beside(void *argument)
{
    struct trainer_pusher *pusher = argument;

    pusher->status = trainer_push_tensor(pusher->trainer, pusher->tensor);
    return NULL;
}

/* Pushes a tensor in another thread, and ends the step as soon as that push has begun: from then on
 * the tensor counts as pushed. */
static bool trainer_race(struct trainer *trainer, char **word)
{
    struct trainer_pusher pusher = {
        .trainer = trainer, .tensor = (uint32_t)strtoul(word[1], NULL, 10)};
    pthread_t thread;
    enum adtopk_status status = ADTOPK_ERR_STATE;

    if (pthread_create(&thread, NULL, trainer_push_beside, &pusher) != 0) {
        return trainer_refuse("no thread");
    }
    while (status == ADTOPK_ERR_STATE) {
        status = adtopk_wait_for(trainer->context, pusher.tensor, 0);
    }
    if (status == ADTOPK_PENDING) {
        status = adtopk_step_end(trainer->context);
    }
    (void)pthread_join(thread, NULL);
    return trainer_done(trainer, pusher.status != ADTOPK_OK ? pusher.status : status);
}

/* Adds the gradients that were pushed in this step to the totals. */
static void trainer_add_given(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    for (uint64_t i = 0; tensor->pushed && tensor->given != NULL && i < tensor->numel; i++) {
        tensor->given[i] += (double)gradients_value(&trainer->source, tensor->dtype, t, i);
    }
}

static enum adtopk_status trainer_wrong(struct trainer *trainer, uint32_t t, const char *what)
{
    (void)snprintf(
        trainer->problem, sizeof trainer->problem, "update of tensor %" PRIu32 ": %s", t, what);
    return ADTOPK_ERR_PROTOCOL;
}

/* Scatters the list into scratch, and compares it with the dense form if there is one. */
static enum adtopk_status trainer_scatter(
    struct trainer *trainer, uint32_t t, const struct adtopk_update *update)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    memset(tensor->scratch, 0, tensor->numel * sizeof(float));
    for (uint64_t i = 0; i < update->count; i++) {
        if (update->index[i] >= tensor->numel || tensor->scratch[update->index[i]] != 0) {
            return trainer_wrong(trainer, t, "an index is out of range or comes twice");
        }
        tensor->scratch[update->index[i]] = update->value[i];
    }
    for (uint64_t i = 0; update->dense != NULL && i < tensor->numel; i++) {
        if (tensor->scratch[i] != update->dense[i] &&
            !(isnan(tensor->scratch[i]) && isnan(update->dense[i]))) {
            return trainer_wrong(trainer, t, "list and dense form differ");
        }
    }
    return ADTOPK_OK;
}

/* Widens the 16-bit form into scratch. The list, if there is one, has the same values. */
static enum adtopk_status trainer_widen(
    struct trainer *trainer, uint32_t t, const struct adtopk_update *update)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];

    if (update->dtype16 != (uint32_t)tensor->dtype || update->dense != NULL) {
        return trainer_wrong(trainer, t, "the 16-bit form is of another type, or not alone");
    }
    for (uint64_t i = 0; i < tensor->numel; i++) {
        tensor->scratch[i] = tensor->dtype == ADTOPK_F16 ? f16_to_f32(update->dense16[i])
                                                         : bf16_to_f32(update->dense16[i]);
    }
    for (uint64_t i = 0; i < update->count; i++) {
        if (update->index[i] >= tensor->numel ||
            update->value[i] != tensor->scratch[update->index[i]]) {
            return trainer_wrong(trainer, t, "list and 16-bit form differ");
        }
    }
    return ADTOPK_OK;
}

/* Sets *dense to all elements of the update. Error: its forms differ or are wrong, or the update is
 * marked as unpushed and is not. */
static enum adtopk_status trainer_dense(
    struct trainer *trainer, uint32_t t, const float **dense, bool *unpushed)
{
    const struct trainer_tensor *tensor = &trainer->tensor[t];
    struct adtopk_update update = {.size = sizeof update};
    const enum adtopk_status status = adtopk_update(trainer->context, t, &update);

    *unpushed = update.unpushed != 0;
    if (status != ADTOPK_OK) {
        return status;
    }
    if (update.numel != tensor->numel ||
        (update.index == NULL && update.dense == NULL && update.dense16 == NULL)) {
        return trainer_wrong(trainer, t, "has no form, or another size");
    }
    if (*unpushed && tensor->pushed) {
        return trainer_wrong(trainer, t, "unpushed, but this rank pushed it");
    }
    if (update.dense16 != NULL) {
        *dense = tensor->scratch;
        return trainer_widen(trainer, t, &update);
    }
    *dense = update.index != NULL ? tensor->scratch : update.dense;
    return update.index != NULL ? trainer_scatter(trainer, t, &update) : ADTOPK_OK;
}

/* Drops unpushed updates, as a framework does that skips parameters without a gradient. */
static enum adtopk_status trainer_take(struct trainer *trainer, uint32_t t)
{
    struct trainer_tensor *tensor = &trainer->tensor[t];
    const float *update = NULL;
    bool unpushed = false;
    const enum adtopk_status status = trainer_dense(trainer, t, &update, &unpushed);

    for (uint64_t i = 0; status == ADTOPK_OK && i < tensor->numel; i++) {
        const float value = update[i] / trainer_factor(trainer);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        trainer->hash = (trainer->hash ^ bits) * 0x100000001b3u;
        if (unpushed && bits != 0) {
            return trainer_wrong(trainer, t, "unpushed, but not empty");
        }
        if (tensor->got != NULL && !unpushed) {
            tensor->got[i] += (double)value;
        }
    }
    if (status == ADTOPK_OK && trainer->trace != NULL &&
        fwrite(update, sizeof *update, tensor->numel, trainer->trace) != tensor->numel) {
        return trainer_wrong(trainer, t, "cannot write the trace");
    }
    return status;
}

/* Waits for the step and takes its updates. */
static enum adtopk_status trainer_finish(struct trainer *trainer)
{
    enum adtopk_status status = adtopk_step_wait(trainer->context);

    for (uint32_t t = 0; status == ADTOPK_OK && t < trainer->tensors; t++) {
        trainer_add_given(trainer, t);
        status = trainer_take(trainer, t);
    }
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        trainer->tensor[t].pushed = false;
    }
    if (trainer->trace != NULL) {
        (void)fflush(trainer->trace);
    }
    trainer->accepted += status == ADTOPK_OK;
    trainer->withdrawn += status == ADTOPK_NONFINITE;
    return status;
}

/* Pushes the tensors that are left and finishes the step. */
static enum adtopk_status trainer_one_step(struct trainer *trainer)
{
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        const enum adtopk_status status =
            trainer->tensor[t].pushed ? ADTOPK_OK : trainer_push_tensor(trainer, t);
        if (status != ADTOPK_OK) {
            return status;
        }
    }
    return trainer_finish(trainer);
}

static bool trainer_report(struct trainer *trainer, enum adtopk_status status)
{
    if (status != ADTOPK_OK && status != ADTOPK_NONFINITE) {
        return trainer_fail(trainer, status);
    }
    return printf("ok %s %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", adtopk_status_name(status),
               trainer->accepted, trainer->withdrawn, trainer->hash) > 0;
}

static bool trainer_steps(struct trainer *trainer, char **word)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t left = strtoull(word[1], NULL, 10); left > 0; left--) {
        status = trainer_one_step(trainer);
        if (status != ADTOPK_OK && status != ADTOPK_NONFINITE) {
            break;
        }
    }
    return trainer_report(trainer, status);
}

/* A thread that ends the step without pushing the other tensors, and waits for it. */
struct trainer_waiter {
    adtopk_context *context;
    int ms;
    enum adtopk_status status;
};

static void *trainer_wait_beside(void *argument)
{
    struct trainer_waiter *waiter = argument;

    waiter->status = adtopk_step_wait_for(waiter->context, waiter->ms);
    return NULL;
}

/* Looks in the middle of the other thread's wait. */
static bool trainer_look_beside(struct trainer *trainer, char **word)
{
    struct trainer_waiter waiter = {.context = trainer->context, .ms = atoi(word[1])};
    const struct timespec half = {.tv_nsec = waiter.ms / 2 * 1000000L};
    enum adtopk_status status;
    pthread_t thread;

    if (pthread_create(&thread, NULL, trainer_wait_beside, &waiter) != 0) {
        return trainer_refuse("no thread");
    }
    (void)nanosleep(&half, NULL);
    status = adtopk_step_wait_for(trainer->context, 0);
    (void)pthread_join(thread, NULL);
    return printf("ok %s %s\n", adtopk_status_name(status), adtopk_status_name(waiter.status)) > 0;
}

static bool trainer_finish_step(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_report(trainer, trainer_finish(trainer));
}

static bool trainer_wait(struct trainer *trainer, char **word)
{
    return trainer_done(
        trainer, adtopk_wait(trainer->context, (uint32_t)strtoul(word[1], NULL, 10)));
}

static bool trainer_update_step(struct trainer *trainer, char **word)
{
    struct adtopk_update update = {.size = sizeof update};
    const enum adtopk_status status =
        adtopk_update(trainer->context, (uint32_t)strtoul(word[1], NULL, 10), &update);

    return status == ADTOPK_OK ? printf("ok %" PRIu64 "\n", update.step) > 0
                               : trainer_fail(trainer, status);
}

/* Here "pending" is an answer too. */
static bool trainer_look(struct trainer *trainer, char **word)
{
    const enum adtopk_status status = adtopk_step_wait_for(trainer->context, atoi(word[1]));

    return status == ADTOPK_PENDING ? printf("ok pending\n") > 0 : trainer_done(trainer, status);
}

static bool trainer_descriptor(struct trainer *trainer, char **word)
{
    int descriptor;

    (void)word;
    return trainer_done(trainer, adtopk_descriptor(trainer->context, &descriptor));
}

static bool trainer_arm(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_done(trainer, adtopk_arm(trainer->context));
}

/* ---- plain operations, checked here ---- */

static bool trainer_barrier(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_done(trainer, adtopk_barrier(trainer->context));
}

/* Here "pending" is an answer too. */
static bool trainer_barrier_look(struct trainer *trainer, char **word)
{
    const enum adtopk_status status = adtopk_barrier_for(trainer->context, atoi(word[1]));

    return status == ADTOPK_PENDING ? printf("ok pending\n") > 0 : trainer_done(trainer, status);
}

static bool trainer_broadcast(struct trainer *trainer, char **word)
{
    const size_t size = strtoull(word[1], NULL, 10);
    const int root = atoi(word[2]);
    const bool sends = root == adtopk_rank(trainer->context);
    unsigned char *bytes = malloc(size + 1);
    enum adtopk_status status;
    size_t wrong = 0;

    if (bytes == NULL) {
        return trainer_refuse("no memory");
    }
    for (size_t i = 0; i <= size; i++) {
        bytes[i] = sends ? (unsigned char)(i * 31 + (size_t)root + 1) : 0;
    }
    status = adtopk_broadcast(trainer->context, bytes, size, root);
    for (size_t i = 0; i < size; i++) {
        wrong += bytes[i] != (unsigned char)(i * 31 + (size_t)root + 1);
    }
    wrong += !sends && bytes[size] != 0;
    free(bytes);
    return status == ADTOPK_OK && wrong > 0 ? trainer_refuse("wrong bytes arrived")
                                            : trainer_done(trainer, status);
}

static bool trainer_allreduce(struct trainer *trainer, char **word)
{
    const size_t count = strtoull(word[1], NULL, 10);
    const unsigned world = (unsigned)adtopk_world_size(trainer->context);
    const unsigned rank = (unsigned)adtopk_rank(trainer->context);
    float *values = malloc((count + 1) * sizeof *values);
    enum adtopk_status status;
    size_t wrong = 0;

    if (values == NULL) {
        return trainer_refuse("no memory");
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((rank + 1) * (i % 1000));
    }
    status = adtopk_allreduce(trainer->context, values, count);
    for (size_t i = 0; i < count; i++) {
        wrong += values[i] != (float)(world * (world + 1) / 2 * (i % 1000));
    }
    free(values);
    return status == ADTOPK_OK && wrong > 0 ? trainer_refuse("a sum is wrong")
                                            : trainer_done(trainer, status);
}

/* For a rank alone: the gradients must equal the updates and the residual. */
static bool trainer_residual(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const struct trainer_tensor *tensor = &trainer->tensor[t < trainer->tensors ? t : 0];
    const enum adtopk_status status = adtopk_residual(trainer->context, t, tensor->scratch);
    uint64_t kept = 0;

    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    for (uint64_t i = 0; i < tensor->numel; i++) {
        const double residual = (double)tensor->scratch[i];

        if (tensor->given == NULL || fabs(tensor->given[i] - tensor->got[i] - residual) > 1e-9) {
            return trainer_refuse("the residual is not what is missing");
        }
        kept += residual > 0 || residual < 0;
    }
    return printf("ok %" PRIu64 "\n", kept) > 0;
}

static bool trainer_ahead(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);

    return t < trainer->tensors ? ahead_check(trainer->context, t, trainer->tensor[t].numel,
                                      strtof(word[2], NULL), strcmp(word[3], "adam") == 0)
                                : trainer_refuse("no such tensor");
}

/* Keeps the update of a tensor. */
static bool trainer_hold(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    enum adtopk_status status;

    trainer->held = (struct adtopk_update){.size = sizeof trainer->held};
    status = adtopk_update(trainer->context, t, &trainer->held);
    if (status != ADTOPK_OK) {
        return trainer_fail(trainer, status);
    }
    return printf("ok %s\n", trainer->held.pending != NULL ? "shown" : "none") > 0;
}

/* Reads all held elements, f32, after another tensor was looked at. */
static bool trainer_held(struct trainer *trainer, char **word)
{
    const uint32_t t = (uint32_t)strtoul(word[1], NULL, 10);
    const float *pending = trainer->held.pending;
    struct adtopk_update other = {.size = sizeof other};
    double sum = 0;

    if (pending == NULL || adtopk_update(trainer->context, t, &other) != ADTOPK_OK) {
        return trainer_refuse("nothing is held");
    }
    for (uint64_t i = 0; i < trainer->held.numel; i++) {
        sum += fabs((double)pending[i]);
    }
    return printf("ok %g\n", sum) > 0;
}

/* ---- the end ---- */

/* Writes, for every tensor, the sums of gradients and then those of updates, as doubles. */
static bool trainer_write_totals(struct trainer *trainer, char **word)
{
    FILE *out = fopen(word[1], "wb");
    bool written = out != NULL;

    for (uint32_t t = 0; written && t < trainer->tensors; t++) {
        const struct trainer_tensor *tensor = &trainer->tensor[t];
        written = tensor->given != NULL &&
                  fwrite(tensor->given, sizeof(double), tensor->numel, out) == tensor->numel &&
                  fwrite(tensor->got, sizeof(double), tensor->numel, out) == tensor->numel;
    }
    if (out != NULL && fclose(out) != 0) {
        written = false;
    }
    return written ? printf("ok\n") > 0 : trainer_refuse("cannot write the totals");
}

static void trainer_free(struct trainer *trainer)
{
    adtopk_close(trainer->context);
    trainer->context = NULL;
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        free(trainer->tensor[t].given);
        free(trainer->tensor[t].got);
        free(trainer->tensor[t].scratch);
    }
    trainer->tensors = 0;
    if (trainer->trace != NULL) {
        (void)fclose(trainer->trace);
        trainer->trace = NULL;
    }
}

static bool trainer_close(struct trainer *trainer, char **word)
{
    (void)word;
    trainer_free(trainer);
    return printf("ok\n") > 0;
}

static const struct trainer_command {
    const char *name;
    int arguments;
    bool (*run)(struct trainer *trainer, char **word);
    const char *help;
} trainer_commands[] = {
    {"keygen", 1, trainer_keygen, "PATH: a new pair of keys; answers with the public one"},
    {"keys", 2, trainer_keys, "FILE|- SERVER_KEY|-: for a daemon on another machine"},
    {"open", 6, trainer_open, "ADDRESS JOB RUN RANK WORLD POLICY|-"},
    {"totals", 0, trainer_totals, "before commit: sums element by element are kept"},
    {"tensor", 4, trainer_register,
        "NAME f32|f16|bf16 list|dense|both|dense16|both16[+pending] SIZExSIZE..."},
    {"commit", 0, trainer_commit, "again after more tensors, between two steps"},
    {"gradients", 2, trainer_gradients, "integer|random|zero SEED"},
    {"poison", 3, trainer_poison, "STEP TENSOR nan|inf: its last element"},
    {"scale", 1, trainer_scale,
        "NUMBER: the loss scale of pushes; it is taken out of updates again"},
    {"skip", 1, trainer_skip, "COUNT steps of the stream of gradients"},
    {"trace", 1, trainer_trace, "PATH: gets the accepted steps' updates, f32, from now on"},
    {"push", 1, trainer_push, "TENSOR"},
    {"race", 1, trainer_race, "TENSOR: pushes it; another thread ends the step meanwhile"},
    {"wait", 1, trainer_wait, "TENSOR"},
    {"update", 1, trainer_update_step, "TENSOR: ok STEP of its update"},
    {"look", 1, trainer_look, "MS: waits so long for the step: ok, or ok pending"},
    {"look-beside", 1, trainer_look_beside,
        "MS, below 2000: another thread waits so long for the step; ok LOOK WAIT"},
    {"descriptor", 0, trainer_descriptor, ""},
    {"arm", 0, trainer_arm, ""},
    {"finish", 0, trainer_finish_step, "ends the step: ok STATUS ACCEPTED WITHDRAWN HASH"},
    {"steps", 1, trainer_steps, "COUNT: pushes what is not pushed and finishes, so many times"},
    {"barrier", 0, trainer_barrier, ""},
    {"barrier-look", 1, trainer_barrier_look, "MS: waits so long for it: ok, or ok pending"},
    {"broadcast", 2, trainer_broadcast, "BYTES ROOT"},
    {"allreduce", 1, trainer_allreduce, "COUNT"},
    {"residual", 1, trainer_residual,
        "TENSOR: compared with the totals; ok ELEMENTS that are not 0"},
    {"ahead", 3, trainer_ahead,
        "TENSOR RATE sgd|adam: looks ahead; ok none, or ok TYPE SHARE RATIO"},
    {"hold", 1, trainer_hold, "TENSOR: keeps where its residual is shown; ok shown, or ok none"},
    {"held", 1, trainer_held, "TENSOR: reads what is held, once this one's update was read"},
    {"write-totals", 1, trainer_write_totals, "PATH"},
    {"close", 0, trainer_close, ""},
};

static bool trainer_run(struct trainer *trainer, char *line)
{
    char *word[TRAINER_WORDS] = {0};
    char *rest = NULL;
    int words = 0;

    for (char *next = strtok_r(line, " \n", &rest); next != NULL && words < TRAINER_WORDS;
         next = strtok_r(NULL, " \n", &rest)) {
        word[words++] = next;
    }
    for (size_t i = 0; words > 0 && i < sizeof trainer_commands / sizeof trainer_commands[0]; i++) {
        const struct trainer_command *command = &trainer_commands[i];
        if (strcmp(word[0], command->name) == 0 && words == command->arguments + 1) {
            return command->run(trainer, word);
        }
    }
    return trainer_refuse("no such command, or another number of arguments");
}

int main(void)
{
    static struct trainer trainer = {.hash = TRAINER_HASH};
    char line[4096];

    while (fgets(line, sizeof line, stdin) != NULL) {
        trainer.problem[0] = '\0';
        (void)trainer_run(&trainer, line);
        (void)fflush(stdout);
    }
    trainer_free(&trainer);
    return 0;
}

/*
 * A rank that follows commands. Each line on standard input is a command. For each the program
 * prints one line, "ok ..." or "error NAME SENTENCE". The table below lists the commands.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/keyfile.h"
#include "tests/integration/trainer.h"

#define TRAINER_WORDS 8
#define TRAINER_HASH 0xcbf29ce484222325u

bool trainer_fail(const struct trainer *trainer, enum adtopk_status status)
{
    printf("error %s %s\n", adtopk_status_name(status),
        trainer->problem[0] != '\0' ? trainer->problem : adtopk_message(trainer->context));
    return false;
}

bool trainer_refuse(const char *why)
{
    printf("error usage %s\n", why);
    return false;
}

bool trainer_done(const struct trainer *trainer, enum adtopk_status status)
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
        .policy = strcmp(word[6], "-") == 0 ? NULL : word[6],
        .first_step = trainer->first_step,
        .comes_back = trainer->comes_back,
        .return_timeout_ms = trainer->return_ms};

    trainer->source.rank = strtoull(word[4], NULL, 10);
    return trainer_done(trainer, adtopk_open(&options, &trainer->context));
}

static bool trainer_back(struct trainer *trainer, char **word)
{
    trainer->comes_back = true;
    trainer->first_step = strtoull(word[1], NULL, 10);
    return printf("ok\n") > 0;
}

static bool trainer_returns(struct trainer *trainer, char **word)
{
    trainer->return_ms = atoi(word[1]);
    return printf("ok\n") > 0;
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
    *tensor = (struct trainer_tensor){
        .dtype = spec.dtype, .numel = 1, .narrow = (spec.forms & ADTOPK_FORM_DENSE16) != 0};
    trainer_device_describe(trainer, &spec);
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
        if (tensor->scratch == NULL || !trainer_device_commit(trainer, tensor) ||
            (trainer->totals && (tensor->given == NULL || tensor->got == NULL))) {
            return trainer_refuse("no memory");
        }
    }
    return trainer_done(trainer, status);
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

static void trainer_free(struct trainer *trainer)
{
    adtopk_close(trainer->context);
    trainer->context = NULL;
    for (uint32_t t = 0; t < trainer->tensors; t++) {
        free(trainer->tensor[t].given);
        free(trainer->tensor[t].got);
        free(trainer->tensor[t].scratch);
        free(trainer->tensor[t].made);
        free(trainer->tensor[t].found);
    }
    trainer->tensors = 0;
    trainer_device_free(trainer);
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
    {"back", 1, trainer_back, "STEP: opens in the place of a process that ended in it"},
    {"returns", 1, trainer_returns, "MS: opens, and waits for another daemon for so long"},
    {"totals", 0, trainer_totals, "before commit: sums element by element are kept"},
    {"tensor", 4, trainer_register,
        "NAME f32|f16|bf16 list|dense|both|dense16|both16[+pending] SIZExSIZE..."},
    {"device", 2, trainer_device,
        "UUID|-|absent arena|copies[+shown|+listed|+streams]: gradients are on it; +shown: "
        "updates, too; "
        "+listed: and their lists; +returns: some may be missing; +streams: its stream waits"},
    {"capture", 1, trainer_capture, "MS: captures a graph for so long"},
    {"device-pending", 2, trainer_device_pending,
        "TENSOR SCALE: must be the residual times SCALE; ok none, or ok SHARE ELEMENTS not 0. "
        "Pushes tell of that share"},
    {"lists", 0, trainer_device_counts, "how many lists it has found on the device"},
    {"silent", 0, trainer_silent, "nothing happens in the stream any more"},
    {"commit", 0, trainer_commit, "again after more tensors, between two steps"},
    {"gradients", 2, trainer_gradients, "integer|random|zero SEED"},
    {"poison", 3, trainer_poison, "STEP TENSOR nan|inf: its last element"},
    {"scale", 1, trainer_scale,
        "NUMBER: the loss scale of pushes; it is taken out of updates again"},
    {"skip", 1, trainer_skip, "COUNT steps of the stream of gradients"},
    {"trace", 1, trainer_trace, "PATH: gets the accepted steps' updates, f32, from now on"},
    {"push", 1, trainer_push, "TENSOR"},
    {"write", 1, trainer_write, "TENSOR: its gradient, as a push does, and does not push it"},
    {"written", 1, trainer_written, "TENSOR: ok HASH of its gradient in host memory"},
    {"race", 1, trainer_race, "TENSOR: pushes it; another thread ends the step meanwhile"},
    {"wait", 1, trainer_wait, "TENSOR"},
    {"wait-stream", 1, trainer_wait_stream, "TENSOR|step: the stream waits for it"},
    {"streamed", 1, trainer_streamed,
        "MS: waits so long for the stream: ok pending, or ok RIGHT of WAITS"},
    {"update", 1, trainer_update_step, "TENSOR: ok STEP of its update"},
    {"look", 1, trainer_look, "MS: waits so long for the step: ok, or ok pending"},
    {"look-beside", 1, trainer_look_beside,
        "MS, below 2000: another thread waits so long for the step; ok LOOK WAIT"},
    {"descriptor", 0, trainer_descriptor, ""},
    {"arm", 0, trainer_arm, ""},
    {"doze", 1, trainer_doze, "MS: sleeps so long on the descriptor: ok, or ok pending"},
    {"finish", 0, trainer_finish_step, "ends the step: ok STATUS ACCEPTED WITHDRAWN HASH"},
    {"steps", 1, trainer_steps, "COUNT: pushes what is not pushed and finishes, so many times"},
    {"members", 0, trainer_members, "ok RANKS LOST PLACE ROOT JOINED"},
    {"rude", 0, trainer_rude, "broadcasts nothing to ranks that join"},
    {"until", 1, trainer_until, "STEP: the same, up to this step"},
    {"pace", 1, trainer_pace, "MS: from now on it computes so long before it pushes"},
    {"barrier", 0, trainer_barrier, ""},
    {"barrier-look", 1, trainer_barrier_look, "MS: waits so long for it: ok, or ok pending"},
    {"broadcast", 2, trainer_broadcast, "BYTES ROOT"},
    {"allreduce", 1, trainer_allreduce, "COUNT"},
    {"residual", 1, trainer_residual,
        "TENSOR: compared with the totals; ok ELEMENTS that are not 0"},
    {"mass", 0, trainer_mass, "ok SUM of all elements of the residuals"},
    {"ahead", 3, trainer_ahead,
        "TENSOR RATE sgd|adam|overflow: looks ahead; ok none, or ok TYPE SHARE RATIO"},
    {"hold", 1, trainer_hold, "TENSOR: keeps where its residual is shown; ok shown, or ok none"},
    {"held", 1, trainer_held, "TENSOR: reads what is held, once this one's update was read"},
    {"write-totals", 1, trainer_write_totals, "PATH"},
    {"due", 0, trainer_due, "whether an operator has asked for a checkpoint: ok 1, or ok 0"},
    {"save", 1, trainer_save, "FOLDER|none|empty: a checkpoint"},
    {"saved", 1, trainer_saved, "0|1: whether this rank has saved in a way of its own"},
    {"load", 1, trainer_load, "FOLDER|none|empty: ok STEP WORLD EXACT"},
    {"load-unsized", 1, trainer_load, "FOLDER: the same, and the structure has no size"},
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

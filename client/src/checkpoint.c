/* Saves a checkpoint: one file per node. Or tells the daemons that the ranks have saved in a way of
 * their own. */
#include "client/src/checkpoint.h"

#include <adtopk/checkpoint.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "proto/codec.h"
#include "proto/local.h"

/* What the root tells the others. */
struct saving_word {
    uint8_t id[CHECKPOINT_ID];
    uint64_t step;
};

/* The root draws the id. */
static enum adtopk_status saving_choose(struct together *together, struct saving_word *word)
{
    const uint64_t step = together->context->step;
    enum adtopk_status status;

    *word = (struct saving_word){.step = step};
    if (together->root == (uint32_t)together->context->place.rank) {
        const ssize_t got = getrandom(word->id, sizeof word->id, 0);
        if (got != (ssize_t)sizeof word->id) {
            (void)error_set(&together->error, ADTOPK_ERR_SYSTEM, "getrandom: %s",
                strerror(got < 0 ? errno : EIO));
        }
    }
    status = together_share(together, word, sizeof *word);
    if (status == ADTOPK_OK && word->step != step) {
        (void)error_set(&together->error, ADTOPK_ERR_MISMATCH,
            "rank %u saves a checkpoint before step %llu, and rank %d before step %llu",
            together->root, (unsigned long long)word->step, together->context->place.rank,
            (unsigned long long)step);
    }
    return status;
}

/* ---- the head ---- */

static void saving_free_head(Adtopk__CheckpointFile *head)
{
    for (size_t t = 0; t < head->n_tensor; t++) {
        codec_free(&head->tensor[t]->base);
    }
    free(head->tensor);
    free(head->files);
}

/* The first ranks of all nodes have told 1. */
static enum adtopk_status saving_files(struct together *together, Adtopk__CheckpointFile *head)
{
    head->files = malloc(together->ranks * sizeof *head->files);
    if (head->files == NULL) {
        return error_set(&together->error, ADTOPK_ERR_MEMORY, "no memory for a checkpoint");
    }
    for (uint32_t r = 0; r < together->ranks; r++) {
        if (together->flag[r] > 0) {
            head->files[head->n_files++] = r;
        }
    }
    return ADTOPK_OK;
}

static enum adtopk_status saving_head(
    struct together *together, const struct saving_word *word, Adtopk__CheckpointFile *head)
{
    if (saving_files(together, head) != ADTOPK_OK) {
        return together->error.code;
    }
    head->id = (ProtobufCBinaryData){sizeof word->id, (uint8_t *)(uintptr_t)word->id};
    head->file = together->job->ranks[0];
    head->job = together->job;
    head->policy = together->policy;
    head->tensor = calloc(together->job->tensors + 1, sizeof(*head->tensor));
    if (head->tensor == NULL) {
        return error_set(&together->error, ADTOPK_ERR_MEMORY, "no memory for a checkpoint");
    }
    for (uint32_t t = 0; t < together->job->tensors; t++) {
        head->tensor[t] = together_tensor(together, t);
        if (head->tensor[t] == NULL) {
            return together->error.code;
        }
        head->n_tensor++;
    }
    return ADTOPK_OK;
}

/* ---- the arrays ---- */

static enum adtopk_status saving_array(struct together *together, struct checkpoint *file,
    const struct client_piece *what, uint64_t floats)
{
    enum adtopk_status status = ADTOPK_OK;
    float values[CHECKPOINT_BLOCK];

    for (uint64_t first = 0; status == ADTOPK_OK && first < floats; first += CHECKPOINT_BLOCK) {
        const uint32_t count =
            floats - first < CHECKPOINT_BLOCK ? (uint32_t)(floats - first) : CHECKPOINT_BLOCK;
        struct client_piece piece = *what;
        piece.first = first;
        piece.count = count;
        piece.out = values;
        piece.size = sizeof values;
        status = together_keep(together, &piece);
        if (status == ADTOPK_OK && piece.size != count * sizeof *values) {
            status = error_set(&together->error, ADTOPK_ERR_PROTOCOL,
                "the daemon sent %zu bytes of an array instead of %zu", piece.size,
                count * sizeof *values);
        }
        if (status == ADTOPK_OK && !checkpoint_are_valid(values, count)) {
            status = error_set(&together->error, ADTOPK_ERR_ARGUMENT,
                "a residual has values that are not finite, or larger than 2^120: no checkpoint "
                "may have them");
        }
        if (status == ADTOPK_OK) {
            status = checkpoint_put(file, values, count, &together->error);
        }
    }
    return status;
}

static enum adtopk_status saving_arrays(struct together *together, struct checkpoint *file,
    const Adtopk__CheckpointTensor *tensor, uint32_t t)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint32_t i = 0; status == ADTOPK_OK && i < tensor->residuals * CHECKPOINT_ARRAYS; i++) {
        const uint32_t array = i % CHECKPOINT_ARRAYS;
        const struct client_piece piece = {
            .section = LOCAL_KEEP_ELEMENTS + array, .tensor = t, .residual = i / CHECKPOINT_ARRAYS};
        status = saving_array(
            together, file, &piece, checkpoint_floats(tensor, (enum checkpoint_array)array));
    }
    return status;
}

/* Another policy in the meantime may have changed the arrays. A node that was lost changes what
 * part of a mean they are. */
static enum adtopk_status saving_check_policy(struct together *together)
{
    uint8_t bytes[LOCAL_KEEP_SIZE];
    struct client_piece piece = {.section = LOCAL_KEEP_JOB, .out = bytes, .size = sizeof bytes};
    Adtopk__CheckpointJob *now;
    bool same;

    if (together_keep(together, &piece) != ADTOPK_OK) {
        return together->error.code;
    }
    now = (Adtopk__CheckpointJob *)codec_unpack(
        &adtopk__checkpoint_job__descriptor, bytes, piece.size, sizeof bytes, &together->error);
    if (now == NULL) {
        return together->error.code;
    }
    same = now->policy == together->job->policy && now->step == together->job->step &&
           now->members == together->job->members;
    codec_free(&now->base);
    return same ? ADTOPK_OK
                : error_set(&together->error, ADTOPK_ERR_STATE,
                      "the policy or the ranks of the job changed while a checkpoint was being "
                      "saved: save again");
}

/* Writes this node's file, aside. A node may have been lost until the ranks met. */
static enum adtopk_status saving_write(
    struct together *together, const struct saving_word *word, struct checkpoint *file)
{
    Adtopk__CheckpointFile head = ADTOPK__CHECKPOINT_FILE__INIT;
    char path[CHECKPOINT_PATH];
    enum adtopk_status status = together_ask_job(together);

    if (status == ADTOPK_OK) {
        status = checkpoint_path(together->folder, together->job->ranks[0], path, &together->error);
    }
    if (status == ADTOPK_OK) {
        status = saving_head(together, word, &head);
    }
    if (status == ADTOPK_OK) {
        status = checkpoint_create(file, path, &head, &together->error);
    }
    for (uint32_t t = 0; status == ADTOPK_OK && t < head.n_tensor; t++) {
        status = saving_arrays(together, file, head.tensor[t], t);
    }
    if (status == ADTOPK_OK) {
        status = saving_check_policy(together);
    }
    if (status == ADTOPK_OK) {
        status = checkpoint_finish(file, &together->error);
    }
    saving_free_head(&head);
    return status;
}

/* ---- the call ---- */

/* The root removes files of lower ranks: they are of an earlier checkpoint, and the lowest file of
 * a folder says which one it has. */
static enum adtopk_status saving_publish(struct together *together, struct checkpoint *file)
{
    enum adtopk_status status = checkpoint_publish(file, &together->error);

    if (together->root == (uint32_t)together->context->place.rank) {
        for (uint32_t r = 0; status == ADTOPK_OK && r < together->root; r++) {
            status = checkpoint_remove(together->folder, r, &together->error);
        }
    }
    return status;
}

/* Tells the daemon that all ranks have saved, for operators. Nothing depends on its answer. */
static void saving_tell(struct together *together)
{
    struct client_piece piece = {.section = LOCAL_KEEP_END};

    (void)together_keep(together, &piece);
}

/* A node that is lost meanwhile has no whole file, so the ranks meet again. */
static enum adtopk_status saving_run(struct together *together, struct checkpoint *file)
{
    struct saving_word word;
    enum adtopk_status status = together_meet(together);
    bool first;

    if (status == ADTOPK_OK) {
        status = saving_choose(together, &word);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    first = together_is_first(together);
    if (first && together->error.code == ADTOPK_OK) {
        (void)saving_write(together, &word, file);
    }
    status = together_meet(together);
    if (status == ADTOPK_OK && first) {
        (void)saving_publish(together, file);
    }
    status = status == ADTOPK_OK ? together_meet(together) : status;
    if (status == ADTOPK_OK && first) {
        saving_tell(together);
    }
    return status;
}

enum adtopk_status adtopk_checkpoint_save(adtopk_context *context, const char *folder)
{
    struct checkpoint file = {.file = -1};
    struct together together;
    enum adtopk_status status = together_begin(&together, context, "adtopk_checkpoint_save()");

    if (status != ADTOPK_OK) {
        return status;
    }
    together_in(&together, folder);
    status = saving_run(&together, &file);
    checkpoint_discard(&file); /* unless it has its name */
    return together_end(&together, status);
}

/* ---- without files of the library's ---- */

/* The daemon notes that a checkpoint began when its node's first rank asks for a tensor. */
static void saving_note(struct together *together)
{
    Adtopk__CheckpointTensor *tensor = NULL;

    if (together_ask_job(together) == ADTOPK_OK && together_is_first(together) &&
        together->job->tensors > 0) {
        tensor = together_tensor(together, 0);
    }
    codec_free(tensor != NULL ? &tensor->base : NULL);
}

enum adtopk_status adtopk_checkpoint_saved(adtopk_context *context, int saved)
{
    struct together together;
    enum adtopk_status status = together_begin(&together, context, "adtopk_checkpoint_saved()");

    if (status != ADTOPK_OK) {
        return status;
    }
    saving_note(&together);
    if (saved == 0) {
        (void)error_set(&together.error, ADTOPK_ERR_SYSTEM,
            "adtopk_checkpoint_saved(): this rank says that it could not save");
    }
    status = together_meet(&together);
    if (status == ADTOPK_OK && together_is_first(&together)) {
        saving_tell(&together);
    }
    return together_end(&together, status);
}

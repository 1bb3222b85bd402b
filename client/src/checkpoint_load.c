/*
 * Loads a checkpoint.
 *
 * Into the same world every node gets back what it had, bit for bit. Into another one, the files
 * are dealt out: number i of N files goes to node i modulo N' of N' nodes, and a node adds up what
 * it gets. Where updates are means, a gradient that was not sent yet has to be as large a part of
 * the later mean as it would have been: all residuals are multiplied by W'/W. Only ranks that took
 * part count. The ledger has what that adds or takes away as declared lost. A node beyond the
 * number of files begins without a residual, and with the turns of one of the files.
 */
#include <adtopk/checkpoint.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/src/checkpoint.h"
#include "client/src/sized.h"
#include "proto/codec.h"
#include "proto/local.h"

/* A file, and the block of carries that was read last. */
struct load_source {
    struct checkpoint file;
    uint32_t tensor, residual;
    uint64_t first; /* UINT64_MAX: none was read */
    float carries[CHECKPOINT_BLOCK];
};

struct loading {
    struct together *together;
    struct checkpoint own;      /* the file that says what the others are */
    struct load_source *source; /* of which this node gets the residuals; there may be none */
    uint32_t sources;
    const Adtopk__CheckpointFile *record; /* whose turns it gets */
    struct checkpoint other;              /* has that record, if no source has */
    uint32_t place;                       /* this node's number among those of this run */
    bool exact;                           /* the same ranks on as many nodes */
    bool alike;                           /* the policies are equal, on all nodes */
    float factor;                         /* of residuals */
};

static enum adtopk_status load_wrong(
    struct loading *loading, enum adtopk_status status, const char *path, const char *what)
{
    const size_t size = strlen(path);

    return error_set(&loading->together->error, status, "checkpoint %s%s %s",
        size > 150 ? "..." : "", size > 150 ? path + size - 150 : path, what);
}

/* ---- which files there are ---- */

static enum adtopk_status load_open(struct loading *loading, uint32_t rank, struct checkpoint *file)
{
    struct together *together = loading->together;
    char path[CHECKPOINT_PATH];
    enum adtopk_status status = checkpoint_path(together->folder, rank, path, &together->error);

    return status == ADTOPK_OK ? checkpoint_open(file, path, &together->error) : status;
}

static bool load_has_id(const struct checkpoint *file, const uint8_t id[CHECKPOINT_ID])
{
    return memcmp(file->head->id.data, id, CHECKPOINT_ID) == 0;
}

/* Opens any file of the folder with this id. */
static bool load_find(struct loading *loading, const uint8_t id[CHECKPOINT_ID])
{
    DIR *entries = opendir(loading->together->folder);
    const struct dirent *entry;
    bool found = false;
    uint32_t rank;

    while (!found && entries != NULL && (entry = readdir(entries)) != NULL) {
        if (checkpoint_is_name(entry->d_name, &rank) &&
            load_open(loading, rank, &loading->own) == ADTOPK_OK) {
            found = load_has_id(&loading->own, id);
            if (!found) {
                checkpoint_close(&loading->own);
            }
        }
    }
    if (entries != NULL) {
        (void)closedir(entries);
    }
    return found;
}

/* Opens the file of this node. If there is none with the root's id, any other file that has it says
 * who has been there: the folder may also have files of an earlier checkpoint. */
static void load_open_own(struct loading *loading, const uint8_t id[CHECKPOINT_ID])
{
    struct together *together = loading->together;
    struct error why = {.code = ADTOPK_OK};
    char text[64];

    if (load_open(loading, together->job->ranks[0], &loading->own) != ADTOPK_OK) {
        why = together->error;
    } else if (!load_has_id(&loading->own, id)) {
        (void)snprintf(text, sizeof text, "is another one than rank %u loads", together->root);
        (void)load_wrong(loading, ADTOPK_ERR_MISMATCH, loading->own.path, text);
        why = together->error;
        checkpoint_close(&loading->own);
    }
    if (why.code != ADTOPK_OK) {
        together->error = load_find(loading, id) ? (struct error){.code = ADTOPK_OK} : why;
    }
}

/* Opens one more file of the same checkpoint. */
static enum adtopk_status load_open_other(
    struct loading *loading, uint32_t rank, struct checkpoint *file)
{
    const Adtopk__CheckpointFile *own = loading->own.head;
    enum adtopk_status status = load_open(loading, rank, file);

    if (status == ADTOPK_OK && (!load_has_id(file, own->id.data) || file->head->file != rank)) {
        status = load_wrong(loading, ADTOPK_ERR_MISMATCH, file->path,
            "and the other files of its folder were not saved together");
        checkpoint_close(file);
    }
    return status;
}

/* ---- does it fit the model ---- */

static bool load_is_tensor(
    const struct client_tensor *tensor, const Adtopk__CheckpointTensor *message)
{
    bool same = strcmp(message->name, tensor->name) == 0 &&
                message->dtype == (uint32_t)tensor->dtype &&
                message->n_shape == (size_t)tensor->dims;

    for (int d = 0; same && d < tensor->dims; d++) {
        same = message->shape[d] == tensor->shape[d];
    }
    return same;
}

static enum adtopk_status load_check_model(struct loading *loading, const struct checkpoint *file)
{
    const adtopk_context *context = loading->together->context;
    const Adtopk__CheckpointFile *head = file->head;
    char text[ERROR_TEXT_SIZE / 2];

    for (uint32_t t = 0; t < head->n_tensor && t < context->tensors; t++) {
        if (!load_is_tensor(&context->tensor[t], head->tensor[t])) {
            (void)snprintf(text, sizeof text,
                "is of another model: its tensor %u, \"%.50s\", is \"%.50s\" here, or has another "
                "type or shape",
                t, head->tensor[t]->name, context->tensor[t].name);
            return load_wrong(loading, ADTOPK_ERR_MISMATCH, file->path, text);
        }
    }
    if (head->n_tensor != context->tensors) {
        (void)snprintf(text, sizeof text,
            "is of another model: it has %zu tensors, and this one %u", head->n_tensor,
            context->tensors);
        return load_wrong(loading, ADTOPK_ERR_MISMATCH, file->path, text);
    }
    return ADTOPK_OK;
}

/* ---- who gets what ---- */

/* Whether this node has the ranks that it had. */
static bool load_is_same_node(const struct loading *loading)
{
    const Adtopk__CheckpointFile *head = loading->own.head;
    const Adtopk__CheckpointJob *now = loading->together->job;

    return head->file == now->ranks[0] &&
           checkpoint_members(head->job) == checkpoint_members(now) &&
           head->n_files == loading->together->nodes && head->job->n_ranks == now->n_ranks &&
           memcmp(head->job->ranks, now->ranks, now->n_ranks * sizeof *now->ranks) == 0;
}

/* The first ranks of all nodes told 1. */
static void load_find_place(struct loading *loading)
{
    const struct together *together = loading->together;

    for (uint32_t r = 0; r < together->job->ranks[0]; r++) {
        loading->place += together->flag[r] > 0;
    }
}

/* Opens the files of this node and checks all of them. */
static enum adtopk_status load_sources(struct loading *loading)
{
    const Adtopk__CheckpointFile *head = loading->own.head;
    const uint32_t files = (uint32_t)head->n_files, nodes = loading->together->nodes;
    enum adtopk_status status = ADTOPK_OK;

    loading->source = calloc(files / nodes + 1, sizeof *loading->source);
    if (loading->source == NULL) {
        return error_set(&loading->together->error, ADTOPK_ERR_MEMORY,
            "no memory for the files of a checkpoint");
    }
    for (uint32_t i = loading->place; status == ADTOPK_OK && i < files; i += nodes) {
        struct load_source *source = &loading->source[loading->sources];
        source->first = UINT64_MAX;
        status = load_open_other(loading, head->files[i], &source->file);
        loading->sources += status == ADTOPK_OK;
        if (status == ADTOPK_OK) {
            status = load_check_model(loading, &source->file);
        }
        if (status == ADTOPK_OK) {
            status = checkpoint_verify(&source->file, &loading->together->error);
        }
    }
    if (status == ADTOPK_OK && loading->sources == 0) {
        status = load_open_other(loading, head->files[loading->place % files], &loading->other);
        status = status == ADTOPK_OK ? load_check_model(loading, &loading->other) : status;
    }
    if (status == ADTOPK_OK) {
        loading->record = loading->sources > 0 ? loading->source[0].file.head : loading->other.head;
    }
    return status;
}

/* ---- arrays ---- */

/* What one residual of this node is made of: one residual of one file, or all of all files. */
struct load_target {
    uint32_t tensor, residual;
    bool single;
};

/* The carries of the chunks of a block of elements. */
static enum adtopk_status load_carries(struct loading *loading, struct load_source *source,
    uint32_t tensor, uint32_t residual, uint64_t first, const float **carries)
{
    const uint64_t at = first / CHECKPOINT_CHUNK * CHECKPOINT_CARRY;
    const uint64_t block = at / CHECKPOINT_BLOCK * CHECKPOINT_BLOCK;
    enum adtopk_status status = ADTOPK_OK;
    uint32_t count;

    if (source->first != block || source->tensor != tensor || source->residual != residual) {
        status = checkpoint_get(&source->file, tensor, residual, CHECKPOINT_CARRIES, block,
            source->carries, &count, &loading->together->error);
        source->first = status == ADTOPK_OK ? block : UINT64_MAX;
        source->tensor = tensor;
        source->residual = residual;
    }
    *carries = source->carries + (at - block);
    return status;
}

/* A block for the daemon: floats, and carries behind them. */
struct load_block {
    float values[CHECKPOINT_BLOCK + 2 * CHECKPOINT_CARRY];
    uint32_t count, carries; /* floats */
    unsigned terms;
};

/* The first term is copied, so that a single one keeps its bits. */
static void load_add(float *sum, const float *term, uint32_t count, bool first)
{
    if (first) {
        memcpy(sum, term, count * sizeof *sum);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        sum[i] += term[i];
    }
}

static void load_scale(float *values, uint32_t count, float factor)
{
    for (uint32_t i = 0; i < count; i++) {
        values[i] *= factor;
    }
}

static enum adtopk_status load_term(struct loading *loading, struct load_source *source,
    const struct client_piece *piece, uint32_t residual, struct load_block *block)
{
    const enum checkpoint_array array =
        (enum checkpoint_array)(piece->section - LOCAL_KEEP_ELEMENTS);
    const Adtopk__CheckpointTensor *tensor = source->file.head->tensor[piece->tensor];
    const float *carries = NULL;
    float values[CHECKPOINT_BLOCK];
    enum adtopk_status status;

    if (checkpoint_floats(tensor, array) == 0) {
        return ADTOPK_OK;
    }
    status = checkpoint_get(&source->file, piece->tensor, residual, array, piece->first, values,
        &block->count, &loading->together->error);
    if (status != ADTOPK_OK) {
        return status;
    }
    load_add(block->values, values, block->count, block->terms == 0);
    if (array == CHECKPOINT_ELEMENTS && tensor->rounded) {
        status = load_carries(loading, source, piece->tensor, residual, piece->first, &carries);
        block->carries =
            (block->count + CHECKPOINT_CHUNK - 1) / CHECKPOINT_CHUNK * CHECKPOINT_CARRY;
    }
    if (status == ADTOPK_OK && carries != NULL) {
        load_add(block->values + CHECKPOINT_BLOCK, carries, block->carries, false);
    }
    block->terms++;
    return status;
}

static enum adtopk_status load_sum(struct loading *loading, const struct load_target *target,
    const struct client_piece *piece, struct load_block *block)
{
    enum adtopk_status status = ADTOPK_OK;

    block->count = block->carries = block->terms = 0;
    memset(block->values + CHECKPOINT_BLOCK, 0, 2 * CHECKPOINT_CARRY * sizeof *block->values);
    for (uint32_t s = 0; s < loading->sources; s++) {
        struct load_source *source = &loading->source[s];
        const uint32_t residuals = source->file.head->tensor[target->tensor]->residuals;
        for (uint32_t r = 0; status == ADTOPK_OK && r < residuals; r++) {
            if (!target->single || r == target->residual) {
                status = load_term(loading, source, piece, r, block);
            }
        }
    }
    if (status == ADTOPK_OK && loading->factor != 1) {
        load_scale(block->values, block->count, loading->factor);
        load_scale(block->values + CHECKPOINT_BLOCK, block->carries, loading->factor);
    }
    return status;
}

static enum adtopk_status load_array(
    struct loading *loading, const struct load_target *target, uint32_t array, uint64_t floats)
{
    enum adtopk_status status = ADTOPK_OK;
    struct load_block block;

    for (uint64_t first = 0; status == ADTOPK_OK && first < floats; first += CHECKPOINT_BLOCK) {
        struct client_piece piece = {.section = LOCAL_KEEP_ELEMENTS + array,
            .tensor = target->tensor,
            .residual = target->residual,
            .first = first,
            .writes = true,
            .in = block.values};
        status = load_sum(loading, target, &piece, &block);
        if (status == ADTOPK_OK && block.terms > 0) {
            memmove(block.values + block.count, block.values + CHECKPOINT_BLOCK,
                block.carries * sizeof *block.values);
            piece.count = block.count;
            piece.size = (block.count + block.carries) * sizeof *block.values;
            status = together_keep(loading->together, &piece);
        }
    }
    return status;
}

/* ---- records ---- */

/* The ledger of the files together. What the factor changes is declared. */
static void load_ledger(const struct loading *loading, uint32_t t, double sums[3][2])
{
    memset(sums, 0, 3 * sizeof *sums);
    for (uint32_t s = 0; s < loading->sources; s++) {
        const Adtopk__CheckpointTensor *from = loading->source[s].file.head->tensor[t];
        for (unsigned i = 0; i < 2; i++) {
            sums[0][i] += from->input[i];
            sums[1][i] += from->applied[i];
            sums[2][i] += from->lost[i];
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        sums[2][i] += (1 - (double)loading->factor) * (sums[0][i] - sums[1][i] - sums[2][i]);
    }
}

/* Thresholds and the like hold for one policy. */
static void load_forget(Adtopk__CheckpointState *state, uint32_t number[5], double real[3])
{
    state->threshold = 0;
    state->n_number = 5;
    state->number = number;
    state->n_real = 3;
    state->real = real;
}

static enum adtopk_status load_send_tensor(
    struct loading *loading, uint32_t t, Adtopk__CheckpointTensor *tensor)
{
    struct client_piece piece = {.section = LOCAL_KEEP_TENSOR, .tensor = t, .writes = true};
    uint8_t *bytes = codec_pack(&tensor->base, &piece.size);
    enum adtopk_status status;

    if (bytes == NULL || piece.size > LOCAL_KEEP_SIZE) {
        free(bytes);
        return error_set(&loading->together->error, ADTOPK_ERR_MEMORY,
            "no memory for the record of tensor \"%s\"", tensor->name);
    }
    piece.in = bytes;
    status = together_keep(loading->together, &piece);
    free(bytes);
    return status;
}

/* The tensor as the file has it, with what is different here. */
static enum adtopk_status load_record(
    struct loading *loading, uint32_t t, const Adtopk__CheckpointTensor *here, bool single)
{
    const Adtopk__CheckpointTensor *from = loading->record->tensor[t];
    Adtopk__CheckpointTensor tensor = *from;
    Adtopk__CheckpointState none = ADTOPK__CHECKPOINT_STATE__INIT, *one = &none;
    uint32_t number[5] = {0}, agreed[2] = {0};
    double real[3] = {0}, sums[3][2];

    load_ledger(loading, t, sums);
    load_forget(&none, number, real);
    tensor.input = sums[0];
    tensor.applied = sums[1];
    tensor.lost = sums[2];
    tensor.residuals = here->residuals;
    if (!loading->alike) {
        tensor.agreed_real = real;
        tensor.agreed_number = agreed;
    }
    if (!single || !loading->alike) {
        tensor.residuals = 1;
        tensor.n_state = 1;
        tensor.state = loading->alike ? &from->state[0] : &one;
    }
    return load_send_tensor(loading, t, &tensor);
}

static enum adtopk_status load_tensor(struct loading *loading, uint32_t t)
{
    Adtopk__CheckpointTensor *here = together_tensor(loading->together, t);
    struct load_target target = {.tensor = t};
    enum adtopk_status status = ADTOPK_OK;

    if (here == NULL) {
        return loading->together->error.code;
    }
    target.single = loading->exact && loading->record->tensor[t]->residuals == here->residuals;
    for (; status == ADTOPK_OK && target.residual < (target.single ? here->residuals : 1);
         target.residual++) {
        status = load_array(
            loading, &target, CHECKPOINT_ELEMENTS, checkpoint_floats(here, CHECKPOINT_ELEMENTS));
        if (status == ADTOPK_OK) {
            status = load_array(loading, &target, CHECKPOINT_VELOCITY,
                checkpoint_floats(here, CHECKPOINT_VELOCITY));
        }
    }
    if (status == ADTOPK_OK) {
        status = load_record(loading, t, here, target.single);
    }
    codec_free(&here->base);
    return status;
}

static enum adtopk_status load_begin(struct loading *loading)
{
    struct client_piece piece = {.section = LOCAL_KEEP_JOB, .writes = true};
    uint8_t bytes[LOCAL_KEEP_SIZE];

    piece.size = protobuf_c_message_get_packed_size(&loading->record->job->base);
    if (piece.size > sizeof bytes) {
        return error_set(&loading->together->error, ADTOPK_ERR_MEMORY,
            "no memory for the job of a checkpoint: it has %zu ranks on a node",
            loading->record->job->n_ranks);
    }
    (void)protobuf_c_message_pack(&loading->record->job->base, bytes);
    piece.in = bytes;
    return together_keep(loading->together, &piece);
}

static enum adtopk_status load_write(struct loading *loading)
{
    enum adtopk_status status = load_begin(loading);

    for (uint32_t t = 0; status == ADTOPK_OK && t < loading->together->job->tensors; t++) {
        status = load_tensor(loading, t);
    }
    return status;
}

static enum adtopk_status load_end(struct loading *loading)
{
    struct client_piece piece = {.section = LOCAL_KEEP_END, .writes = true};

    return together_keep(loading->together, &piece);
}

/* ---- the call ---- */

/* What the root tells the others. */
struct load_word {
    uint8_t id[CHECKPOINT_ID];
    uint8_t found; /* 0: the root has an error */
};

/* The lowest file that the root sees says which checkpoint it is: rank 0 may not have saved. */
static enum adtopk_status load_choose(struct loading *loading, struct load_word *word)
{
    struct together *together = loading->together;
    uint32_t lowest;

    *word = (struct load_word){.found = 0};
    if (together->root == (uint32_t)together->context->place.rank &&
        checkpoint_lowest(together->folder, &lowest, &together->error) == ADTOPK_OK &&
        load_open(loading, lowest, &loading->own) == ADTOPK_OK) {
        memcpy(word->id, loading->own.head->id.data, CHECKPOINT_ID);
        word->found = 1;
    }
    return together_share(together, word, sizeof *word);
}

/* All ranks read a file of the same checkpoint. */
static enum adtopk_status load_meet(struct loading *loading)
{
    struct together *together = loading->together;
    struct load_word word;
    enum adtopk_status status = together_meet(together);

    if (status != ADTOPK_OK) {
        return status;
    }
    load_find_place(loading);
    status = load_choose(loading, &word);
    if (status != ADTOPK_OK) {
        return status;
    }
    if (together->root != (uint32_t)together->context->place.rank && word.found != 0) {
        load_open_own(loading, word.id);
    }
    return together_agree(together, 0);
}

/* What a first rank tells the others of its node. */
enum load_differs { LOAD_MOVED = 1, LOAD_OTHER_POLICY = 2 };

static unsigned load_compare(const struct loading *loading)
{
    const struct together *together = loading->together;
    unsigned differs = load_is_same_node(loading) ? 0 : LOAD_MOVED;

    if (loading->record != NULL && strcmp(loading->record->policy, together->policy) != 0) {
        differs |= LOAD_OTHER_POLICY;
    }
    return differs;
}

/* Checks everything before anything is changed. All nodes take over what they agree on, or none. */
static enum adtopk_status load_check(struct loading *loading)
{
    struct together *together = loading->together;
    const Adtopk__CheckpointJob *then = loading->own.head->job;
    unsigned differs = 0;
    enum adtopk_status status;

    if (together_is_first(together)) {
        (void)load_sources(loading);
        differs = load_compare(loading);
    }
    status = together_agree(together, (float)differs);
    for (uint32_t r = 0; r < together->ranks; r++) {
        differs |= (unsigned)together->flag[r];
    }
    loading->exact = (differs & LOAD_MOVED) == 0;
    loading->alike = (differs & LOAD_OTHER_POLICY) == 0;
    loading->factor = together->job->mean ? (float)checkpoint_members(together->job) /
                                                (float)checkpoint_members(then)
                                          : 1;
    return status;
}

static enum adtopk_status load_run(struct loading *loading)
{
    struct together *together = loading->together;
    enum adtopk_status status = load_meet(loading);

    if (status == ADTOPK_OK) {
        status = load_check(loading);
    }
    if (status != ADTOPK_OK) {
        return status;
    }
    if (together_is_first(together)) {
        (void)load_write(loading);
    }
    status = together_agree(together, 0);
    if (status != ADTOPK_OK) {
        return status; /* no rank of a node that was written to can push */
    }
    if (together_is_first(together)) {
        (void)load_end(loading);
    }
    return together_agree(together, 0);
}

static void load_free(struct loading *loading)
{
    checkpoint_close(&loading->own);
    checkpoint_close(&loading->other);
    for (uint32_t s = 0; s < loading->sources; s++) {
        checkpoint_close(&loading->source[s].file);
    }
    free(loading->source);
}

static void load_check_result(struct together *together, const struct adtopk_checkpoint *checkpoint)
{
    struct error err;

    if (checkpoint != NULL &&
        client_sized_check("struct adtopk_checkpoint", checkpoint, &err) != ADTOPK_OK) {
        (void)error_set(&together->error, err.code, "%s: %s", together->call, err.text);
    }
}

enum adtopk_status adtopk_checkpoint_load(
    adtopk_context *context, const char *folder, struct adtopk_checkpoint *checkpoint)
{
    struct together together;
    struct loading loading = {.together = &together, .own = {.file = -1}, .other = {.file = -1}};
    enum adtopk_status status = together_begin(&together, context, "adtopk_checkpoint_load()");

    if (status != ADTOPK_OK) {
        return status;
    }
    together_in(&together, folder);
    load_check_result(&together, checkpoint);
    status = load_run(&loading);
    if (status == ADTOPK_OK && checkpoint != NULL) {
        const struct adtopk_checkpoint found = {.step = loading.own.head->job->step,
            .world_size = checkpoint_members(loading.own.head->job),
            .exact = loading.exact ? 1 : 0};
        client_sized_fill(checkpoint, &found, sizeof found);
    }
    load_free(&loading);
    return together_end(&together, status);
}

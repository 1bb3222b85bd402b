/*
 * Reads files of checkpoints. Nothing in a file is believed before its checksum and its bounds are
 * checked.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/checkpoint_format.h"
#include "proto/codec.h"
#include "proto/payload.h"
#include "proto/retry.h"

#define READ_HEAD_MAX (UINT32_C(1) << 28) /* bytes of a head: 65,536 tensors need a tenth */

enum adtopk_status checkpoint_path(
    const char *folder, uint32_t rank, char path[CHECKPOINT_PATH], struct error *err)
{
    const int size = snprintf(path, CHECKPOINT_PATH, "%s/rank-%u.adtopk", folder, rank);

    if (folder[0] == '\0' || size < 0 || (unsigned)size + CHECKPOINT_ASIDE >= CHECKPOINT_PATH) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "the path of the checkpoint is %s",
            folder[0] == '\0' ? "empty" : "too long");
    }
    return ADTOPK_OK;
}

bool checkpoint_is_name(const char *name, uint32_t *rank)
{
    char same[64];

    return sscanf(name, "rank-%" SCNu32 ".adtopk", rank) == 1 &&
           snprintf(same, sizeof same, "rank-%" PRIu32 ".adtopk", *rank) > 0 &&
           strcmp(same, name) == 0;
}

/* If it cannot be read, or has no file, opening rank 0's says so. */
enum adtopk_status checkpoint_lowest(const char *folder, uint32_t *lowest, struct error *err)
{
    DIR *entries = opendir(folder);
    const struct dirent *entry;
    uint32_t rank;

    if (entries == NULL) {
        return error_set(err, errno == ENOENT ? ADTOPK_ERR_LOST : ADTOPK_ERR_SYSTEM,
            "cannot open the folder of a checkpoint, %s: %s", folder, strerror(errno));
    }
    *lowest = UINT32_MAX;
    while ((entry = readdir(entries)) != NULL) {
        if (checkpoint_is_name(entry->d_name, &rank) && rank < *lowest) {
            *lowest = rank;
        }
    }
    (void)closedir(entries);
    return *lowest != UINT32_MAX ? ADTOPK_OK
                                 : error_set(err, ADTOPK_ERR_LOST,
                                       "folder %s has no checkpoint, whose files are called "
                                       "rank-N.adtopk",
                                       folder);
}

/* ------------------------------------------------------------------ sizes */

static uint64_t stored_blocks(uint64_t floats)
{
    return (floats + CHECKPOINT_BLOCK - 1) / CHECKPOINT_BLOCK;
}

/* Blocks, and floats, of one residual. */
static uint64_t stored_residual_blocks(const Adtopk__CheckpointTensor *tensor, uint64_t *floats)
{
    uint64_t blocks = 0;

    *floats = 0;
    for (unsigned a = 0; a < CHECKPOINT_ARRAYS; a++) {
        const uint64_t count = checkpoint_floats(tensor, (enum checkpoint_array)a);
        *floats += count;
        blocks += stored_blocks(count);
    }
    return blocks;
}

uint64_t checkpoint_format_size(const Adtopk__CheckpointFile *head, struct checkpoint_place *place)
{
    struct checkpoint_place at = {0, 0};

    for (size_t t = 0; t < head->n_tensor; t++) {
        const uint64_t residuals = head->tensor[t]->residuals;
        uint64_t floats;
        const uint64_t blocks = stored_residual_blocks(head->tensor[t], &floats);
        if (place != NULL) {
            place[t] = at;
        }
        at.block += blocks * residuals;
        at.bytes += (floats * sizeof(float) + blocks * sizeof(uint32_t)) * residuals;
    }
    return at.bytes;
}

/* ------------------------------------------------------------------ what a head may say */

static bool stored_names_own_file(const Adtopk__CheckpointFile *head)
{
    for (size_t i = 0; i < head->n_files; i++) {
        if (head->files[i] == head->file) {
            return head->file == head->job->ranks[0];
        }
    }
    return false;
}

static enum adtopk_status stored_check_head(const Adtopk__CheckpointFile *head, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    if (head->id.len != CHECKPOINT_ID || head->job == NULL) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "its head names no job");
    }
    status = checkpoint_check_job(head->job, err);
    if (status == ADTOPK_OK &&
        (!checkpoint_are_ranks(head->files, head->n_files, head->job->world_size) ||
            !stored_names_own_file(head) || head->n_tensor != head->job->tensors)) {
        status = error_set(err, ADTOPK_ERR_PROTOCOL, "its head does not fit together");
    }
    for (size_t t = 0; status == ADTOPK_OK && t < head->n_tensor; t++) {
        status = checkpoint_check_tensor(head->tensor[t], err);
    }
    return status;
}

/* ------------------------------------------------------------------ files */

static enum adtopk_status stored_damaged(
    const struct checkpoint *checkpoint, struct error *err, const char *what)
{
    return error_set(err, ADTOPK_ERR_LOST, "checkpoint %s%.300s is damaged: %s",
        strlen(checkpoint->path) > 150 ? "..." : "",
        checkpoint->path + (strlen(checkpoint->path) > 150 ? strlen(checkpoint->path) - 150 : 0),
        what);
}

/* Reads exactly so many bytes. */
static enum adtopk_status stored_at(const struct checkpoint *checkpoint, void *bytes, size_t size,
    uint64_t place, struct error *err)
{
    size_t done = 0;

    while (done < size) {
        const ssize_t got =
            pread(checkpoint->file, (char *)bytes + done, size - done, (off_t)(place + done));
        if (got == 0) {
            return stored_damaged(checkpoint, err, "it is cut short");
        }
        if (got < 0 && errno != EINTR) {
            return checkpoint_format_failed(checkpoint->path, "read", errno, err);
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return ADTOPK_OK;
}

static enum adtopk_status stored_fixed(
    struct checkpoint *checkpoint, struct checkpoint_fixed *fixed, struct error *err)
{
    char text[96];

    if (stored_at(checkpoint, fixed, sizeof *fixed, 0, err) != ADTOPK_OK) {
        return err->code;
    }
    if (memcmp(fixed->magic, CHECKPOINT_MAGIC, sizeof fixed->magic) != 0) {
        return stored_damaged(checkpoint, err, "it does not begin as a checkpoint does");
    }
    if (fixed->crc != crc32c(0, fixed, offsetof(struct checkpoint_fixed, crc))) {
        return stored_damaged(checkpoint, err, "the checksum of its beginning is wrong");
    }
    if (fixed->version != CHECKPOINT_VERSION) {
        (void)snprintf(text, sizeof text, "it has version %u, and this library reads version %u",
            fixed->version, CHECKPOINT_VERSION);
        return stored_damaged(checkpoint, err, text);
    }
    if (fixed->size != checkpoint->size || fixed->head > READ_HEAD_MAX ||
        fixed->head > checkpoint->size - CHECKPOINT_FIXED) {
        (void)snprintf(text, sizeof text, "it has %llu bytes and says %llu",
            (unsigned long long)checkpoint->size, (unsigned long long)fixed->size);
        return stored_damaged(checkpoint, err, text);
    }
    checkpoint->head_crc = fixed->head_crc;
    checkpoint->blocks_at = CHECKPOINT_FIXED + fixed->head;
    return ADTOPK_OK;
}

static enum adtopk_status stored_unpack(
    struct checkpoint *checkpoint, const uint8_t *bytes, uint32_t size, struct error *err)
{
    struct error why;
    uint64_t most;

    checkpoint->head = (Adtopk__CheckpointFile *)codec_unpack(
        &adtopk__checkpoint_file__descriptor, bytes, size, READ_HEAD_MAX, &why);
    if (checkpoint->head == NULL && why.code == ADTOPK_ERR_MEMORY) {
        return error_set(err, why.code, "%s", why.text);
    }
    if (checkpoint->head == NULL || stored_check_head(checkpoint->head, &why) != ADTOPK_OK) {
        return stored_damaged(checkpoint, err, why.text);
    }
    checkpoint->tensor = malloc((checkpoint->head->n_tensor + 1) * sizeof *checkpoint->tensor);
    if (checkpoint->tensor == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a checkpoint");
    }
    most = checkpoint_format_size(checkpoint->head, checkpoint->tensor);
    return checkpoint->blocks_at + most == checkpoint->size
               ? ADTOPK_OK
               : stored_damaged(checkpoint, err, "its size is not that of its tensors");
}

static enum adtopk_status stored_head(struct checkpoint *checkpoint, struct error *err)
{
    struct checkpoint_fixed fixed;
    uint8_t *bytes;
    enum adtopk_status status = stored_fixed(checkpoint, &fixed, err);

    if (status != ADTOPK_OK) {
        return status;
    }
    bytes = malloc((size_t)fixed.head + 1);
    if (bytes == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the head of a checkpoint");
    }
    status = stored_at(checkpoint, bytes, fixed.head, CHECKPOINT_FIXED, err);
    if (status == ADTOPK_OK && crc32c(0, bytes, fixed.head) != fixed.head_crc) {
        status = stored_damaged(checkpoint, err, "the checksum of its head is wrong");
    }
    if (status == ADTOPK_OK) {
        status = stored_unpack(checkpoint, bytes, fixed.head, err);
    }
    free(bytes);
    return status;
}

enum adtopk_status checkpoint_open(
    struct checkpoint *checkpoint, const char *path, struct error *err)
{
    struct stat stat;
    struct error unused;
    enum adtopk_status status;

    err = err != NULL ? err : &unused;
    *checkpoint = (struct checkpoint){.file = -1};
    RETRY(checkpoint->file, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    (void)snprintf(checkpoint->path, sizeof checkpoint->path, "%s", path);
    if (checkpoint->file < 0) {
        return checkpoint_format_failed(path, "open", errno, err);
    }
    if (fstat(checkpoint->file, &stat) != 0) {
        status = checkpoint_format_failed(path, "examine", errno, err);
    } else if (!S_ISREG(stat.st_mode) || stat.st_size < (off_t)CHECKPOINT_FIXED) {
        status = stored_damaged(checkpoint, err, "it is cut short, or not a file");
    } else {
        checkpoint->size = (uint64_t)stat.st_size;
        status = stored_head(checkpoint, err);
    }
    if (status != ADTOPK_OK) {
        checkpoint_close(checkpoint);
    }
    return status;
}

void checkpoint_close(struct checkpoint *checkpoint)
{
    if (checkpoint->file >= 0) {
        (void)close(checkpoint->file);
        codec_free(checkpoint->head == NULL ? NULL : &checkpoint->head->base);
        free(checkpoint->tensor);
    }
    checkpoint->file = -1;
    checkpoint->head = NULL;
    checkpoint->tensor = NULL;
}

/* ------------------------------------------------------------------ blocks */

/* The number of an array's first block, and the place where the array begins. */
static struct checkpoint_place stored_find(
    const struct checkpoint *checkpoint, uint32_t t, uint32_t residual, enum checkpoint_array array)
{
    const Adtopk__CheckpointTensor *tensor = checkpoint->head->tensor[t];
    struct checkpoint_place at = checkpoint->tensor[t];
    uint64_t floats, blocks = stored_residual_blocks(tensor, &floats) * residual;

    floats *= residual;
    for (unsigned a = 0; a < (unsigned)array; a++) {
        const uint64_t count = checkpoint_floats(tensor, (enum checkpoint_array)a);
        floats += count;
        blocks += stored_blocks(count);
    }
    at.block += blocks;
    at.bytes += checkpoint->blocks_at + floats * sizeof(float) + blocks * sizeof(uint32_t);
    return at;
}

uint32_t checkpoint_format_crc(
    uint32_t head_crc, uint64_t block, const float *values, uint32_t count)
{
    const uint32_t crc = crc32c(head_crc, &block, sizeof block);

    return crc32c(crc, values, count * sizeof *values);
}

/* Reads one block at a place. */
static enum adtopk_status stored_block(const struct checkpoint *checkpoint, uint64_t block,
    uint64_t place, float *values, uint32_t count, struct error *err)
{
    uint32_t crc;

    if (stored_at(checkpoint, values, count * sizeof *values, place, err) != ADTOPK_OK ||
        stored_at(checkpoint, &crc, sizeof crc, place + count * sizeof *values, err) != ADTOPK_OK) {
        return err->code;
    }
    if (crc != checkpoint_format_crc(checkpoint->head_crc, block, values, count)) {
        return stored_damaged(checkpoint, err, "the checksum of a block is wrong");
    }
    return checkpoint_are_valid(values, count)
               ? ADTOPK_OK
               : stored_damaged(checkpoint, err, "a value is not finite, or too large");
}

enum adtopk_status checkpoint_get(const struct checkpoint *checkpoint, uint32_t tensor,
    uint32_t residual, enum checkpoint_array array, uint64_t first, float values[CHECKPOINT_BLOCK],
    uint32_t *count, struct error *err)
{
    const uint64_t floats = checkpoint_floats(checkpoint->head->tensor[tensor], array);
    const uint64_t number = first / CHECKPOINT_BLOCK;
    const struct checkpoint_place at = stored_find(checkpoint, tensor, residual, array);
    const uint64_t place =
        at.bytes + number * (CHECKPOINT_BLOCK * sizeof(float) + sizeof(uint32_t));

    *count = (uint32_t)(floats - first < CHECKPOINT_BLOCK ? floats - first : CHECKPOINT_BLOCK);
    return stored_block(checkpoint, at.block + number, place, values, *count, err);
}

/* Checks the blocks of one array, and moves on behind them. */
static enum adtopk_status stored_verify(const struct checkpoint *checkpoint, uint64_t floats,
    uint64_t *block, uint64_t *place, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;
    float values[CHECKPOINT_BLOCK];

    while (status == ADTOPK_OK && floats > 0) {
        const uint32_t count = floats < CHECKPOINT_BLOCK ? (uint32_t)floats : CHECKPOINT_BLOCK;
        status = stored_block(checkpoint, (*block)++, *place, values, count, err);
        *place += count * sizeof(float) + sizeof(uint32_t);
        floats -= count;
    }
    return status;
}

enum adtopk_status checkpoint_verify(const struct checkpoint *checkpoint, struct error *err)
{
    uint64_t block = 0, place = checkpoint->blocks_at;
    enum adtopk_status status = ADTOPK_OK;
    struct error unused;

    err = err != NULL ? err : &unused;
    for (size_t t = 0; t < checkpoint->head->n_tensor; t++) {
        const Adtopk__CheckpointTensor *tensor = checkpoint->head->tensor[t];
        for (uint32_t i = 0; i < tensor->residuals * CHECKPOINT_ARRAYS && status == ADTOPK_OK;
             i++) {
            status = stored_verify(checkpoint,
                checkpoint_floats(tensor, (enum checkpoint_array)(i % CHECKPOINT_ARRAYS)), &block,
                &place, err);
        }
    }
    return status;
}

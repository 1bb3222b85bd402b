/*
 * Writes files of checkpoints: aside, to the disk, then under their names. A file that has its name
 * is whole.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/checkpoint_format.h"
#include "proto/codec.h"
#include "proto/payload.h"
#include "proto/retry.h"

enum adtopk_status checkpoint_format_failed(
    const char *path, const char *verb, int code, struct error *err)
{
    const size_t size = strlen(path);
    const char *shown = size > 150 ? path + size - 150 : path;
    const enum adtopk_status status = code == EACCES || code == EPERM     ? ADTOPK_ERR_DENIED
                                      : code == ENOENT || code == ENOTDIR ? ADTOPK_ERR_LOST
                                                                          : ADTOPK_ERR_SYSTEM;

    return error_set(err, status, "cannot %s checkpoint %s%s: %s", verb, size > 150 ? "..." : "",
        shown, strerror(code));
}

/* Writes everything. */
static enum adtopk_status write_all(
    struct checkpoint *checkpoint, const void *bytes, size_t size, struct error *err)
{
    size_t done = 0;

    while (done < size) {
        const ssize_t put = write(checkpoint->file, (const char *)bytes + done, size - done);
        if (put < 0 && errno != EINTR) {
            return checkpoint_format_failed(checkpoint->aside, "write", errno, err);
        }
        done += put > 0 ? (size_t)put : 0;
    }
    checkpoint->place += size;
    return ADTOPK_OK;
}

static enum adtopk_status write_head(
    struct checkpoint *checkpoint, const Adtopk__CheckpointFile *head, struct error *err)
{
    struct checkpoint_fixed fixed = {.version = CHECKPOINT_VERSION};
    enum adtopk_status status;
    size_t size = 0;
    uint8_t *bytes = codec_pack(&head->base, &size);

    if (bytes == NULL || size > UINT32_MAX) {
        free(bytes);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the head of a checkpoint");
    }
    (void)memcpy(fixed.magic, CHECKPOINT_MAGIC, sizeof fixed.magic);
    fixed.head = (uint32_t)size;
    fixed.head_crc = crc32c(0, bytes, size);
    fixed.size = CHECKPOINT_FIXED + size + checkpoint_format_size(head, NULL);
    fixed.crc = crc32c(0, &fixed, offsetof(struct checkpoint_fixed, crc));
    checkpoint->head_crc = fixed.head_crc;
    checkpoint->size = fixed.size;
    status = write_all(checkpoint, &fixed, sizeof fixed, err);
    if (status == ADTOPK_OK) {
        status = write_all(checkpoint, bytes, size, err);
    }
    free(bytes);
    return status;
}

/* The name that nobody else uses has the checkpoint's id. */
static void write_name(
    struct checkpoint *checkpoint, const char *path, const Adtopk__CheckpointFile *head)
{
    char id[2 * CHECKPOINT_ID + 1] = "";

    for (size_t i = 0; i < head->id.len && i < CHECKPOINT_ID; i++) {
        (void)snprintf(id + 2 * i, 3, "%02x", head->id.data[i]);
    }
    (void)snprintf(checkpoint->path, sizeof checkpoint->path, "%s", path);
    (void)snprintf(
        checkpoint->aside, sizeof checkpoint->aside, "%.4040s.%s.tmp", checkpoint->path, id);
}

enum adtopk_status checkpoint_create(struct checkpoint *checkpoint, const char *path,
    const Adtopk__CheckpointFile *head, struct error *err)
{
    struct error unused;

    err = err != NULL ? err : &unused;
    *checkpoint = (struct checkpoint){.file = -1};
    for (size_t t = 0; t < head->n_tensor; t++) {
        if (checkpoint_check_tensor(head->tensor[t], err) != ADTOPK_OK) {
            return err->code;
        }
    }
    write_name(checkpoint, path, head);
    RETRY(checkpoint->file,
        open(checkpoint->aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (checkpoint->file < 0) {
        return errno == ENOENT ? error_set(err, ADTOPK_ERR_LOST,
                                     "cannot create checkpoint %.300s: the folder does not exist: "
                                     "make it first",
                                     checkpoint->path)
                               : checkpoint_format_failed(checkpoint->aside, "create", errno, err);
    }
    if (write_head(checkpoint, head, err) != ADTOPK_OK) {
        checkpoint_discard(checkpoint);
        return err->code;
    }
    return ADTOPK_OK;
}

enum adtopk_status checkpoint_put(
    struct checkpoint *checkpoint, const float *values, uint32_t count, struct error *err)
{
    const uint32_t crc =
        checkpoint_format_crc(checkpoint->head_crc, checkpoint->block, values, count);
    enum adtopk_status status = write_all(checkpoint, values, count * sizeof *values, err);

    if (status == ADTOPK_OK) {
        status = write_all(checkpoint, &crc, sizeof crc, err);
    }
    checkpoint->block++;
    return status;
}

enum adtopk_status checkpoint_finish(struct checkpoint *checkpoint, struct error *err)
{
    int failed;

    if (checkpoint->place != checkpoint->size) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "checkpoint %.150s lacks some of its arrays",
            checkpoint->aside);
    }
    RETRY(failed, fsync(checkpoint->file));
    return failed == 0 ? ADTOPK_OK
                       : checkpoint_format_failed(checkpoint->aside, "write", errno, err);
}

/* The name is on the disk when the folder is. */
static enum adtopk_status write_sync_folder(const struct checkpoint *checkpoint, struct error *err)
{
    char path[CHECKPOINT_PATH];
    enum adtopk_status status = ADTOPK_OK;
    int folder, failed = -1;

    (void)snprintf(path, sizeof path, "%s", checkpoint->path);
    RETRY(folder, open(dirname(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder >= 0) {
        RETRY(failed, fsync(folder));
    }
    if (folder < 0 || (failed != 0 && errno != EINVAL)) {
        status = checkpoint_format_failed(checkpoint->path, "publish", errno, err);
    }
    if (folder >= 0) {
        (void)close(folder);
    }
    return status;
}

bool checkpoint_is_aside(const char *name, const char *file)
{
    const size_t size = strlen(file);

    return strncmp(name, file, size) == 0 && name[size] == '.' &&
           strspn(name + size + 1, "0123456789abcdef") == (size_t)2 * CHECKPOINT_ID &&
           strcmp(name + size + 1 + (size_t)2 * CHECKPOINT_ID, ".tmp") == 0;
}

/* Every save has an id of its own, so no later one replaces what a killed process left. */
static void write_remove_left(const struct checkpoint *checkpoint)
{
    const char *slash = strrchr(checkpoint->path, '/');
    char path[CHECKPOINT_PATH];
    const struct dirent *entry;
    DIR *folder;

    (void)snprintf(path, sizeof path, "%s", checkpoint->path);
    folder = opendir(dirname(path));
    while (folder != NULL && (entry = readdir(folder)) != NULL) {
        if (checkpoint_is_aside(entry->d_name, slash != NULL ? slash + 1 : checkpoint->path)) {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
}

enum adtopk_status checkpoint_publish(struct checkpoint *checkpoint, struct error *err)
{
    enum adtopk_status status;

    if (rename(checkpoint->aside, checkpoint->path) != 0) {
        status = checkpoint_format_failed(checkpoint->path, "publish", errno, err);
        checkpoint_discard(checkpoint);
        return status;
    }
    status = write_sync_folder(checkpoint, err);
    write_remove_left(checkpoint);
    (void)close(checkpoint->file);
    checkpoint->file = -1;
    return status;
}

enum adtopk_status checkpoint_remove(const char *folder, uint32_t rank, struct error *err)
{
    char path[CHECKPOINT_PATH];
    enum adtopk_status status = checkpoint_path(folder, rank, path, err);

    if (status == ADTOPK_OK && unlink(path) != 0 && errno != ENOENT) {
        status = checkpoint_format_failed(path, "remove", errno, err);
    }
    return status;
}

void checkpoint_discard(struct checkpoint *checkpoint)
{
    if (checkpoint->file >= 0) {
        (void)close(checkpoint->file);
        (void)unlink(checkpoint->aside);
    }
    checkpoint->file = -1;
}

#include "saved.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SAVED_MAGIC UINT64_C(0x31646576617378) /* "xsaved1" */
#define SAVED_HASH UINT64_C(0xcbf29ce484222325)

/* The beginning of a file. */
struct saved_header {
    uint64_t magic, step, floats, hash;
};

static int saved_fail(char *error, const char *path, const char *why)
{
    snprintf(error, SAVED_ERROR, "%.180s: %s", path, why);
    return -1;
}

int saved_folder(const char *folder, uint64_t step, char path[SAVED_PATH])
{
    const int size = snprintf(path, SAVED_PATH, "%s/step-%" PRIu64, folder, step);
    return size > 0 && size < SAVED_PATH - 16 ? 0 : -1;
}

/* One stretch of floats after the other; NULL behind the last one. */
static float *saved_piece(const struct saved *saved, size_t piece, size_t *count)
{
    const size_t t = piece / 4;
    if (t >= saved->count) {
        *count = saved->statistics_count;
        return piece == 4 * saved->count && *count > 0 ? saved->statistics : NULL;
    }
    const struct optimiser_state state = optimiser_state(saved->optimiser, t);
    float *const pieces[4] = {saved->parameters[t], state.first, state.second, state.powers};
    *count = piece % 4 == 3 ? 2 : pieces[piece % 4] ? tensor_size(&saved->tensors[t]) : 0;
    return pieces[piece % 4] ? pieces[piece % 4] : state.powers; /* nothing of it */
}

static uint64_t saved_hash(uint64_t hash, const float *values, size_t count)
{
    const unsigned char *bytes = (const unsigned char *)values;
    for (size_t i = 0; i < count * sizeof *values; i++) {
        hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

static struct saved_header saved_header(const struct saved *saved, uint64_t step)
{
    struct saved_header header = {.magic = SAVED_MAGIC, .step = step, .hash = SAVED_HASH};
    size_t count;
    const float *values;
    for (size_t p = 0; (values = saved_piece(saved, p, &count)) != NULL; p++) {
        header.floats += count;
        header.hash = saved_hash(header.hash, values, count);
    }
    return header;
}

/* A file takes the place of an earlier one when all of it is on the disk. */
static int saved_close(FILE *file, int written, const char *aside, const char *path, char *error)
{
    written = written && fflush(file) == 0 && fsync(fileno(file)) == 0;
    if (fclose(file) != 0 || !written || rename(aside, path) != 0) {
        return saved_fail(error, path, strerror(errno));
    }
    return 0;
}

int saved_write(const struct saved *saved, const char *folder, uint64_t step, char *error)
{
    char path[SAVED_PATH], aside[SAVED_PATH + 8];
    if (saved_folder(folder, step, path) != 0) {
        return saved_fail(error, folder, "the path is too long");
    }
    if ((mkdir(folder, 0777) != 0 && errno != EEXIST) ||
        (mkdir(path, 0777) != 0 && errno != EEXIST)) {
        return saved_fail(error, path, strerror(errno));
    }
    strcat(path, "/model");
    snprintf(aside, sizeof aside, "%s.tmp", path);
    FILE *file = fopen(aside, "wb");
    if (!file) {
        return saved_fail(error, aside, strerror(errno));
    }
    const struct saved_header header = saved_header(saved, step);
    int written = fwrite(&header, sizeof header, 1, file) == 1;
    size_t count;
    const float *values;
    for (size_t p = 0; (values = saved_piece(saved, p, &count)) != NULL; p++) {
        written = written && fwrite(values, sizeof *values, count, file) == count;
    }
    return saved_close(file, written, aside, path, error);
}

int saved_note(const char *folder, uint64_t step, char *error)
{
    char path[SAVED_PATH + 16], aside[SAVED_PATH + 24];
    snprintf(path, sizeof path, "%s/latest", folder);
    snprintf(aside, sizeof aside, "%s.tmp", path);
    FILE *file = fopen(aside, "w");
    if (!file) {
        return saved_fail(error, aside, strerror(errno));
    }
    return saved_close(file, fprintf(file, "%" PRIu64 "\n", step) > 0, aside, path, error);
}

int saved_latest(const char *folder, uint64_t *step, char *error)
{
    char path[SAVED_PATH + 16];
    snprintf(path, sizeof path, "%s/latest", folder);
    FILE *file = fopen(path, "r");
    if (!file) {
        return saved_fail(error, path, strerror(errno));
    }
    const int found = fscanf(file, "%" SCNu64, step) == 1;
    fclose(file);
    return found ? 0 : saved_fail(error, path, "is not the number of a step");
}

static int saved_read_model(const struct saved *saved, FILE *file, uint64_t step)
{
    struct saved_header header;
    size_t count;
    float *values;
    if (fread(&header, sizeof header, 1, file) != 1 || header.magic != SAVED_MAGIC ||
        header.step != step || header.floats != saved_header(saved, step).floats) {
        return -1;
    }
    for (size_t p = 0; (values = saved_piece(saved, p, &count)) != NULL; p++) {
        if (fread(values, sizeof *values, count, file) != count) {
            return -1;
        }
    }
    return saved_header(saved, step).hash == header.hash && fgetc(file) == EOF ? 0 : -1;
}

int saved_read(const struct saved *saved, const char *folder, uint64_t step, char *error)
{
    char path[SAVED_PATH];
    if (saved_folder(folder, step, path) != 0) {
        return saved_fail(error, folder, "the path is too long");
    }
    strcat(path, "/model");
    FILE *file = fopen(path, "rb");
    if (!file) {
        return saved_fail(error, path, strerror(errno));
    }
    const int result = saved_read_model(saved, file, step);
    fclose(file);
    return result == 0 ? 0
                       : saved_fail(error, path, "is of another model or optimiser, or damaged");
}

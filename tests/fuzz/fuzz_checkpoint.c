/*
 * Fuzz target: the file of a checkpoint. An accepted file can be read to its end. An input that
 * does not begin as a checkpoint gets the checksums of its beginning and its head, so that the
 * fuzzer comes past them. An empty one stands for a file that is not there.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/checkpoint_format.h"
#include "proto/payload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void mend_beginning(uint8_t *bytes, size_t size)
{
    struct checkpoint_fixed fixed;

    memcpy(&fixed, bytes, sizeof fixed);
    if (fixed.head > size - sizeof fixed) {
        return;
    }
    memcpy(fixed.magic, CHECKPOINT_MAGIC, sizeof fixed.magic);
    fixed.size = size;
    fixed.head_crc = crc32c(0, bytes + sizeof fixed, fixed.head);
    fixed.crc = crc32c(0, &fixed, offsetof(struct checkpoint_fixed, crc));
    memcpy(bytes, &fixed, sizeof fixed);
}

/* Reads every array as checkpoint_verify() did. */
static void read_arrays(const struct checkpoint *file)
{
    static float values[CHECKPOINT_BLOCK];
    struct error err;

    for (uint32_t t = 0; t < file->head->n_tensor; t++) {
        const Adtopk__CheckpointTensor *tensor = file->head->tensor[t];
        for (uint32_t i = 0; i < tensor->residuals * CHECKPOINT_ARRAYS; i++) {
            const enum checkpoint_array array = (enum checkpoint_array)(i % CHECKPOINT_ARRAYS);
            const uint64_t floats = checkpoint_floats(tensor, array);
            uint32_t count;
            for (uint64_t first = 0; first < floats; first += count) {
                must(checkpoint_get(file, t, i / CHECKPOINT_ARRAYS, array, first, values, &count,
                         &err) == ADTOPK_OK);
            }
        }
    }
}

static void read_file(const char *path)
{
    struct checkpoint file;
    struct error err = {.code = ADTOPK_OK};
    enum adtopk_status status = checkpoint_open(&file, path, &err);

    if (status == ADTOPK_OK) {
        status = checkpoint_verify(&file, &err);
        if (status == ADTOPK_OK) {
            read_arrays(&file);
        }
        checkpoint_close(&file);
    }
    must(status == ADTOPK_OK || (err.code == status && err.text[0] != '\0'));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    uint8_t *bytes = malloc(size + 1);
    const int file = memfd_create("checkpoint", MFD_CLOEXEC);

    must(bytes != NULL && file >= 0);
    if (size > 0) {
        memcpy(bytes, data, size);
    }
    if (size >= sizeof(struct checkpoint_fixed) && bytes[0] != CHECKPOINT_MAGIC[0]) {
        mend_beginning(bytes, size); /* other inputs stay as they are */
    }
    must(write(file, bytes, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d%s", file, size == 0 ? "/none" : "");
    read_file(path);
    (void)close(file);
    free(bytes);
    return 0;
}

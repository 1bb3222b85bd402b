#include "tests/integration/replay/capture.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/integration/replay/tape.h"

#define CAPTURE_TINY 1000

void capture_add(struct capture *capture, const char *name, const uint64_t *shape)
{
    struct capture_header *header = &capture->header;
    struct capture_tensor *grown =
        realloc(capture->tensor, (header->tensors + 1) * sizeof(*capture->tensor));
    struct capture_tensor *tensor;

    if (grown == NULL) {
        (void)fprintf(stderr, "no memory\n");
        exit(1);
    }
    capture->tensor = grown;
    tensor = &grown[header->tensors++];
    *tensor = (struct capture_tensor){.numel = 1, .offset = header->elements};
    (void)snprintf(tensor->name, sizeof(tensor->name), "%s", name);
    for (; shape[tensor->dims] != 0; tensor->dims++) {
        tensor->shape[tensor->dims] = shape[tensor->dims];
        tensor->numel *= shape[tensor->dims];
    }
    header->elements += (uint32_t)tensor->numel;
}

int capture_begin(const struct capture *capture, FILE *out)
{
    const struct capture_header *header = &capture->header;

    return fwrite(header, sizeof(*header), 1, out) == 1 &&
           fwrite(capture->tensor, sizeof(*capture->tensor), header->tensors, out) ==
               header->tensors;
}

static int capture_read(struct capture *capture, const char *path, int file)
{
    struct stat status;
    const uint8_t *bytes;
    size_t tensors;

    if (file < 0 || fstat(file, &status) != 0) {
        return 0;
    }
    capture->size = (size_t)status.st_size;
    capture->mapped = mmap(NULL, capture->size, PROT_READ, MAP_SHARED, file, 0);
    if (capture->mapped == MAP_FAILED) {
        return 0;
    }
    bytes = capture->mapped;
    memcpy(&capture->header, bytes, sizeof(capture->header));
    tensors = capture->header.tensors * sizeof(*capture->tensor);
    capture->tensor = tape_need(1, tensors);
    memcpy(capture->tensor, bytes + sizeof(capture->header), tensors);
    capture->gradient = (const float *)(const void *)(bytes + sizeof(capture->header) + tensors);
    (void)path;
    return 1;
}

int capture_open(struct capture *capture, const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    int done;

    *capture = (struct capture){.mapped = MAP_FAILED};
    done = capture_read(capture, path, file);
    if (!done) {
        perror(path);
    }
    if (file >= 0) {
        (void)close(file);
    }
    return done;
}

/* ------------------------------------------------------------------ other tensors */

static const uint64_t capture_odd[][CAPTURE_DIMS + 1] = {
    {97, 1},
    {1, 61},
    {64, 1, 3, 3},
    {1, 64, 3, 3},
    {13},
    {5, 7, 3},
    {1, 1},
    {2, 3, 1, 2, 1, 2, 3, 2},
    {101, 103},
    {4099, 2},
    {2, 4099},
    {1, 1, 1, 257},
    {127, 1, 1},
    {31, 37, 2},
    {1},
    {3, 1031},
    {211, 3, 5},
    {1, 1, 997, 1},
};

static void capture_cut_tiny(struct capture *capture)
{
    for (uint64_t i = 0; i < CAPTURE_TINY; i++) {
        const uint64_t shapes[][CAPTURE_DIMS + 1] = {
            {3 + i % 7, 5 + i % 11},
            {1 + i % 17},
            {1 + i % 5, 1, 3, 3},
            {2 + i % 9, 1 + i % 4, 2},
            {1, 40 + i % 29},
        };
        char name[CAPTURE_NAME];
        (void)snprintf(name, sizeof(name), "tiny.%u", (unsigned)i);
        capture_add(capture, name, shapes[i % (sizeof(shapes) / sizeof(shapes[0]))]);
    }
}

int capture_cut(struct capture *capture, const char *layout)
{
    const uint32_t elements = capture->header.elements;

    if (strcmp(layout, "own") == 0) {
        return 1;
    }
    capture->header.tensors = capture->header.elements = 0;
    if (strcmp(layout, "tiny") == 0) {
        capture_cut_tiny(capture);
    } else if (strcmp(layout, "odd") == 0) {
        for (unsigned i = 0; i < sizeof(capture_odd) / sizeof(capture_odd[0]); i++) {
            char name[CAPTURE_NAME];
            (void)snprintf(name, sizeof(name), "odd.%u", i);
            capture_add(capture, name, capture_odd[i]);
        }
    }
    if (capture->header.tensors == 0 || capture->header.elements > elements) {
        (void)fprintf(stderr, "cannot cut %u elements into layout %s\n", elements, layout);
        return 0;
    }
    capture->header.elements = elements; /* those behind the last tensor are left out */
    return 1;
}

const float *capture_gradient(const struct capture *capture, uint64_t step, unsigned rank)
{
    const struct capture_header *header = &capture->header;
    const uint64_t from = (rank + step / header->steps) % header->ranks;

    return capture->gradient + (step % header->steps * header->ranks + from) * header->elements;
}

void capture_close(struct capture *capture)
{
    free(capture->tensor);
    if (capture->mapped != MAP_FAILED) {
        (void)munmap(capture->mapped, capture->size);
    }
}

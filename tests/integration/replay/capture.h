/*
 * A file of gradients: what each rank of a training pushed in each step.
 */
#ifndef ADTOPK_TEST_CAPTURE_H
#define ADTOPK_TEST_CAPTURE_H

#include <stdint.h>
#include <stdio.h>

#define CAPTURE_NAME 24
#define CAPTURE_DIMS 8

struct capture_tensor {
    char name[CAPTURE_NAME];
    uint64_t shape[CAPTURE_DIMS];
    uint64_t numel;
    uint32_t dims;
    uint32_t offset; /* of its first element among those of a rank's step */
};

struct capture_header {
    uint32_t steps, ranks, tensors, elements; /* elements: of a rank's step */
};

struct capture {
    struct capture_header header;
    struct capture_tensor *tensor; /* [header.tensors] */
    const float *gradient;         /* [steps][ranks][elements] */
    void *mapped;
    size_t size;
};

/** Adds a tensor behind the others; `shape` ends with a 0. Ends the program without memory. */
void capture_add(struct capture *capture, const char *name, const uint64_t *shape);

/** Writes the header and the tensors; gradients follow, in order. False: it could not. */
int capture_begin(const struct capture *capture, FILE *out);

/** Maps a file. False: it could not, and said so. */
int capture_open(struct capture *capture, const char *path);

/**
 * The same numbers as other tensors, cut one after the other from those of each step: "own" ones
 * stay; "odd" ones have axes of 1, primes and eight dimensions; "tiny" ones are a thousand. False:
 * there is no such layout, or there are too few elements.
 */
int capture_cut(struct capture *capture, const char *layout);

/** What a rank pushes in a step: after the last the first comes again, with the ranks exchanged. */
const float *capture_gradient(const struct capture *capture, uint64_t step, unsigned rank);

void capture_close(struct capture *capture);

#endif

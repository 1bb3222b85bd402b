/*
 * A daemon of a test: a thread that answers a rank with gradients on a GPU up to its first step.
 * The test writes the memory that both share. No update ever comes from it. It has never heard of
 * lists on a GPU.
 */
#ifndef ADTOPK_TESTS_CUDA_DRIVER_FAKE_H
#define ADTOPK_TESTS_CUDA_DRIVER_FAKE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/src/context.h"
#include "proto/driver.h"

#define TENSORS 3u
#define NUMEL 1000u
#define PLACE 4096u /* of a tensor's gradient, or of its update on the device */
#define OPERATIONS CLIENT_OP_SIZE
#define FLAGS OPERATIONS
#define WORDS (FLAGS + 4096u)
#define HOST (WORDS + 4096u)
#define DEVICE (UINT64_C(4) << 20) /* the arena's offset at which device memory begins */
#define RESULTS (OPERATIONS + 8192u)
#define PAGE (sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t))

/* What a test changes in the daemon's answers. */
struct wish {
    uint64_t words; /* offset of the words */
    uint64_t host;  /* bytes of host memory */
    uint64_t step;  /* the first one */
};

struct fake {
    char path[64];
    int listening;
    _Atomic int socket;
    pthread_t thread;
    struct wish wish;
    _Atomic uint32_t asked; /* LocalTensor.memory that the rank asked for last */
    struct driver driver;
    struct driver_device device;
    CUmemGenericAllocationHandle memory;
    size_t size;       /* of device memory */
    int descriptor[4]; /* of ring, page, arena and device memory */
    struct local_ring *ring;
    struct local_page *page;
    uint8_t *arena;
};

/* The daemon of the test that runs. */
extern struct fake fake;

/** Starts it for the next rank that opens. Returns 0, or another number without a socket or thread.
 */
int fake_start(void);

/** Ends it; the rank must have closed. */
void fake_stop(void);

/** It is gone, as after SIGKILL: its page says nothing. */
void fake_die(void);

/** The word of a tensor, or of steps: that has the number TENSORS. */
struct local_word *fake_word(uint32_t at);

/** What a daemon does for a delivered tensor, or for a step. */
void fake_deliver(uint32_t at, uint64_t step, bool right);

#endif

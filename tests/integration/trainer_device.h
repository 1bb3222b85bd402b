/* The device of a rank of trainer.c: shared by trainer_device.c and trainer_stream.c. */
#ifndef ADTOPK_TEST_TRAINER_DEVICE_H
#define ADTOPK_TEST_TRAINER_DEVICE_H

#include "proto/driver.h"
#include "tests/integration/trainer.h"

struct trainer_device {
    struct driver driver;
    char uuid[DRIVER_UUID_SIZE]; /* "": the current device */
    CUstream stream;             /* NULL: the default one */
    bool copies;                 /* gradients are pushed from memory of the program's own */
    bool shown;                  /* the rank asks for updates on the device */
    bool listed;                 /* and for their lists there */
    bool returns;                /* a list may be missing after the return to another daemon */
    bool streams;                /* its stream waits for updates, before the host does */
    bool silent;                 /* nothing happens in the stream */
    unsigned long long lists;    /* that it has found there */
    unsigned waits;              /* waits in the stream, since the last report of them */
    /* Registered host memory: what the stream found behind its wait for the step. */
    struct trainer_found *found;
};

/* What a stream copied to host memory behind a wait. */
struct trainer_found {
    CUdeviceptr at;     /* the word of the verdict */
    CUdeviceptr staged; /* device memory: the word on its way */
    uint32_t word;
    uint32_t right;
    _Alignas(16) uint8_t update[]; /* of a tensor */
};

/** trainer_stream.c: memory for what streams find of a tensor, NULL: of the step. */
bool trainer_stream_commit(struct trainer *trainer, struct trainer_tensor *tensor);

/** Has the stream wait for all tensors that were pushed, and for the step. */
enum adtopk_status trainer_stream_wait(struct trainer *trainer);

/** The host knows how the step ended: so must the stream. */
enum adtopk_status trainer_stream_check(struct trainer *trainer, enum adtopk_status status);

#endif

/*
 * A rank that follows commands (trainer.c), and its commands. A command gets the words of its line,
 * prints its answer, and returns whether the answer is "ok".
 */
#ifndef ADTOPK_TEST_TRAINER_H
#define ADTOPK_TEST_TRAINER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <adtopk/adtopk.h>

#include "tests/integration/gradients.h"

#define TRAINER_MAX_TENSORS 65536

struct trainer_tensor {
    enum adtopk_dtype dtype;
    uint64_t numel;
    bool pushed;
    double *given; /* sums of gradients over the accepted steps, per element; NULL: not kept */
    double *got;
    float *scratch;       /* the dense form of a list */
    const void *gradient; /* the gradient's memory, since its commit */
    /* On a device: host memory in which gradients are made, and device memory of the program. */
    void *made;
    unsigned long long own;
    struct trainer_found *found; /* what the stream found behind its wait; trainer_stream.c */
    bool awaited;                /* the stream waits for the update of the open step */
    bool narrow;                 /* the update there has 16 bits */
    float ahead;                 /* the share by which pushes from there say that it looks ahead */
};

struct trainer_device;
struct trainer_found;

struct trainer {
    adtopk_context *context;
    struct trainer_tensor tensor[TRAINER_MAX_TENSORS];
    uint32_t tensors;
    struct gradients_source source;
    int return_ms;       /* for so long it waits for another daemon; 0: the default */
    bool comes_back;     /* it opens in the place of a process that ended */
    uint64_t first_step; /* comes_back: the step that it pushes first */
    uint64_t skipped;    /* the gradients of step s are number s + skipped of the stream */
    uint64_t poison_step;
    uint32_t poison_tensor;
    float poison; /* 0: none */
    float scale;  /* the loss scale; 0: none is given */
    bool totals;
    bool rude;       /* it broadcasts nothing to ranks that join */
    int64_t pace_ns; /* it sleeps so long in each step, as if it computed */
    FILE *trace;
    uint64_t hash;
    uint64_t accepted, withdrawn;
    char problem[256];             /* the fault of an update */
    struct adtopk_update held;     /* the update of `hold` */
    struct trainer_device *device; /* NULL: gradients are in host memory */
};

/** Answers that a call failed, or that a command is not possible. Both return false. */
bool trainer_fail(const struct trainer *trainer, enum adtopk_status status);
bool trainer_refuse(const char *why);

/** Answers "ok", or that a call failed. */
bool trainer_done(const struct trainer *trainer, enum adtopk_status status);

/** The factor in gradients and updates: the loss scale, or 1. */
static inline float trainer_factor(const struct trainer *trainer)
{
    return trainer->scale != 0 ? trainer->scale : 1;
}

/* trainer_steps.c */
bool trainer_gradients(struct trainer *trainer, char **word);
bool trainer_poison(struct trainer *trainer, char **word);
bool trainer_scale(struct trainer *trainer, char **word);
bool trainer_skip(struct trainer *trainer, char **word);
bool trainer_push(struct trainer *trainer, char **word);
bool trainer_write(struct trainer *trainer, char **word);
bool trainer_written(struct trainer *trainer, char **word);
bool trainer_race(struct trainer *trainer, char **word);
bool trainer_steps(struct trainer *trainer, char **word);
bool trainer_until(struct trainer *trainer, char **word);
bool trainer_due(struct trainer *trainer, char **word);
bool trainer_members(struct trainer *trainer, char **word);
bool trainer_rude(struct trainer *trainer, char **word);
bool trainer_pace(struct trainer *trainer, char **word);
bool trainer_look_beside(struct trainer *trainer, char **word);
bool trainer_finish_step(struct trainer *trainer, char **word);
bool trainer_wait(struct trainer *trainer, char **word);
bool trainer_update_step(struct trainer *trainer, char **word);
bool trainer_look(struct trainer *trainer, char **word);
bool trainer_descriptor(struct trainer *trainer, char **word);
bool trainer_arm(struct trainer *trainer, char **word);
bool trainer_doze(struct trainer *trainer, char **word);

/* trainer_device.c */
bool trainer_device(struct trainer *trainer, char **word);
bool trainer_silent(struct trainer *trainer, char **word);
bool trainer_capture(struct trainer *trainer, char **word);

/** These do nothing unless gradients are on a device: what a tensor's description says of it,
 * memory to make its gradients in, and the end. */
void trainer_device_describe(const struct trainer *trainer, struct adtopk_tensor_spec *spec);
bool trainer_device_commit(struct trainer *trainer, struct trainer_tensor *tensor);
void trainer_device_free(struct trainer *trainer);

/** Whether updates may be in host memory only: before this process there was another one. */
bool trainer_device_lacks(const struct trainer *trainer);

/** Whether the list of an update is on the device, if it should be, and equals that of the host. */
bool trainer_device_lists(
    const struct trainer *trainer, uint32_t t, const struct adtopk_update *update);

/** Compares what updates of a tensor lack, on the device, with its residual. */
bool trainer_device_pending(struct trainer *trainer, char **word);

/** Says how many lists it has found there. */
bool trainer_device_counts(struct trainer *trainer, char **word);

/** Copies an update of a tensor from the device, of so many bytes, and compares it. False: it is
 * not there, or has other bits, or a stream that waited for it found other ones. Nothing is
 * expected of a rank that did not ask for it. */
bool trainer_device_shows(
    const struct trainer *trainer, uint32_t t, const void *shown, const void *bytes, uint64_t size);

/** Copies a gradient that was made to the device, and pushes it. */
enum adtopk_status trainer_device_push(
    struct trainer *trainer, struct trainer_tensor *tensor, struct adtopk_push_spec *push);

/** adtopk_step_wait(), during which things happen in the stream. */
enum adtopk_status trainer_step_wait(struct trainer *trainer);

/* trainer_stream.c */
bool trainer_wait_stream(struct trainer *trainer, char **word);
bool trainer_streamed(struct trainer *trainer, char **word);

/* trainer_updates.c */

/** Adds the gradient that was pushed in this step to the totals. */
void trainer_add_given(struct trainer *trainer, uint32_t t);

/** Checks the update of a tensor and adds it to the totals and the hash. Drops unpushed updates, as
 * a framework does that skips parameters without a gradient. */
enum adtopk_status trainer_take(struct trainer *trainer, uint32_t t);

/* trainer_operations.c */
bool trainer_barrier(struct trainer *trainer, char **word);
bool trainer_barrier_look(struct trainer *trainer, char **word);
bool trainer_broadcast(struct trainer *trainer, char **word);
bool trainer_allreduce(struct trainer *trainer, char **word);

/* trainer_residual.c */
bool trainer_residual(struct trainer *trainer, char **word);
bool trainer_mass(struct trainer *trainer, char **word);
bool trainer_ahead(struct trainer *trainer, char **word);
bool trainer_hold(struct trainer *trainer, char **word);
bool trainer_held(struct trainer *trainer, char **word);
bool trainer_write_totals(struct trainer *trainer, char **word);
bool trainer_save(struct trainer *trainer, char **word);
bool trainer_saved(struct trainer *trainer, char **word);
bool trainer_load(struct trainer *trainer, char **word);

#endif

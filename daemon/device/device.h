/*
 * GPUs as an engine: the room's interface for the loop.
 *
 * adtopkd holds the devices' memory and makes no context. Per device and owner of jobs it starts a
 * *worker*, a process of the program adtopk-device, which maps that memory and runs kernels. A
 * thread of the daemon, the *feeder*, gives one worker its orders: it copies inputs into memory
 * that both share, waits, copies outputs back, and starts the worker again where it has died.
 *
 * Happy path: the core opens the parts of a job's store (device_open_part). The devices with the
 * most memory left get the job's shards, and their workers of its owner are started. The core
 * submits batches through `engine_cuda`; each worker carries out the orders of its shard, and
 * device_take() returns the batch when all are done. When the job's parts are
 * dropped and its owner has no other job on the device, the worker ends.
 *
 * Failures:
 * - A worker dies, selects elements that are not there, or makes no progress for `patience_ms`: it
 * is killed, started again, and gets the batch again from its start. Memory stays, and stamps make
 * the repetition exact.
 * - That fails DEVICE_ATTEMPTS times without progress: device_take() says of each job there that
 * its memory is lost, with a sentence, and returns the batches that were under way.
 * - No memory on the device: device_open_part() refuses the part with the numbers.
 * - The daemon dies: so do its workers. The next one may find the parts' memory (left.c).
 *
 * Threads: all functions are for the loop's thread.
 */
#ifndef ADTOPK_DEVICE_H
#define ADTOPK_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/collective/cargo.h"
#include "daemon/engine/engine.h"
#include "proto/driver.h"
#include "proto/error.h"

#define DEVICE_ATTEMPTS 3u
#define DEVICE_PATIENCE_MS 30000u /* default of device_config.patience_ms */

struct device;

struct device_config {
    const char *program;         /* the worker's; NULL: the installed one */
    uint64_t memory_limit;       /* bytes of each device for jobs and their workers; 0: all */
    unsigned patience_ms;        /* a worker that does nothing for so long hangs; 0: the default */
    void (*wake)(void *context); /* device_take() has something; called on any thread */
    void *context;
};

/**
 * Opens the driver and tries the worker's program on each device, which takes up to a second or
 * so. An error says which device cannot be used and why. NULL on an error.
 */
struct device *device_create(const struct device_config *config, struct error *err);

/** From now on each user but root may reserve this share of each device's memory; 0: all of it, as
 * at first. What a user has already stays. */
void device_limit_users(struct device *device, unsigned percent);

/** Ends all workers and feeders; their batches are dropped. To be called before what batches point
 * to goes away. Parts may still be dropped. */
void device_stop(struct device *device);

/** After device_stop(). NULL is allowed. */
void device_destroy(struct device *device);

/** Far; its context is the struct device. Reading a residual for a rank (`run`) is not there. */
extern const struct engine_ops engine_cuda;

/** NCCL as a carrier; its context is the struct device. A job's operations are made by its worker,
 * one after the other, between batches. */
extern const struct carrier_ops device_carrier;

/** NCCL's version, 22809 for 2.28.9; 0: it cannot be used, and *why says why. */
unsigned device_nccl_version(const struct device *device, const char **why);

#define DEVICE_LEFT_SIZE 128

/* What a daemon leaves to the next one of a part's memory (left.c). */
struct device_left {
    uint64_t store; /* as in device_part */
    uint32_t owner;
    unsigned number, shard;
    char text[DEVICE_LEFT_SIZE]; /* where it is, and how large */
    int descriptor;
};

#define DEVICE_LIVES 1024u
#define DEVICE_KEPT 8192u /* parts that are left at a time */

/* What the next daemon is to know of this one's workers. All zero at first. */
struct device_notes {
    _Atomic uint64_t life[DEVICE_LIVES]; /* processes, for which it waits: they may run kernels */
    /* Of each part: 0, so it has no content that could be lost; its mark, so it was cleared; or
     * something else, so the next daemon must not use it. */
    _Atomic uint64_t begun[DEVICE_KEPT];
    /* The store whose part it is, and of no use without it; 0: none. */
    _Atomic uint64_t store[DEVICE_KEPT];
};

/* A part of a job's store. */
struct device_part {
    uint64_t job;
    uint32_t owner;
    unsigned number;
    unsigned shard; /* whose stretch it is (daemon/engine/shards.h); each has a device of its own */
    unsigned shards; /* of the job: with another number of them each may have other tensors */
    uint64_t begin;  /* where in the job's part the stretch begins */
    uint64_t size;   /* its bytes, as the core sees them */
    bool residuals;  /* it has some, so it gets spare slots and entries (pool.h) */
    bool rounded;    /* some of these may be in bf16 */
    bool lost; /* the job's first part: an earlier daemon had the job's memory, which is gone unless
                * it was left */
    uint64_t store; /* under which it may have been left, and may be; 0: it is not */
};

/**
 * Makes memory on a device for a part of a job's store, zeroed before its first use. Errors: MEMORY
 * with the numbers, also where the user's share is used up; STATE if the build lacks kernels.
 * *left: of new memory, for the next daemon; its descriptor stays the device's, and is -1 if an
 * earlier daemon has left the part.
 */
enum adtopk_status device_open_part(struct device *device, const struct device_part *part,
    struct device_left *left, struct error *err);

/** Notes that the next daemon finds a new part, or that it is missing if nobody keeps it. To be
 * called before orders name the part. */
void device_note_left(struct device *device, const struct device_left *left);

/** Waits until the processes of an earlier daemon have ended, and notes those of this one from now
 * on. To be called before the first part is opened. An error: one has not ended in time, so no
 * memory that they have mapped can be used, and the others were not waited for. */
enum adtopk_status device_outlive(
    struct device *device, struct device_notes *notes, struct error *err);

/** Takes a part that an earlier daemon left, with its descriptor, also on an error. It waits for
 * the job that opens it. Errors: LOST: this daemon cannot use it; MEMORY; SYSTEM. */
enum adtopk_status device_take_left(
    struct device *device, const struct device_left *left, struct error *err);

/** The stores of which an earlier daemon had a part with content that this one has not taken: its
 * others are of no use. *at: 0 at first. 0: there are no more. */
uint64_t device_next_missing(const struct device *device, uint32_t *at);

/** Gives back what waits for jobs, but for what `stays`. Of a device_left only store, number and
 * shard are set. */
void device_drop_left(struct device *device,
    bool (*stays)(void *context, const struct device_left *left), void *context);

/** Gives it back, on all devices, cleared by its worker; a part that is not there is allowed. No
 * batch of the job is under way. */
void device_drop_part(struct device *device, uint64_t job, unsigned part);

/* An arena that one rank fills with gradients. The job's residuals are on devices of its ranks,
 * and all devices that have some must be able to access the arena's memory: otherwise parts of the
 * job are refused (ARGUMENT, with both devices). */
struct device_arena {
    uint64_t job;
    uint32_t owner;
    const char *gpu;  /* UUID of the rank's device */
    const void *base; /* the arena's address in engine_memory.gradients */
    uint64_t begin;   /* offset in the arena at which this memory begins */
    uint64_t size;    /* bytes; then those that the memory has: whole granules */
    int descriptor;   /* then what the rank maps it by, which stays the device's */
};

/** Whether arenas can lie on the device of this UUID. */
enum adtopk_status device_check_gpu(
    const struct device *device, const char *uuid, struct error *err);

/**
 * Makes memory for an arena, and fills in its size and descriptor. The memory has whatever was
 * there before: the rank is to clear it. A job that trains may get another one, for more tensors.
 * Errors: MEMORY with the numbers, also where the user's share is used up; ARGUMENT: the device
 * is unknown.
 */
enum adtopk_status device_open_arena(
    struct device *device, struct device_arena *arena, struct error *err);

/** How many devices may have residuals of a job: those with gradients of its ranks, or if there are
 * none all. */
unsigned device_count_for(struct device *device, uint64_t job);

/** Gives it back; an arena that is not there is allowed. No batch that reads it is under way. */
void device_drop_arena(struct device *device, const void *base);

enum device_event_type {
    DEVICE_DONE,    /* batch: it is done */
    DEVICE_CARRIED, /* cargo: it is done, or has failed */
    DEVICE_LOST,    /* job: the engine has lost its memory; text: why, for the first of several */
    DEVICE_NOTE,    /* text: what a worker does, for the log */
    DEVICE_TROUBLE  /* text: what has gone wrong with a worker, for the log */
};

struct device_event {
    enum device_event_type type;
    struct engine_batch *batch;
    struct cargo *cargo;
    uint64_t job; /* of a loss */
    char text[ERROR_TEXT_SIZE];
};

/** The next thing that has happened; false: nothing. */
bool device_take(struct device *device, struct device_event *event);

/* ------------------------------------------------------------------ what there is */

/* Bytes of a device. */
struct device_use {
    uint64_t residuals; /* of jobs, with velocities and tables */
    uint64_t arenas;    /* gradients of their ranks, and updates there */
    uint64_t scratch;   /* of workers: for orders, and for what NCCL exchanges */
    uint64_t contexts;  /* of workers that run, as the daemon has found at its start */
    uint64_t nccl;      /* of communicators of these, as they have seen them come */
};

struct device_info {
    struct driver_device device;
    struct device_use use;
    uint64_t context; /* bytes of a worker's context, of which use.contexts is made; 0: not known */
    unsigned jobs;
    const char *missing; /* names of kernels that the build lacks, so that jobs are refused; "" */
};

struct device_worker_info {
    uint32_t owner;
    unsigned device;                   /* its index */
    int pid;                           /* 0: it does not run */
    uint64_t batches, carried, starts; /* carried: operations of NCCL */
    uint64_t launches;                 /* of kernels */
    uint64_t copies;                   /* between host and device, of a slice each */
    uint64_t questions;                /* of rules, for which a batch had to wait */
    uint64_t losses;                   /* how often the content of its memory was lost */
    struct error last;                 /* why it was started again */
};

/** The device of this index; false: there is none. */
bool device_info(struct device *device, unsigned index, struct device_info *info);

/** The worker of this index; false: there is none. */
bool device_worker_info(struct device *device, unsigned index, struct device_worker_info *info);

/** The index of the device that has this shard of the job; false: there is none. */
bool device_of_shard(struct device *device, uint64_t job, unsigned shard, unsigned *index);

/** How many devices there are. */
unsigned device_count(const struct device *device);

/** The version of the driver: 12040 is CUDA 12.4. */
int device_driver_version(const struct device *device);

#endif

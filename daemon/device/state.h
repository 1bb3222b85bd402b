/*
 * What the files of this room share on the daemon's side. `mutex` guards everything that both the
 * loop's thread and a feeder use: queues, parts, figures. A feeder's own fields are below a line
 * that says so.
 */
#ifndef ADTOPK_DEVICE_STATE_H
#define ADTOPK_DEVICE_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/device/device.h"
#include "daemon/device/page.h"
#include "daemon/engine/wait.h"

#define DEVICE_START_MS 20000 /* a worker that is not ready after this time hangs */

/* Memory that a rank fills with gradients (arena.c). */
struct arena {
    struct arena *next;
    uint64_t job;
    uint32_t owner;
    unsigned gpu;     /* index of the device that has it */
    const void *base; /* its address in engine_memory.gradients */
    uint64_t begin;   /* offset in the arena at which the memory begins */
    uint64_t size;
    CUmemGenericAllocationHandle handle;
    int descriptor;
    unsigned users; /* parts of workers */
    bool dropped;
};

/* What is in a part of a store. A daemon that would have something else there cannot use it. */
struct extent {
    uint64_t begin;  /* of its stretch of the job's part */
    uint64_t bytes;  /* that it needs, without the mark */
    uint32_t blocks; /* for which its pool has spares */
    uint32_t shards; /* of the job */
};

/* A part of a job's store on a device, or an arena of gradients. Made by the loop; freed by the
 * feeder, once it is dropped and the worker has unmapped it. */
struct part {
    struct part *next;
    uint64_t job;
    uint64_t store;  /* it may be left to the next daemon under this number; 0: it may not */
    bool waits;      /* an earlier daemon left it, and no job has it yet */
    unsigned number; /* of the job's parts */
    unsigned shard;
    struct arena *of;     /* it is this arena; NULL: it is a part of a store */
    struct extent extent; /* arenas: none */
    uint64_t size;        /* bytes of device memory: whole granules */
    uint64_t place;       /* in the window, as long as the part lives */
    struct pool pool;
    uint32_t note;                       /* its place in device_notes.begun, from 1 on; 0: none */
    bool left;                           /* an earlier daemon made its memory: there is no handle */
    CUmemGenericAllocationHandle handle; /* this daemon did */
    int descriptor;
    uint64_t mark; /* the last word of a store's part, by which its content is known; arenas: 0 */
    bool dropped;
    bool lost; /* its job's memory counts as lost, which the loop has yet to be told */
    /* The job's first part: the group that the worker has, or is to make; 0:
     * none. */
    uint64_t group;
    /* the feeder's */
    bool used;   /* a worker has cleared it once */
    bool gone;   /* its content was lost, and is zeros now */
    bool untold; /* some of that loss no result has told, to which the first part is to see */
    bool anew; /* the job's first part: that is so of the job, and feed_batches() has yet to note it
                */
    uint8_t
        *emptied; /* the job's first part: bits per tensor (feed_lost.c); NULL: nothing was lost */
    uint32_t tensors; /* so many have bits; later ones have lost nothing */
    bool reached;     /* a worker has mapped it once */
    bool mapped;      /* in this life of the worker, as `arena` */
    uint32_t arena;
};

/* A line for the log. */
struct line {
    struct line *next;
    struct device_event event;
};

struct queue {
    struct engine_wait *first, *last;
};

/* Scratch memory that the process of a worker was refused. */
struct refusal {
    uint64_t least;  /* the least that it may be refused; 0: none was refused */
    unsigned spared; /* runs that were smaller for it since the process last asked for as much */
};

/* A worker of one owner on one device, whether its process runs or not. */
struct worker {
    struct worker *next;
    struct device *device;
    unsigned gpu; /* its index */
    uint32_t owner;
    pthread_t feeder;
    _Atomic unsigned calls;  /* how often the loop had something for the feeder */
    _Atomic unsigned asleep; /* the feeder is, or is about to be */
    int wake;                /* eventfd, for a feeder that is asleep */
    struct queue queue;
    struct part *parts;
    uint64_t batches, carried, starts; /* carried: operations of NCCL */
    uint64_t launches;                 /* of kernels */
    uint64_t copies;                   /* slices that were copied in or out */
    uint64_t questions;                /* of rules, that wait for an answer */
    uint64_t losses;                   /* how often the content of its memory was lost */
    uint64_t scratch;                  /* bytes that its process has to work with */
    struct error last;
    bool lost;         /* some parts are, and the loop does not know why */
    pid_t pid;         /* 0: it does not run */
    struct page *page; /* the feeder makes it, and has it without the mutex, too */
    /* the feeder's */
    pid_t client; /* of the driver: the process, until process_end() is through with it */
    int socket;
    struct feed *feed;
    int page_descriptor;
    unsigned failures; /* in a row */
    unsigned heard;    /* of the calls */
    struct spin spin;
    struct refusal refused;
};

/* What the worker's program found when it was tried. */
struct device_probe {
    char missing[ERROR_TEXT_SIZE]; /* kernels that are not there, "" */
    unsigned nccl;                 /* its version; 0: it cannot be used */
    char no_nccl[ERROR_TEXT_SIZE]; /* why not */
    uint64_t context;              /* bytes that a worker's context takes; 0: not known */
};

struct device {
    struct device_config config;
    struct driver driver;
    struct driver_device gpu[DRIVER_DEVICES_MAX];
    unsigned gpus;
    struct device_probe probe;            /* of all of them together, but for the next */
    uint64_t context[DRIVER_DEVICES_MAX]; /* of each: device_probe.context */
    pthread_mutex_t mutex;
    bool stopping;
    struct device_notes *notes;     /* NULL: the next daemon finds no memory */
    atomic_bool noted[DEVICE_KEPT]; /* places in notes->begun that parts have */
    unsigned user_percent;          /* of each device's memory, for one user; 0: no limit */
    struct worker *workers;
    struct arena *arenas;
    struct queue done;
    struct line *lines, **lines_end; /* lines_end: where the next one goes */
};

/* tell.c */

void queue_init(struct queue *queue);
/** Appends what is in no queue. */
void queue_add(struct queue *queue, struct engine_wait *waiting);
/** Takes the first; NULL: it is empty. */
struct engine_wait *queue_take(struct queue *queue);

/** Whether device_stop() was called: feeders end. */
bool device_stops(struct device *device);

/** Tells the loop that a worker is done with what waited, or has given it up. took_us: how long it
 * had a batch. */
void device_tell(struct device *device, struct engine_wait *waiting, uint64_t took_us);

/** Tells the loop a line about a worker, for the log. The line is dropped without memory. */
void device_log(const struct worker *worker, bool trouble, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/** Takes the oldest line; false: there is none. The caller has the mutex. */
bool device_take_line(struct device *device, struct device_event *event);

/* device.c */

/** The feeder has something to do. */
void worker_wake(struct worker *worker);

/** A worker's part that is not dropped; NULL: it has none of that number. The caller has the mutex.
 */
struct part *worker_part(const struct worker *worker, uint64_t job, unsigned number);

/** The worker for a part: the one that has its shard, or one on the device with the most memory
 * left among those without a shard of the job. NULL with an error. The caller has the mutex. */
struct worker *device_worker_for(
    struct device *device, const struct device_part *part, struct error *err);

/** Whether the device has another shard of the part's job: then it cannot have the part. The caller
 * has the mutex. */
bool device_has_other_shard(
    const struct device *device, unsigned gpu, const struct device_part *part);

/** The owner's worker on a device, which is made if there is none. NULL with an error. The caller
 * has the mutex. */
struct worker *device_worker_on(
    struct device *device, unsigned gpu, uint32_t owner, struct error *err);

/** What jobs of the owner and their workers have of a device. NULL: of all owners. The caller has
 * the mutex. */
struct device_use device_use(const struct device *device, unsigned gpu, const uint32_t *owner);

/* feeder.c */

/** The feeder's thread; the argument is its struct worker. */
void *feeder_run(void *worker);

/** The worker's part that is the arena with this address; NULL: there is none. The caller has the
 * mutex. */
static inline const struct part *arena_of(const struct worker *worker, const void *base)
{
    const struct part *part = worker->parts;

    while (part != NULL && (part->dropped || part->of == NULL || part->of->base != base)) {
        part = part->next;
    }
    return part;
}

/** Notes that a worker has the part's content, or, while a loss is untold, that the next daemon
 * must not have it. */
static inline void left_vouch(struct device *device, const struct part *part)
{
    if (part->note != 0) {
        atomic_store(
            &device->notes->begun[part->note - 1], part->untold ? ~part->mark : part->mark);
    }
}

/* arena.c: but for arena_leave(), the caller has the mutex */

/** Has a worker map all arenas of a job that it has not mapped. Errors: MEMORY; ARGUMENT: its
 * device cannot read one of them. */
enum adtopk_status arena_attach_all(
    const struct device *device, struct worker *worker, uint64_t job, struct error *err);

/** Whether a device has an arena of the job. */
bool arena_is_on(const struct device *device, unsigned gpu, uint64_t job);

/** Bytes of a device that arenas of the owner have. NULL: of all owners. */
uint64_t arena_reserved(const struct device *device, unsigned gpu, const uint32_t *owner);

/** A worker has unmapped the arena. */
void arena_leave(struct device *device, struct arena *arena);

/** Gives all back, when no worker is left. */
void arena_drop_all(struct device *device);

/* parts.c */

/** What memory on a device is a multiple of. */
enum adtopk_status part_step(
    const struct device *device, unsigned gpu, uint64_t *step, struct error *err);

/** Refuses memory beyond gpu_memory_limit or the owner's share: MEMORY. what: "residuals" or
 * "gradients". The caller has the mutex, here and below. */
enum adtopk_status part_within_limit(const struct device *device, unsigned gpu, uint32_t owner,
    uint64_t size, const char *what, struct error *err);

/** Makes memory on a device, and a descriptor of it. */
enum adtopk_status part_create(const struct device *device, unsigned gpu, uint64_t size,
    const char *what, CUmemGenericAllocationHandle *handle, int *descriptor, struct error *err);

/** Finds addresses for a part whose size is known. */
enum adtopk_status part_find_place(
    const struct device *device, const struct worker *worker, struct part *part, struct error *err);

/** Gives a part's memory back; it is not mapped. */
void part_free(struct device *device, struct part *part);

/** Whether a part with this place and size can be added to the worker's. */
bool part_fits(const struct device *device, const struct worker *worker, const struct part *part);

/** Whether a part has the stretch, bytes and spares that this daemon would give it, and fills in
 * its pool. */
bool part_is_like(const struct device *device, const struct worker *worker,
    const struct device_part *asked, struct part *part);

/* left.c: the caller has the mutex, but for left_replace() */

/** What the next daemon must know of a part (device_left.text). */
void left_describe(const struct device *device, const struct worker *worker,
    const struct part *part, char text[DEVICE_LEFT_SIZE]);

/** The part that waits for a job, which has it from now on, and its worker. NULL: there is none.
 * *lost: there was one, which this daemon cannot use, so that new memory counts as its remains. */
struct part *left_claim(const struct device *device, const struct device_part *asked,
    struct worker **worker, bool *lost);

/** For a feeder whose workers cannot map what an earlier daemon left: new memory takes the place of
 * what none has mapped. It has a new mark and lacks it, so that its job's memory there counts as
 * lost. */
enum adtopk_status left_replace(struct worker *worker, struct error *err);

/** Gives a part that is left a place in the notes. Errors: MEMORY: there is none. */
enum adtopk_status left_note(struct device *device, struct part *part, struct error *err);

/** Drops the part: the next daemon does not miss it. */
void left_drop(const struct device *device, struct part *part);

/** The part is dropped, and not only given up by a daemon that ends. Another one may have its
 * place. */
void left_forget(struct device *device, const struct part *part);

/* lives.c: for the feeder */

/** Notes the worker's process, before it maps anything. */
enum adtopk_status lives_note(struct worker *worker, struct error *err);

/** It has ended. */
void lives_forget(struct worker *worker);

#endif

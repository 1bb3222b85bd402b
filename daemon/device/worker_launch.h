/*
 * What the files with the launches of orders share: the order at hand, addresses of its places,
 * residuals in their pools, and launches.
 */
#ifndef ADTOPK_DEVICE_WORKER_LAUNCH_H
#define ADTOPK_DEVICE_WORKER_LAUNCH_H

#include "daemon/device/tables.h"
#include "daemon/device/worker.h"

/* What the orders have together whose tables are made. */
struct run_sum {
    uint32_t orders;
    uint64_t chunks;
    uint32_t
        parts; /* JOIN, CARRY, LEAVE: residuals or velocities that are joined; those of ranks */
    uint64_t joined; /* chunks of these */
    uint64_t wholes; /* READ, SUMS, CONVERT, CARRY: chunks that are read or filled */
    uint32_t lists;  /* orders with entries: LEAVE, RETURN, GATHER, positions that all nodes know */
    uint64_t entries; /* of these, or of the updates */
    uint32_t shown;   /* updates of a rank each, with as many elements together */
    uint64_t elements;
    uint32_t surveys;
    uint64_t surveyed; /* chunks of these */
    bool plain, others, top, fibres, clips, listed;
    uint32_t launches; /* of kernels */
};

/* An order at hand. Once the tables are made it is the first one of its run, and stands for all. */
struct run {
    struct worker_state *state;
    struct page_order *page;
    const struct engine_order *order;
    const struct engine_part *part;
    struct run_sum *sum;
    struct tables tables;     /* in the page, of the run */
    struct tables_scratch at; /* in scratch memory */
    struct tables_own own;
};

/* A residual or velocity. */
struct run_held {
    struct engine_place place;
    bool rounded; /* it is in bf16 */
};

/* ------------------------------------------------------------------ addresses */

void *run_pointer(CUdeviceptr address);

/** The address of a place in scratch memory; NULL if it is nowhere. */
void *run_at(const struct run *run, struct engine_place place);

void *run_scratch(const struct run *run, uint64_t offset);

/** What of the tables the kernels see at this address of the page. */
void *run_table(const struct run *run, const void *in_page);

/** The part of a store where a place is, and its address. */
const struct worker_arena *run_arena(const struct run *run, struct engine_place place);
void *run_mapped(const struct run *run, struct engine_place place);

/** A residual or velocity in f32; and the order's own residual. */
struct run_held run_wide(struct engine_place place);
struct run_held run_own(const struct run *run);

/** The entries of a residual. */
uint64_t *run_entries(const struct run *run, struct run_held held);

/** The hints of the order's residual: the tensor's, then one per fibre. */
float *run_hints(const struct run *run);

/** Where slots are counted from, in f32 and in bf16. */
float *run_slots_element(const struct run *run);
uint16_t *run_slots_half(const struct run *run);

/** The carries of its pool, by slot; NULL if it is in f32. */
struct carry *run_carries(const struct run *run, struct run_held held);

/** The pool of a residual or velocity, for launches of `blocks` blocks whose spare slots are listed
 * at `spare` in scratch memory. */
struct slots run_slots(
    const struct run *run, struct run_held held, unsigned blocks, uint64_t spare);

struct entries run_list(const struct run *run, const struct engine_list *list);

/* ------------------------------------------------------------------ launches */

unsigned run_most_blocks(const struct worker_state *state);

/** One block per unit of work, as far as there are so many; and where a kernel is large. */
unsigned run_blocks(const struct run *run, uint64_t units);
unsigned run_blocks_large(const struct run *run, uint64_t units);

/** One thread per unit of work, as far. */
unsigned run_threads(const struct run *run, uint64_t units);

/** Launches a kernel; `parameter` is its structure. No blocks: there is nothing to do. */
bool run_kernel(
    const struct run *run, enum worker_kernel kernel, unsigned blocks, const void *parameter);

/* ------------------------------------------------------------------ residuals */

/** A residual of the order's size, which the order does nothing with yet. */
struct add_tensor run_residual(const struct run *run, struct run_held held);

/** Whether the order changes the residual's velocity. */
bool run_moves(const struct run *run);

/** The pool of its velocity, for launches of `blocks` blocks. */
struct slots run_velocities(const struct run *run, unsigned blocks);

/** Gives the tensor the velocity that belongs to its residual, if the order changes velocities. */
void run_velocity(const struct run *run, struct add_tensor *tensor, struct engine_place momentum);

/** So many residuals of one pool, with so many chunks, get homes for those that were never written,
 * and so do the velocities that orders change. */
bool run_begin(const struct run *run, struct run_held held, const struct add_tensor *tensor,
    unsigned tensors, uint64_t chunks);

/* ------------------------------------------------------------------ updates */

/* worker_updates.c */

/** Make the tables of an order that writes an update where ranks see it, and launch its kernels. */
void run_fill_in_show(const struct run *run);
bool run_show(const struct run *run);
void run_fill_in_summed(const struct run *run);
bool run_summed(const struct run *run);

/* ------------------------------------------------------------------ what rules ask */

/* worker_survey.c */

/** Makes the tables of the order's question. */
void run_fill_in_survey(const struct run *run, const struct add_tensor *tensor);

/** Answers the questions REACH and RANKED. */
bool run_survey(const struct run *run);
bool run_ranked(const struct run *run);

#endif

/*
 * A job's memory on two sides: that of the engine of this processor, and that of the engine cuda.
 * Both carry out the same orders.
 *
 * Happy path: sides_open(); orders for both sides, as sides_add() makes some; sides_run();
 * sides_compare(); at last sides_close().
 */
#ifndef ADTOPK_TESTS_CUDA_DRIVER_SIDES_H
#define ADTOPK_TESTS_CUDA_DRIVER_SIDES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/device/device.h"
#include "tests/host/sanitized.h"

#define TENSORS 3u
#define RANKS 8u
#define JOB 7u
#define OWNER 1000u
#define WAIT_MS CASES(60000, 300000)

#define SIDES_LARGE 600000u /* its gradients are more than all staging memory */
#define SIDES_MEDIUM 60000u
#define SIDES_F32 1u /* the tensor whose residuals are never in bf16 */

/* The parts of the store that are used. */
enum { MAIN = 0, RANK = 1, RESIDUALS = 4, OTHER = 5, VELOCITIES = 6, NEXT_VELOCITIES = 7 };

struct side {
    struct engine_memory memory;
    const uint8_t *gradients[RANKS];
    float *list; /* positions, then values, of each tensor */
    float *read; /* what READ has read, all tensors */
    double ledger[TENSORS][2], lost[TENSORS][2];
    float hints[TENSORS][1];
    uint64_t selected[TENSORS];
    struct engine_batch batch;
};

/** The scene of a test. */
struct sides {
    struct device *device;
    int wakes;
    struct side host, cuda;
    float *gradient[RANKS];
    uint64_t size[TENSORS];
    bool rounded;                  /* residuals of the node are in bf16, see sides_is_rounded() */
    char trouble[ERROR_TEXT_SIZE]; /* the last that was told */
};

extern struct sides sides;

/** Opens a device and the parts but OTHER and NEXT_VELOCITIES. streams, fails: see README.md.
 * largest: elements of the last tensor. */
void sides_open(const char *streams, const char *fails, unsigned patience_ms, uint64_t largest);
void sides_close(void);

/** The same in two steps, for more than one device: the memory of this processor, and a device,
 * which has no part yet. */
void sides_prepare(uint64_t largest);
void sides_start(const char *streams, const char *fails, unsigned patience_ms);

/** Opens another part on the device. */
void sides_open_part(unsigned number, uint64_t size);

/** What the device is asked for a part, and the usual size of one. */
struct device_part sides_part(unsigned number, uint64_t size);
uint64_t sides_size(unsigned number);

/** The number of a tensor's first element in a part with residuals, and the offset of its
 * residual's progress. */
uint64_t sides_first(unsigned tensor);
uint64_t sides_progress(unsigned tensor);

/** Whether the node's residual of a tensor is in bf16. One tensor's never is. */
bool sides_is_rounded(unsigned t);

/** Whether the steps of a tensor correct momentum, or else its residual decays unless it is in
 * bf16, which allows neither; and where the velocity of the node's residual lies, or of the rank's.
 */
bool sides_moves(unsigned t);
struct engine_place sides_velocity(unsigned t, bool rank);

/** An order for the node's residual. */
struct engine_order *sides_order(struct side *side, enum engine_kind kind, unsigned t);

/** The number of a sparsifier in the table. */
uint32_t sides_sparsifier(const char *name);

/** The gradients come in, and some entries are selected. */
void sides_add(struct side *side, unsigned t, uint64_t stamp);

/** The same with neither momentum nor decay, by any sparsifier. */
void sides_add_plain(struct side *side, unsigned t, uint64_t stamp, const char *sparsifier);

/** What the last ADD has selected. */
struct engine_list sides_selected(const struct side *side, unsigned t);

/** These entries leave. */
void sides_leave(struct side *side, unsigned t);

/** The residual is read and summed. */
void sides_read(struct side *side, unsigned t);

/** Both sides carry out their batches; `beside` is called meanwhile, unless it is NULL. */
void sides_run(void (*beside)(void));

/** Kills the worker after a random time: in a batch, before it or behind it. */
void sides_kill(void);

/** Kills the worker, and what was in the device's memory goes with it. */
void sides_forget(void);

/** The host's residuals and velocities become what they are without memory. */
void sides_lose_on_host(void);

/** Every tensor's orders of the last batch have told the loss once, or none of them; that is
 * cleared. */
void sides_losses_told(bool told);

/** Compares results, lists, ledgers and what was read; then both batches are empty. */
void sides_compare(void);

/** A step of all tensors. */
void sides_step(uint64_t number, void (*beside)(void));

/** Waits until jobs have so many bytes of the device for residuals. Feeders give memory back in
 * their own time. */
void sides_wait_for_use(uint64_t residuals);

/** Waits for the next thing that happens on the device and is not just a line for the log. */
struct device_event sides_event(void);

#endif

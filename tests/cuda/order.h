/*
 * What orders memory on a device, told to the thread sanitizer; without it nothing is done.
 *
 * A barrier or __syncwarp() releases an object when a thread arrives, and acquires it when the
 * thread goes on. A fence followed by an atomic access, which another thread sees by an atomic
 * access before its own fence, orders what was before the first fence with what is behind the
 * second one. Shuffles and ballots order nothing.
 */
#ifndef ADTOPK_TESTS_CUDA_ORDER_H
#define ADTOPK_TESTS_CUDA_ORDER_H

/* The fences of other threads that atomic accesses have shown to a thread, or to a word. */
struct order_seen;

/* Of one CUDA thread. */
struct order_thread {
    unsigned number;  /* above 0 */
    char *fence;      /* its last one */
    order_seen *seen; /* since then */
};

void order_begin(); /* of a launch; launches may overlap */
void order_end();
void order_release(char *object);
void order_acquire(char *object);

/** Before an atomic access. */
void order_touch(order_thread *thread, const void *word);

void order_fence(order_thread *thread);

#endif

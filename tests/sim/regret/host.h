/*
 * A node of the modelled cluster: the real core with its memory, and worker threads whose times
 * come from a table (costs.h). The computes are really done, when they begin; their time on the
 * machine that simulates does not matter.
 *
 * Workers as in the daemon (daemon/loop/workers.h): computes wait in the order of their classes,
 * small ones run at once on the loop. A long compute is spread over the workers that are idle when
 * it begins, in equal parts of at least ENGINE_RANGE elements.
 */
#ifndef ADTOPK_REGRET_HOST_H
#define ADTOPK_REGRET_HOST_H

#include "daemon/core/core.h"
#include "tests/bench/cluster/shapes.h"
#include "tests/sim/regret/costs.h"

/* The kind of a compute, and its time here. */
struct host_compute {
    enum stage stage;
    double ns;
};

struct host_config {
    unsigned number, nodes, workers;
    const struct costs *costs; /* NULL: computes take their real time */
    /* Of each compute of a step, after it was done; may be NULL. */
    void (*computed)(void *context, const struct host_compute *compute);
    void *computed_context;
    const struct shapes *shapes;
    const char *policy; /* JSON */
    bool (*transmit)(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
        size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner);
    void *transmit_context;
};

struct host;

/** NULL and an error if the core refuses the policy or memory is short. */
struct host *host_open(const struct host_config *config, double now_us, struct error *err);
void host_close(struct host *host);

/** Joins the job as its rank of this number: opens, registers all tensors, commits. */
bool host_join(struct host *host, double now_us, struct error *err);

/** Where the gradient of a tensor is put before it is pushed. */
float *host_gradient(const struct host *host, unsigned tensor);
bool host_push(struct host *host, unsigned tensor, double now_us, struct error *err);
bool host_end_step(struct host *host, double now_us, struct error *err);

void host_packet(struct host *host, uint16_t from, enum link_lane lane, const uint8_t *bytes,
    size_t size, double now_us);

/** When it has something to do next; INFINITY: never. */
double host_next(const struct host *host);
/** Handles all events that are due. */
void host_turn(struct host *host, double now_us);

bool host_ready(const struct host *host);
uint64_t host_steps(const struct host *host);              /* that are accepted */
const struct error *host_failure(const struct host *host); /* NULL: none */
const char *host_plan(const struct host *host);            /* that of its policy; "" if none */

#endif

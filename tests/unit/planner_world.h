/*
 * A simulated job: true costs that the planner does not know, steps with noise, and the
 * measurements that nodes would make of them.
 */
#ifndef ADTOPK_TESTS_PLANNER_WORLD_H
#define ADTOPK_TESTS_PLANNER_WORLD_H

#include "daemon/planner/planner.h"

enum world_pattern { WORLD_BACKWARD, WORLD_AT_ONCE, WORLD_LATE, WORLD_FORWARD, WORLD_PATTERNS };

struct world {
    uint32_t tensors;
    struct planner_tensor *tensor;
    double *arrival_us;
    unsigned nodes, threads;
    double gamma;
    /* in ns, on one worker */
    double select_element[CHOICES], select_entry[CHOICES];
    double reduce_element[CHOICES], reduce_entry[CHOICES];
    double settle_element, settle_entry;
    double bucket_us;      /* per compute, whatever its size */
    double message_us;     /* per message */
    double bytes[CHOICES]; /* factor from the bytes of the formula to real bytes */
    double byte_ns;        /* time of the link per byte */
    double copy_ns;        /* time of the processor per byte; the longer of the two counts */
    double round_trip_us;
    double step_us; /* per step */
    double noise;   /* relative standard deviation of every time */
    uint64_t random;
};

/* The tensors of a model of adtopk-perf, given by its number. The density is 1%. */
void world_init(struct world *world, unsigned model, enum world_pattern pattern, double backward_us,
    uint64_t seed);
void world_free(struct world *world);

/* The link's rate; 0: unlimited. */
void world_link(struct world *world, double gbit_s);

/* Makes a step and returns its duration. If `estimates` is not NULL it gets a node's measurements.
 * If it is NULL the noise of the step as a whole is left out. */
double world_step(struct world *world, const struct choices *plan, struct estimates *estimates);

/* The average duration of steps under a plan. */
double world_true(const struct world *world, const struct choices *plan);

/* A random number from 0 to 1. */
double world_random(uint64_t *random);

#endif

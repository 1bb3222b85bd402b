/*
 * A job that does not exist: true costs that the planner does not know, a plain simulation of steps
 * with noise, and what nodes would measure of them.
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
    /* ns on one worker */
    double select_element[CHOICES], select_entry[CHOICES];
    double reduce_element[CHOICES], reduce_entry[CHOICES];
    double settle_element, settle_entry;
    double bucket_us;      /* of each compute, whatever its size */
    double message_us;     /* of each message */
    double bytes[CHOICES]; /* real bytes by formula */
    double byte_ns;        /* time of the link for a byte */
    double copy_ns;        /* time of the processor for a byte; the longer of the two counts */
    double round_trip_us;
    double step_us; /* of each step */
    double noise;   /* standard deviation of every time, relative */
    uint64_t random;
};

/* Tensors of a model of adtopk-perf, by its number; 1 % of each may travel. */
void world_init(struct world *world, unsigned model, enum world_pattern pattern, double backward_us,
    uint64_t seed);
void world_free(struct world *world);

/* The link's rate; 0: unlimited. */
void world_link(struct world *world, double gbit_s);

/* Makes a step; tells `estimates` what a node would see, if it is not NULL. Returns what it took.
 * Without estimates the noise of the step as a whole is left out. */
double world_step(struct world *world, const struct choices *plan, struct estimates *estimates);

/* What steps under a plan take on average. */
double world_true(const struct world *world, const struct choices *plan);

/* 0 to 1. */
double world_random(uint64_t *random);

#endif

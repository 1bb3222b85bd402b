/*
 * Daemons for a benchmark: adtopkd processes on loopback, in a private folder that goes with them.
 */
#ifndef PERF_NODES_H
#define PERF_NODES_H

#include <stdint.h>
#include <sys/types.h>

#include "proto/error.h"
#include "tests/bench/perf/gpu.h"
#include "tests/bench/perf/options.h"

#define NODES_MAX 2
#define NODES_PATH_SIZE 100

/* Zero-initialised there are none. */
struct nodes {
    char folder[64];
    char daemon[OPTIONS_PATH_SIZE];
    char ctl[OPTIONS_PATH_SIZE]; /* "" if adtopkctl is not needed */
    pid_t pid[NODES_MAX];
    unsigned count;
    struct driver_device gpu; /* where residuals are, if --device names one */
    char gpu_name[GPU_NAME];  /* "": they are in host memory */
};

/* What the nodes of a job sent. */
struct nodes_sent {
    double steps;
    double wire_bytes; /* by one node, of all steps, everything counted */
    double nonzeros;
};

/**
 * Starts `count` daemons that know each other and waits until all serve. With the option --device
 * residuals are on that GPU, of all of them. On an error nothing is
 * left; else end with nodes_stop(). Errors: ARGUMENT (no program), SYSTEM, TIMEOUT; with the end
 * of the daemon's log.
 */
enum adtopk_status nodes_start(
    struct nodes *nodes, unsigned count, const struct options *options, struct error *err);

/** Ends the daemons, by force if they do not hear, and removes the folder. */
void nodes_stop(struct nodes *nodes);

/** "unix:..." of the node's socket for trainers. */
void nodes_address(const struct nodes *nodes, unsigned node, char address[NODES_PATH_SIZE]);

/** Asks adtopkctl how much node `node` sent for the job of that name. */
enum adtopk_status nodes_ask(const struct nodes *nodes, unsigned node, const char *job,
    struct nodes_sent *sent, struct error *err);

#endif

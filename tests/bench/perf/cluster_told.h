/*
 * What the daemon of this node tells of itself, of a job and of a link, over its control socket.
 */
#ifndef PERF_CLUSTER_TOLD_H
#define PERF_CLUSTER_TOLD_H

#include <stdbool.h>

#include "proto/error.h"

#define TOLD_PHASES 4 /* select, exchange, reduce, settle */

/* NAN: the daemon does not tell. */
struct told_daemon {
    double node;
    double network_us; /* CPU time of the threads that encrypt, send and receive */
    double loop_us;    /* CPU time of its loop */
    double encrypts;   /* 1: bulk between nodes is under CURVE, otherwise 0 */
};

/* Per step, on this node. */
struct told_job {
    double wire_bytes, nonzeros;
    double phase_us[TOLD_PHASES];
};

/** Of the daemon at $ADTOPK_CONTROL_SOCKET, else at the default. False, and everything is NAN, if
 * the daemon does not answer; `problem` (may be NULL) says why. */
bool told_daemon(struct told_daemon *told, struct error *problem);

/** Of the job of this name and run that runs now. False, and everything is NAN, without one. */
bool told_job(const char *name, const char *run, struct told_job *told);

#endif

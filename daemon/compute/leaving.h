/*
 * Jobs outlive a daemon that stops in order, and their ranks go on with the next one of this node.
 *
 * A near engine's residuals are in the store, so such a job needs nothing. A far engine's memory
 * goes with the daemon, unless a service manager keeps it (daemon/device/left.c).
 *
 * Happy path: the daemon is told to stop. The job is *frozen* from then on: it hears no messages
 * and begins no work. When the computes under way have ended, the engine saves the residuals and
 * velocities into memory beside the store, its *images* (core_memory.keep). It saves how far passes
 * over them have come in the store, too. The store says that all of it is complete (BEGUN_KEPT),
 * and the daemon leaves. To all others it is as if the daemon had been killed when the job froze.
 * The next one makes memory on its engine, and has the images loaded before the job goes on. Then
 * they are dropped. The open step is repeated, and finds what its passes have done.
 *
 * Failures: the daemon is killed, or a compute does not end in time. Then there are no images. The
 * next engine has the memory that a service manager kept. Without one it finds that it has lost
 * what it had, and the job goes on, as after a loss of memory (engine_result.emptied). A daemon
 * that is killed while images are loaded loads them again.
 */
#ifndef ADTOPK_COMPUTE_LEAVING_H
#define ADTOPK_COMPUTE_LEAVING_H

#include "daemon/job/model.h"

/* The daemon stops, and the next one of this node can go on with the job. */
bool leaving_stays(const struct job *job);

/* The daemon stops: true if the job's residuals are being saved, or will be when its computes have
 * ended. Then the job does not end. */
bool leaving_saves(struct job *job);

/* Has the images of an earlier daemon loaded, if there are any. The job computes for that. */
enum adtopk_status leaving_load(struct job *job, struct error *err);

#endif

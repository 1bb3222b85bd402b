/* The core of local_daemon.h: jobs of one rank, whose update is the gradient. */
#ifndef ADTOPK_TESTS_LOCAL_CORE_H
#define ADTOPK_TESTS_LOCAL_CORE_H

#include "daemon/core/core.h"
#include "daemon/session/door.h"
#include "local_daemon.h"

struct fake_core;

struct fake_core *fake_core_create(struct daemon_view *view);
void fake_core_destroy(struct fake_core *core);

/** Gives the core its memory: `memory`, or, by the second, the arenas of the sessions of these
 * doors, and results and stores on the heap. */
void fake_core_memory(struct fake_core *core, struct core_memory memory);
void fake_core_serve(struct fake_core *core, struct doors *doors);

/** The job's results, or NULL. */
const void *fake_core_results(void *core, uint64_t job, unsigned batch);

/** The event operation of struct doors. */
enum adtopk_status fake_core_event(void *core, struct event *event, struct error *err);

bool fake_core_next_action(struct fake_core *core, struct action *action);

#endif

/* The core of local_daemon.h: jobs of one rank, whose update is the gradient. */
#ifndef ADTOPK_TESTS_LOCAL_CORE_H
#define ADTOPK_TESTS_LOCAL_CORE_H

#include "daemon/core/core.h"
#include "local_daemon.h"

struct fake_core;

struct fake_core *fake_core_create(struct daemon_view *view);
void fake_core_destroy(struct fake_core *core);
void fake_core_memory(struct fake_core *core, struct core_memory memory);

/** The event operation of struct local_ops. */
enum adtopk_status fake_core_event(void *core, struct event *event, struct error *err);

bool fake_core_next_action(struct fake_core *core, struct action *action);

#endif

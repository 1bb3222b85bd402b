/*
 * Requests of the local ranks.
 */
#ifndef ADTOPK_CORE_RANK_H
#define ADTOPK_CORE_RANK_H

#include "daemon/job/model.h"

enum adtopk_status rank_event(struct core *core, const struct event *event, struct error *err);
struct rank *rank_find(const struct core *core, session_id session);

#endif

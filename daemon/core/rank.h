/*
 * Requests of the local ranks.
 */
#ifndef ADTOPK_CORE_RANK_H
#define ADTOPK_CORE_RANK_H

#include "daemon/job/model.h"

enum adtopk_status rank_event(struct core *core, const struct event *event, struct error *err);
struct rank *rank_find(const struct core *core, session_id session);
/* From now on pushes are noted for the tensors of the batch that the rank committed last, too. */
void rank_take_pushed(struct rank *rank);
/* What it committed is in force: tells it. */
void rank_make_ready(struct rank *rank);

#endif

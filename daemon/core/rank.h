/*
 * Requests of the local ranks.
 */
#ifndef ADTOPK_CORE_RANK_H
#define ADTOPK_CORE_RANK_H

#include "daemon/job/model.h"

enum adtopk_status rank_event(struct core *core, const struct event *event, struct error *err);
struct rank *rank_find(const struct core *core, session_id session);
/* From now on pushes are also noted for the tensors of the batch that the rank committed last. */
void rank_take_pushed(struct rank *rank);
/* Tells the rank that its batch is in force. */
void rank_make_ready(struct rank *rank);

#endif

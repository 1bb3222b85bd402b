/*
 * Comparing the ledgers.
 */
#ifndef ADTOPK_CORE_VERIFY_H
#define ADTOPK_CORE_VERIFY_H

#include "daemon/job/model.h"

enum adtopk_status verify_request(struct core *core, const struct event *event, struct error *err);
bool verify_try(struct job *job); /* begins if one is wanted and no compute runs */

#endif

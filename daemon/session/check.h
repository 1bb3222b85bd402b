/*
 * Checks what a trainer says about itself and its tensors, and converts it to the core's
 * structures. The daemon trusts none of it, wherever the trainer is.
 */
#ifndef ADTOPK_SESSION_CHECK_H
#define ADTOPK_SESSION_CHECK_H

#include "daemon/core/core.h"
#include "proto/local.pb-c.h"

/** Fills an EVENT_RANK_OPEN for a trainer of user `owner`, whose side must speak `version`. The
 * event points into the message. Errors: PROTOCOL (the version), ARGUMENT, naming the field. */
enum adtopk_status check_open(const Adtopk__LocalOpen *open, uint32_t version, uint32_t owner,
    struct event *event, struct error *err);

/** Fills in a specification; the core checks sizes. Errors: ARGUMENT, naming the tensor. */
enum adtopk_status check_tensor(
    const Adtopk__LocalTensor *tensor, struct tensor_spec *spec, struct error *err);

#endif

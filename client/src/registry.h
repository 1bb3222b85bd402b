/*
 * The contexts that this process has open. With this list two contexts do not become the same rank
 * of the same run: a program with two models opens two contexts, and seldom gives them names.
 */
#ifndef ADTOPK_CLIENT_REGISTRY_H
#define ADTOPK_CLIENT_REGISTRY_H

#include "client/src/context.h"

/** Notes a context. If another open context has the same job, run id and rank, the new one's job is
 * named "JOB#2", the next one's "JOB#3". Errors: ARGUMENT (the name becomes too long). */
enum adtopk_status client_registry_add(adtopk_context *context, struct error *err);

/** Forgets a context; does nothing if it was not noted. */
void client_registry_remove(adtopk_context *context);

#endif

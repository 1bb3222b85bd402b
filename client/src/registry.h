/*
 * The contexts that this process has open, so that two of them do not become the same rank of the
 * same run: a program with two models opens two contexts, and seldom thinks of names for them.
 */
#ifndef ADTOPK_CLIENT_REGISTRY_H
#define ADTOPK_CLIENT_REGISTRY_H

#include "client/src/context.h"

/** Notes a context. If another one that lives has its job, run id and rank, its job's name becomes
 * "JOB#2", the next one's "JOB#3". Errors: ARGUMENT (the name is too long for that). */
enum adtopk_status client_registry_add(adtopk_context *context, struct error *err);

/** Forgets a context; nothing if it was not noted. */
void client_registry_remove(adtopk_context *context);

#endif

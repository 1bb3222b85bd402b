/*
 * What the contexts of this process have in common. With the list of those that are open two
 * contexts do not become the same rank of the same run: a program with two models opens two
 * contexts, and seldom gives them names. And when all are closed beside a daemon that does not
 * answer, only the first one waits for it long.
 */
#ifndef ADTOPK_CLIENT_REGISTRY_H
#define ADTOPK_CLIENT_REGISTRY_H

#include "client/src/context.h"

/** Notes a context. If another open context has the same job, run id and rank, the new one's job is
 * named "JOB#2", the next one's "JOB#3". Errors: ARGUMENT (the name becomes too long). */
enum adtopk_status client_registry_add(adtopk_context *context, struct error *err);

/** Forgets a context; does nothing if it was not noted. */
void client_registry_remove(adtopk_context *context);

/** Notes whether the daemon at an address answers. adtopk_close() that waited in vain says so, and
 * a session that was opened or has ended there says the opposite. Of one address at a time. */
void client_registry_note_silent(const struct client_place *place, bool silent);

/** Whether it was noted last that the daemon at this address does not answer. */
bool client_registry_is_silent(const struct client_place *place);

#endif

/*
 * What the thread of watch.c does for a rank whose daemon has gone away.
 */
#ifndef ADTOPK_CLIENT_TEND_H
#define ADTOPK_CLIENT_TEND_H

#include "client/src/transport.h"

/** Does what can be done now, and returns soon. The caller does not hold the context's lock. */
enum client_tending client_tend(adtopk_context *context);

#endif

/* Copies between the program's arrays and memory that it shares with the daemon. */
#ifndef ADTOPK_CLIENT_COPY_H
#define ADTOPK_CLIENT_COPY_H

#include <stddef.h>

/** memcpy(), and for large arrays past the caches: the other side reads them, much later. */
void client_copy(void *to, const void *from, size_t bytes);

#endif

/* Copies between the program's arrays and memory that it shares with the daemon. */
#ifndef ADTOPK_CLIENT_COPY_H
#define ADTOPK_CLIENT_COPY_H

#include <stddef.h>

/** memcpy(). Large arrays go past the caches, in which little of them would stay. */
void client_copy(void *to, const void *from, size_t bytes);

#endif

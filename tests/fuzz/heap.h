/*
 * How much heap is in use, where a sanitizer knows; 0 elsewhere, so that differences are 0.
 */
#ifndef ADTOPK_FUZZ_HEAP_H
#define ADTOPK_FUZZ_HEAP_H

#include <stddef.h>

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static inline size_t heap_used(void)
{
    return __sanitizer_get_current_allocated_bytes != NULL
               ? __sanitizer_get_current_allocated_bytes()
               : 0;
}

#endif

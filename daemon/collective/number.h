/* Numbers below 2^35 on the wire: 7 bits a byte, the lowest first. */
#ifndef ADTOPK_COLLECTIVE_NUMBER_H
#define ADTOPK_COLLECTIVE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

#define NUMBER_BYTES 5u /* at most */

/* Returns the end of what it wrote. */
static inline uint8_t *number_put(uint8_t *out, uint64_t number)
{
    for (; number > 127; number >>= 7) {
        *out++ = (uint8_t)(number | 128);
    }
    *out++ = (uint8_t)number;
    return out;
}

/* Moves *bytes behind the number. False: there is none. */
static inline bool number_get(const uint8_t **bytes, const uint8_t *end, uint64_t *number)
{
    *number = 0;
    for (unsigned shift = 0; shift < 7 * NUMBER_BYTES && *bytes < end; shift += 7) {
        const uint8_t byte = *(*bytes)++;
        *number |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            return true;
        }
    }
    return false;
}

#endif

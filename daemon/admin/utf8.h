/*
 * UTF-8 in texts that came from elsewhere: documents and log lines must be valid whatever a
 * client called its job.
 */
#ifndef ADTOPK_UTF8_H
#define ADTOPK_UTF8_H

#include <stddef.h>

/** Bytes of the valid sequence at `text`, which is NUL-terminated and not empty; 0 if it is not
 * valid. (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.) */
static inline size_t utf8_length(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t length = at[0] < 0x80 ? 1 : at[0] < 0xE0 ? 2 : at[0] < 0xF0 ? 3 : 4;

    if ((at[0] >= 0x80 && at[0] < 0xC2) || at[0] > 0xF4 || (at[0] == 0xE0 && at[1] < 0xA0) ||
        (at[0] == 0xED && at[1] > 0x9F) || (at[0] == 0xF0 && at[1] < 0x90) ||
        (at[0] == 0xF4 && at[1] > 0x8F)) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((at[i] & 0xC0) != 0x80) {
            return 0; /* also the NUL behind a sequence that was cut */
        }
    }
    return length;
}

#endif

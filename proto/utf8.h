/*
 * UTF-8 in texts that came from elsewhere: documents and log lines must be valid whatever a
 * client called its job, and tensors have names that can be printed.
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

/** What is wrong with a text as a name: "control characters", "bytes that are not UTF-8", or NULL.
 * Control characters are those of ASCII and of ISO 6429 (U+0080 to U+009F). */
static inline const char *utf8_name_fault(const char *text)
{
    size_t length;

    for (; *text != '\0'; text += length) {
        const unsigned char first = (unsigned char)text[0];

        length = utf8_length(text);
        if (length == 0) {
            return "bytes that are not UTF-8";
        }
        if (first < 0x20 || first == 0x7F || (first == 0xC2 && (unsigned char)text[1] < 0xA0)) {
            return "control characters";
        }
    }
    return NULL;
}

#endif

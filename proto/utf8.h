/*
 * UTF-8 in texts that came from elsewhere: documents and log lines must be valid whatever a
 * client called its job, and names can be printed without an effect on the text around them.
 */
#ifndef ADTOPK_UTF8_H
#define ADTOPK_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#define UTF8_FAULT_SIZE 64

/** Bytes of the valid sequence at `text`, which is NUL-terminated and not empty; 0 if it is not
 * valid. (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.) */
size_t utf8_length(const char *text);

/** True for a control character: those of ASCII and of ISO 6429 (U+0080 to U+009F). Some terminals
 * obey them. `text` begins with a valid sequence. */
bool utf8_is_control(const char *text);

/** True for a character that nobody sees but that moves or hides its neighbours, such as U+202E:
 * Unicode's categories Cf, Zl and Zp. `text` begins with a valid sequence. */
bool utf8_is_format(const char *text);

/** True if a text cannot be a name: it is not UTF-8, or has a control or format character. `fault`
 * then says what it has and as which byte, counted from 1: "a control character (0x1b), byte 3". */
bool utf8_name_fault(const char *text, char fault[UTF8_FAULT_SIZE]);

/** Cleans a text of somebody else in its place, so that it can be logged, sent on and printed: a
 * question mark replaces each control character, format character and byte that is not UTF-8. The
 * text never grows. */
void utf8_clean(char *text);

/** Shortens a valid text to at most `size` bytes, without cutting a character in two. */
void utf8_cut(char *text, size_t size);

#endif

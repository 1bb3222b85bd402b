/*
 * UTF-8 in texts from elsewhere. Documents and log lines must be valid whatever a client called its
 * job, and printing a name must not affect the text around it.
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

/** True for an invisible character that moves or hides its neighbours, such as U+202E: Unicode's
 * categories Cf, Zl and Zp. `text` begins with a valid sequence. */
bool utf8_is_format(const char *text);

/** True if a text cannot be a name: it is not UTF-8, or has a control or format character. `fault`
 * then names the fault and its place, counted from 1: "a control character (0x1b), byte 3". */
bool utf8_name_fault(const char *text, char fault[UTF8_FAULT_SIZE]);

/** Cleans another user's text in place, so that it can be logged, sent on and printed. A question
 * mark replaces each control character, format character and byte that is not UTF-8. The text never
 * grows. */
void utf8_clean(char *text);

/** The bytes of the whole characters among the first `size` bytes of a text. If the text was cut in
 * the middle of its last character, that character does not count. */
size_t utf8_fit(const char *text, size_t size);

/** A text and its most bytes, as arguments for "%.*s". */
#define UTF8_FIT(size, text) (int)utf8_fit((text), (size)), (text)

/** Shortens a text to utf8_fit() bytes. */
void utf8_cut(char *text, size_t size);

#endif

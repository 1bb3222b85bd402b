#include "proto/utf8.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

size_t utf8_length(const char *text)
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

/* The number of the character in a valid sequence. */
static uint32_t utf8_character(const char *text)
{
    static const uint32_t first_bits[5] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    const unsigned char *at = (const unsigned char *)text;
    const size_t length = utf8_length(text);
    uint32_t character = at[0] & first_bits[length];

    for (size_t i = 1; i < length; i++) {
        character = character << 6 | (at[i] & 0x3F);
    }
    return character;
}

bool utf8_is_control(const char *text)
{
    const uint32_t character = utf8_character(text);

    return character < 0x20 || (character >= 0x7F && character < 0xA0);
}

bool utf8_is_format(const char *text)
{
    /* Unicode 15, categories Cf, Zl and Zp: first and last of each range. */
    static const uint32_t ranges[][2] = {{0xAD, 0xAD}, {0x600, 0x605}, {0x61C, 0x61C},
        {0x6DD, 0x6DD}, {0x70F, 0x70F}, {0x890, 0x891}, {0x8E2, 0x8E2}, {0x180E, 0x180E},
        {0x200B, 0x200F}, {0x2028, 0x202E}, {0x2060, 0x2064}, {0x2066, 0x206F}, {0xFEFF, 0xFEFF},
        {0xFFF9, 0xFFFB}, {0x110BD, 0x110BD}, {0x110CD, 0x110CD}, {0x13430, 0x1343F},
        {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A}, {0xE0001, 0xE0001}, {0xE0020, 0xE007F}};
    const uint32_t character = utf8_character(text);

    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        if (character >= ranges[i][0] && character <= ranges[i][1]) {
            return true;
        }
    }
    return false;
}

bool utf8_name_fault(const char *text, char fault[UTF8_FAULT_SIZE])
{
    size_t length;

    for (size_t at = 0; text[at] != '\0'; at += length) {
        length = utf8_length(text + at);
        if (length == 0) {
            (void)snprintf(fault, UTF8_FAULT_SIZE, "a byte that is not UTF-8 (0x%02x), byte %zu",
                (unsigned)(unsigned char)text[at], at + 1);
            return true;
        }
        if (utf8_is_control(text + at)) {
            (void)snprintf(fault, UTF8_FAULT_SIZE, "a control character (0x%02x), byte %zu",
                (unsigned)utf8_character(text + at), at + 1);
            return true;
        }
        if (utf8_is_format(text + at)) {
            (void)snprintf(fault, UTF8_FAULT_SIZE, "the format character U+%04X, byte %zu",
                (unsigned)utf8_character(text + at), at + 1);
            return true;
        }
    }
    return false;
}

void utf8_clean(char *text)
{
    char *to = text;

    while (*text != '\0') {
        const size_t length = utf8_length(text);

        if (length == 0 || utf8_is_control(text) || utf8_is_format(text)) {
            *to++ = '?';
        } else {
            memmove(to, text, length);
            to += length;
        }
        text += length > 0 ? length : 1;
    }
    if (to != text) { /* protobuf-c keeps empty strings in memory that cannot be written */
        *to = '\0';
    }
}

/* Bytes of the character that begins with this byte, if it is the first of several. */
static size_t utf8_wanted(unsigned char first)
{
    return first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
}

size_t utf8_fit(const char *text, size_t size)
{
    const size_t end = strnlen(text, size);
    size_t start = end; /* of the last character, if that has several bytes */

    while (start > 0 && (text[start - 1] & 0xC0) == 0x80) {
        start--;
    }
    if (start == 0 || (unsigned char)text[start - 1] < 0xC0) {
        return end;
    }
    start--;
    return end - start < utf8_wanted((unsigned char)text[start]) ? start : end;
}

void utf8_cut(char *text, size_t size)
{
    const size_t end = utf8_fit(text, size);

    if (text[end] != '\0') { /* protobuf-c keeps empty strings in memory that cannot be written */
        text[end] = '\0';
    }
}

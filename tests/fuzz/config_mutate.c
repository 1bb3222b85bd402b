/*
 * Mutations of fuzz_config's inputs, which are texts behind a byte that says where the text stands.
 * Most change whole words, or put in a setting with a value that it may have.
 */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings/config_option.h"

#define HEAD 1u /* bytes before the text */
#define TEXT_MAX 4096u
#define WORD_MAX 160u

/* The first is libFuzzer's. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

static const char *const others[] = {"{", "}", "[", "]", ",", ":", "\n", "\"", "null", "true",
    "1e9", "-1", "0.5", "\"\"", "\"tcp://127.0.0.1:7001\"", "\"tcp://[::1]:65535\"", "\"/a\"",
    "\"root\"", "2=tcp://127.0.0.1:7001", "#", ";", "=", "@", "\\u00e4", "\\ud83d\\ude00", "/*",
    "//", "{\"node\":3,\"endpoint\":\"tcp://127.0.0.1:7002\"}",
    "\"rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7\"", "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"};

static uint32_t draw_below(uint32_t *state, size_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return (uint32_t)(*state % below);
}

static const char *draw_other(uint32_t *state)
{
    return others[draw_below(state, sizeof(others) / sizeof(others[0]))];
}

/* The end of the word that begins here: quoted, or of letters and digits, or one byte. */
static size_t word_end(const uint8_t *text, size_t size, size_t at)
{
    const uint8_t first = text[at++];

    if (first == '"') {
        while (at < size && text[at] != '"') {
            at += text[at] == '\\' ? 2 : 1;
        }
        at++;
    } else if (isalnum(first) || first == '_' || first == '-') {
        while (at < size && (isalnum(text[at]) || strchr("_-.", text[at]) != NULL)) {
            at++;
        }
    }
    return at < size ? at : size;
}

/* The beginning of a word. */
static size_t draw_word(const uint8_t *text, size_t size, uint32_t *state)
{
    const size_t aim = draw_below(state, size + 1);
    size_t at = 0;

    for (size_t end = 0; end < aim; end = word_end(text, size, end)) {
        at = end;
    }
    return at;
}

/* Mostly a value that the setting may have. */
static void print_value(
    char value[WORD_MAX], const struct option *option, const char *quote, uint32_t *state)
{
    const uint64_t step = draw_below(state, 4);

    if (option->type == OPTION_NUMBER) {
        (void)snprintf(value, WORD_MAX, "%llu",
            (unsigned long long)(step < 2 ? option->low + step : option->high + step - 2));
    } else if (option->type == OPTION_CHOICE) {
        (void)snprintf(value, WORD_MAX, "%s%s%s", quote,
            option->names[draw_below(state, (size_t)option->high + 1)], quote);
    } else if (option->type == OPTION_SWITCH) {
        (void)snprintf(value, WORD_MAX, "%s", step < 2 ? "true" : "false");
    } else if (option->type == OPTION_LIST && quote[0] != '\0') {
        (void)snprintf(
            value, WORD_MAX, "[{\"%s\":%s}]", option->list->fields[step / 2], draw_other(state));
    } else {
        (void)snprintf(value, WORD_MAX, "%s", draw_other(state));
    }
}

/* A setting as the place of the text has it: a file, variables, or arguments. */
static void print_setting(char word[2 * WORD_MAX], unsigned place, uint32_t *state)
{
    const struct option *option = &option_table[draw_below(state, OPTION_COUNT)];
    char value[WORD_MAX], name[OPTION_NAME_SIZE];

    print_value(value, option, place == 0 ? "\"" : "", state);
    if (place == 0) {
        (void)snprintf(word, 2 * WORD_MAX, "\"%s\":%s,", option->key, value);
    } else if (place == 1) {
        (void)snprintf(word, 2 * WORD_MAX, "%s\n", value);
    } else {
        option_name(option, STYLE_FLAG, name);
        (void)snprintf(word, 2 * WORD_MAX, "%s=%s\n", name, value);
    }
}

/* Puts bytes in the place of those from `from` to before `to`; the new size. */
static size_t put_between(uint8_t *text, size_t size, size_t most, size_t from, size_t to,
    const void *bytes, size_t count)
{
    if (size - (to - from) + count > most) {
        return size;
    }
    memmove(text + from + count, text + to, size - to);
    memcpy(text + from, bytes, count);
    return size - (to - from) + count;
}

static size_t change_text(uint8_t *text, size_t size, size_t most, unsigned place, uint32_t *state)
{
    const size_t from = draw_word(text, size, state), end = draw_word(text, size, state);
    size_t to = from < size ? word_end(text, size, from) : size;
    char word[2 * WORD_MAX] = "";
    uint8_t copy[TEXT_MAX];

    switch (draw_below(state, 6)) {
    case 0: /* other words go */
        return from < end ? put_between(text, size, most, from, end, word, 0)
                          : put_between(text, size, most, from, to, word, 0);
    case 1: /* words are there again */
        if (from >= end || end - from > sizeof(copy)) {
            return size;
        }
        memcpy(copy, text + from, end - from);
        to = draw_word(text, size, state);
        return put_between(text, size, most, to, to, copy, end - from);
    case 2:
        (void)snprintf(word, sizeof(word), "%s", draw_other(state));
        return put_between(text, size, most, from, to, word, strlen(word));
    case 3:
        (void)snprintf(word, sizeof(word), "%s", draw_other(state));
        return put_between(text, size, most, from, from, word, strlen(word));
    default:
        while (place == 0 && to < size && to > 0 && text[to - 1] != '{' && text[to - 1] != ',') {
            to++;
        }
        print_setting(word, place, state);
        return put_between(text, size, most, to, to, word, strlen(word));
    }
}

/* One in four is changed without regard to words. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    uint32_t state = seed * UINT32_C(2654435761) | 1;

    if (size < HEAD || size > TEXT_MAX || draw_below(&state, 4) == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    return HEAD + change_text(data + HEAD, size - HEAD, max_size - HEAD, data[0] % 3u, &state);
}

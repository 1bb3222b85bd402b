#include "proto/arguments.h"

#include <stdio.h>
#include <string.h>

#include "proto/guess.h"

static enum adtopk_status arguments_value(struct arguments *words,
    const struct arguments_flag *flag, struct arguments_option *given, struct error *err)
{
    if (flag->value == NULL) {
        return given->value == NULL || flag->optional
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT, "%s takes no value", flag->name);
    }
    if (given->value == NULL && words->at + 1 < words->argc) {
        given->value = words->argv[++words->at];
    }
    return given->value != NULL ? ADTOPK_OK
                                : error_set(err, ADTOPK_ERR_ARGUMENT, "%s needs a value: %s",
                                      flag->name, flag->value);
}

enum adtopk_status arguments_option(struct arguments *words, arguments_known *known,
    struct arguments_option *given, struct error *err)
{
    const char *word = words->argv[words->at];
    const char *text = strcmp(word, "-h") == 0 ? "--help" : word;
    const size_t length = strcspn(text, "=");
    struct arguments_flag flag = {.name = ""};
    char name[81], meant[GUESS_TEXT_SIZE];
    struct guess guess;

    (void)snprintf(name, sizeof(name), "%.*s", (int)length, text);
    guess_start(&guess, name, 2);
    given->value = text[length] == '=' ? text + length + 1 : NULL;
    for (given->index = 0; known(given->index, &flag); given->index++) {
        if (strlen(flag.name) == length && strncmp(flag.name, text, length) == 0) {
            return arguments_value(words, &flag, given, err);
        }
        guess_name(&guess, flag.name);
    }
    return error_set(
        err, ADTOPK_ERR_ARGUMENT, "unknown option \"%s\"%s", name, guess_text(&guess, meant));
}

/*
 * Reads the value of one setting, from a text or from JSON. A text is first turned into a JSON
 * value, so that the same reader checks both. Only lists and policies have a text form of their
 * own.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings/config_option.h"
#include "proto/utf8.h"

static void *field(struct config *config, const struct option *option)
{
    return (char *)config + option->offset;
}

enum adtopk_status option_wrong_type(const char *wanted, struct error *err)
{
    return error_set(err, ADTOPK_ERR_ARGUMENT, "%s is needed here", wanted);
}

/* Numbers are doubles in cJSON, so whole numbers are exact only up to 2^53. */
bool option_whole(const cJSON *value, uint64_t *number)
{
    if (!cJSON_IsNumber(value) || !(value->valuedouble >= 0) ||
        !(value->valuedouble <= 9007199254740992.0)) {
        return false;
    }
    *number = (uint64_t)value->valuedouble;
    return (double)*number == value->valuedouble;
}

bool option_digits(char *text, uint64_t *number, char **end)
{
    errno = 0;
    *number = strtoull(text, end, 10);
    return isdigit((unsigned char)*text) && errno == 0;
}

static enum adtopk_status store_number(
    struct config *config, const struct option *option, uint64_t number, struct error *err)
{
    if (number < option->low || number > option->high) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%llu is not from %llu to %llu",
            (unsigned long long)number, (unsigned long long)option->low,
            (unsigned long long)option->high);
    }
    *(uint64_t *)field(config, option) = number;
    return ADTOPK_OK;
}

static enum adtopk_status set_whole_number(
    struct config *config, const struct option *option, const cJSON *value, struct error *err)
{
    uint64_t number = 0;

    if (!cJSON_IsNumber(value)) {
        return option_wrong_type("a whole number", err);
    }
    return option_whole(value, &number)
               ? store_number(config, option, number, err)
               : error_set(err, ADTOPK_ERR_ARGUMENT,
                     "%.15g is not a whole number from %llu to %llu", value->valuedouble,
                     (unsigned long long)option->low, (unsigned long long)option->high);
}

static enum adtopk_status store_choice(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    char known[80] = "", meant[GUESS_TEXT_SIZE];
    struct guess guess;
    size_t used = 0;

    guess_start(&guess, text, 0);
    for (uint64_t i = 0; i <= option->high; i++) {
        if (strcmp(text, option->names[i]) == 0) {
            *(uint64_t *)field(config, option) = i;
            return ADTOPK_OK;
        }
        guess_name(&guess, option->names[i]);
        if (used < sizeof(known)) {
            used += (size_t)snprintf(
                known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "", option->names[i]);
        }
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.*s\" is not one of: %s%s", UTF8_FIT(40, text),
        known, guess_text(&guess, meant));
}

static enum adtopk_status store_text(
    struct config *config, const struct option *option, const char *text, struct error *err)
{
    size_t length = strlen(text);

    if (length == 0 || length >= option->size) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "a text of %zu bytes, 1 to %zu are possible",
            length, option->size - 1);
    }
    memcpy(field(config, option), text, length + 1);
    return ADTOPK_OK;
}

static enum adtopk_status store_policy(
    struct config *config, const char *text, size_t length, struct error *err)
{
    char *copy = strndup(text, length);

    if (copy == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a policy of %zu bytes", length);
    }
    free(config->policy);
    config->policy = copy;
    return ADTOPK_OK;
}

static enum adtopk_status set_value(
    struct config *config, const struct option *option, const cJSON *value, struct error *err)
{
    switch (option->type) {
    case OPTION_NUMBER: return set_whole_number(config, option, value, err);
    case OPTION_CHOICE:
    case OPTION_TEXT:
        if (!cJSON_IsString(value)) {
            return option_wrong_type("a text", err);
        }
        return (option->type == OPTION_TEXT ? store_text : store_choice)(
            config, option, value->valuestring, err);
    case OPTION_SWITCH:
        *(bool *)field(config, option) = cJSON_IsTrue(value);
        return cJSON_IsBool(value) ? ADTOPK_OK : option_wrong_type("true or false", err);
    case OPTION_USER: return user_read(value, field(config, option), err);
    case OPTION_LIST:
    case OPTION_POLICY: break; /* read apart: they are about more than one place */
    }
    return ADTOPK_OK;
}

/* ------------------------------------------------------------------ texts */

static enum adtopk_status set_list_text(
    struct config *config, const struct option_list *list, const char *text, struct error *err)
{
    char *copy = strdup(text), *rest = copy;
    enum adtopk_status status = ADTOPK_OK;

    if (copy == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for a list of %zu bytes", strlen(text));
    }
    list->clear(config);
    while (status == ADTOPK_OK && rest != NULL && *rest != '\0') {
        status = list->add_text(config, strsep(&rest, ","), err);
    }
    free(copy);
    return status;
}

/* Also checks that it is JSON; config_check_policy() does the rest. */
static void set_policy_text(
    struct config *config, const char *text, const char *where, struct faults *faults)
{
    struct json json;
    struct error err;

    if (json_read(&json, where, text, strlen(text), ADTOPK_ERR_ARGUMENT, faults) == ADTOPK_OK) {
        if (!cJSON_IsObject(json.root)) {
            (void)json_fault(&json, json.root, JSON_VALUE, faults, "a policy is an object, {...}");
        } else if (store_policy(config, text, strlen(text), &err) != ADTOPK_OK) {
            (void)faults_add(faults, err.code, "%s: %s", where, err.text);
        }
    }
    json_free(&json);
}

static enum adtopk_status set_text(
    struct config *config, const struct option *option, char *text, struct error *err)
{
    cJSON value = {.type = cJSON_String, .valuestring = text};
    uint64_t number = 0;
    char *end;

    if (option->type == OPTION_LIST) {
        return set_list_text(config, option->list, text, err);
    }
    if (option->type == OPTION_NUMBER) {
        if (!option_digits(text, &number, &end) || *end != '\0') {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "\"%.40s\" is not a whole number from %llu to %llu", text,
                (unsigned long long)option->low, (unsigned long long)option->high);
        }
        return store_number(config, option, number, err);
    }
    if (option->type == OPTION_SWITCH) {
        bool on = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;

        if (!on && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "\"%.40s\" is neither true nor false", text);
        }
        value.type = on ? cJSON_True : cJSON_False;
    }
    return set_value(config, option, &value, err);
}

void option_set_text(struct config *config, const struct option *option, const char *text,
    const char *where, struct faults *faults)
{
    struct error err = {.code = ADTOPK_OK};

    if (option->type == OPTION_POLICY) {
        set_policy_text(config, text, where, faults);
    } else if (set_text(config, option, (char *)text, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s: %s", where, err.text);
    }
}

/* ------------------------------------------------------------------ JSON */

/* Finds the members of an object by the names of the list's fields. Returns false for members that
 * are unknown or repeated, with a fault for each whose sentence begins with `prefix`. */
static bool find_fields(const struct option_json *in, const cJSON *object, const char *prefix,
    const struct option_list *list, const cJSON *found[OPTION_FIELDS_MAX])
{
    const unsigned before = in->faults->count;
    const cJSON *item;

    cJSON_ArrayForEach(item, object)
    {
        struct guess guess;
        char meant[GUESS_TEXT_SIZE];
        size_t at = 0;
        bool known;

        guess_start(&guess, item->string, 0);
        while (at < OPTION_FIELDS_MAX && list->fields[at] != NULL &&
               strcmp(item->string, list->fields[at]) != 0) {
            guess_name(&guess, list->fields[at++]);
        }
        known = at < OPTION_FIELDS_MAX && list->fields[at] != NULL;
        if (known && found[at] == NULL) {
            found[at] = item;
        } else {
            (void)json_fault(in->json, item, JSON_KEY, in->faults, "%s: %s key \"%.*s\"%s", prefix,
                known ? "repeated" : "unknown", UTF8_FIT(40, item->string),
                known ? "" : guess_text(&guess, meant));
        }
    }
    return in->faults->count == before;
}

static void set_list_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value)
{
    const cJSON *item;
    unsigned index = 0;

    option->list->clear(config);
    cJSON_ArrayForEach(item, value)
    {
        const cJSON *found[OPTION_FIELDS_MAX] = {NULL}, *culprit = item;
        struct error err;
        char prefix[32];

        (void)snprintf(prefix, sizeof(prefix), "\"%s\"[%u]", option->key, index++);
        if ((!cJSON_IsObject(item) || find_fields(in, item, prefix, option->list, found)) &&
            option->list->add_json(config, in, item, found, &culprit, &err) != ADTOPK_OK) {
            (void)json_fault(in->json, culprit, JSON_VALUE, in->faults, "%s: %s", prefix, err.text);
        }
        if (faults_full(in->faults)) {
            return;
        }
    }
}

void option_set_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value)
{
    const char *text = json_place(in->json, value, JSON_VALUE);
    struct error err = {.code = ADTOPK_OK};

    if (option->type == OPTION_POLICY) {
        (void)(cJSON_IsObject(value)
                   ? store_policy(config, text, (size_t)(json_end(text) - text), &err)
                   : option_wrong_type("an object, {...},", &err));
    } else if (option->type == OPTION_LIST && !cJSON_IsArray(value)) {
        (void)option_wrong_type("an array, [...],", &err);
    } else if (option->type == OPTION_LIST) {
        set_list_json(config, option, in, value);
    } else {
        (void)set_value(config, option, value, &err);
    }
    if (err.code != ADTOPK_OK) {
        (void)json_fault(
            in->json, value, JSON_VALUE, in->faults, "\"%s\": %s", option->key, err.text);
    }
}

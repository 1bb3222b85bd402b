#include "client/adtopkctl/policytext.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/json.h"

static bool is_pair(const char *argument)
{
    size_t key = strspn(argument, "abcdefghijklmnopqrstuvwxyz_");

    return key > 0 && argument[key] == '=';
}

static bool is_document(const char *argument)
{
    return argument[strspn(argument, " \t\n")] == '{';
}

static enum adtopk_status no_memory(struct error *err)
{
    return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the policy");
}

/* The reader of the document judges its contents, but only this function knows its name. */
static enum adtopk_status check_json(const char *name, const char *text, struct error *err)
{
    struct faults faults = {.first_only = true};
    struct json json;

    (void)json_read(&json, name, text, strlen(text), ADTOPK_ERR_POLICY, &faults);
    json_free(&json);
    return faults_first(&faults, err);
}

/* JSON has no ".5", "5." or "+5". */
static bool is_number(const char *text)
{
    char *end = NULL;
    const double number = strtod(text, &end);

    return text[strspn(text, "0123456789.eE+-")] == '\0' && end != text && *end == '\0' &&
           isfinite(number);
}

/* A key that is there twice stays: the reader of the document reports it. */
static enum adtopk_status add_pair(cJSON *document, const char *pair, struct error *err)
{
    const char *value = strchr(pair, '=') + 1;
    char *key = strndup(pair, (size_t)(value - 1 - pair));
    cJSON *item = cJSON_ParseWithOpts(value, NULL, true);
    bool added;

    if (item == NULL && key != NULL && (value[0] == '{' || value[0] == '[') &&
        check_json(key, value, err) != ADTOPK_OK) {
        free(key);
        return err->code;
    }
    if (item == NULL) {
        item =
            is_number(value) ? cJSON_CreateNumber(strtod(value, NULL)) : cJSON_CreateString(value);
    }
    added = key != NULL && item != NULL && cJSON_AddItemToObject(document, key, item);
    free(key);
    if (!added) {
        cJSON_Delete(item);
        return no_memory(err);
    }
    return ADTOPK_OK;
}

static enum adtopk_status read_pairs(
    const char *const *argument, unsigned count, char **text, struct error *err)
{
    cJSON *document = cJSON_CreateObject();
    enum adtopk_status status = document != NULL ? ADTOPK_OK : no_memory(err);

    for (unsigned i = 0; status == ADTOPK_OK && i < count; i++) {
        status = is_pair(argument[i]) ? add_pair(document, argument[i], err)
                                      : error_set(err, ADTOPK_ERR_ARGUMENT,
                                            "\"%.100s\" is not of the form KEY=VALUE", argument[i]);
    }
    if (status == ADTOPK_OK) {
        *text = cJSON_PrintUnformatted(document);
        status = *text != NULL ? ADTOPK_OK : no_memory(err);
    }
    cJSON_Delete(document);
    return status;
}

static enum adtopk_status read_stream(
    FILE *stream, const char *name, char **text, struct error *err)
{
    char *room = malloc(POLICYTEXT_MAX + 2);
    size_t size;

    if (room == NULL) {
        return no_memory(err);
    }
    size = fread(room, 1, POLICYTEXT_MAX + 1, stream);
    room[size] = '\0';
    if (ferror(stream) != 0) {
        (void)error_set(err, ADTOPK_ERR_SYSTEM, "cannot read %.100s: %s", name, strerror(errno));
    } else if (size > POLICYTEXT_MAX) {
        (void)error_set(
            err, ADTOPK_ERR_ARGUMENT, "%.100s is longer than %u bytes", name, POLICYTEXT_MAX);
    } else if (strlen(room) != size) {
        (void)error_set(err, ADTOPK_ERR_ARGUMENT, "%.100s holds a NUL: it is no JSON", name);
    } else if (check_json(name, room, err) == ADTOPK_OK) {
        *text = room;
        return ADTOPK_OK;
    }
    free(room);
    return err->code;
}

static enum adtopk_status read_document(const char *argument, char **text, struct error *err)
{
    if (strlen(argument) > POLICYTEXT_MAX) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "the policy is longer than %u bytes", POLICYTEXT_MAX);
    }
    if (check_json("policy", argument, err) != ADTOPK_OK) {
        return err->code;
    }
    *text = strdup(argument);
    return *text != NULL ? ADTOPK_OK : no_memory(err);
}

const char *policytext_name(const char *const *argument, unsigned count)
{
    if (count > 1 || is_pair(argument[0])) {
        return "policy";
    }
    return strcmp(argument[0], "-") == 0 ? "standard input"
           : is_document(argument[0])    ? "policy"
                                         : argument[0];
}

enum adtopk_status policytext_read(
    const char *const *argument, unsigned count, char **text, bool *pairs, struct error *err)
{
    enum adtopk_status status;
    FILE *stream;

    *pairs = count > 1 || is_pair(argument[0]);
    if (*pairs) {
        status = read_pairs(argument, count, text, err);
        if (status == ADTOPK_OK && strlen(*text) > POLICYTEXT_MAX) {
            free(*text);
            return error_set(
                err, ADTOPK_ERR_ARGUMENT, "the policy is longer than %u bytes", POLICYTEXT_MAX);
        }
        return status;
    }
    if (is_document(argument[0])) {
        return read_document(argument[0], text, err);
    }
    if (strcmp(argument[0], "-") == 0) {
        return read_stream(stdin, policytext_name(argument, count), text, err);
    }
    stream = fopen(argument[0], "re");
    if (stream == NULL) {
        return error_set(err, ADTOPK_ERR_SYSTEM,
            "cannot open \"%.80s\": %s; a policy is a file, -, JSON or KEY=VALUE...", argument[0],
            strerror(errno));
    }
    status = read_stream(stream, argument[0], text, err);
    (void)fclose(stream);
    return status;
}

/*
 * Fuzz target: the messages between adtopkctl and the daemon, and other input of adtopkctl. The
 * first byte chooses what the rest is:
 *
 *   2  a daemon's document
 *   3  the VALUE of KEY=VALUE
 *   4  a command line whose words end with NUL
 *   5  a job's name and an operator's name for it
 *
 * Other values mean a message: even a request, odd a reply.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/options.h"
#include "client/adtopkctl/policytext.h"
#include "client/adtopkctl/show.h"
#include "control.pb-c.h"
#include "daemon/admin/jobname.h"
#include "daemon/policy/policy.h"
#include "tests/fuzz/message.h"

#define WORDS_MAX 100

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* With a NUL behind it. */
static char *copy(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    if (text == NULL) {
        abort();
    }
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* Whatever is in a document: the text has no control characters but line ends. */
static void check_document(const char *json)
{
    static void (*const shows[])(FILE *, const cJSON *) = {show_status, show_jobs, show_peers,
        show_drain, show_stats, show_tensors, show_plan, show_policy, show_policy_keys,
        show_policy_change, show_policy_log, show_verify, show_ranks};
    cJSON *document = cJSON_Parse(json);
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);

    if (out == NULL) {
        abort();
    }
    for (size_t i = 0; document != NULL && i < sizeof(shows) / sizeof(shows[0]); i++) {
        shows[i](out, document);
    }
    show_rates(out, document, document);
    (void)show_is_healthy(document);
    (void)fclose(out);
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 && text[i] != '\n') {
            abort();
        }
    }
    free(text);
    cJSON_Delete(document);
}

static void check_value(const char *value)
{
    struct error err = {ADTOPK_OK, ""};
    struct policy policy;
    size_t room = strlen(value) + 12;
    char *pair = malloc(room);
    const char *argument[] = {pair};
    char *text = NULL;
    bool pairs;

    if (pair == NULL) {
        abort();
    }
    (void)snprintf(pair, room, "density=%s", value);
    if (policytext_read(argument, 1, &text, &pairs, &err) == ADTOPK_OK) {
        policy_default(&policy);
        (void)policy_parse(&policy, text, &err);
        free(text);
    } else if (err.code == ADTOPK_OK || err.text[0] == '\0') {
        abort();
    }
    free(pair);
}

static void check_words(char *words, size_t size)
{
    char *argv[WORDS_MAX + 1] = {NULL};
    struct options options;
    struct error err = {ADTOPK_OK, ""};
    int argc = 0;

    for (size_t at = 0; at < size && argc < WORDS_MAX; at += strlen(words + at) + 1) {
        argv[argc++] = words + at;
    }
    if (options_parse(&options, argc, argv, &err) != ADTOPK_OK && err.text[0] == '\0') {
        abort();
    }
}

static void check_name(const uint8_t *data, size_t size)
{
    struct job_key key = {.owner = 7};
    char full[JOBNAME_SIZE];
    char *text;

    if (size < sizeof(key.name) + sizeof(key.run_id) - 2) {
        return;
    }
    memcpy(key.name, data, sizeof(key.name) - 1);
    memcpy(key.run_id, data + sizeof(key.name) - 1, sizeof(key.run_id) - 1);
    text = copy(data + sizeof(key.name) + sizeof(key.run_id) - 2,
        size - (sizeof(key.name) + sizeof(key.run_id) - 2));
    (void)jobname_fits(&key, text);
    (void)jobname_resembles(&key, text);
    free(text);
    jobname_print(&key, full);
    if (!jobname_fits(&key, full) || !jobname_fits(&key, key.name)) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = size > 0 ? copy(data + 1, size - 1) : NULL;

    switch (size > 0 ? data[0] : 0) {
    case 2: check_document(text); break;
    case 3: check_value(text); break;
    case 4: check_words(text, size - 1); break;
    case 5: check_name(data + 1, size - 1); break;
    default:
        message_check_dialogue(
            &adtopk__control_request__descriptor, &adtopk__control_reply__descriptor, data, size);
    }
    free(text);
    return 0;
}

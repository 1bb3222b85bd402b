#include "client/adtopkctl/offline.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "client/adtopkctl/checkpoint.h"
#include "client/adtopkctl/policytext.h"
#include "client/adtopkctl/show.h"
#include "client/adtopkctl/text.h"
#include "daemon/policy/policy.h"
#include "proto/keyfile.h"

#define KEY_FILE "adtopk.key"

static cJSON *offline_begin(bool *complete)
{
    cJSON *document = cJSON_CreateObject();

    *complete = cJSON_AddNumberToObject(document, "schema", RUN_SCHEMA) != NULL;
    return document;
}

enum exit_code offline_policy_check(const struct options *options)
{
    struct error err = {.code = ADTOPK_OK};
    struct faults faults = {.count = 0};
    struct policy policy;
    char canonical[POLICY_TEXT_SIZE];
    char *text = NULL;
    cJSON *document;
    bool pairs;
    bool complete;

    if (policytext_read(options->argument, options->arguments, &text, &pairs, &err) != ADTOPK_OK) {
        return run_failed(&err, false);
    }
    policy_default(&policy);
    (void)policy_read(
        &policy, policytext_name(options->argument, options->arguments), text, &faults);
    free(text);
    for (unsigned i = 0; i < faults_kept(&faults); i++) {
        run_complain(faults.fault[i].text);
    }
    if (faults.count > 0) {
        return EXIT_FAILED;
    }
    policy_print(&policy, canonical);
    document = offline_begin(&complete);
    complete = complete && cJSON_AddItemToObject(document, "policy", cJSON_Parse(canonical));
    return run_print(options, document, complete, show_policy);
}

/* ------------------------------------------------------------------ keys */

static void offline_add_key(cJSON *array, const struct policy_key_info *info, bool *complete)
{
    cJSON *key = cJSON_CreateObject();

    *complete = *complete && cJSON_AddStringToObject(key, "name", info->name) != NULL &&
                cJSON_AddBoolToObject(key, "in_rules", info->tensor) != NULL &&
                cJSON_AddStringToObject(key, "values", info->values) != NULL &&
                cJSON_AddStringToObject(key, "default", info->standard) != NULL &&
                cJSON_AddStringToObject(key, "help", info->help) != NULL;
    if (!cJSON_AddItemToArray(array, key)) {
        cJSON_Delete(key);
        *complete = false;
    }
}

enum exit_code offline_policy_keys(const struct options *options)
{
    struct policy_key_info info;
    bool complete;
    cJSON *document = offline_begin(&complete);
    cJSON *keys = cJSON_AddArrayToObject(document, "keys");

    for (unsigned i = 0; policy_key(i, &info); i++) {
        offline_add_key(keys, &info, &complete);
    }
    return run_print(options, document, complete, show_policy_keys);
}

/* The keys of these names, as "parameters" of the object. */
static void add_parameters(cJSON *object, const char *const *names, bool *complete)
{
    cJSON *array = cJSON_AddArrayToObject(object, "parameters");
    struct policy_key_info info;

    for (; names != NULL && *names != NULL; names++) {
        for (unsigned i = 0; policy_key(i, &info); i++) {
            if (strcmp(info.name, *names) == 0) {
                offline_add_key(array, &info, complete);
            }
        }
    }
    *complete = *complete && array != NULL;
}

enum exit_code offline_sparsifiers(const struct options *options)
{
    bool complete;
    cJSON *document = offline_begin(&complete);
    cJSON *array = cJSON_AddArrayToObject(document, "sparsifiers");

    for (unsigned i = 0; sparsifier_table[i] != NULL; i++) {
        const struct sparsifier_ops *ops = sparsifier_table[i];
        cJSON *sparsifier = cJSON_CreateObject();

        complete = complete && cJSON_AddStringToObject(sparsifier, "name", ops->name) != NULL &&
                   cJSON_AddStringToObject(sparsifier, "help", ops->help) != NULL &&
                   cJSON_AddStringToObject(sparsifier, "entries", ops->entries) != NULL &&
                   cJSON_AddStringToObject(sparsifier, "source", ops->source) != NULL;
        add_parameters(sparsifier, ops->parameters, &complete);
        if (!cJSON_AddItemToArray(array, sparsifier)) {
            cJSON_Delete(sparsifier);
            complete = false;
        }
    }
    add_parameters(document, sparsifier_common, &complete);
    return run_print(options, document, complete, show_sparsifiers);
}

/* ------------------------------------------------------------------ other commands */

static void offline_show_key(FILE *out, const cJSON *document)
{
    char key[TEXT_SIZE];

    (void)fprintf(out, "%s\n", text_string(document, "public", TEXT_SIZE, key));
}

enum exit_code offline_keygen(const struct options *options)
{
    const char *path = options->value[OPTION_OUT] != NULL ? options->value[OPTION_OUT] : KEY_FILE;
    char key[KEYFILE_KEY_SIZE];
    struct error err = {.code = ADTOPK_OK};
    cJSON *document;
    bool complete;

    if (keyfile_generate(path, key, &err) != ADTOPK_OK) {
        return run_failed(&err, false);
    }
    if (options->value[OPTION_OUT] == NULL) {
        run_complain("the secret key is in ./" KEY_FILE " (--out FILE writes it elsewhere)");
    }
    document = offline_begin(&complete);
    complete = complete && cJSON_AddStringToObject(document, "file", path) != NULL &&
               cJSON_AddStringToObject(document, "public", key) != NULL;
    return run_print(options, document, complete, offline_show_key);
}

enum exit_code offline_key_show(const struct options *options)
{
    struct keyfile_pair pair;
    struct error err = {.code = ADTOPK_OK};
    cJSON *document;
    bool complete;

    if (keyfile_look(options->argument[0], &pair, &err) != ADTOPK_OK) {
        return run_failed(&err, false);
    }
    document = offline_begin(&complete);
    complete = complete &&
               cJSON_AddStringToObject(document, "file", options->argument[0]) != NULL &&
               cJSON_AddStringToObject(document, "public", pair.public_key) != NULL;
    keyfile_wipe(&pair);
    return run_print(options, document, complete, offline_show_key);
}

enum exit_code offline_checkpoint_check(const struct options *options)
{
    struct error err = {.code = ADTOPK_OK};
    bool complete, good;
    cJSON *document = checkpoint_document(options->argument[0], &complete, &good, &err);
    enum exit_code code;

    if (document == NULL) {
        return run_failed(&err, false);
    }
    code = run_print(options, document, complete, checkpoint_show);
    return code == EXIT_OK && !good ? EXIT_FAILED : code;
}

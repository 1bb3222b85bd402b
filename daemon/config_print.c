/* --print-config: all settings in force, and where each is from. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "daemon/config.h"
#include "daemon/config_option.h"

#define SCHEMA 1

static bool add_keys(cJSON *peer, const struct config_peer *from)
{
    cJSON *keys = cJSON_AddArrayToObject(peer, "key");

    for (size_t i = 0; i < CONFIG_PEER_KEYS && from->keys[i][0] != '\0'; i++) {
        cJSON *key = cJSON_CreateString(from->keys[i]);

        if (!cJSON_AddItemToArray(keys, key)) {
            cJSON_Delete(key);
            return false;
        }
    }
    return keys != NULL;
}

static cJSON *peers_json(const struct config *config)
{
    cJSON *array = cJSON_CreateArray();

    for (size_t i = 0; array != NULL && i < config->peer_count; i++) {
        cJSON *peer = cJSON_CreateObject();

        if (cJSON_AddNumberToObject(peer, "node", config->peers[i].node) == NULL ||
            cJSON_AddStringToObject(peer, "endpoint", config->peers[i].endpoint) == NULL ||
            (config->peers[i].keys[0][0] != '\0' && !add_keys(peer, &config->peers[i])) ||
            !cJSON_AddItemToArray(array, peer)) {
            cJSON_Delete(peer);
            cJSON_Delete(array);
            return NULL;
        }
    }
    return array;
}

static cJSON *value_json(const struct option *option, const struct config *config)
{
    const void *value = (const char *)config + option->offset;

    switch (option->type) {
    case OPTION_NUMBER: return cJSON_CreateNumber((double)*(const uint64_t *)value);
    case OPTION_CHOICE: return cJSON_CreateString(option->names[*(const uint64_t *)value]);
    case OPTION_TEXT: return cJSON_CreateString(value);
    case OPTION_SWITCH: return cJSON_CreateBool(*(const bool *)value);
    case OPTION_POLICY: return cJSON_Parse(config->policy != NULL ? config->policy : "{}");
    case OPTION_PEERS: return peers_json(config);
    case OPTION_TRAINERS: return trainers_json(config);
    case OPTION_USER:
        return *(const uint64_t *)value == CONFIG_NOBODY
                   ? cJSON_CreateNull()
                   : cJSON_CreateNumber((double)*(const uint64_t *)value);
    }
    return NULL;
}

/* False without memory; `item` is taken over in either case. */
static bool add(cJSON *object, const char *name, cJSON *item)
{
    if (item != NULL && cJSON_AddItemToObject(object, name, item)) {
        return true;
    }
    cJSON_Delete(item);
    return false;
}

/* What a number or a choice may be. */
static bool add_range(cJSON *setting, const struct option *option)
{
    if (option->type == OPTION_NUMBER) {
        return add(setting, "minimum", cJSON_CreateNumber((double)option->low)) &&
               add(setting, "maximum", cJSON_CreateNumber((double)option->high));
    }
    return option->type != OPTION_CHOICE ||
           add(setting, "choices",
               cJSON_CreateStringArray((const char *const *)option->names, (int)option->high + 1));
}

static bool add_setting(cJSON *settings, const struct config *config, const struct option *option)
{
    cJSON *setting = cJSON_AddObjectToObject(settings, option->key);
    char where[CONFIG_SOURCE_SIZE];

    config_where(config, option->key, where);
    return setting != NULL && add(setting, "value", value_json(option, config)) &&
           add(setting, "source", cJSON_CreateString(where)) &&
           add(setting, "live", cJSON_CreateBool(option->live)) && add_range(setting, option);
}

static char *document_text(const struct config *config)
{
    cJSON *document = cJSON_CreateObject();
    bool whole =
        add(document, "schema", cJSON_CreateNumber(SCHEMA)) &&
        add(document, "file",
            config->file[0] != '\0' ? cJSON_CreateString(config->file) : cJSON_CreateNull());
    cJSON *settings = cJSON_AddObjectToObject(document, "settings");
    char *text = NULL;

    for (size_t i = 0; whole && settings != NULL && i < OPTION_COUNT; i++) {
        whole = add_setting(settings, config, &option_table[i]);
    }
    if (whole && settings != NULL) {
        text = cJSON_Print(document);
    }
    cJSON_Delete(document);
    return text;
}

enum adtopk_status config_print(const struct config *config, FILE *out, struct error *err)
{
    char *text = document_text(config);

    if (text == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to print the configuration");
    }
    (void)fprintf(out, "%s\n", text);
    free(text);
    return ADTOPK_OK;
}

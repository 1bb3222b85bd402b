/* --print-config: all settings in force, and where each is from. */
#include <cjson/cJSON.h>
#include <stdlib.h>

#include "daemon/settings/config_option.h"

#define SCHEMA 1

bool option_add(cJSON *to, const char *name, cJSON *item)
{
    if (item != NULL &&
        (name != NULL ? cJSON_AddItemToObject(to, name, item) : cJSON_AddItemToArray(to, item))) {
        return true;
    }
    cJSON_Delete(item);
    return false;
}

cJSON *option_if(bool whole, cJSON *item)
{
    if (!whole) {
        cJSON_Delete(item);
    }
    return whole ? item : NULL;
}

static cJSON *list_json(const struct option_list *list, const struct config *config)
{
    const size_t count = list->count(config);
    cJSON *array = cJSON_CreateArray();
    bool whole = array != NULL;

    for (size_t i = 0; whole && i < count; i++) {
        whole = option_add(array, NULL, list->print(config, i));
    }
    return option_if(whole, array);
}

cJSON *option_json(const struct option *option, const struct config *config)
{
    const void *value = (const char *)config + option->offset;

    switch (option->type) {
    case OPTION_NUMBER: return cJSON_CreateNumber((double)*(const uint64_t *)value);
    case OPTION_CHOICE: return cJSON_CreateString(option->names[*(const uint64_t *)value]);
    case OPTION_TEXT: return cJSON_CreateString(value);
    case OPTION_SWITCH: return cJSON_CreateBool(*(const bool *)value);
    case OPTION_POLICY: return cJSON_Parse(config->policy != NULL ? config->policy : "{}");
    case OPTION_LIST: return list_json(option->list, config);
    case OPTION_USER:
        return *(const uint64_t *)value == CONFIG_NOBODY
                   ? cJSON_CreateNull()
                   : cJSON_CreateNumber((double)*(const uint64_t *)value);
    }
    return NULL;
}

/* The possible values of a number or a choice. */
static bool add_range(cJSON *setting, const struct option *option)
{
    if (option->type == OPTION_NUMBER) {
        return option_add(setting, "minimum", cJSON_CreateNumber((double)option->low)) &&
               option_add(setting, "maximum", cJSON_CreateNumber((double)option->high));
    }
    return option->type != OPTION_CHOICE ||
           option_add(setting, "choices",
               cJSON_CreateStringArray((const char *const *)option->names, (int)option->high + 1));
}

static bool add_setting(cJSON *settings, const struct config *config, const struct option *option)
{
    cJSON *setting = cJSON_AddObjectToObject(settings, option->key);
    char where[CONFIG_SOURCE_SIZE];

    config_where(config, option->key, where);
    return setting != NULL && option_add(setting, "value", option_json(option, config)) &&
           option_add(setting, "source", cJSON_CreateString(where)) &&
           option_add(setting, "live", cJSON_CreateBool(option->live)) &&
           add_range(setting, option);
}

enum adtopk_status config_print(const struct config *config, FILE *out, struct error *err)
{
    cJSON *document = cJSON_CreateObject();
    bool whole = option_add(document, "schema", cJSON_CreateNumber(SCHEMA)) &&
                 option_add(document, "file",
                     config->origin.file[0] != '\0' ? cJSON_CreateString(config->origin.file)
                                                    : cJSON_CreateNull());
    cJSON *settings = cJSON_AddObjectToObject(document, "settings");
    char *text;

    for (size_t i = 0; whole && i < OPTION_COUNT; i++) {
        whole = add_setting(settings, config, &option_table[i]);
    }
    text = whole ? cJSON_Print(document) : NULL;
    cJSON_Delete(document);
    if (text == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to print the configuration");
    }
    (void)fprintf(out, "%s\n", text);
    free(text);
    return ADTOPK_OK;
}

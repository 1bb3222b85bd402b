/* Trainers on other machines: where they come in, and whose they are. */
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_option.h"
#include "daemon/endpoint.h"

/* ---- users ---- */

enum adtopk_status user_read_text(
    const char *text, uint64_t *uid, const char *where, struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    const struct passwd *user;

    if (digits > 0 && digits <= 10 && text[digits] == '\0') {
        *uid = strtoull(text, NULL, 10);
        return *uid < UINT32_MAX ? ADTOPK_OK
                                 : error_set(err, ADTOPK_ERR_ARGUMENT,
                                       "%s: %.20s is no user's number", where, text);
    }
    user = *text != '\0' ? getpwnam(text) : NULL;
    if (user == NULL) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: this system has no user \"%.60s\"", where, text);
    }
    *uid = user->pw_uid;
    return ADTOPK_OK;
}

enum adtopk_status user_read_json(
    const cJSON *value, uint64_t *uid, const char *where, struct error *err)
{
    const double number = cJSON_IsNumber(value) ? value->valuedouble : -1;

    if (cJSON_IsString(value)) {
        return user_read_text(value->valuestring, uid, where, err);
    }
    if (number >= 0 && number < UINT32_MAX && number <= (double)(uint32_t)number) {
        *uid = (uint32_t)number;
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: a user's name or number is needed here", where);
}

/* ---- the list ---- */

void trainers_clear(struct config *config)
{
    free(config->trainers);
    config->trainers = NULL;
    config->trainer_count = 0;
}

static enum adtopk_status trainers_add(struct config *config, const char *key, size_t length,
    uint64_t owner, const char *where, struct error *err)
{
    struct config_trainer added = {.owner = (uint32_t)owner};
    struct config_trainer *trainers;

    if (length == KEYFILE_KEY_SIZE - 1) {
        memcpy(added.key, key, length);
    }
    if (!keyfile_is_key(added.key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: \"%.*s\" is no key: 40 characters (Z85)",
            where, (int)(length < 60 ? length : 60), key);
    }
    if (config->trainer_count >= CONFIG_MAX_TRAINERS) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: more than %d trainers", where, CONFIG_MAX_TRAINERS);
    }
    for (size_t i = 0; i < config->trainer_count; i++) {
        if (strcmp(config->trainers[i].key, added.key) == 0) {
            return error_set(
                err, ADTOPK_ERR_ARGUMENT, "%s: the key %s occurs twice", where, added.key);
        }
    }
    trainers = realloc(config->trainers, (config->trainer_count + 1) * sizeof(*trainers));
    if (trainers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "%s: no memory for the trainers", where);
    }
    config->trainers = trainers;
    trainers[config->trainer_count++] = added;
    return ADTOPK_OK;
}

/* KEY=USER,KEY=USER,...; '=' may be part of a key, ',' may not. */
enum adtopk_status trainers_read_text(
    struct config *config, const char *text, const char *where, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    trainers_clear(config);
    while (status == ADTOPK_OK && *text != '\0') {
        const size_t length = strcspn(text, ",");
        char user[64] = "";
        uint64_t owner = 0;

        if (length <= KEYFILE_KEY_SIZE || text[KEYFILE_KEY_SIZE - 1] != '=' ||
            length - KEYFILE_KEY_SIZE >= sizeof(user)) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "%s: \"%.60s\" is not of the form KEY=USER, with a key of 40 characters", where,
                text);
        }
        memcpy(user, text + KEYFILE_KEY_SIZE, length - KEYFILE_KEY_SIZE);
        status = user_read_text(user, &owner, where, err);
        if (status == ADTOPK_OK) {
            status = trainers_add(config, text, KEYFILE_KEY_SIZE - 1, owner, where, err);
        }
        text += length;
        text += *text == ',' ? 1 : 0;
    }
    return status;
}

static enum adtopk_status trainers_read_one(
    struct config *config, const cJSON *trainer, const char *where, struct error *err)
{
    const cJSON *key = NULL;
    const cJSON *owner = NULL;
    const cJSON *item;
    uint64_t uid = 0;

    for (item = cJSON_IsObject(trainer) ? trainer->child : NULL; item != NULL; item = item->next) {
        const cJSON **seen = strcmp(item->string, "key") == 0     ? &key
                             : strcmp(item->string, "owner") == 0 ? &owner
                                                                  : NULL;

        if (seen == NULL || *seen != NULL) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "%s: %s key \"%.40s\" of a trainer", where,
                seen == NULL ? "unknown" : "repeated", item->string);
        }
        *seen = item;
    }
    if (!cJSON_IsString(key) || owner == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "%s: {\"key\": \"PUBLIC KEY\", \"owner\": USER} is needed here", where);
    }
    if (user_read_json(owner, &uid, where, err) != ADTOPK_OK) {
        return err->code;
    }
    return trainers_add(config, key->valuestring, strlen(key->valuestring), uid, where, err);
}

enum adtopk_status trainers_read_json(
    struct config *config, const cJSON *value, const char *where, struct error *err)
{
    const cJSON *trainer;
    char which[ERROR_TEXT_SIZE];
    unsigned index = 0;

    if (!cJSON_IsArray(value)) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "%s: an array of trainers, [...], is needed here", where);
    }
    trainers_clear(config);
    cJSON_ArrayForEach(trainer, value)
    {
        (void)snprintf(which, sizeof(which), "%.200s[%u]", where, index++);
        if (trainers_read_one(config, trainer, which, err) != ADTOPK_OK) {
            return err->code;
        }
    }
    return ADTOPK_OK;
}

bool trainers_differ(const struct config *one, const struct config *other)
{
    if (one->trainer_count != other->trainer_count) {
        return true;
    }
    for (size_t i = 0; i < one->trainer_count; i++) {
        if (one->trainers[i].owner != other->trainers[i].owner ||
            strcmp(one->trainers[i].key, other->trainers[i].key) != 0) {
            return true;
        }
    }
    return false;
}

cJSON *trainers_json(const struct config *config)
{
    cJSON *array = cJSON_CreateArray();

    for (size_t i = 0; array != NULL && i < config->trainer_count; i++) {
        cJSON *trainer = cJSON_CreateObject();

        if (cJSON_AddStringToObject(trainer, "key", config->trainers[i].key) == NULL ||
            cJSON_AddNumberToObject(trainer, "owner", config->trainers[i].owner) == NULL ||
            !cJSON_AddItemToArray(array, trainer)) {
            cJSON_Delete(trainer);
            cJSON_Delete(array);
            return NULL;
        }
    }
    return array;
}

/* ---- what fits together ---- */

enum adtopk_status config_check_trainers(
    const struct config *config, const char **key, struct error *err)
{
    const char *listen = config->trainers_listen;
    const bool keyed = config->trainer_count > 0, owned = config->trainers_owner != CONFIG_NOBODY;

    *key = keyed ? "trainers" : "trainers_owner";
    if (listen[0] == '\0') {
        return !keyed && !owned
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT,
                         "%s: trainers_listen is needed too: where do they come in?", *key);
    }
    if (keyed && config->key_file[0] == '\0') {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "trainers: key_file is needed too: they want to know that they talk to this node");
    }
    *key = "trainers_listen";
    if (keyed == owned) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "trainers_listen: either trainers (with keys) or trainers_owner (without) says whose "
            "they are");
    }
    if (strcmp(listen, config->listen) == 0) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "trainers_listen and listen are both %.100s", listen);
    }
    if (endpoint_check(listen, "trainers_listen", err) != ADTOPK_OK) {
        return err->code;
    }
    if (!keyed && !config->insecure && !endpoint_is_loopback(listen)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "trainers_listen: %.100s can be reached from other machines: trainers, with their "
            "keys, says who may; --insecure lets everybody in",
            listen);
    }
    return ADTOPK_OK;
}

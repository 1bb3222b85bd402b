/* Trainers on other machines: where they come in, and whose they are. */
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "daemon/config_option.h"
#include "daemon/endpoint.h"

/* ---- users ---- */

enum adtopk_status user_read_text(const char *text, uint64_t *uid, struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    const struct passwd *user;

    if (digits > 0 && digits <= 10 && text[digits] == '\0') {
        *uid = strtoull(text, NULL, 10);
        return *uid < UINT32_MAX
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT, "%.20s is no user's number", text);
    }
    user = *text != '\0' ? getpwnam(text) : NULL;
    if (user == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "this system has no user \"%.60s\"", text);
    }
    *uid = user->pw_uid;
    return ADTOPK_OK;
}

enum adtopk_status user_read_json(const cJSON *value, uint64_t *uid, struct error *err)
{
    const double number = cJSON_IsNumber(value) ? value->valuedouble : -1;

    if (cJSON_IsString(value)) {
        return user_read_text(value->valuestring, uid, err);
    }
    if (number >= 0 && number < UINT32_MAX && number <= (double)(uint32_t)number) {
        *uid = (uint32_t)number;
        return ADTOPK_OK;
    }
    return error_set(err, ADTOPK_ERR_ARGUMENT, "a user's name or number is needed here");
}

/* ---- the list ---- */

void trainers_clear(struct config *config)
{
    free(config->trainers);
    config->trainers = NULL;
    config->trainer_count = 0;
}

static enum adtopk_status trainers_add(
    struct config *config, const char *key, size_t length, uint64_t owner, struct error *err)
{
    struct config_trainer added = {.owner = (uint32_t)owner};
    struct config_trainer *trainers;

    if (length == KEYFILE_KEY_SIZE - 1) {
        memcpy(added.key, key, length);
    }
    if (!keyfile_is_key(added.key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the key has %zu bytes: a key is 40 characters of Z85", length);
    }
    if (config->trainer_count >= CONFIG_MAX_TRAINERS) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "more than %d trainers", CONFIG_MAX_TRAINERS);
    }
    for (size_t i = 0; i < config->trainer_count; i++) {
        if (strcmp(config->trainers[i].key, added.key) == 0) {
            return error_set(err, ADTOPK_ERR_ARGUMENT, "this key occurs twice");
        }
    }
    trainers = realloc(config->trainers, (config->trainer_count + 1) * sizeof(*trainers));
    if (trainers == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the trainers");
    }
    config->trainers = trainers;
    trainers[config->trainer_count++] = added;
    return ADTOPK_OK;
}

/* KEY=USER,KEY=USER,...; '=' may be part of a key, ',' may not. */
enum adtopk_status trainers_read_text(struct config *config, const char *text, struct error *err)
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
                "entry %zu is not of the form KEY=USER, with a key of 40 characters",
                config->trainer_count + 1);
        }
        memcpy(user, text + KEYFILE_KEY_SIZE, length - KEYFILE_KEY_SIZE);
        status = user_read_text(user, &owner, err);
        if (status == ADTOPK_OK) {
            status = trainers_add(config, text, KEYFILE_KEY_SIZE - 1, owner, err);
        }
        text += length;
        text += *text == ',' ? 1 : 0;
    }
    return status;
}

/* The fields of a trainer, in the order of this list. */
enum { TRAINER_KEY, TRAINER_OWNER, TRAINER_FIELDS };
static const char *const trainer_fields[TRAINER_FIELDS] = {"key", "owner"};

/* Adds the trainer; `culprit` gets the item that an error is about. */
static enum adtopk_status trainers_read_one(struct config *config, const cJSON *trainer,
    const cJSON *const found[TRAINER_FIELDS], const cJSON **culprit, struct error *err)
{
    const cJSON *key = found[TRAINER_KEY];
    uint64_t uid = 0;

    *culprit = trainer;
    if (!cJSON_IsString(key) || found[TRAINER_OWNER] == NULL) {
        return error_set(
            err, ADTOPK_ERR_ARGUMENT, "{\"key\": \"PUBLIC KEY\", \"owner\": USER} is needed here");
    }
    *culprit = found[TRAINER_OWNER];
    if (user_read_json(*culprit, &uid, err) != ADTOPK_OK) {
        return err->code;
    }
    *culprit = key;
    return trainers_add(config, key->valuestring, strlen(key->valuestring), uid, err);
}

void trainers_read_json(struct config *config, const struct option_json *in, const cJSON *value)
{
    const cJSON *trainer;
    unsigned index = 0;

    trainers_clear(config);
    cJSON_ArrayForEach(trainer, value)
    {
        const cJSON *found[TRAINER_FIELDS] = {NULL}, *culprit = NULL;
        struct error err;
        char prefix[32];

        (void)snprintf(prefix, sizeof(prefix), "\"trainers\"[%u]", index++);
        if (cJSON_IsObject(trainer) &&
            !object_fields(in, trainer, prefix, trainer_fields, TRAINER_FIELDS, found)) {
            continue;
        }
        if (trainers_read_one(config, trainer, found, &culprit, &err) != ADTOPK_OK) {
            (void)json_fault(in->json, culprit, JSON_VALUE, in->faults, "%s: %s", prefix, err.text);
        }
        if (faults_full(in->faults)) {
            return;
        }
    }
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

void config_check_trainers(const struct config *config, struct faults *faults)
{
    const char *listen = config->trainers_listen;
    const bool keyed = config->trainer_count > 0, owned = config->trainers_owner != CONFIG_NOBODY;
    const char *key = keyed ? "trainers" : "trainers_owner";
    struct error err;

    if (listen[0] == '\0') {
        if (keyed || owned) {
            config_fault(config, key, faults,
                "%s: trainers_listen is needed too: where do they come in?", key);
        }
        return;
    }
    if (keyed && config->key_file[0] == '\0') {
        config_fault(config, "trainers", faults,
            "trainers: key_file is needed too: they want to know that they talk to this node");
    }
    if (keyed == owned) {
        config_fault(config, "trainers_listen", faults,
            "trainers_listen: either trainers (with keys) or trainers_owner (without) says whose "
            "they are");
    }
    if (endpoint_check(listen, "trainers_listen", &err) != ADTOPK_OK) {
        config_fault(config, "trainers_listen", faults, "%s", err.text);
    } else if (!keyed && !config->insecure) {
        config_fault(config, "trainers_listen", faults,
            "trainers_listen: every user of %s that can reach %.100s would train as that user: "
            "trainers, with their keys, says who may; --insecure lets everybody in",
            endpoint_is_loopback(listen) ? "this machine" : "any machine", listen);
    }
}

/* Trainers on other machines: the endpoint for them, and their owners. */
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/settings/config_option.h"
#include "daemon/settings/endpoint.h"

#define USER_SIZE 64 /* of a name, with the NUL */

/* ---- users ---- */

static enum adtopk_status user_named(const char *text, uint64_t *uid, struct error *err)
{
    const size_t digits = strspn(text, "0123456789");
    const struct passwd *user;

    if (digits > 0 && digits <= 10 && text[digits] == '\0') {
        *uid = strtoull(text, NULL, 10);
        return *uid < UINT32_MAX
                   ? ADTOPK_OK
                   : error_set(err, ADTOPK_ERR_ARGUMENT, "no user has the number %.20s", text);
    }
    errno = 0;
    user = *text != '\0' ? getpwnam(text) : NULL;
    if (user == NULL && errno != 0 && errno != ENOENT && errno != ESRCH) {
        return error_set(
            err, ADTOPK_ERR_SYSTEM, "cannot look up the user \"%.60s\": %s", text, strerror(errno));
    }
    if (user == NULL) {
        return error_set(err, ADTOPK_ERR_ARGUMENT, "this system has no user \"%.60s\"", text);
    }
    *uid = user->pw_uid;
    return ADTOPK_OK;
}

enum adtopk_status user_read(const cJSON *value, uint64_t *uid, struct error *err)
{
    uint64_t number = 0;

    if (cJSON_IsString(value)) {
        return user_named(value->valuestring, uid, err);
    }
    if (!option_whole(value, &number) || number >= UINT32_MAX) {
        return option_wrong_type("a user's name or number", err);
    }
    *uid = number;
    return ADTOPK_OK;
}

/* ---- the list ---- */

static void clear_trainers(struct config *config)
{
    free(config->trainers);
    config->trainers = NULL;
    config->trainer_count = 0;
}

static enum adtopk_status add_trainer(
    struct config *config, const char *key, uint64_t owner, struct error *err)
{
    struct config_trainer added = {.owner = (uint32_t)owner};
    struct config_trainer *trainers;

    if (!keyfile_is_key(key)) {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "the key has %zu bytes: a key is 40 characters of Z85", strlen(key));
    }
    memcpy(added.key, key, sizeof(added.key));
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

/* KEY=USER; '=' may be part of a key. */
static enum adtopk_status add_trainer_text(struct config *config, char *entry, struct error *err)
{
    const size_t length = strlen(entry);
    uint64_t owner = 0;

    if (length <= KEYFILE_KEY_SIZE || length - KEYFILE_KEY_SIZE >= USER_SIZE ||
        entry[KEYFILE_KEY_SIZE - 1] != '=') {
        return error_set(err, ADTOPK_ERR_ARGUMENT,
            "entry %zu is not of the form KEY=USER, with a key of 40 characters",
            config->trainer_count + 1);
    }
    entry[KEYFILE_KEY_SIZE - 1] = '\0';
    return user_named(entry + KEYFILE_KEY_SIZE, &owner, err) == ADTOPK_OK
               ? add_trainer(config, entry, owner, err)
               : err->code;
}

static enum adtopk_status add_trainer_json(struct config *config, const struct option_json *in,
    const cJSON *item, const cJSON *const *found, const cJSON **culprit, struct error *err)
{
    const cJSON *key = found[0], *owner = found[1];
    uint64_t uid = 0;

    (void)in;
    (void)item;
    if (!cJSON_IsString(key) || owner == NULL) {
        return option_wrong_type("{\"key\": \"PUBLIC KEY\", \"owner\": USER}", err);
    }
    *culprit = owner;
    if (user_read(owner, &uid, err) != ADTOPK_OK) {
        return err->code;
    }
    *culprit = key;
    return add_trainer(config, key->valuestring, uid, err);
}

static size_t count_trainers(const struct config *config)
{
    return config->trainer_count;
}

static cJSON *print_trainer(const struct config *config, size_t at)
{
    cJSON *trainer = cJSON_CreateObject();
    bool whole = option_add(trainer, "key", cJSON_CreateString(config->trainers[at].key)) &&
                 option_add(trainer, "owner", cJSON_CreateNumber(config->trainers[at].owner));

    return option_if(whole, trainer);
}

const struct option_list trainer_list = {.fields = {"key", "owner"},
    .count = count_trainers,
    .clear = clear_trainers,
    .add_text = add_trainer_text,
    .add_json = add_trainer_json,
    .print = print_trainer};

/* ---- checks across settings ---- */

void check_trainers(const struct config *config, struct faults *faults)
{
    const char *listen = config->trainers_listen;
    const bool keyed = config->trainer_count > 0, owned = config->trainers_owner != CONFIG_NOBODY;
    const char *key = keyed ? "trainers" : "trainers_owner";
    struct error err;

    if (listen[0] == '\0') {
        if (keyed || owned) {
            config_fault(config, key, faults,
                "%s: trainers_listen, the address for trainers, is needed too", key);
        }
        return;
    }
    if (keyed && config->key_file[0] == '\0') {
        config_fault(config, "trainers", faults,
            "trainers: key_file is needed too: it proves to them that they talk to this node");
    }
    if (keyed == owned) {
        config_fault(config, "trainers_listen", faults,
            "trainers_listen: set either trainers (with keys) or trainers_owner (without keys) to "
            "name their users");
    }
    if (endpoint_check(listen, "trainers_listen", &err) != ADTOPK_OK) {
        config_fault(config, "trainers_listen", faults, "%s", err.text);
    } else if (owned && !keyed && !config->insecure) {
        config_fault(config, "trainers_listen", faults,
            "trainers_listen: every user of %s that can reach %.100s would train as that user: "
            "list the permitted ones with their keys in trainers; --insecure lets all in",
            endpoint_is_loopback(listen) ? "this machine" : "any machine", listen);
    }
}

/* Trainers on other machines: opening the module that serves them, and their keys. */
#include <stdlib.h>
#include <string.h>

#include "daemon/loop/loop_state.h"

/* The keys as the module wants them. NULL without memory. */
static struct remote_owner *loop_remote_list_owners(const struct config *config)
{
    struct remote_owner *owners = calloc(config->trainer_count + 1, sizeof(*owners));

    for (size_t i = 0; owners != NULL && i < config->trainer_count; i++) {
        memcpy(owners[i].key, config->trainers[i].key, sizeof(owners[i].key));
        owners[i].uid = config->trainers[i].owner;
    }
    return owners;
}

static const void *loop_remote_find_results(void *context, uint64_t job, unsigned batch)
{
    const struct loop *loop = context;

    return local_results(loop->local, job, batch);
}

static enum adtopk_status loop_remote_create_remote(
    struct loop *loop, const struct remote_owner *owners, struct error *err)
{
    const struct config *config = loop->config;
    struct keyfile_pair pair;
    const struct remote_config remote = {
        .listen = config->trainers_listen,
        .pair = config->trainer_count > 0 ? &pair : NULL,
        .owners = owners,
        .owner_count = config->trainer_count,
        .owner = (uint32_t)config->trainers_owner,
        .heartbeat_ms = (uint32_t)config->link.heartbeat_ms,
        .timeout_ms = (uint32_t)config->link.peer_timeout_ms,
        .warn = loop_log_refused,
        .results = loop_remote_find_results,
    };

    if (config_load_keys(config, &pair, err) != ADTOPK_OK) {
        return err->code;
    }
    loop->remote = remote_create(&loop->uv, &remote, &loop->doors, loop, err);
    keyfile_wipe(&pair);
    if (loop->remote == NULL) {
        return err->code;
    }
    log_write(loop->log, LEVEL_INFO, LOG_LIFE, "trainers on other machines connect to %s",
        remote_endpoint(loop->remote));
    return ADTOPK_OK;
}

enum adtopk_status loop_open_remote(struct loop *loop, struct error *err)
{
    struct remote_owner *owners;
    enum adtopk_status status;

    if (loop->config->trainers_listen[0] == '\0') {
        return ADTOPK_OK;
    }
    owners = loop_remote_list_owners(loop->config);
    if (owners == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the keys of trainers");
    }
    status = loop_remote_create_remote(loop, owners, err);
    free(owners);
    return status;
}

enum adtopk_status loop_reload_remote(struct loop *loop, const struct config *fresh,
    const struct keyfile_pair *pair, struct error *err)
{
    struct remote_owner *owners;
    enum adtopk_status status;

    if (loop->remote == NULL || fresh->trainer_count == 0) {
        return ADTOPK_OK;
    }
    owners = loop_remote_list_owners(fresh);
    if (owners == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for the keys of trainers");
    }
    status = remote_reload(loop->remote, pair, owners, fresh->trainer_count, err);
    free(owners);
    return status;
}

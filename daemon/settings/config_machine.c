/*
 * The needs of the configuration on this machine. A daemon that starts meets one such fault and
 * ends; --check-config looks for all of them before.
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/settings/config_option.h"

#define RUNTIME_FOLDER "/run/adtopk/" /* the service manager makes it when the daemon starts */

static bool is_default(const struct config *config, const char *key)
{
    return option_source(config, key)->layer == LAYER_DEFAULT;
}

/* The default control_group may be missing: then only root and the daemon's user may change things.
 * A group that the configuration names should exist. */
static void check_group(
    const struct config *config, const char *key, const char *group, struct faults *faults)
{
    if (!is_default(config, key) && getgrnam(group) == NULL) {
        config_fault(config, key, faults, "%s: this system has no group \"%s\"", key, group);
    }
}

/* Whether the folder of the path is there; a relative path has its own fault. */
static bool check_folder(
    const struct config *config, const char *key, const char *path, struct faults *faults)
{
    char folder[CONFIG_KEY_FILE_SIZE];
    const char *slash = strrchr(path, '/');
    struct stat info;

    if (path[0] != '/' || is_default(config, key)) {
        return true;
    }
    if (strncmp(path, RUNTIME_FOLDER, strlen(RUNTIME_FOLDER)) == 0) {
        return true;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (stat(folder, &info) != 0) {
        config_fault(
            config, key, faults, "%s: the folder %.100s: %s", key, folder, strerror(errno));
    } else if (S_ISDIR(info.st_mode)) {
        return true;
    } else {
        config_fault(config, key, faults, "%s: %.100s is not a folder", key, folder);
    }
    return false;
}

/* What is wrong with a key that is not this node's public key. NULL: nothing. */
static const char *key_fault(const char *key, const struct keyfile_pair *own)
{
    if (own->secret_key[0] != '\0' && strcmp(key, own->secret_key) == 0) {
        return "this is the secret key of this node: its public key belongs to others, and the "
               "secret one, which is in a second file now, should be replaced";
    }
    return keyfile_may_be_public(key) ? NULL
                                      : "this is no public key: if it is a secret one, replace "
                                        "that pair and put its public key here";
}

static void check_public_keys(
    const struct config *config, const struct keyfile_pair *own, struct faults *faults)
{
    for (size_t i = 0; i < config->peer_count; i++) {
        const struct config_peer *peer = &config->peers[i];

        for (size_t k = 0; k < CONFIG_PEER_KEYS && peer->keys[k][0] != '\0'; k++) {
            const char *fault = key_fault(peer->keys[k], own);

            if (fault != NULL) {
                config_peer_fault(config, peer, faults, "peer %u: %s", peer->node, fault);
            }
        }
    }
    for (size_t i = 0; i < config->trainer_count; i++) {
        const char *fault = key_fault(config->trainers[i].key, own);

        if (fault != NULL) {
            config_fault(config, "trainers", faults, "trainer %zu: %s", i, fault);
        }
    }
}

void config_check_machine(const struct config *config, struct faults *faults)
{
    struct keyfile_pair own = {.secret_key = ""};
    struct error err = {.code = ADTOPK_OK};

    check_group(config, "control_group", config->control_group, faults);
    check_group(config, "session_group", config->session_group, faults);
    (void)check_folder(config, "socket", config->socket, faults);
    (void)check_folder(config, "control_socket", config->control_socket, faults);
    if (check_folder(config, "key_file", config->key_file, faults) &&
        config_load_keys(config, &own, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    check_public_keys(config, &own, faults);
    keyfile_wipe(&own);
}

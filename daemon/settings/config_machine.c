/*
 * The needs of the configuration on this machine. A daemon that starts meets one such fault and
 * ends; --check-config looks for all of them before.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/settings/config_option.h"
#include "daemon/settings/endpoint.h"

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

/* The daemon makes its sockets in their folders, as the user that it is by now. */
static void check_socket(
    const struct config *config, const char *key, const char *path, struct faults *faults)
{
    char folder[CONFIG_KEY_FILE_SIZE];
    const char *slash = strrchr(path, '/');

    if (!check_folder(config, key, path, faults) || path[0] != '/' || is_default(config, key) ||
        strncmp(path, RUNTIME_FOLDER, strlen(RUNTIME_FOLDER)) == 0) {
        return;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
    if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) != 0) {
        config_fault(config, key, faults, "%s: user %u may not write to the folder %.100s: %s", key,
            (unsigned)geteuid(), folder, strerror(errno));
    }
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

/* Whether the address is on this machine; the port may be one at which a daemon listens. */
static bool machine_has(const struct addrinfo *address)
{
    const int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool missing =
        fd >= 0 && bind(fd, address->ai_addr, address->ai_addrlen) != 0 && errno == EADDRNOTAVAIL;

    if (fd >= 0) {
        (void)close(fd);
    }
    return !missing;
}

static void check_host(const struct config *config, const char *key, const char *endpoint,
    bool lasting, struct faults *faults)
{
    const struct addrinfo hints = {
        .ai_family = endpoint_is_ipv6(endpoint) ? AF_INET6 : AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    char host[ENDPOINT_HOST_SIZE];
    const char *port;
    struct error err;
    int code;

    if (endpoint_check(endpoint, key, &err) != ADTOPK_OK || endpoint_is_any(endpoint) ||
        !endpoint_split(endpoint, host, &port) || if_nametoindex(host) != 0) {
        return; /* libzmq takes an interface, too */
    }
    code = getaddrinfo(host, "0", &hints, &found);
    if (code != 0 && !(lasting && (code == EAI_AGAIN || code == EAI_SYSTEM))) {
        config_fault(config, key, faults, "%s: %s: %s", key, host,
            code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
    } else if (code == 0 && !lasting && !machine_has(found)) {
        config_fault(
            config, key, faults, "%s: this machine does not have the address %s", key, host);
    }
    if (found != NULL) {
        freeaddrinfo(found);
    }
}

void config_check_hosts(const struct config *config, bool lasting, struct faults *faults)
{
    check_host(config, "listen", config->listen, lasting, faults);
    check_host(config, "bulk_listen", config->bulk_listen, lasting, faults);
    check_host(config, "trainers_listen", config->trainers_listen, lasting, faults);
}

void config_check_machine(const struct config *config, struct faults *faults)
{
    struct keyfile_pair own = {.secret_key = ""};
    struct error err = {.code = ADTOPK_OK};

    check_group(config, "control_group", config->control_group, faults);
    check_group(config, "session_group", config->session_group, faults);
    config_check_hosts(config, false, faults);
    check_socket(config, "socket", config->socket, faults);
    check_socket(config, "control_socket", config->control_socket, faults);
    if (check_folder(config, "key_file", config->key_file, faults) &&
        config_load_keys(config, &own, &err) != ADTOPK_OK) {
        (void)faults_add(faults, err.code, "%s", err.text);
    }
    check_public_keys(config, &own, faults);
    keyfile_wipe(&own);
}

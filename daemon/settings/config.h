/*
 * The daemon's configuration: defaults, one JSON file, ADTOPK_* variables and flags, in rising
 * order. One table of options (config_option.c) yields the keys, the variables, the flags and
 * --help.
 *
 * The configuration remembers where each value is from, for errors and for --print-config. A
 * running daemon reads everything again with config_reload().
 *
 * The file is read strictly. An unknown or repeated key, a wrong type, a number out of range and
 * text after the document are faults. They name file, line, column and key (proto/json.h). One run
 * finds all faults; a value that could not be read is not checked against others.
 */
#ifndef ADTOPK_CONFIG_H
#define ADTOPK_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"
#include "proto/faults.h"
#include "proto/keyfile.h"

#define CONFIG_PATH_SIZE 108 /* the size of a socket's address, including the NUL */
#define CONFIG_ENDPOINT_SIZE 272
#define CONFIG_GROUP_SIZE 33 /* of a group's name, including the NUL (useradd's limit) */
#define CONFIG_FILE_SIZE 101
#define CONFIG_SOURCE_SIZE 128
#define CONFIG_FILE "/etc/adtopk/adtopkd.json" /* read if it exists and no other one is named */

#define RUNTIME_FOLDER "/run/adtopk/" /* the service manager makes it when the daemon starts */

#define CONFIG_KEY_FILE_SIZE 512
#define CONFIG_WORKERS_MAX 256
#define CONFIG_PEER_KEYS 2 /* the old and the new one while it changes */

struct config_peer {
    uint16_t node;
    bool seed;                           /* this node takes its word for who the others are */
    char endpoint[CONFIG_ENDPOINT_SIZE]; /* "": the node tells it when it asks this one, its seed */
    char keys[CONFIG_PEER_KEYS][KEYFILE_KEY_SIZE]; /* "" behind the last one */
    size_t place;                                  /* in the file's text, if it is from there */
};

#define CONFIG_MAX_TRAINERS 1024
#define CONFIG_NOBODY UINT64_MAX

/* A trainer on another machine: its owner, by its public key. */
struct config_trainer {
    char key[KEYFILE_KEY_SIZE];
    uint32_t owner; /* uid */
};

/* Protection of the traffic between nodes that have keys. */
enum config_protection {
    PROTECTION_CURVE, /* all is encrypted */
    PROTECTION_NONE,  /* bulk is not, control is */
    PROTECTION_COUNT
};

/* Whose jobs a user may see, unless the user is an administrator. */
enum config_visible { VISIBLE_ALL, VISIBLE_OWN, VISIBLE_COUNT };

/* Who makes the passes over residuals. */
enum config_engine {
    CONFIG_ENGINE_AUTO, /* the processor */
    CONFIG_ENGINE_HOST, /* the processor */
    CONFIG_ENGINE_CUDA, /* GPUs */
    CONFIG_ENGINE_COUNT
};

enum config_layer { LAYER_DEFAULT, LAYER_FILE, LAYER_VARIABLE, LAYER_FLAG };

/* Where a value is from. */
struct config_source {
    enum config_layer layer;
    bool faulty;   /* this layer has a value, but it could not be read */
    unsigned line; /* LAYER_FILE: where the value starts */
    size_t place;  /* LAYER_FILE: the same in bytes */
};

#define CONFIG_OPTIONS_MAX 64

/* The limits of one user. The members have the names of their keys. */
struct config_limits {
    uint64_t commit_timeout_ms;
    uint64_t user_sessions; /* 0: three quarters of all */
    uint64_t user_jobs;
    uint64_t user_memory; /* percent */
    uint64_t user_requests;
};

/* What computes, and where residuals and traces lie. The members have the names of their keys. */
struct config_compute {
    uint64_t workers; /* 0: as many as suit the machine */
    uint64_t engine;
    uint64_t gpu_memory_limit;           /* bytes on each GPU; 0: all */
    char store_folder[CONFIG_PATH_SIZE]; /* "": only a service manager keeps stores */
    uint64_t residual_ttl_s;
    char trace_folder[CONFIG_PATH_SIZE]; /* traces of failed and stuck jobs; "": there are none */
};

/* Packets between nodes. The members have the names of their keys. */
struct config_link {
    uint64_t part_size; /* bytes */
    uint64_t window;    /* bytes */
    uint64_t peer_timeout_ms;
    uint64_t heartbeat_ms;
    uint64_t network_threads; /* 0: as many as suit the machine */
};

/* Where a configuration was read. */
struct config_origin {
    char file[CONFIG_FILE_SIZE];                     /* that was read, cut if longer; "": none */
    char *text;                                      /* of that file; NULL: none */
    struct config_source source[CONFIG_OPTIONS_MAX]; /* in the order of the options' table */
    int argc;                                        /* as given to config_load() */
    char *const *argv; /* as given to config_load(), for config_reload() */
};

struct config {
    uint64_t node;
    char listen[CONFIG_ENDPOINT_SIZE];    /* "": no other nodes */
    char advertise[CONFIG_ENDPOINT_SIZE]; /* "": see config_advertised() */
    struct config_peer *peers;            /* of the settings peers and seeds */
    size_t peer_count;
    char key_file[CONFIG_KEY_FILE_SIZE]; /* "": no keys */
    uint64_t data_protection;
    char bulk_listen[CONFIG_ENDPOINT_SIZE];     /* "": see config_bulk_endpoint() */
    char trainers_listen[CONFIG_ENDPOINT_SIZE]; /* "": no trainers on other machines */
    struct config_trainer *trainers;
    size_t trainer_count;    /* 0: they need no keys */
    uint64_t trainers_owner; /* uid of trainers without keys, or CONFIG_NOBODY */
    uint64_t user; /* uid that root changes to, or CONFIG_NOBODY: the daemon keeps its user */
    char socket[CONFIG_PATH_SIZE];
    char control_socket[CONFIG_PATH_SIZE];
    char control_group[CONFIG_GROUP_SIZE];
    char session_group[CONFIG_GROUP_SIZE]; /* "": all users may open sessions */
    uint64_t jobs_visible;
    struct config_compute compute;
    uint64_t log_level;
    uint64_t log_format;
    char *policy; /* JSON text; NULL: the built-in default */
    bool insecure;
    struct config_link link;
    uint64_t stop_timeout_ms;
    uint64_t stuck_after_ms;
    struct config_limits limits;
    struct config_origin origin;
};

/* The action that the command line requests. */
enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_PRINT, CONFIG_HELP, CONFIG_VERSION };

/**
 * Reads all layers and checks that the settings go together. `environment` looks a variable up
 * (getenv in the daemon). Each fault names its setting and where that was set. ADTOPK_ERR_STATE is
 * a fault of the command line (usage), any other code one of the configuration. Free with
 * config_free() in either case. argv is kept, for config_reload().
 */
void config_load(struct config *config, int argc, char *const *argv,
    char *(*environment)(const char *name), enum config_action *action, struct faults *faults);

void config_free(struct config *config);

/**
 * Reads all layers again, as for `running`, and checks that a running daemon can change to the new
 * values. ADTOPK_ERR_STATE names a setting that needs a restart. Free `fresh` with config_free() in
 * either case.
 */
enum adtopk_status config_reload(const struct config *running, struct config *fresh,
    char *(*environment)(const char *name), struct error *err);

#define CONFIG_CHANGES_SIZE 512

/** The keys in which two configurations differ, such as "log_level, peers"; "" if in none. */
void config_changes(
    const struct config *running, const struct config *fresh, char text[CONFIG_CHANGES_SIZE]);

/** Appends a peer; ADTOPK_ERR_MEMORY. */
enum adtopk_status config_add_peer(struct config *config, const struct config_peer *peer);

/** The peer with this id, or NULL. */
const struct config_peer *config_find_peer(const struct config *config, uint16_t node);

/** Checks that this machine knows the hosts at which the daemon listens. It may block. lasting:
 * only what another start would meet again, so neither a name server that is silent now nor an
 * address that the machine does not have yet. */
void config_check_hosts(const struct config *config, bool lasting, struct faults *faults);

/**
 * Checks what the configuration needs from this machine: hosts, groups, folders, key files. For
 * --check-config: a daemon that starts meets the same faults one by one. It may block and takes
 * about a millisecond for every key.
 */
void config_check_machine(const struct config *config, struct faults *faults);

/** Reads this node's keys, and checks them against the peers'. To be wiped with keyfile_wipe();
 * empty if there is no key_file. */
enum adtopk_status config_load_keys(
    const struct config *config, struct keyfile_pair *pair, struct error *err);

/** Where bulk is received in the clear; false if it is not. */
bool config_bulk_endpoint(const struct config *config, char endpoint[CONFIG_ENDPOINT_SIZE]);

/** The endpoint that this node tells its seeds. */
const char *config_advertised(const struct config *config);

/** The traffic between nodes that is not protected, as a sentence for the log; NULL if there is
 * none, or if it stays on this machine. */
const char *config_unprotected(const struct config *config);

/** Whether no file and no setting says which node this is, and who its peers are. */
bool config_is_unset(const struct config *config);

/** Why peers on other machines will not reach this node, as a sentence; NULL if they may. */
const char *config_unreachable(const struct config *config);

/** Checks the policy. */
void config_check_policy(const struct config *config, struct faults *faults);

/** Where the value of a setting is from: "default", "FILE:LINE", "ADTOPK_..." or "--...". */
void config_where(const struct config *config, const char *key, char where[CONFIG_SOURCE_SIZE]);

/** Prints all settings, and where each is from, as a JSON document; ADTOPK_ERR_MEMORY. */
enum adtopk_status config_print(const struct config *config, FILE *out, struct error *err);

#define CONFIG_VARIABLE_SIZE 160

/** Looks for variables of `environment` ("NAME=value", NULL-terminated) that are called ADTOPK_*
 * but are unknown to adtopk. *at says where to go on. Returns false if there is none; otherwise
 * `text` gets a sentence that guesses the intended name. */
bool config_unknown_variable(char *const *environment, size_t *at, char text[CONFIG_VARIABLE_SIZE]);

/** The text of --help. */
void config_help(FILE *out);

/** Worker threads when the configuration leaves it to us: one core is the loop's, at most 4. */
unsigned config_default_workers(long cores);

/** Network threads when it is left to us: the packets of 8 cores are work for one, at most 4. */
unsigned config_default_network_threads(long cores);

#endif

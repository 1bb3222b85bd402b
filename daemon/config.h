/*
 * The daemon's configuration: defaults, one JSON file, ADTOPK_* variables and flags, in rising
 * order. One table of options (config.c) yields the keys, the variables, the flags and --help.
 *
 * The file is read strictly: an unknown or repeated key, a wrong type, a number out of range and
 * anything after the document are errors that name the file, the key and the line.
 */
#ifndef ADTOPK_CONFIG_H
#define ADTOPK_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"
#include "proto/keyfile.h"

#define CONFIG_PATH_SIZE 108 /* what a socket's address can hold, including the NUL */
#define CONFIG_ENDPOINT_SIZE 272
#define CONFIG_SOURCE_SIZE 160
#define CONFIG_KEY_FILE_SIZE 1024
#define CONFIG_MAX_TRAINERS 1024
#define CONFIG_NOBODY UINT64_MAX
#define CONFIG_FILE "/etc/adtopk/adtopkd.json" /* read if it exists and no other one is named */

struct config_peer {
    uint16_t node;
    char endpoint[CONFIG_ENDPOINT_SIZE];
};

/* A trainer on another machine: whose it is, by its public key. */
struct config_trainer {
    char key[KEYFILE_KEY_SIZE];
    uint32_t owner; /* uid */
};

struct config {
    uint64_t node;
    char listen[CONFIG_ENDPOINT_SIZE]; /* "": no other nodes */
    struct config_peer *peers;
    size_t peer_count;
    char trainers_listen[CONFIG_ENDPOINT_SIZE]; /* "": no trainers on other machines */
    struct config_trainer *trainers;            /* who may come, by key */
    size_t trainer_count;                       /* 0: no keys, they are all trainers_owner's */
    uint64_t trainers_owner;                    /* uid, or CONFIG_NOBODY */
    char key_file[CONFIG_KEY_FILE_SIZE];        /* this node's keys; "": none */
    char socket[CONFIG_PATH_SIZE];
    char control_socket[CONFIG_PATH_SIZE];
    uint64_t workers; /* 0: as many as suit the machine */
    uint64_t log_level;
    uint64_t log_format;
    char *policy;                           /* JSON text; NULL: the built-in default */
    char policy_source[CONFIG_SOURCE_SIZE]; /* where it is from: "FILE:LINE", a variable, a flag */
    bool insecure;
    uint64_t chunk_size; /* bytes */
    uint64_t window;     /* bytes */
    uint64_t peer_timeout_ms;
    uint64_t heartbeat_ms;
};

/* What the command line asks for. */
enum config_action { CONFIG_RUN, CONFIG_CHECK, CONFIG_HELP, CONFIG_VERSION };

/**
 * Reads all layers. `environment` looks a variable up (getenv in the daemon). On an error the
 * status says whose it is: ADTOPK_ERR_STATE the command line's (usage), anything else the
 * configuration's. Free with config_free() in either case.
 */
enum adtopk_status config_load(struct config *config, int argc, char *const *argv,
    char *(*environment)(const char *name), enum config_action *action, struct error *err);

void config_free(struct config *config);

/** The next variable of `environment` ("NAME=value", NULL-terminated, *at: where to go on) that is
 * called ADTOPK_* but is no setting and nothing else that adtopk knows: perhaps a slip of the pen.
 * NULL if there is none. */
const char *config_unknown_variable(char *const *environment, size_t *at);

/** The text of --help. */
void config_help(FILE *out);

/** Worker threads when the configuration leaves it to us: one core is the loop's, at most 4. */
unsigned config_default_workers(long cores);

#endif

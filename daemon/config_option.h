/*
 * The table of settings, and how one setting is read from a text (a variable, a flag) or from a
 * value of the configuration file.
 */
#ifndef ADTOPK_CONFIG_OPTION_H
#define ADTOPK_CONFIG_OPTION_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config.h"
#include "proto/json.h"

enum option_type {
    OPTION_NUMBER, /* uint64_t from low to high */
    OPTION_CHOICE, /* uint64_t, an index into names[0..high] */
    OPTION_TEXT,   /* char[size], at least one byte long */
    OPTION_SWITCH, /* bool */
    OPTION_POLICY, /* a JSON object, kept as text */
    OPTION_PEERS,
    OPTION_TRAINERS,
    OPTION_USER /* uint64_t, a uid; given as a name or a number */
};

struct option {
    const char *key;
    enum option_type type;
    size_t offset; /* of the field in struct config */
    uint64_t low;
    uint64_t high; /* OPTION_TEXT: the field's size */
    const char *const *names;
    const char *argument; /* how --help calls the value; NULL: none needed */
    const char *help;
    bool live; /* may change while the daemon runs */
};

#define OPTION_COUNT 29
#define OPTION_NAME_SIZE 40

extern const struct option option_table[OPTION_COUNT];

/** The option with this key, or NULL. */
const struct option *option_find(const char *key, size_t length);

/** "ADTOPK_LOG_LEVEL" and "--log-level" of "log_level". */
void option_variable(const struct option *option, char name[OPTION_NAME_SIZE]);
void option_flag(const struct option *option, char name[OPTION_NAME_SIZE]);

/** Sets the field from a text. `where` begins the sentence of a fault. */
void option_set_text(struct config *config, const struct option *option, const char *text,
    const char *where, struct faults *faults);

/** A document that settings are read from. */
struct option_json {
    const struct json *json;
    struct faults *faults;
};

/** Sets the field from a value of the document. */
void option_set_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value);

/** Finds the members of an object by their names, in the order of `names`; `found` is NULL where
 * there is none. False with a fault, whose sentence begins with `prefix`, for each member that is
 * unknown or repeated. */
bool object_fields(const struct option_json *in, const cJSON *object, const char *prefix,
    const char *const *names, size_t count, const cJSON **found);

/* ---- config_trainers.c ---- */

/** Reads a user's name or number. */
enum adtopk_status user_read_text(const char *text, uint64_t *uid, struct error *err);
enum adtopk_status user_read_json(const cJSON *value, uint64_t *uid, struct error *err);

/** Reads the list of trainers, in place of the one that is there. */
enum adtopk_status trainers_read_text(struct config *config, const char *text, struct error *err);
void trainers_read_json(struct config *config, const struct option_json *in, const cJSON *value);

void trainers_clear(struct config *config);
bool trainers_differ(const struct config *one, const struct config *other);

/** The list as the configuration file has it; NULL without memory. */
cJSON *trainers_json(const struct config *config);

#endif

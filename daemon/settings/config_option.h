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

#include "daemon/settings/config.h"
#include "proto/guess.h"
#include "proto/json.h"

#define CONFIG_NODE_MAX (UINT16_MAX - 1)

enum option_type {
    OPTION_NUMBER, /* uint64_t from low to high */
    OPTION_CHOICE, /* uint64_t, an index into names[0..high] */
    OPTION_TEXT,   /* char[size], at least one byte long */
    OPTION_SWITCH, /* bool */
    OPTION_POLICY, /* a JSON object, kept as text */
    OPTION_LIST,   /* one of the entries of `list` */
    OPTION_USER    /* uint64_t, a uid; given as a name or a number */
};

/* A document that settings are read from. */
struct option_json {
    const struct json *json;
    struct faults *faults;
};

#define OPTION_FIELDS_MAX 3 /* of the objects in a list */

/* A list of objects; as a text, entries with commas between them. */
struct option_list {
    const char *fields[OPTION_FIELDS_MAX]; /* NULL behind the last */
    size_t (*count)(const struct config *config);
    void (*clear)(struct config *config);

    /* Adds the entry; the function may cut its text into parts. */
    enum adtopk_status (*add_text)(struct config *config, char *entry, struct error *err);

    /* Adds the object. `found` has its fields in the order of the list, NULL where there is none;
     * `culprit` gets the item that an error is about. */
    enum adtopk_status (*add_json)(struct config *config, const struct option_json *in,
        const cJSON *item, const cJSON *const *found, const cJSON **culprit, struct error *err);

    /* The object as the configuration file has it; NULL without memory. */
    cJSON *(*print)(const struct config *config, size_t at);
};

extern const struct option_list peer_list, seed_list, trainer_list;

#define OPTION_COUNT 39
#define OPTION_READS_MAX 6

struct option {
    const char *key;
    enum option_type type;
    size_t offset; /* of the field in struct config */
    size_t size;
    uint64_t low;
    uint64_t high;
    const char *const *names;
    const struct option_list *list;
    const char *standard; /* the default; NULL: a field of zeros, or CONFIG_NOBODY */
    const char *argument; /* how --help calls the value; NULL: none needed */
    const char *help;
    bool live; /* may change while the daemon runs */

    /* Checks that the setting goes with those that it `reads`. NULL: nothing to check. */
    void (*check)(const struct config *config, struct faults *faults);
    const char *reads[OPTION_READS_MAX]; /* NULL behind the last */
};

#define OPTION_NAME_SIZE 40

extern const struct option option_table[OPTION_COUNT];

/* How a setting is called in the file, the environment and the command line: "log_level",
 * "ADTOPK_LOG_LEVEL", "--log-level". */
enum option_style { STYLE_KEY, STYLE_VARIABLE, STYLE_FLAG };

void option_name(const struct option *option, enum option_style style, char name[OPTION_NAME_SIZE]);

/** The option that is called so, or NULL. */
const struct option *option_find(enum option_style style, const char *name, size_t length);

/** Begins to guess which option is meant by `word`, which must outlive the guess. */
void option_guess(enum option_style style, const char *word, struct guess *guess);

/** Where the value of the setting `key` is from. */
const struct config_source *option_source(const struct config *config, const char *key);

/** Adds a fault of the setting `key`, which stands at `place` if it is from the file. */
void config_fault_at(const struct config *config, const char *key, size_t place,
    struct faults *faults, const char *format, ...) __attribute__((format(printf, 5, 6)));

/** The same for the place of the setting, and for that of one of the peers. */
#define config_fault(config, key, ...)                                                             \
    config_fault_at(config, key, option_source(config, key)->place, __VA_ARGS__)
#define config_peer_fault(config, peer, ...)                                                       \
    config_fault_at(config, (peer)->seed ? "seeds" : "peers", (peer)->place, __VA_ARGS__)

/** Checks each setting that could be read, as could all that its check reads. */
void option_check_all(const struct config *config, struct faults *faults);

/* ---- config_read.c ---- */

/** Sets the field from a text. `where` begins the sentence of a fault. */
void option_set_text(struct config *config, const struct option *option, const char *text,
    const char *where, struct faults *faults);

/** Sets the field from a value of the document. */
void option_set_json(struct config *config, const struct option *option,
    const struct option_json *in, const cJSON *value);

/** "WANTED is needed here", and the status of that. */
enum adtopk_status option_wrong_type(const char *wanted, struct error *err);

/** Reads a whole number from 0 to 2^53, or the digits at the beginning of `text`, behind which
 * `end` is set. */
bool option_whole(const cJSON *value, uint64_t *number);
bool option_digits(char *text, uint64_t *number, char **end);

/* ---- config_print.c ---- */

/** The value as the configuration file has it; NULL without memory. */
cJSON *option_json(const struct option *option, const struct config *config);

/** Adds the item to an object, or with `name` NULL to an array. False without memory; the item is
 * taken over in either case. */
bool option_add(cJSON *to, const char *name, cJSON *item);

/** The item if it is whole; else deletes it and returns NULL. */
cJSON *option_if(bool whole, cJSON *item);

/* ---- config_peers.c ---- */

void check_peers(const struct config *config, struct faults *faults);
void check_advertise(const struct config *config, struct faults *faults);
void check_keys(const struct config *config, struct faults *faults);

/* ---- config_trainers.c ---- */

/** Reads a user's name or number. */
enum adtopk_status user_read(const cJSON *value, uint64_t *uid, struct error *err);

void check_trainers(const struct config *config, struct faults *faults);

#endif

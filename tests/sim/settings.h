/*
 * The command line of a program of this folder, as a table: the name of an option, its argument,
 * where the value goes, and its text in --help.
 */
#ifndef ADTOPK_SIM_SETTINGS_H
#define ADTOPK_SIM_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>

enum setting_kind {
    SETTING_NUMBER, /* a double from `least` to `most`; `start` where it is not given */
    SETTING_WHOLE,  /* the same, and whole */
    SETTING_TEXT,   /* a const char *, of argv */
    SETTING_SWITCH, /* a bool */
};

struct setting {
    const char *name;
    enum setting_kind kind;
    size_t at; /* where in the program's `struct settings` */
    const char *help;
    double start, least, most;
};

/* A row of the table. */
#define SETTING(kind, name, field, help, start, least, most)                                       \
    {                                                                                              \
        name, SETTING_##kind, offsetof(struct settings, field), help, start, least, most           \
    }

/** Sets numbers to their starts and takes the options into `settings`, a `struct settings` of
 * zeros. At most 30 settings. --help prints `usage` and the table, and ends the program. False and
 * a line on stderr if there is anything else in argv. */
bool settings_read(const char *usage, const struct setting *table, size_t count, void *settings,
    int argc, char **argv);

#endif

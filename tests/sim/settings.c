#include "tests/sim/settings.h"

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SETTINGS_MAX 30

static void settings_help(const char *usage, const struct setting *table, size_t count)
{
    (void)printf("%s\n", usage);
    for (size_t i = 0; i < count; i++) {
        (void)printf("  --%-14s %s", table[i].name, table[i].help);
        (void)(table[i].kind <= SETTING_WHOLE ? printf(" [%g]\n", table[i].start) : printf("\n"));
    }
}

static bool settings_number(const struct setting *setting, const char *text, double *number)
{
    bool whole = setting->kind == SETTING_WHOLE;
    char *end;

    *number = strtod(text, &end);
    if (end == text || *end != '\0' || !(*number >= setting->least && *number <= setting->most) ||
        (whole && *number != floor(*number))) {
        (void)fprintf(stderr, "%s: --%s: \"%s\" is no %snumber from %g to %g\n",
            program_invocation_short_name, setting->name, text, whole ? "whole " : "",
            setting->least, setting->most);
        return false;
    }
    return true;
}

static bool settings_take(const struct setting *setting, const char *text, void *settings)
{
    void *to = (char *)settings + setting->at;

    switch (setting->kind) {
    case SETTING_TEXT: *(const char **)to = text; return true;
    case SETTING_SWITCH: *(bool *)to = true; return true;
    default: return settings_number(setting, text, to);
    }
}

bool settings_read(const char *usage, const struct setting *table, size_t count, void *settings,
    int argc, char **argv)
{
    struct option options[SETTINGS_MAX + 2] = {{.name = "help"}};
    int at;

    assert(count <= SETTINGS_MAX);
    for (size_t i = 0; i < count; i++) {
        options[i + 1].name = table[i].name;
        options[i + 1].has_arg = table[i].kind != SETTING_SWITCH;
        if (table[i].kind <= SETTING_WHOLE) {
            *(double *)(void *)((char *)settings + table[i].at) = table[i].start;
        }
    }
    for (int found; (found = getopt_long(argc, argv, "", options, &at)) != -1;) {
        if (found == 0 && at == 0) {
            settings_help(usage, table, count);
            exit(0);
        }
        if (found != 0 || !settings_take(&table[at - 1], optarg, settings)) {
            return false;
        }
    }
    if (optind < argc) {
        (void)fprintf(stderr, "%s: options only (see --help)\n", program_invocation_short_name);
    }
    return optind == argc;
}

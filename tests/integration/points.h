/*
 * Fail points: a program with a stop before and after each function of a table. A test arms one of
 * them through a page that it shares with the program (points.py), and the program then sends
 * itself a signal there: SIGKILL or SIGSTOP. The linker puts the stops in (--wrap), so programs
 * that are installed have none.
 */
#ifndef ADTOPK_TESTS_POINTS_H
#define ADTOPK_TESTS_POINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/error.h"

/** The program is at this point. */
void point(const char *name);

/* The linker compares no types. */
#define POINT_FITS(name)                                                                           \
    _Static_assert(__builtin_types_compatible_p(__typeof__(name), __typeof__(__wrap_##name)),      \
        #name " has other parameters or another result")

#define POINT(name, parameters, arguments)                                                         \
    void __real_##name parameters;                                                                 \
    void __wrap_##name parameters;                                                                 \
    POINT_FITS(name);                                                                              \
    void __wrap_##name parameters                                                                  \
    {                                                                                              \
        point(#name);                                                                              \
        __real_##name arguments;                                                                   \
        point(#name " done");                                                                      \
    }

#define POINT_OF(type, name, parameters, arguments)                                                \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    POINT_FITS(name);                                                                              \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        type result;                                                                               \
        point(#name);                                                                              \
        result = __real_##name arguments;                                                          \
        point(#name " done");                                                                      \
        return result;                                                                             \
    }

typedef enum adtopk_status status;

#endif

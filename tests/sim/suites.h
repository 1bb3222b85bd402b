/* The groups of tests that run in one process with the random scenarios, so that the coverage of
 * all of them can be looked at together. */
#ifndef ADTOPK_SIM_SUITES_H
#define ADTOPK_SIM_SUITES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SUITE_MAX 64

/** Appends at most SUITE_MAX tests; returns their number. */
size_t suite_forming(struct CMUnitTest *tests);
size_t suite_failures(struct CMUnitTest *tests);
size_t suite_switching(struct CMUnitTest *tests);
size_t suite_splits(struct CMUnitTest *tests);
size_t suite_vanish(struct CMUnitTest *tests);
size_t suite_planted(struct CMUnitTest *tests);

#endif

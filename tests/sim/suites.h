/* The groups of tests that run in one process with the random scenarios, so that their coverage is
 * collected together. */
#ifndef ADTOPK_SIM_SUITES_H
#define ADTOPK_SIM_SUITES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Each ends with an empty entry. */
extern const struct CMUnitTest suite_forming[];
extern const struct CMUnitTest suite_failures[];
extern const struct CMUnitTest suite_misuse[];
extern const struct CMUnitTest suite_patience[];
extern const struct CMUnitTest suite_stopped[];
extern const struct CMUnitTest suite_switching[];
extern const struct CMUnitTest suite_splits[];
extern const struct CMUnitTest suite_vanish[];
extern const struct CMUnitTest suite_leaving[];
extern const struct CMUnitTest suite_saving[];
extern const struct CMUnitTest suite_due[];
extern const struct CMUnitTest suite_loss[];
extern const struct CMUnitTest suite_far[];
extern const struct CMUnitTest suite_moving[];
extern const struct CMUnitTest suite_carried[];
extern const struct CMUnitTest suite_shrink[];
extern const struct CMUnitTest suite_forms[];
extern const struct CMUnitTest suite_rests[];
extern const struct CMUnitTest suite_restarting[];
extern const struct CMUnitTest suite_grow[];
extern const struct CMUnitTest suite_newcomers[];
extern const struct CMUnitTest suite_comeback[];
extern const struct CMUnitTest suite_successor[];
extern const struct CMUnitTest suite_planted[];

#endif

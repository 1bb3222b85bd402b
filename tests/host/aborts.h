/*
 * Tests that plant a violation of a rule: an assert must end the process, and name the rule.
 */
#ifndef ADTOPK_TESTS_ABORTS_H
#define ADTOPK_TESTS_ABORTS_H

/** Fails the test unless violate(context), in a process of its own, fails an assert whose line on
 * stderr has this text in it. */
void assert_aborts(void (*violate)(void *context), void *context, const char *text);

#endif

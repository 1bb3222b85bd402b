/*
 * Tests that plant a violation of a rule: an assert must end the process and name the rule.
 */
#ifndef ADTOPK_TESTS_ABORTS_H
#define ADTOPK_TESTS_ABORTS_H

/** Runs violate(context) in a child process. Fails the test unless an assert ends that process and
 * prints a line on stderr that contains this text. */
void assert_aborts(void (*violate)(void *context), void *context, const char *text);

#endif

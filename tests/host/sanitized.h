/* Whether the program runs under a sanitizer, which makes it some ten times slower. */
#ifndef ADTOPK_TESTS_HOST_SANITIZED_H
#define ADTOPK_TESTS_HOST_SANITIZED_H

#include <stdlib.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* A number of cases: the first of the two, or the second under a sanitizer. */
#define CASES(all, sanitized) (SANITIZED ? (sanitized) : (all))

/* The same with a number for long runs (ADTOPK_TEST_LONG), which no sanitizer slows down. */
#define CASES_OF(long_run, plain, sanitized)                                                       \
    (!SANITIZED && getenv("ADTOPK_TEST_LONG") != NULL ? (long_run) : CASES(plain, sanitized))

#endif

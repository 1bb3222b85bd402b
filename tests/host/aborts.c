#include "tests/host/aborts.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void violate_here(void (*violate)(void *context), void *context, int errors)
{
    const struct rlimit none = {0, 0};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    (void)dup2(errors, STDERR_FILENO);
    violate(context);
    _exit(0);
}

void assert_aborts(void (*violate)(void *context), void *context, const char *text)
{
    char said[4096];
    size_t size = 0;
    int errors[2], outcome;
    ssize_t got;
    pid_t child;

    assert_int_equal(pipe(errors), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        violate_here(violate, context, errors[1]);
    }
    (void)close(errors[1]);
    while (size < sizeof said - 1 &&
           (got = read(errors[0], said + size, sizeof said - 1 - size)) > 0) {
        size += (size_t)got;
    }
    said[size] = '\0';
    (void)close(errors[0]);
    assert_int_equal(waitpid(child, &outcome, 0), child);
    if (!WIFSIGNALED(outcome) || WTERMSIG(outcome) != SIGABRT || strstr(said, text) == NULL) {
        fail_msg("no assert of \"%s\" failed: status %d, \"%s\"", text, outcome, said);
    }
}

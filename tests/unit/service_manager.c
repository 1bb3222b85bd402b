#include "tests/unit/service_manager.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct service_manager manager;
static struct keeper keeper;

int manager_setup(void **state)
{
    (void)state;
    memset(&manager, 0, sizeof manager);
    return 0;
}

int manager_teardown(void **state)
{
    (void)state;
    while (manager.count > 0) {
        manager_forget(0);
    }
    return unsetenv("LISTEN_FDS");
}

void manager_forget(unsigned at)
{
    const unsigned behind = MANAGER_MOST - 1 - at;

    (void)close(manager.fd[at]);
    manager.count--;
    memmove(&manager.fd[at], &manager.fd[at + 1], behind * sizeof manager.fd[0]);
    memmove(&manager.name[at], &manager.name[at + 1], behind * sizeof manager.name[0]);
}

void manager_keep(const char *name, int fd)
{
    assert_true(manager.count < MANAGER_MOST);
    (void)snprintf(manager.name[manager.count], FILES_NAME_SIZE, "%s", name);
    manager.fd[manager.count] = fcntl(fd, F_DUPFD_CLOEXEC, MANAGER_ASIDE);
    assert_true(manager.fd[manager.count++] >= 0);
}

enum adtopk_status manager_tell(const char *name, int fd, struct error *err)
{
    manager.asked++;
    if (manager.deaf) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "nobody reads");
    }
    if (fd >= 0) {
        manager_keep(name, fd);
        return ADTOPK_OK;
    }
    for (unsigned at = manager.count; at-- > 0;) {
        if (strcmp(manager.name[at], name) == 0) {
            manager_forget(at);
        }
    }
    return ADTOPK_OK;
}

void manager_pass(void)
{
    char names[MANAGER_MOST * FILES_NAME_SIZE] = "", number[16];

    for (unsigned at = 0; at < manager.count; at++) {
        const int there = MANAGER_FIRST + (int)at;

        assert_int_equal(dup2(manager.fd[at], there), there);
        (void)snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s",
            at > 0 ? ":" : "", manager.name[at]);
    }
    (void)snprintf(number, sizeof number, "%u", manager.count);
    assert_int_equal(setenv("LISTEN_FDS", number, 1), 0);
    (void)snprintf(number, sizeof number, "%d", (int)getpid());
    assert_int_equal(setenv("LISTEN_PID", number, 1), 0);
    assert_int_equal(setenv("LISTEN_FDNAMES", names, 1), 0);
}

struct folder *manager_start(unsigned limit)
{
    struct error err;
    struct folder *folder;
    struct files *files;

    manager_pass();
    files = files_at_manager(manager_tell, limit, &err);
    assert_non_null(files);
    folder = folder_open(files, &keeper, 0, &err);
    assert_non_null(folder);
    return folder;
}

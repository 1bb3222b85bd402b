/*
 * For tests: a service manager that keeps descriptors while daemons come and go, and the beginning
 * of such daemons. One that is deaf keeps nothing and forgets nothing.
 *
 * Happy path: manager_start(); work with the folder; folder_close(); manager_start() is the next
 * daemon. manager_setup() and manager_teardown() are for each test.
 */
#ifndef ADTOPK_TESTS_SERVICE_MANAGER_H
#define ADTOPK_TESTS_SERVICE_MANAGER_H

#include <stdbool.h>

#include "daemon/local/folder.h"

#define MANAGER_MOST 16
#define MANAGER_FIRST 3   /* the descriptor that its protocol names */
#define MANAGER_ASIDE 100 /* its own descriptors are from here on */

/* What it keeps, in the order in which it came. */
struct service_manager {
    char name[MANAGER_MOST][FILES_NAME_SIZE];
    int fd[MANAGER_MOST];
    unsigned count;
    unsigned asked; /* how often a daemon turned to it */
    bool deaf;
};

extern struct service_manager manager;

int manager_setup(void **state);
int manager_teardown(void **state);

#define MANAGER_TEST(name) cmocka_unit_test_setup_teardown(name, manager_setup, manager_teardown)

/** Keeps a descriptor, which stays the caller's. */
void manager_keep(const char *name, int fd);

/** Forgets the at-th of what it keeps. */
void manager_forget(unsigned at);

/** What a daemon has it do: a files_tell. */
enum adtopk_status manager_tell(const char *name, int fd, struct error *err);

/** Passes what it keeps, as to a process that it starts. */
void manager_pass(void);

/** What a daemon does with its stores when it starts. limit: as of files_at_manager(). */
struct folder *manager_start(unsigned limit);

#endif

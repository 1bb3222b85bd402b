/*
 * Calls to the allocator and the operating system that fail as a test has planned. The linker puts
 * these functions before the real ones (--wrap, outage_wraps in meson.build), in all of a program
 * but the libraries that it loads. A plan lies in memory that a child shares with its parent, so
 * that a test can plan for a daemon that it has forked. outage_zmq.c has libzmq's functions.
 */
#ifndef ADTOPK_TESTS_OUTAGE_H
#define ADTOPK_TESTS_OUTAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum outage {
    OUTAGE_MEMORY,      /* ENOMEM: the allocator, mmap(), memfd_create() */
    OUTAGE_DESCRIPTORS, /* EMFILE: all calls that make a descriptor */
    OUTAGE_SPACE,       /* ENOSPC: files, on disk or in memory, that grow or appear */
    OUTAGE_SIGNALS,     /* EINTR, once, from calls that a signal may end */
    OUTAGE_SHORT,       /* half of what was asked for is read or written */
    OUTAGE_KINDS
};

/** The name of a kind, for reports. */
const char *outage_name(enum outage kind);

/** Makes the plan that children share. The first call of a program. */
bool outage_begin(void);

/** From now on calls number `from` to `from` + `count` - 1 of this kind fail in this process. */
void outage_plan(pid_t process, enum outage kind, uint64_t from, uint64_t count);

/** No call fails any more. Returns how many did. */
uint64_t outage_end(void);

/** How many allocations of this process have not been freed. */
int64_t outage_held(pid_t process);

/** A process has ended: its count is free for another one. */
void outage_forget(pid_t process);

/** For a function in the place of a real one: whether this call fails. Then `errno` is `reason`. */
bool outage_fails(enum outage kind, int reason);

#endif

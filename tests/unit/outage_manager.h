/*
 * A service manager in a process of its own: it keeps descriptors of one daemon, and the next
 * daemon gets them. The files of a walk are passed on once, not those that were there before it.
 *
 * Happy path: outage_manager_start(); outage_manager_pass() in each process that becomes the
 * daemon; outage_manager_age() before each walk; outage_manager_stop().
 */
#ifndef ADTOPK_TESTS_OUTAGE_MANAGER_H
#define ADTOPK_TESTS_OUTAGE_MANAGER_H

/** Starts the process. Daemons find its socket, in this folder, by $NOTIFY_SOCKET. */
void outage_manager_start(const char *folder);

/** Ends it, if there is one. */
void outage_manager_stop(void);

/** What is kept now is not passed any more: walks that failed have left it. */
void outage_manager_age(void);

/** Gives this process what the manager keeps, as sd_listen_fds(3) has it. Calls nothing that may
 * fail by plan. */
void outage_manager_pass(void);

/** How many descriptors the daemon has of what the manager keeps of stores: one per file, and two
 * per handle of which no rank has returned. */
int outage_manager_descriptors(void);

/** How many allocations of the daemon know of these: one per file, handle and store. */
int outage_manager_allocations(void);

#endif

/*
 * The processes that a benchmark starts: its ranks, the other ends of links, and load on the cores.
 *
 * Each has its own process group, so that Ctrl-C reaches only the benchmark, which ends the others
 * in order. Each dies with the benchmark, whatever happens.
 */
#ifndef PERF_PROCESS_H
#define PERF_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/error.h"

#define CREW_MAX 260

/* Processes that belong together. Zero-initialised it is empty. */
struct crew {
    pid_t pid[CREW_MAX];
    size_t count;
};

/**
 * Starts a process that runs work(context, index) and ends with its result, 0 for success. Errors:
 * SYSTEM.
 */
enum adtopk_status crew_start(struct crew *crew, int (*work)(void *context, unsigned index),
    void *context, unsigned index, struct error *err);

/**
 * Waits until all have ended. If one fails, or stop_requested(), the others are killed.
 * Errors: STATE (one failed, and said why on its own), SYSTEM.
 */
enum adtopk_status crew_wait(struct crew *crew, struct error *err);

/** Kills the remaining processes and waits for them. */
void crew_kill(struct crew *crew);

/** In a child: leads its own group and dies with the parent. */
void process_detach(pid_t parent);

/** Sleeps, or less if stop_requested(). */
void process_sleep_us(uint64_t us);

/** The path of one of our programs. It is `given` if that is not NULL. Otherwise the function
 * searches the places beside this program, installed or in a build folder, then $PATH. The error
 * names them. */
enum adtopk_status process_find(const char *name, const char *given, const char *const *beside,
    char *path, size_t size, struct error *err);

#endif

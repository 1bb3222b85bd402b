/*
 * The processes that a benchmark starts: its ranks, its other ends, what keeps cores busy.
 *
 * Each is in a process group of its own, so that Ctrl-C reaches only us and we end the others in
 * order, and dies with us whatever happens.
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
 * Starts a process that runs work(context, index) and ends with what it returns, 0 for success.
 * Errors: SYSTEM.
 */
enum adtopk_status crew_start(struct crew *crew, int (*work)(void *context, unsigned index),
    void *context, unsigned index, struct error *err);

/**
 * Waits until all have ended. If one fails, or stop_requested(), the others are killed.
 * Errors: STATE (one failed, and said why on its own), SYSTEM.
 */
enum adtopk_status crew_wait(struct crew *crew, struct error *err);

/** Kills and buries those that are left. */
void crew_kill(struct crew *crew);

/** In a child: leads its own group and dies with the parent. */
void process_detach(pid_t parent);

/** Sleeps, or less if stop_requested(). */
void process_sleep_us(uint64_t us);

/** The path of a program of ours: `given` if it is not NULL, else from the places where it lies
 * beside this one, installed or in a build folder, else from $PATH. The error names them. */
enum adtopk_status process_find(const char *name, const char *given, const char *const *beside,
    char *path, size_t size, struct error *err);

#endif

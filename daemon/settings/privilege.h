/*
 * The rights of the process: becoming an ordinary user, and hiding its memory.
 */
#ifndef ADTOPK_PRIVILEGE_H
#define ADTOPK_PRIVILEGE_H

#include <stdint.h>

#include "proto/error.h"

/**
 * Becomes the user `uid` for good: its group, its supplementary groups, no capabilities, and no way
 * back. To be called while the process has one thread and before it reads anything from outside.
 * Does nothing if the process is that user already. Errors: ARGUMENT (the system has no such user),
 * DENIED (only root can become another user), SYSTEM.
 */
enum adtopk_status privilege_drop(uint64_t uid, struct error *err);

/** From here on the kernel writes no core dump of the process, and other processes of its user may
 * neither read its memory nor trace it. Call it before secrets are loaded. */
enum adtopk_status privilege_hide_memory(struct error *err);

#endif

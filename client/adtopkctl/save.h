/*
 * Files that a command writes.
 */
#ifndef ADTOPK_CTL_SAVE_H
#define ADTOPK_CTL_SAVE_H

#include <stdio.h>

#include "proto/error.h"

/** Writes a file aside with print(file, what), and renames it: whoever reads the path finds a whole
 * one. SYSTEM: names the path and the reason, and nothing has changed. What is no regular file,
 * such as a device, a pipe or a link, is written in place. */
enum adtopk_status save_file(const char *path, void (*print)(FILE *file, const void *what),
    const void *what, struct error *err);

#endif

/*
 * Structures that begin with their size, so that later versions can add fields at the end.
 *
 * A program that was built with an earlier header passes a shorter structure: the fields that it
 * lacks are 0, which is their default. A program that was built with a later header passes a longer
 * one. The library accepts it if the fields that it does not know are 0.
 */
#ifndef ADTOPK_CLIENT_SIZED_H
#define ADTOPK_CLIENT_SIZED_H

#include <stddef.h>

#include "proto/error.h"

/** Copies a caller's structure into `known`, which has `size` bytes. `name` is the name of its
 * type. Errors: ARGUMENT (NULL, an impossible size, unknown fields that are not 0). */
enum adtopk_status client_sized_take(
    const char *name, const void *given, void *known, size_t size, struct error *err);

/** Checks a structure that the library fills. Errors: ARGUMENT (NULL, an impossible size). */
enum adtopk_status client_sized_check(const char *name, const void *given, struct error *err);

/** Fills a caller's structure, which was checked, from `known`, which has `size` bytes. The size in
 * it stays, and fields that this library does not know become 0. */
void client_sized_fill(void *given, const void *known, size_t size);

#endif

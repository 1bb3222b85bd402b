/*
 * The sparsifiers that `sparsify` measures: all of the daemon's table.
 */
#ifndef PERF_SPARSIFY_H
#define PERF_SPARSIFY_H

#define SPARSIFY_MAX 32

/** Their names in the order of the table, which end with NULL. */
void sparsify_list(const char *names[SPARSIFY_MAX]);

#endif

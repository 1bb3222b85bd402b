/*
 * The words that `select` understands.
 */
#ifndef PERF_SELECT_H
#define PERF_SELECT_H

extern const char *const select_view_names[]; /* ends with NULL */

#endif

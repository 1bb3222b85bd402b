/*
 * The words that `select` understands.
 */
#ifndef PERF_SELECT_H
#define PERF_SELECT_H

extern const char *const select_view_names[];     /* ends with NULL */
extern const char *const select_residual_names[]; /* the same: f32 and bf16 */

#endif

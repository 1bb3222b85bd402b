/*
 * The modes of `handover`.
 */
#ifndef PERF_HANDOVER_H
#define PERF_HANDOVER_H

extern const char *const handover_mode_names[]; /* ends with NULL */

#endif

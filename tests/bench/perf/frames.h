/*
 * The encodings that `encode` and `decode` measure.
 */
#ifndef PERF_FRAMES_H
#define PERF_FRAMES_H

extern const char *const frames_index_names[]; /* of enum payload_index; ends with NULL */
extern const char *const frames_value_names[]; /* of enum payload_value; ends with NULL */

#endif

/* A folder of a test's own, with a path for a socket in it, and a loop: set-up and tear-down. */
#ifndef ADTOPK_TESTS_HOST_PLACE_H
#define ADTOPK_TESTS_HOST_PLACE_H

#include <uv.h>

extern char place_folder[32];
extern char place_path[64]; /* of a socket in the folder */
extern uv_loop_t place_loop;

/** Fail if there is no folder, or if a handle was left open. */
int place_setup(void **state);
int place_teardown(void **state);

#endif

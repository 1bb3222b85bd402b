/* Set-up and tear-down for tests that need a folder with a socket's path in it, and a loop. */
#ifndef ADTOPK_TESTS_HOST_PLACE_H
#define ADTOPK_TESTS_HOST_PLACE_H

#include <uv.h>

extern char place_folder[32];
extern char place_path[64]; /* path for a socket in the folder */
extern uv_loop_t place_loop;

/** Set-up fails if it cannot make the folder; tear-down fails if a handle was left open. */
int place_setup(void **state);
int place_teardown(void **state);

#endif

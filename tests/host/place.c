#include "tests/host/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

char place_folder[32];
char place_path[64];
uv_loop_t place_loop;

int place_setup(void **state)
{
    (void)state;
    (void)snprintf(place_folder, sizeof place_folder, "/tmp/adtopk-test-XXXXXX");
    if (mkdtemp(place_folder) == NULL) {
        return -1;
    }
    (void)snprintf(place_path, sizeof place_path, "%s/sock", place_folder);
    return uv_loop_init(&place_loop);
}

int place_teardown(void **state)
{
    (void)state;
    (void)unlink(place_path);
    (void)rmdir(place_folder);
    return uv_loop_close(&place_loop);
}

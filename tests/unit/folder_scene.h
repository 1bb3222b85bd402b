/*
 * For tests: a folder of stores on /dev/shm, and stores that a daemon leaves there.
 *
 * Happy path: scene_leave(); scene_open() is the next daemon; scene_find() tells what it found;
 * folder_close(). scene_setup() and scene_teardown() are for each test.
 */
#ifndef ADTOPK_TESTS_FOLDER_SCENE_H
#define ADTOPK_TESTS_FOLDER_SCENE_H

#include "daemon/local/store.h"

#define SCENE_START 16    /* bytes of a main part that say its version */
#define SCENE_SIZE 10000u /* of each part that scene_leave() leaves */

struct folder_scene {
    char path[64], file[96]; /* the folder, and the first file of its first store */
    struct keeper keeper;
    uint32_t workers;   /* of the daemons of this test; 0: unknown */
    struct job_key key; /* of the job that leaves stores */
};

extern struct folder_scene scene;

int scene_setup(void **state);
int scene_teardown(void **state);

#define FOLDER_TEST(name) cmocka_unit_test_setup_teardown(name, scene_setup, scene_teardown)

/** What a daemon does with its stores when it starts. NULL and an error. */
struct folder *scene_open_at(const char *at, struct error *err);

/** The same with the scene's folder, which must open. */
struct folder *scene_open(void);

/** Writes the beginning of a main part of this version. */
void scene_write_start(void *bytes, uint32_t version);

/** Leaves a store of two parts of this size, or of SCENE_SIZE, whose bytes are `byte` and the one
 * after it. */
void scene_leave_sized(uint8_t byte, uint64_t size);
void scene_leave(uint8_t byte);

/** Opens a part for a job that returns. Returns a byte of it, or -1 if it is new. */
int scene_find(struct folder *folder, uint64_t job, unsigned part);

#endif

#include "tests/unit/folder_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/store_version.h"

struct folder_scene scene = {.key = {.owner = 1000, .name = "digits", .run_id = "r7"}};

struct folder *scene_open_at(const char *at, struct error *err)
{
    struct files *files = files_in_folder(at, err);

    return files != NULL ? folder_open(files, &scene.keeper, scene.workers, err) : NULL;
}

struct folder *scene_open(void)
{
    struct error err;
    struct folder *folder = scene_open_at(scene.path, &err);

    if (folder == NULL) {
        fail_msg("%s", err.text);
    }
    return folder;
}

void scene_write_start(void *bytes, uint32_t version)
{
    const uint64_t magic = STORE_MAGIC;

    memcpy(bytes, &magic, sizeof magic);
    memcpy((uint8_t *)bytes + sizeof magic, &version, sizeof version);
}

void scene_leave_sized(uint8_t byte, uint64_t size)
{
    struct folder *folder = scene_open();
    struct error err;

    folder_begin(folder, 1, &scene.key, false);
    for (unsigned part = 0; part < 2; part++) {
        struct segment segment;
        bool existing = true;

        assert_int_equal(
            folder_part(folder, 1, part, size, size, &segment, &existing, &err), ADTOPK_OK);
        assert_false(existing);
        assert_int_equal(segment_missing(&segment), 0);
        memset(segment.bytes, byte + (int)part, segment.size);
        if (part == 0) {
            scene_write_start(segment.bytes, STORE_VERSION);
        }
        segment_drop(&segment);
    }
    folder_close(folder);
}

void scene_leave(uint8_t byte)
{
    scene_leave_sized(byte, SCENE_SIZE);
}

int scene_find(struct folder *folder, uint64_t job, unsigned part)
{
    struct segment segment;
    struct error err;
    bool existing;
    int byte;

    assert_int_equal(
        folder_part(folder, job, part, SCENE_SIZE, 0, &segment, &existing, &err), ADTOPK_OK);
    byte = existing ? ((uint8_t *)segment.bytes)[SCENE_START] : -1;
    segment_drop(&segment);
    return byte;
}

int scene_setup(void **state)
{
    (void)state;
    scene.workers = 0;
    (void)snprintf(scene.path, sizeof scene.path, "/dev/shm/adtopk-test-XXXXXX");
    if (mkdtemp(scene.path) == NULL) {
        return -1;
    }
    (void)snprintf(scene.file, sizeof scene.file, "%s/00000000.0", scene.path);
    return 0;
}

int scene_teardown(void **state)
{
    char command[96];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -r %s", scene.path);
    return system(command);
}

/* The flight recorder against a list of everything that was added. */
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/job/recorder.h"

#define ADDED_MAX 400000u

struct scene {
    struct recorder recorder;
    struct flight_record *added; /* all records, oldest first */
    struct flight_record *read;
    uint32_t count;
};

static int scene_open(void **state)
{
    struct scene *scene = calloc(1, sizeof(*scene));

    scene->added = calloc(ADDED_MAX, sizeof(*scene->added));
    scene->read = calloc(RECORDER_MAX, sizeof(*scene->read));
    *state = scene;
    return 0;
}

static int scene_close(void **state)
{
    struct scene *scene = *state;

    recorder_free(&scene->recorder);
    free(scene->added);
    free(scene->read);
    free(scene);
    return 0;
}

static void scene_add(struct scene *scene, enum record_kind kind, uint64_t step)
{
    const struct flight_record record = {
        .at_us = 1000 + scene->count, .kind = (uint8_t)kind, .step = step, .value = scene->count};

    scene->added[scene->count++] = record;
    *recorder_add(&scene->recorder, kind) = record;
}

static void scene_step(struct scene *scene, uint64_t step, uint32_t records)
{
    scene_add(scene, RECORD_OPENED, step);
    for (uint32_t i = 2; i < records; i++) {
        scene_add(scene, RECORD_SENT, step);
    }
    scene_add(scene, RECORD_CLOSED, step);
}

/* What is read is the end of what was added; returns how much. */
static uint32_t scene_read(struct scene *scene, uint32_t most)
{
    const struct recorder_piece piece = recorder_read(&scene->recorder, 0, most, scene->read);

    assert_true(piece.count <= most && piece.count <= scene->count);
    assert_int_equal(piece.first, scene->count - piece.count);
    assert_memory_equal(
        scene->read, scene->added + piece.first, piece.count * sizeof(*scene->read));
    return piece.count;
}

static void test_last_steps(void **state)
{
    struct scene *scene = *state;

    assert_int_equal(scene_read(scene, RECORDER_MAX), 0);
    for (uint64_t step = 0; step < 500; step++) {
        scene_step(scene, step, 7);
        assert_int_equal(scene_read(scene, RECORDER_MAX),
            7 * (step < RECORDER_STEPS ? step + 1 : RECORDER_STEPS));
    }
    assert_true(scene->recorder.size <= 1024); /* it grows only as far as it must */
}

/* Steps of many records: fewer of them, and no more memory. */
static void test_large_steps(void **state)
{
    struct scene *scene = *state;

    for (uint64_t step = 0; step < 100; step++) {
        scene_step(scene, step, 3000);
    }
    assert_int_equal(scene->recorder.size, RECORDER_MAX);
    assert_int_equal(scene_read(scene, RECORDER_MAX), RECORDER_MAX);
    assert_int_equal(scene_read(scene, 10000), 10000);
    assert_int_equal(scene_read(scene, 0), 0);
}

/* Pieces, the newest first, are the last steps without a gap, also if records are added meanwhile.
 */
static void test_pieces(void **state)
{
    struct scene *scene = *state;
    struct recorder_piece piece;
    uint64_t end;

    for (uint64_t step = 0; step < 100; step++) {
        scene_step(scene, step, 70);
    }
    scene_add(scene, RECORD_OPENED, 100);
    piece = recorder_read(&scene->recorder, 0, 50, scene->read);
    assert_int_equal(piece.older, RECORDER_STEPS * 70 + 1 - 50);
    for (end = scene->count; piece.older > 0;) {
        assert_true(piece.count == 50 && piece.first + piece.count == end);
        assert_memory_equal(
            scene->read, scene->added + piece.first, piece.count * sizeof(*scene->read));
        scene_add(scene, RECORD_SENT, 100);
        end = piece.first;
        piece = recorder_read(&scene->recorder, piece.first, 50, scene->read);
    }
    assert_int_equal(piece.first, (100 - RECORDER_STEPS) * 70);
    assert_int_equal(scene->read[0].kind, RECORD_OPENED);
    assert_int_equal(recorder_read(&scene->recorder, piece.first, 50, scene->read).count, 0);
    assert_int_equal(recorder_read(&scene->recorder, 1, 50, scene->read).count, 0);
}

/* If records are missing, the rest of their step goes as well. */
static void test_trim(void **state)
{
    struct scene *scene = *state;
    struct recorded_part part = {.record = scene->read};
    struct recorder_piece piece;

    for (uint64_t step = 0; step < 9; step++) {
        scene_step(scene, step, 100);
    }
    piece = recorder_read(&scene->recorder, 0, 450, scene->read);
    part.records = piece.count;
    part.missing = piece.older;
    recorded_trim(&part);
    assert_int_equal(part.records, 400);
    assert_int_equal(part.missing, 500);
    assert_memory_equal(part.record, scene->added + 500, 400 * sizeof(*part.record));
    part.missing = 0;
    recorded_trim(&part);
    assert_int_equal(part.records, 400);
}

/* A step that never ends must not take the memory of the machine. */
static void test_endless_step(void **state)
{
    struct scene *scene = *state;

    scene_add(scene, RECORD_OPENED, 0);
    while (scene->count < 5 * RECORDER_MAX) {
        scene_add(scene, RECORD_RECEIVED, 0);
    }
    assert_int_equal(scene->recorder.size, RECORDER_MAX);
    assert_int_equal(scene_read(scene, RECORDER_MAX), RECORDER_MAX);
}

static void test_packed(void **state)
{
    /* As every release writes the first of them, whatever kinds are added. */
    static const uint8_t stored[RECORD_PACKED] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0,
        0, 0, 0, 0, 1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF, 7, 0, 0, 0, 0xE8, 0xFD, 0x2C, 1,
        RECORD_ROUND + 7, 200, 0, 0};
    struct flight_record record[3], back[3];
    uint8_t bytes[3 * RECORD_PACKED];

    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        record[i] = (struct flight_record){.at_us = UINT64_MAX - i,
            .step = UINT64_C(1) << (40 + i),
            .bucket = RECORD_OPERATION - i,
            .value = 7 + i,
            .node = (uint16_t)(65000 + i),
            .view = (uint16_t)(300 + i),
            .kind = (uint8_t)(RECORD_ROUND + 7 - i),
            .phase = (uint8_t)(200 + i)};
    }
    recorder_pack(record, 3, bytes);
    assert_memory_equal(bytes, stored, sizeof(stored));
    recorder_unpack(bytes, 3, back);
    assert_memory_equal(record, back, sizeof(record));
    for (unsigned kind = 0; kind < RECORD_KINDS; kind++) {
        assert_non_null(recorder_kind_name(kind));
    }
    assert_null(recorder_kind_name(RECORD_KINDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_last_steps, scene_open, scene_close),
        cmocka_unit_test_setup_teardown(test_large_steps, scene_open, scene_close),
        cmocka_unit_test_setup_teardown(test_pieces, scene_open, scene_close),
        cmocka_unit_test_setup_teardown(test_trim, scene_open, scene_close),
        cmocka_unit_test_setup_teardown(test_endless_step, scene_open, scene_close),
        cmocka_unit_test(test_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

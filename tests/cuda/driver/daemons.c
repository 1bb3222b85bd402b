#include "tests/cuda/driver/daemons.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const unsigned daemons_usual[DAEMONS_USUAL] = {MAIN, RANK, RESIDUALS, VELOCITIES};
struct daemons daemons;

void daemons_begin(const char *fails)
{
    struct error err;

    sides_start("late", fails, 0);
    if (device_outlive(sides.device, daemons.notes, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    daemons.count++;
}

bool daemons_open(struct device_part part)
{
    struct device_left left;
    struct error err;

    part.store = DAEMONS_STORE;
    part.lost = part.number == MAIN && daemons.count > 1;
    if (device_open_part(sides.device, &part, &left, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(left.store, DAEMONS_STORE);
    assert_int_equal(left.number, part.number);
    if (left.descriptor < 0) {
        assert_string_equal(left.text, daemons.kept[part.number].text);
        return false;
    }
    if (daemons.kept[part.number].descriptor >= 0) {
        (void)close(daemons.kept[part.number].descriptor);
    }
    daemons.kept[part.number] = left;
    daemons.kept[part.number].descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 0);
    assert_true(daemons.kept[part.number].descriptor >= 0);
    device_note_left(sides.device, &left);
    return true;
}

bool daemons_open_part(unsigned number)
{
    return daemons_open(sides_part(number, sides_size(number)));
}

void daemons_leave(const char *fails)
{
    daemons_begin(fails);
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        assert_true(daemons_open_part(daemons_usual[i]));
    }
    sides_step(1, NULL);
    sides_step(2, NULL);
}

void daemons_next(const char *fails)
{
    device_stop(sides.device);
    device_destroy(sides.device);
    daemons_begin(fails);
}

enum adtopk_status daemons_take_left(struct device_left left, struct error *err)
{
    left.descriptor = fcntl(left.descriptor, F_DUPFD_CLOEXEC, 0);
    assert_true(left.descriptor >= 0);
    return device_take_left(sides.device, &left, err);
}

void daemons_take(unsigned number)
{
    struct error err;

    if (daemons_take_left(daemons.kept[number], &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
}

void daemons_take_usual(void)
{
    for (unsigned i = 0; i < DAEMONS_USUAL; i++) {
        daemons_take(daemons_usual[i]);
    }
}

void daemons_claim_from(unsigned first)
{
    for (unsigned i = first; i < DAEMONS_USUAL; i++) {
        assert_false(daemons_open_part(daemons_usual[i]));
    }
}

void daemons_claim(void)
{
    daemons_claim_from(0);
}

int daemons_setup(void **state)
{
    (void)state;
    daemons.count = 0;
    daemons.notes = calloc(1, sizeof(*daemons.notes));
    for (unsigned number = 0; number < DAEMONS_PARTS; number++) {
        daemons.kept[number] = (struct device_left){.descriptor = -1};
    }
    sides_prepare(SIDES_MEDIUM);
    return 0;
}

int daemons_teardown(void **state)
{
    (void)state;
    sides_close();
    for (unsigned number = 0; number < DAEMONS_PARTS; number++) {
        if (daemons.kept[number].descriptor >= 0) {
            (void)close(daemons.kept[number].descriptor);
        }
    }
    free(daemons.notes);
    return 0;
}

struct device_info daemons_device(void)
{
    struct device_info info;

    assert_true(device_info(sides.device, 0, &info));
    return info;
}

void daemons_same_residuals(void)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(NULL);
    sides_compare();
}

struct daemon_words daemons_words(const struct device_left *left)
{
    struct daemon_words words;

    assert_int_equal(sscanf(left->text, "%u,%63[^,],%llx,%llx,%llx,%llx,%llx,%x,%x,%x",
                         &words.format, words.uuid, &words.place, &words.size, &words.begin,
                         &words.bytes, &words.mark, &words.blocks, &words.note, &words.shards),
        10);
    return words;
}

_Atomic uint64_t *daemons_begun(const struct device_left *left)
{
    return &daemons.notes->begun[daemons_words(left).note - 1];
}

void daemons_wait_for_note(const struct device_left *left, uint64_t mark)
{
    for (unsigned waited_ms = 0; waited_ms < WAIT_MS && atomic_load(daemons_begun(left)) != mark;
         waited_ms++) {
        (void)usleep(1000);
    }
    assert_int_equal(atomic_load(daemons_begun(left)), mark);
}

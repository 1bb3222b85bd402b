/*
 * One daemon after the other: each is a device object, and the test keeps the descriptors of
 * memory, as a service manager does. The job and the memory of this processor are those of sides.h.
 *
 * Happy path: daemons_leave() has a job and its end; daemons_next(); daemons_take_usual();
 * daemons_claim(); daemons_same_residuals(); steps of both sides.
 */
#ifndef ADTOPK_TESTS_CUDA_DRIVER_DAEMONS_H
#define ADTOPK_TESTS_CUDA_DRIVER_DAEMONS_H

#include "tests/cuda/driver/sides.h"

#define DAEMONS_STORE 5u /* the job's */
#define DAEMONS_USUAL 4u
#define DAEMONS_PARTS (NEXT_VELOCITIES + 1u)

struct daemons {
    struct device_notes *notes;
    struct device_left kept[DAEMONS_PARTS]; /* by the manager; descriptor -1: it has none */
    unsigned count;                         /* of daemons so far */
};

extern struct daemons daemons;

/** The parts of the job, the first of them first. */
extern const unsigned daemons_usual[DAEMONS_USUAL];

int daemons_setup(void **state);
int daemons_teardown(void **state);

#define DAEMONS_TEST(name) cmocka_unit_test_setup_teardown(name, daemons_setup, daemons_teardown)

/** A daemon begins: the first one, or the next one when this one ends. fails: see README.md. */
void daemons_begin(const char *fails);
void daemons_next(const char *fails);

/** Begins the first daemon, with a job that has residuals. What it has is kept. */
void daemons_leave(const char *fails);

/** Opens a part, as asked or of its usual size. Whether it is new memory, which is kept then. */
bool daemons_open(struct device_part part);
bool daemons_open_part(unsigned number);

/** Gives the daemon what is kept of a part, or of all that are usual. */
enum adtopk_status daemons_take_left(struct device_left left, struct error *err);
void daemons_take(unsigned number);
void daemons_take_usual(void);

/** The job returns, and finds its parts, or those from the first-th on. */
void daemons_claim(void);
void daemons_claim_from(unsigned first);

/** The first device. */
struct device_info daemons_device(void);

/** The residuals are those of the host, and none counts as lost. */
void daemons_same_residuals(void);

/* What a daemon says of a part. */
struct daemon_words {
    unsigned format;
    char uuid[64];
    unsigned long long place, size, begin, bytes, mark;
    unsigned blocks, note, shards;
};

struct daemon_words daemons_words(const struct device_left *left);

/** The part's word in the notes: its mark, if a worker has had it. */
_Atomic uint64_t *daemons_begun(const struct device_left *left);
void daemons_wait_for_note(const struct device_left *left, uint64_t mark);

#endif

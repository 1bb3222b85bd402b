/* Files of checkpoints: what is written is read again, and nothing else is. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "proto/checkpoint.h"

#define TENSORS 2u
#define FILE_MAX 4096u

static char folder[] = "/tmp/adtopk-checkpoint-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
    }
}

/* A head of two tensors. The first has two residuals. The second is in bf16 and has a velocity. */
struct sample {
    Adtopk__CheckpointFile head;
    Adtopk__CheckpointJob job;
    Adtopk__CheckpointTensor tensor[TENSORS], *list[TENSORS];
    Adtopk__CheckpointState state[TENSORS][2], *states[TENSORS][2];
    uint32_t ranks[2], files[2], number[5], agreed[2];
    uint64_t shape[TENSORS][2];
    double sums[2], real[3];
    uint8_t id[CHECKPOINT_ID];
};

static void sample_tensor(struct sample *sample, unsigned t)
{
    Adtopk__CheckpointTensor *tensor = &sample->tensor[t];

    adtopk__checkpoint_tensor__init(tensor);
    tensor->name = t == 0 ? "first" : "second";
    tensor->n_shape = 2;
    tensor->shape = sample->shape[t];
    tensor->residuals = t == 0 ? 2 : 1;
    tensor->rounded = tensor->velocity = t == 1;
    tensor->turn = 7;
    tensor->n_input = tensor->n_applied = tensor->n_lost = 2;
    tensor->input = tensor->applied = tensor->lost = sample->sums;
    tensor->n_agreed_real = 3;
    tensor->agreed_real = sample->real;
    tensor->n_agreed_number = 2;
    tensor->agreed_number = sample->agreed;
    tensor->n_state = tensor->residuals;
    tensor->state = sample->states[t];
    for (unsigned r = 0; r < 2; r++) {
        adtopk__checkpoint_state__init(&sample->state[t][r]);
        sample->state[t][r].threshold = 0.5f;
        sample->state[t][r].n_number = 5;
        sample->state[t][r].number = sample->number;
        sample->state[t][r].n_real = 3;
        sample->state[t][r].real = sample->real;
        sample->states[t][r] = &sample->state[t][r];
    }
    sample->list[t] = tensor;
}

static void sample_make(struct sample *sample)
{
    *sample = (struct sample){.ranks = {2, 3},
        .files = {0, 2},
        .shape = {{3, 5}, {2, 4}},
        .sums = {1.5, -2.25},
        .real = {0.125, 0, 3}};
    memset(sample->id, 0x5a, sizeof sample->id);
    adtopk__checkpoint_job__init(&sample->job);
    adtopk__checkpoint_file__init(&sample->head);
    sample->job.owner = 1000;
    sample->job.name = "job";
    sample->job.run_id = "run";
    sample->job.world_size = 4;
    sample->job.n_ranks = 2;
    sample->job.ranks = sample->ranks;
    sample->job.node = 1;
    sample->job.step = 42;
    sample->job.seed = 0x1234567890abcdefu;
    sample->job.mean = true;
    sample->job.tensors = TENSORS;
    sample->head.id = (ProtobufCBinaryData){CHECKPOINT_ID, sample->id};
    sample->head.n_files = 2;
    sample->head.files = sample->files;
    sample->head.file = 2;
    sample->head.job = &sample->job;
    sample->head.policy = "{}";
    sample->head.n_tensor = TENSORS;
    sample->head.tensor = sample->list;
    for (unsigned t = 0; t < TENSORS; t++) {
        sample_tensor(sample, t);
    }
}

/* The float at a place of an array. */
static float value_of(unsigned t, unsigned residual, unsigned array, uint64_t i)
{
    return (float)(1000 * t + 300 * residual + 100 * array) + (float)i / 4 - 2;
}

static void put_array(struct checkpoint *file, const Adtopk__CheckpointTensor *tensor, unsigned t,
    unsigned residual, unsigned array)
{
    const uint64_t floats = checkpoint_floats(tensor, (enum checkpoint_array)array);
    static float values[CHECKPOINT_BLOCK];
    struct error err;

    for (uint64_t first = 0; first < floats; first += CHECKPOINT_BLOCK) {
        const uint32_t count =
            floats - first < CHECKPOINT_BLOCK ? (uint32_t)(floats - first) : CHECKPOINT_BLOCK;
        for (uint32_t i = 0; i < count; i++) {
            values[i] = value_of(t, residual, array, first + i);
        }
        assert_int_equal(checkpoint_put(file, values, count, &err), ADTOPK_OK);
    }
}

static void write_sample(const struct sample *sample, const char *path)
{
    struct checkpoint file;
    struct error err;

    (void)unlink(path);
    assert_int_equal(checkpoint_create(&file, path, &sample->head, &err), ADTOPK_OK);
    for (unsigned t = 0; t < TENSORS; t++) {
        for (unsigned r = 0; r < sample->tensor[t].residuals; r++) {
            for (unsigned a = 0; a < CHECKPOINT_ARRAYS; a++) {
                put_array(&file, &sample->tensor[t], t, r, a);
            }
        }
    }
    assert_int_equal(checkpoint_finish(&file, &err), ADTOPK_OK);
    assert_int_equal(access(path, F_OK), -1); /* not before it is whole */
    assert_int_equal(checkpoint_publish(&file, &err), ADTOPK_OK);
}

/* A process that is killed while it saves leaves a file that no later one replaces by itself. */
static void test_removes_left(void **state)
{
    static const char *const left[] = {
        "r.00112233445566778899aabbccddeeff.tmp", "r.ffeeddccbbaa99887766554433221100.tmp"};
    static const char *const others[] = {"r1.00112233445566778899aabbccddeeff.tmp", "r.tmp",
        "r.00112233445566778899aabbccddeef.tmp", "r.00112233445566778899aabbccddeeff.tmpx",
        "r.00112233445566778899AABBCCDDEEFF.tmp"};
    struct sample sample;

    (void)state;
    sample_make(&sample);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(close(creat(path_of(left[i]), 0600)), 0);
    }
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(close(creat(path_of(others[i]), 0600)), 0);
    }
    write_sample(&sample, path_of("r"));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(access(path_of(left[i]), F_OK), -1);
    }
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(access(path_of(others[i]), F_OK), 0);
    }
}

static void check_array(const struct checkpoint *file, unsigned t, unsigned r, unsigned a)
{
    const uint64_t floats = checkpoint_floats(file->head->tensor[t], (enum checkpoint_array)a);
    static float values[CHECKPOINT_BLOCK];
    struct error err;

    for (uint64_t first = 0; first < floats; first += CHECKPOINT_BLOCK) {
        uint32_t count;
        assert_int_equal(
            checkpoint_get(file, t, r, (enum checkpoint_array)a, first, values, &count, &err),
            ADTOPK_OK);
        assert_int_equal(
            count, floats - first < CHECKPOINT_BLOCK ? floats - first : CHECKPOINT_BLOCK);
        for (uint32_t i = 0; i < count; i++) {
            assert_true(values[i] == value_of(t, r, a, first + i));
        }
    }
}

/* Reads a file that write_sample() wrote. */
static void check_sample(const char *path)
{
    struct checkpoint file;
    struct error err = {.text = ""};

    if (checkpoint_open(&file, path, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(checkpoint_verify(&file, &err), ADTOPK_OK);
    assert_int_equal(file.head->job->step, 42);
    assert_int_equal(file.head->job->seed, 0x1234567890abcdefu);
    assert_int_equal(file.head->files[1], 2);
    assert_string_equal(file.head->policy, "{}");
    assert_string_equal(file.head->tensor[1]->name, "second");
    assert_true(file.head->tensor[1]->input[1] == -2.25);
    assert_true(file.head->tensor[0]->state[1]->threshold == 0.5f);
    for (unsigned t = 0; t < TENSORS; t++) {
        for (unsigned r = 0; r < file.head->tensor[t]->residuals; r++) {
            for (unsigned a = 0; a < CHECKPOINT_ARRAYS; a++) {
                check_array(&file, t, r, a);
            }
        }
    }
    checkpoint_close(&file);
}

static void test_round_trip(void **state)
{
    struct sample sample;
    struct stat stat_;

    (void)state;
    sample_make(&sample);
    write_sample(&sample, path_of("rank-2.adtopk"));
    check_sample(path_of("rank-2.adtopk"));
    assert_int_equal(stat(path_of("rank-2.adtopk"), &stat_), 0);
    assert_int_equal(stat_.st_mode & 0777, 0600);
}

/* A later file takes the place of an earlier one. */
static void test_replaced(void **state)
{
    const char *path = path_of("replaced");
    struct sample sample;
    struct checkpoint file;
    struct error err;

    (void)state;
    sample_make(&sample);
    write_sample(&sample, path);
    sample.job.step = 43;
    sample.head.n_tensor = sample.job.tensors = 1;
    assert_int_equal(checkpoint_create(&file, path, &sample.head, &err), ADTOPK_OK);
    put_array(&file, &sample.tensor[0], 0, 0, 0);
    check_sample(path); /* still the earlier one */
    put_array(&file, &sample.tensor[0], 0, 1, 0);
    assert_int_equal(checkpoint_finish(&file, &err), ADTOPK_OK);
    assert_int_equal(checkpoint_publish(&file, &err), ADTOPK_OK);
    assert_int_equal(checkpoint_open(&file, path, &err), ADTOPK_OK);
    assert_int_equal(file.head->job->step, 43);
    checkpoint_close(&file);
}

/* The lowest file says which checkpoint a folder has; other names do not count. */
static void test_lowest(void **state)
{
    static const char *const names[] = {
        "rank-12.adtopk", "rank-7.adtopk", "rank-03.adtopk", "rank-2.adtopk.1.tmp", "latest"};
    const char *here = path_of("lowest");
    struct error err;
    char path[256];
    uint32_t lowest;

    (void)state;
    assert_int_equal(checkpoint_lowest(here, &lowest, &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "cannot open the folder of a checkpoint");
    assert_int_equal(mkdir(here, 0700), 0);
    assert_int_equal(checkpoint_lowest(here, &lowest, &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "no checkpoint");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        (void)snprintf(path, sizeof path, "%s/lowest/%s", folder, names[i]);
        assert_int_equal(close(creat(path, 0600)), 0);
    }
    here = path_of("lowest");
    assert_int_equal(checkpoint_lowest(here, &lowest, &err), ADTOPK_OK);
    assert_int_equal(lowest, 7);
    assert_int_equal(checkpoint_remove(here, 7, &err), ADTOPK_OK);
    assert_int_equal(checkpoint_lowest(here, &lowest, &err), ADTOPK_OK);
    assert_int_equal(lowest, 12);
    assert_int_equal(checkpoint_remove(here, 7, &err), ADTOPK_OK);
    assert_int_equal(checkpoint_remove(path, 7, &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "rank-7.adtopk");
}

/* Several blocks of an array, the last one short. */
static void test_many_blocks(void **state)
{
    struct sample sample;

    (void)state;
    sample_make(&sample);
    sample.shape[1][0] = 2 * CHECKPOINT_BLOCK + 100;
    sample.shape[1][1] = 1;
    write_sample(&sample, path_of("large"));
    check_sample(path_of("large"));
}

/* ---- damage ---- */

static size_t slurp(const char *path, uint8_t bytes[FILE_MAX])
{
    FILE *file = fopen(path, "r");
    size_t size;

    assert_non_null(file);
    size = fread(bytes, 1, FILE_MAX, file);
    assert_true(size < FILE_MAX);
    assert_int_equal(fclose(file), 0);
    return size;
}

static enum adtopk_status read_bytes(const uint8_t *bytes, size_t size, struct error *err)
{
    const char *path = path_of("damaged");
    const int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    struct checkpoint file;
    enum adtopk_status status;

    assert_true(out >= 0);
    assert_int_equal(write(out, bytes, size), size);
    assert_int_equal(close(out), 0);
    status = checkpoint_open(&file, path, err);
    if (status == ADTOPK_OK) {
        status = checkpoint_verify(&file, err);
        checkpoint_close(&file);
    }
    return status;
}

static void test_cut_short(void **state)
{
    uint8_t bytes[FILE_MAX];
    struct sample sample;
    struct error err;
    size_t size;

    (void)state;
    sample_make(&sample);
    write_sample(&sample, path_of("whole"));
    size = slurp(path_of("whole"), bytes);
    assert_int_equal(read_bytes(bytes, size, &err), ADTOPK_OK);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_equal(read_bytes(bytes, cut, &err), ADTOPK_ERR_LOST);
        assert_contains(err.text, "is damaged");
    }
    bytes[size] = 0;
    assert_int_equal(read_bytes(bytes, size + 1, &err), ADTOPK_ERR_LOST);
}

static void test_flipped(void **state)
{
    static const uint8_t flips[] = {0x01, 0x80, 0xff};
    uint8_t bytes[FILE_MAX];
    struct sample sample;
    struct error err;
    size_t size;

    (void)state;
    sample_make(&sample);
    write_sample(&sample, path_of("whole"));
    size = slurp(path_of("whole"), bytes);
    for (size_t at = 0; at < size; at++) {
        for (unsigned f = 0; f < sizeof flips; f++) {
            bytes[at] ^= flips[f];
            assert_int_equal(read_bytes(bytes, size, &err), ADTOPK_ERR_LOST);
            bytes[at] ^= flips[f];
        }
    }
}

/* A block with a valid checksum of its own, in another block's place. */
static void test_blocks_moved(void **state)
{
    const size_t block = 15 * sizeof(float) + sizeof(uint32_t); /* of the first tensor */
    uint8_t bytes[FILE_MAX], moved[FILE_MAX];
    struct sample sample;
    struct checkpoint file;
    struct error err;
    size_t size, at;

    (void)state;
    sample_make(&sample);
    write_sample(&sample, path_of("whole"));
    size = slurp(path_of("whole"), bytes);
    assert_int_equal(checkpoint_open(&file, path_of("whole"), &err), ADTOPK_OK);
    at = (size_t)file.blocks_at;
    checkpoint_close(&file);
    memcpy(moved, bytes, size);
    memcpy(moved + at, bytes + at + block, block);
    memcpy(moved + at + block, bytes + at, block);
    assert_int_equal(read_bytes(moved, size, &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "checksum of a block");
}

/* ---- heads that cannot be ---- */

static void assert_refused(struct sample *sample, const char *part)
{
    const char *path = path_of("impossible");
    struct checkpoint file;
    struct error err = {.text = ""};
    enum adtopk_status status = checkpoint_create(&file, path, &sample->head, &err);

    if (status == ADTOPK_OK) { /* only the reader looks at the rest */
        for (unsigned t = 0; t < TENSORS; t++) {
            for (unsigned r = 0; r < sample->tensor[t].residuals; r++) {
                for (unsigned a = 0; a < CHECKPOINT_ARRAYS; a++) {
                    put_array(&file, &sample->tensor[t], t, r, a);
                }
            }
        }
        assert_int_equal(checkpoint_publish(&file, &err), ADTOPK_OK);
        status = checkpoint_open(&file, path, &err);
    }
    assert_int_not_equal(status, ADTOPK_OK);
    assert_contains(err.text, part);
    sample_make(sample);
}

static void test_impossible(void **state)
{
    struct sample sample;

    (void)state;
    sample_make(&sample);
    sample.shape[0][0] = 0;
    assert_refused(&sample, "type or shape of tensor \"first\"");
    sample.tensor[1].dtype = 3;
    assert_refused(&sample, "type or shape of tensor \"second\"");
    sample.sums[0] = (double)NAN;
    assert_refused(&sample, "ledger");
    sample.real[1] = (double)INFINITY;
    assert_refused(&sample, "state");
    sample.tensor[0].n_state = 1;
    assert_refused(&sample, "number of states");
    sample.tensor[0].turn = CHECKPOINT_TURNS;
    assert_refused(&sample, "turn");
    sample.tensor[0].name = "new\nline";
    assert_refused(&sample, "name");
    sample.head.file = 0;
    assert_refused(&sample, "does not fit together");
    sample.ranks[1] = 4;
    assert_refused(&sample, "the ranks");
    sample.job.members = 5;
    assert_refused(&sample, "the ranks");
    sample.job.members = 1;
    assert_refused(&sample, "the ranks");
    sample.job.tensors = 3;
    assert_refused(&sample, "does not fit together");
    sample.head.id.len = 15;
    assert_refused(&sample, "names no job");
}

static void test_too_large_a_value(void **state)
{
    const float wrong[] = {NAN, INFINITY, 0x1p121f};
    uint8_t bytes[FILE_MAX];
    struct error err;

    (void)state;
    for (unsigned w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        struct sample sample;
        struct checkpoint file;
        float values[15] = {0};
        sample_make(&sample);
        sample.head.n_tensor = sample.job.tensors = 1;
        values[3] = wrong[w];
        assert_int_equal(checkpoint_create(&file, path_of("large"), &sample.head, &err), ADTOPK_OK);
        assert_int_equal(checkpoint_put(&file, values, 15, &err), ADTOPK_OK);
        assert_int_equal(checkpoint_put(&file, values, 15, &err), ADTOPK_OK);
        assert_int_equal(checkpoint_publish(&file, &err), ADTOPK_OK);
        assert_int_equal(read_bytes(bytes, slurp(path_of("large"), bytes), &err), ADTOPK_ERR_LOST);
        assert_contains(err.text, "not finite");
    }
}

/* ---- the disk ---- */

static void test_places(void **state)
{
    struct sample sample;
    struct checkpoint file;
    struct error err;
    char path[CHECKPOINT_PATH], where[CHECKPOINT_PATH];

    (void)state;
    sample_make(&sample);
    assert_int_equal(checkpoint_open(&file, path_of("none"), &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "No such file");
    assert_int_equal(checkpoint_open(&file, folder, &err), ADTOPK_ERR_LOST);
    assert_int_equal(checkpoint_open(&file, "/dev/null", &err), ADTOPK_ERR_LOST);
    assert_int_equal(
        checkpoint_create(&file, path_of("no/folder"), &sample.head, &err), ADTOPK_ERR_LOST);
    assert_contains(err.text, "no/folder: the folder does not exist: make it first");
    assert_int_equal(checkpoint_path("", 0, path, &err), ADTOPK_ERR_ARGUMENT);
    memset(where, 'x', sizeof where - 1);
    where[sizeof where - 1] = '\0';
    assert_int_equal(checkpoint_path(where, 0, path, &err), ADTOPK_ERR_ARGUMENT);
    if (geteuid() != 0) {
        write_sample(&sample, path_of("hidden"));
        assert_int_equal(chmod(path_of("hidden"), 0), 0);
        assert_int_equal(checkpoint_open(&file, path_of("hidden"), &err), ADTOPK_ERR_DENIED);
    }
}

/* A file that cannot grow, as on a full disk. */
static void test_full_disk(void **state)
{
    struct rlimit before, little;
    struct sample sample;
    struct checkpoint file;
    struct error err = {.text = ""};
    float values[15] = {0};
    enum adtopk_status status;

    (void)state;
    sample_make(&sample);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    for (rlim_t most = 0; most < 700; most += 100) {
        little = (struct rlimit){most, before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
        status = checkpoint_create(&file, path_of("full"), &sample.head, &err);
        if (status == ADTOPK_OK) {
            status = checkpoint_put(&file, values, 15, &err);
            status = status == ADTOPK_OK ? checkpoint_put(&file, values, 15, &err) : status;
            status = status == ADTOPK_OK ? checkpoint_finish(&file, &err) : status;
            checkpoint_discard(&file);
        }
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, ADTOPK_ERR_SYSTEM);
        assert_int_equal(access(path_of("full"), F_OK), -1);
        assert_int_equal(access(file.aside, F_OK), -1);
    }
    assert_contains(err.text, "checkpoint");
}

/* A file that version 1 of the format wrote. Later libraries must read it. */
static void test_stored(void **state)
{
    (void)state;
    check_sample(TEST_DATA "/checkpoint-1.adtopk");
}

static int group_begin(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int group_end(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_replaced),
        cmocka_unit_test(test_removes_left),
        cmocka_unit_test(test_lowest),
        cmocka_unit_test(test_many_blocks),
        cmocka_unit_test(test_cut_short),
        cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_blocks_moved),
        cmocka_unit_test(test_impossible),
        cmocka_unit_test(test_too_large_a_value),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_stored),
    };

    if (argc == 2) { /* writes the file of tests/data of a new version */
        struct sample sample;
        sample_make(&sample);
        write_sample(&sample, argv[1]);
        return 0;
    }
    return cmocka_run_group_tests(tests, group_begin, group_end);
}

/* Defaults of adtopk_open() from the environment of launchers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/src/context.h"
#include "client/src/sized.h"

static const char *const variables[] = {"ADTOPK_ADDRESS", "ADTOPK_JOB", "ADTOPK_RUN_ID", "RANK",
    "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_ID", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "ADTOPK_KEY_FILE", "ADTOPK_SERVER_KEY",
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};

static int clean_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        (void)unsetenv(variables[i]);
    }
    return 0;
}

static void set(const char *name, const char *value)
{
    assert_int_equal(setenv(name, value, 1), 0);
}

static struct client_options resolve(const struct adtopk_options *options)
{
    struct client_options resolved;
    struct error err = {0};

    if (client_options_resolve(options, &resolved, &err) != ADTOPK_OK) {
        fail_msg("%s", err.text);
    }
    return resolved;
}

/* The options are refused with a sentence that has `word`. */
static void assert_refused(const struct adtopk_options *options, const char *word)
{
    struct client_options resolved;
    struct error err = {0};

    assert_int_equal(client_options_resolve(options, &resolved, &err), ADTOPK_ERR_ARGUMENT);
    if (strstr(err.text, word) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, word);
    }
}

static void test_nothing_set(void **state)
{
    const struct client_options options = resolve(NULL);

    (void)state;
    assert_string_equal(options.path, "/run/adtopk/trainers/adtopkd.sock");
    assert_string_equal(options.job, "default");
    assert_string_equal(options.run_id, "0");
    assert_string_equal(options.policy, "");
    assert_int_equal(options.rank, 0);
    assert_int_equal(options.world_size, 1);
    assert_int_equal(options.connect_timeout_ms, 10000);
    assert_int_equal(options.return_timeout_ms, 10000);
    assert_false(options.comes_back);
}

static void test_torchrun(void **state)
{
    struct client_options options;

    (void)state;
    set("RANK", "3");
    set("WORLD_SIZE", "8");
    set("TORCHELASTIC_RUN_ID", "abc");
    set("TORCHELASTIC_RESTART_COUNT", "2");
    set("SLURM_PROCID", "0"); /* torchrun under Slurm: one task per node */
    set("SLURM_NTASKS", "2");
    set("SLURM_JOB_ID", "77");
    options = resolve(NULL);
    assert_int_equal(options.rank, 3);
    assert_int_equal(options.world_size, 8);
    assert_string_equal(options.run_id, "abc.2");
}

/* torchrun's own default id is the same for every run. The address at which its ranks meet is not.
 */
static void test_torchrun_without_an_id(void **state)
{
    (void)state;
    set("TORCHELASTIC_RUN_ID", "none");
    assert_string_equal(resolve(NULL).run_id, "none");
    set("TORCHELASTIC_RESTART_COUNT", "1");
    set("MASTER_ADDR", "node-with-a-name-that-is-longer-than-forty-characters.cluster");
    assert_string_equal(resolve(NULL).run_id, "none.1");
    set("MASTER_PORT", "29500");
    assert_string_equal(resolve(NULL).run_id, "node-with-a-name-that-is-longer-than-for:29500.1");
    set("TORCHELASTIC_RUN_ID", "mine");
    assert_string_equal(resolve(NULL).run_id, "mine.1");
}

static void test_slurm(void **state)
{
    struct client_options options;

    (void)state;
    set("SLURM_PROCID", "5");
    set("SLURM_NTASKS", "6");
    set("SLURM_JOB_ID", "1234");
    set("SLURM_STEP_ID", "1");
    options = resolve(NULL);
    assert_int_equal(options.rank, 5);
    assert_int_equal(options.world_size, 6);
    assert_string_equal(options.run_id, "1234.1");
}

/* Inside a Slurm allocation mpirun's ranks inherit the daemon process's SLURM_PROCID. */
static void test_open_mpi(void **state)
{
    struct client_options options;

    (void)state;
    set("OMPI_COMM_WORLD_RANK", "2");
    set("OMPI_COMM_WORLD_SIZE", "4");
    set("PMIX_NAMESPACE", "3456123905");
    set("SLURM_PROCID", "0");
    set("SLURM_NTASKS", "1");
    options = resolve(NULL);
    assert_int_equal(options.rank, 2);
    assert_int_equal(options.world_size, 4);
    assert_string_equal(options.run_id, "3456123905");
}

static void test_adtopk_variables(void **state)
{
    struct client_options options;

    (void)state;
    set("ADTOPK_ADDRESS", "unix:/tmp/x.sock");
    set("ADTOPK_JOB", "gpt");
    set("ADTOPK_RUN_ID", "r1");
    set("TORCHELASTIC_RUN_ID", "abc");
    set("RANK", ""); /* empty is not set */
    options = resolve(NULL);
    assert_string_equal(options.path, "/tmp/x.sock");
    assert_string_equal(options.job, "gpt");
    assert_string_equal(options.run_id, "r1");
    assert_int_equal(options.rank, 0);
}

static void test_remote_address(void **state)
{
    const struct adtopk_options given = {
        .size = sizeof given, .address = "tcp://10.0.0.1:7500", .key_file = "/k"};
    struct client_options options;

    (void)state;
    set("ADTOPK_KEY_FILE", "/other");
    set("ADTOPK_SERVER_KEY", "key");
    options = resolve(&given);
    assert_string_equal(options.address, "tcp://10.0.0.1:7500");
    assert_string_equal(options.path, "");
    assert_string_equal(options.key_file, "/k");
    assert_string_equal(options.server_key, "key");
}

/* Addresses that libzmq would refuse without a reason, or for which it would wait in vain. */
static void test_bad_remote_addresses(void **state)
{
    static const char *const wrong[] = {"tcp://", "tcp://host", "tcp://:7500",
        "tcp://host:", "tcp://host:0", "tcp://host:65536", "tcp://host:7500x", "tcp://host:*",
        "tcp://host:-1", "tcp://host:000007500"};
    struct adtopk_options given = {.size = sizeof given};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        given.address = wrong[i];
        assert_refused(&given, "is not tcp://HOST:PORT");
    }
    given.address = "tcp://[::1]:65535";
    assert_string_equal(resolve(&given).address, "tcp://[::1]:65535");
}

static void test_options_win(void **state)
{
    const struct adtopk_options given = {.size = sizeof given,
        .address = "unix:/a",
        .job = "j",
        .run_id = "r",
        .rank = 0,
        .has_rank = 1,
        .world_size = 2,
        .policy = "{}",
        .connect_timeout_ms = -1};
    struct client_options options;

    (void)state;
    set("ADTOPK_ADDRESS", "unix:/b");
    set("ADTOPK_JOB", "other");
    set("ADTOPK_RUN_ID", "other");
    set("RANK", "nonsense"); /* the library does not read it */
    set("WORLD_SIZE", "nonsense");
    options = resolve(&given);
    assert_string_equal(options.path, "/a");
    assert_string_equal(options.job, "j");
    assert_string_equal(options.run_id, "r");
    assert_string_equal(options.policy, "{}");
    assert_int_equal(options.rank, 0);
    assert_int_equal(options.world_size, 2);
    assert_int_equal(options.connect_timeout_ms, -1);
    assert_int_equal(options.return_timeout_ms, -1);
}

static void test_numbers_are_strict(void **state)
{
    static const char *const wrong[] = {
        "-1", "+1", " 1", "1 ", "0x1", "1.0", "two", "99999999999999999999", "65537"};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        set("RANK", "0");
        set("WORLD_SIZE", wrong[i]);
        assert_refused(NULL, "WORLD_SIZE");
        set("WORLD_SIZE", "4");
        set("RANK", wrong[i]);
        assert_refused(NULL, "RANK");
    }
}

static void test_places(void **state)
{
    struct adtopk_options given = {.size = sizeof given, .has_rank = 1, .rank = 2, .world_size = 2};

    (void)state;
    assert_refused(&given, "the rank is 2");
    given.rank = -1;
    assert_refused(&given, "the rank is -1");
    given.rank = 0;
    given.world_size = -3;
    assert_refused(&given, "the world size is -3; 1 to 65536 are allowed");
    given.world_size = 65537;
    assert_refused(&given, "65537");
    given.has_rank = 0;
    assert_refused(&given, "the world size is 65537; 1 to 65536 are allowed");
    set("WORLD_SIZE", "0");
    assert_refused(NULL, "world size is 0");
    set("WORLD_SIZE", "2");
    assert_refused(NULL, "has_rank");
    set("WORLD_SIZE", "");
    set("RANK", "0"); /* whoever gives a rank means to have others */
    assert_refused(NULL, "$WORLD_SIZE");
    set("SLURM_NTASKS", "1");
    assert_int_equal(resolve(NULL).world_size, 1);
    set("WORLD_SIZE", "2");
    set("RANK", "2");
    assert_refused(NULL, "the rank is 2");
}

static void test_texts(void **state)
{
    char long_key[65], long_id[301], long_path[200] = "unix:/", long_address[300];
    struct adtopk_options given = {.size = sizeof given};

    (void)state;
    memset(long_key, 'k', 64);
    long_key[64] = '\0';
    given.job = long_key;
    assert_refused(&given, "64 bytes");
    given.job = "";
    assert_refused(&given, "job");
    given.job = "line\nbreak";
    assert_refused(&given, "control");
    given.job = "\xff";
    assert_refused(&given, "the job's name has a byte that is not UTF-8");
    given.job = NULL;
    given.run_id = long_key;
    assert_refused(&given, "run id");
    given.run_id = "run\xc3";
    assert_refused(&given, "the run id has a byte that is not UTF-8");
    given.run_id = NULL;
    set("TORCHELASTIC_RUN_ID", long_key);
    assert_refused(&given, "TORCHELASTIC_RUN_ID");
    clean_environment(NULL);
    memset(long_id, 'i', 300);
    long_id[300] = '\0';
    set("ADTOPK_RUN_ID", long_id);
    assert_refused(&given, "ADTOPK_RUN_ID has 300 bytes");
    long_id[100] = '\0';
    set("ADTOPK_RUN_ID", long_id);
    assert_refused(&given, "ADTOPK_RUN_ID has 100 bytes");
    clean_environment(NULL);
    given.address = "http://1.2.3.4:5";
    assert_refused(&given, "http://1.2.3.4:5");
    long_address[sizeof long_address - 1] = '\0';
    memset(long_address, '7', sizeof long_address - 1);
    memcpy(long_address, "tcp://", 6);
    given.address = long_address;
    assert_refused(&given, "299 bytes");
    given.address = "unix:";
    assert_refused(&given, "0 bytes");
    memset(long_path + 6, 'p', 150);
    given.address = long_path;
    assert_refused(&given, "151 bytes");
    given.address = NULL;
    given.connect_timeout_ms = -2;
    assert_refused(&given, "connect_timeout_ms");
}

/* A group is a job of its own. */
static void test_group(void **state)
{
    struct adtopk_options given = {.size = sizeof given, .job = "gpt", .group = "stage0"};
    char longest[CLIENT_KEY_MAX + 1];

    (void)state;
    assert_string_equal(resolve(&given).job, "gpt@stage0");
    memset(longest, 'g', sizeof longest);
    longest[CLIENT_KEY_MAX - 4] = '\0'; /* with "gpt@" */
    given.group = longest;
    assert_int_equal(strlen(resolve(&given).job), CLIENT_KEY_MAX);
    memset(longest, 'g', CLIENT_KEY_MAX);
    longest[CLIENT_KEY_MAX] = '\0';
    assert_refused(&given, "group has 67 bytes");
    given.group = "";
    assert_refused(&given, "group");
    given.group = "a@b";
    assert_refused(&given, "\"a@b\"");
}

/* Options of programs that were built with other versions of the header. */
static void test_sizes(void **state)
{
    union {
        struct adtopk_options known;
        uint8_t bytes[8192];
    } given = {.known = {.size = sizeof given.known, .job = "a", .run_id = "b", .world_size = 3}};

    (void)state;
    given.known.size = offsetof(struct adtopk_options, run_id); /* an earlier one */
    assert_string_equal(resolve(&given.known).job, "a");
    assert_string_equal(resolve(&given.known).run_id, "0");
    assert_int_equal(resolve(&given.known).world_size, 1);
    given.known.size = sizeof given.known + 64; /* a later one */
    given.known.has_rank = 1;
    assert_int_equal(resolve(&given.known).world_size, 3);
    given.bytes[sizeof given.known + 63] = 1; /* which uses a later field */
    assert_refused(&given.known, "uses fields beyond");
    given.bytes[sizeof given.known + 63] = 0;
    given.bytes[sizeof given.known] = 1;
    assert_refused(&given.known, "install a later one");
    static const size_t impossible[] = {
        0, 1, sizeof(size_t), sizeof given.known + 1, 4104, SIZE_MAX};
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++) {
        given.known.size = impossible[i];
        assert_refused(&given.known, "set it to sizeof(struct adtopk_options)");
    }
}

/* The library fills only the part of a structure that its caller has. */
static void test_fill(void **state)
{
    const size_t known[] = {3 * sizeof(size_t), 11, 12};
    size_t given[] = {0, 1, 2, 3, 4};
    struct error err;

    (void)state;
    assert_int_equal(client_sized_check("x", NULL, &err), ADTOPK_ERR_ARGUMENT);
    given[0] = 2 * sizeof(size_t);
    assert_int_equal(client_sized_check("x", given, &err), ADTOPK_OK);
    client_sized_fill(given, known, sizeof known);
    assert_memory_equal(given, ((size_t[]){2 * sizeof(size_t), 11, 2, 3, 4}), sizeof given);
    given[0] = 4 * sizeof(size_t);
    client_sized_fill(given, known, sizeof known);
    assert_memory_equal(given, ((size_t[]){4 * sizeof(size_t), 11, 12, 0, 4}), sizeof given);
}

/* A program may have a smaller structure: what lies behind it is not read. */
static void test_apply_to_a_smaller_structure(void **state)
{
    const uint32_t index = 1;
    const float value = 2;
    struct adtopk_update update = {.size = offsetof(struct adtopk_update, step),
        .index = &index,
        .value = &value,
        .count = 1,
        .numel = 2};
    float parameters[2] = {0, 0};

    (void)state;
    adtopk_apply_sgd(parameters, &update, 0.5f);
    assert_true(parameters[0] == 0 && parameters[1] == -1);
    update.size = offsetof(struct adtopk_update, index);
    adtopk_apply_sgd(parameters, &update, 0.5f);
    assert_true(parameters[0] == 0 && parameters[1] == -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_nothing_set, clean_environment),
        cmocka_unit_test_setup(test_torchrun, clean_environment),
        cmocka_unit_test_setup(test_torchrun_without_an_id, clean_environment),
        cmocka_unit_test_setup(test_slurm, clean_environment),
        cmocka_unit_test_setup(test_open_mpi, clean_environment),
        cmocka_unit_test_setup(test_adtopk_variables, clean_environment),
        cmocka_unit_test_setup(test_remote_address, clean_environment),
        cmocka_unit_test_setup(test_bad_remote_addresses, clean_environment),
        cmocka_unit_test_setup(test_options_win, clean_environment),
        cmocka_unit_test_setup(test_numbers_are_strict, clean_environment),
        cmocka_unit_test_setup(test_places, clean_environment),
        cmocka_unit_test_setup(test_texts, clean_environment),
        cmocka_unit_test_setup(test_group, clean_environment),
        cmocka_unit_test_setup(test_sizes, clean_environment),
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_apply_to_a_smaller_structure),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

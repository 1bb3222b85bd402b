/*
 * The modelled cluster: its costs, links and workers are those of plain arithmetic, and a second
 * run gives the same.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/sim/regret/cluster.h"

#define NODES 3u
#define TENSORS 4u
#define NUMEL 65536u

static const uint64_t at_once[TENSORS] = {0};

/* Every stage of every bucket takes so long. */
static struct costs all_alike(double ns)
{
    struct costs costs = {.nodes = NODES};

    for (unsigned c = 0; c < CHOICES; c++) {
        costs.rows[c] = 1;
        costs.row[c][0] = (struct costs_row){1e9, {ns, ns, ns, ns}};
    }
    return costs;
}

static struct shapes *vectors(unsigned tensors)
{
    struct shapes *shapes = calloc(1, sizeof(*shapes));

    assert_non_null(shapes);
    for (unsigned t = 0; t < tensors; t++) {
        (void)snprintf(shapes->tensor[t].name, sizeof(shapes->tensor[t].name), "t%u", t);
        shapes->tensor[t].shape = (struct tensor_shape){.dims = 2, .size = {NUMEL / 256, 256}};
    }
    shapes->count = tensors;
    return shapes;
}

static struct cluster *open_cluster(const struct costs *costs, unsigned workers, double gbit,
    const char *policy, const struct shapes *shapes)
{
    const struct cluster_config config = {.nodes = NODES,
        .workers = workers,
        .links = {.bandwidth = gbit * 1e9 / 8, .latency = 10e-6, .narrowing = 1},
        .costs = costs,
        .shapes = shapes,
        .at_ns = at_once,
        .policy = policy};
    struct error err = {.text = ""};
    struct cluster *cluster = cluster_open(&config, &err);

    assert_string_equal(err.text, "");
    assert_non_null(cluster);
    return cluster;
}

/* The times of steps, in us. */
static void play(const struct costs *costs, unsigned workers, double gbit, const char *policy,
    unsigned steps, double *us)
{
    struct shapes *shapes = vectors(TENSORS);
    struct cluster *cluster = open_cluster(costs, workers, gbit, policy, shapes);
    struct error err = {.text = ""};

    for (unsigned i = 0; i < steps; i++) {
        assert_true(cluster_step(cluster, &us[i], &err));
    }
    cluster_close(cluster);
    free(shapes);
}

/* A dense all-reduce of n bytes takes each node at least 2 n (P - 1) / P of them, each way. */
static void test_wire(void **state)
{
    const struct costs costs = all_alike(0);
    const double bytes = 4.0 * NUMEL * TENSORS * 2 * (NODES - 1) / NODES, wire_us = bytes * 8e-3;
    double us[3];

    (void)state;
    play(&costs, 1, 1, "{\"sparsifier\":\"dense\"}", 3, us);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(us[i] >= wire_us);
        assert_true(us[i] <= 1.5 * wire_us);
    }
    play(&costs, 1, 10, "{\"sparsifier\":\"dense\"}", 1, us);
    assert_true(us[0] >= wire_us / 10 && us[0] <= 0.2 * wire_us);
}

/* Computes wait for workers: four buckets take one worker as long as all their computes, and four
 * workers as long as those of one. */
static void test_workers(void **state)
{
    const char *policy = "{\"sparsifier\":\"adtopk\",\"density\":0.01,\"bucket_bytes\":1}";
    const double each_us = 10000, stages = 2; /* of a bucket: all-gather combines nothing */
    const struct costs costs = all_alike(1e3 * each_us);
    double us[1];

    (void)state;
    play(&costs, 1, 10, policy, 1, us);
    assert_true(us[0] >= (stages * TENSORS + 1) * each_us - 1);
    assert_true(us[0] <= 1.1 * (stages * TENSORS + 1) * each_us);
    play(&costs, 4, 10, policy, 1, us);
    assert_true(us[0] >= (stages + 1) * each_us - 1);
    assert_true(us[0] <= 1.1 * (stages + 1) * each_us);
}

static const char automatic[] =
    "{\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\",\"dense_values\":\"auto\","
    "\"bucket_bytes\":\"auto\"}";

/* Selecting takes so long that it pays on a slow link only. */
static struct costs slow_selection(void)
{
    struct costs costs = all_alike(50e3);

    for (unsigned c = CHOICE_ALLGATHER; c < CHOICES; c++) {
        costs.row[c][0].ns[COSTS_SELECT] = 4e6;
    }
    return costs;
}

static bool is_sparse(const char *plan)
{
    return strpbrk(strchr(plan, ':'), "aboc") != NULL;
}

#define GBIT (1e9 / 8)

/* Runs steps on a link of that rate. Returns the time, and in *left (unless NULL) how many of them
 * it took until another plan was in force. */
static double play_on(struct cluster *cluster, double gbit, unsigned steps, unsigned *left)
{
    static char before[CHOICES_TEXT_SIZE];
    struct error err = {.text = ""};
    double us, spent = 0;

    (void)strcpy(before, cluster_plan(cluster));
    cluster_set_bandwidth(cluster, gbit * GBIT);
    for (unsigned i = 0; i < steps; i++) {
        assert_true(cluster_step(cluster, &us, &err));
        spent += us;
        if (left != NULL && strcmp(before, cluster_plan(cluster)) != 0) {
            *left = i + 1;
            return spent;
        }
    }
    return spent;
}

/* A plan that a link makes far worse is left within 8 steps, whatever it did before. */
static void test_escape(void **state)
{
    const struct costs costs = slow_selection();
    struct shapes *shapes = vectors(TENSORS);

    (void)state;
    for (unsigned odd = 0; odd < 5; odd++) {
        struct cluster *cluster = open_cluster(&costs, 1, 10, automatic, shapes);
        unsigned left = 0;
        (void)play_on(cluster, 10, 300 + odd, NULL);
        assert_false(is_sparse(cluster_plan(cluster)));
        (void)play_on(cluster, 0.01, 20, &left);
        assert_in_range(left, 1, 8);
        assert_true(is_sparse(cluster_plan(cluster)));
        cluster_close(cluster);
    }
    free(shapes);
}

/* The planner switches compression off where that is faster, also under momentum and clipping. */
static void test_corrected(void **state)
{
    static const char policy[] =
        "{\"sparsifier\":\"auto\",\"sparse_collective\":\"auto\",\"dense_values\":\"auto\","
        "\"bucket_bytes\":\"auto\",\"momentum\":0.9,\"clip\":1}";
    const struct costs costs = slow_selection();
    struct shapes *shapes = vectors(TENSORS);
    struct cluster *cluster = open_cluster(&costs, 1, 10, policy, shapes);

    (void)state;
    assert_string_equal(cluster_plan(cluster), ""); /* "auto" is sparse then */
    (void)play_on(cluster, 10, 150, NULL);
    assert_false(is_sparse(cluster_plan(cluster)));
    cluster_close(cluster);
    free(shapes);
}

static const unsigned phase[] = {300, 50, 500, 130, 60, 410, 50, 50, 250, 200, 130, 420, 90, 340};
#define PHASES (sizeof(phase) / sizeof(phase[0]))

/* All phases; fixed plans take the same in every step of a phase, of which a few are played. */
static double play_alternating(struct cluster *cluster, bool fixed)
{
    double spent = 0;

    for (unsigned i = 0; i < PHASES; i++) {
        unsigned steps = fixed ? 4 : phase[i];
        spent += play_on(cluster, i % 2 == 0 ? 10 : 0.01, steps, NULL) * phase[i] / steps;
    }
    cluster_close(cluster);
    return spent;
}

/* On a link that alternates the steps take at most 1.5 times as long as under the best plan that
 * stays. */
static void test_alternating(void **state)
{
    static const char *const fixed[] = {"dense", "allgather", "balanced", "oktopk", "hierarchical"};
    const struct costs costs = slow_selection();
    struct shapes *shapes = vectors(TENSORS);
    double spent, best;

    (void)state;
    spent = play_alternating(open_cluster(&costs, 1, 10, automatic, shapes), false);
    best =
        play_alternating(open_cluster(&costs, 1, 10, "{\"sparsifier\":\"dense\"}", shapes), true);
    for (unsigned i = 1; i < sizeof(fixed) / sizeof(fixed[0]); i++) {
        char policy[128];
        double us;
        (void)snprintf(policy, sizeof(policy),
            "{\"sparsifier\":\"adtopk\",\"sparse_collective\":\"%s\"}", fixed[i]);
        us = play_alternating(open_cluster(&costs, 1, 10, policy, shapes), true);
        best = us < best ? us : best;
    }
    printf("alternating: %.2f times the best fixed plan\n", spent / best);
    assert_true(spent <= 1.5 * best);
    free(shapes);
}

/* The same bits again, also of steps in which the planner changes plans. */
static void test_repeats(void **state)
{
    const struct costs costs = all_alike(50e3);
    double first[60], again[60], least;

    (void)state;
    play(&costs, 2, 1, automatic, 60, first);
    play(&costs, 2, 1, automatic, 60, again);
    assert_memory_equal(first, again, sizeof(first));
    least = first[0];
    for (unsigned i = 1; i < 60; i++) {
        least = fmin(least, first[i]);
    }
    assert_true(least < 0.9 * first[0]); /* another plan was in force */
}

/* ------------------------------------------------------------------ costs */

static bool read_text(const char *text, struct costs *costs, struct error *err)
{
    char path[] = "/tmp/adtopk-costs-XXXXXX";
    int file = mkstemp(path);
    bool good;

    assert_true(file >= 0);
    assert_int_equal(write(file, text, strlen(text)), strlen(text));
    (void)close(file);
    good = costs_read(costs, path, err);
    (void)unlink(path);
    return good;
}

#define HEAD                                                                                       \
    "# ns on one thread, 9 steps, 4 nodes, density 0.01\n"                                         \
    "choice,tensors,elements,select,combine,reduce,settle\n"
#define REST                                                                                       \
    "dense bf16,1,100,1,1,1,1\nallgather,1,100,1,1,1,1\nbalanced,1,100,1,1,1,1\n"                  \
    "oktopk,1,100,1,1,1,1\nhierarchical,1,100,1,1,1,1\n"

static void test_costs(void **state)
{
    struct costs costs;
    struct error err;

    (void)state;
    assert_true(read_text(HEAD
        "dense,1,100,10,20,30,40\ndense,1,300,30,40,90,80\ndense,5,100,18,20,30,40\n" REST,
        &costs, &err));
    assert_int_equal(costs.nodes, 4);
    assert_float_equal(costs.density, 0.01, 1e-12);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_SELECT, 50, 1), 10, 1e-9);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_REDUCE, 200, 1), 60, 1e-9);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_SETTLE, 600, 1), 160, 1e-9);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_SELECT, 300, 4), 36, 1e-9);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_COMBINE, 300, 4), 40, 1e-9);
    assert_float_equal(costs_of(&costs, CHOICE_DENSE, COSTS_SELECT, 0, 0), 0, 0);
}

static void test_no_costs(void **state)
{
    static const char *const wrong[] = {"", "choice\n", HEAD, HEAD REST,
        HEAD "dense,1,100,10,20,30\n" REST, HEAD "dense,1,100,10,-20,30,40\n" REST,
        HEAD "dense,0,100,10,20,30,40\n" REST, HEAD "wire,1,100,10,20,30,40\n" REST,
        HEAD "dense,1,0,10,20,30,40\n" REST, HEAD "dense,2,100,10,20,30,40\n" REST,
        HEAD "dense,1,100,1,1,1,1\ndense,1,50,1,1,1,1\n" REST};
    struct costs costs;

    (void)state;
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct error err = {.text = ""};
        assert_false(read_text(wrong[i], &costs, &err));
        assert_string_not_equal(err.text, "");
    }
    assert_false(costs_read(&costs, "/nowhere/at/all", &(struct error){.text = ""}));
}

/* The core's sentence comes through. */
static void test_refused(void **state)
{
    const struct costs costs = all_alike(0);
    struct shapes *shapes = vectors(1);
    const struct cluster_config config = {.nodes = NODES,
        .workers = 1,
        .links = {.bandwidth = 1e9, .narrowing = 1},
        .costs = &costs,
        .shapes = shapes,
        .at_ns = at_once,
        .policy = "{\"sparsifier\":\"none\"}"};
    struct error err = {.text = ""};

    (void)state;
    assert_null(cluster_open(&config, &err));
    assert_non_null(strstr(err.text, "none"));
    free(shapes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire),
        cmocka_unit_test(test_workers),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_escape),
        cmocka_unit_test(test_alternating),
        cmocka_unit_test(test_corrected),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_no_costs),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

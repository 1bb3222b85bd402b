/*
 * The policy's treatment of gradients before they are added, on a core of one node: momentum
 * correction and clipping, compared with the plain rules in double precision, element by element.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/model.h"
#include "lone_core.h"
#include "tests/host/inside.h"

#define STEPS 12u
#define ELEMENTS 640u
#define CHANGED 2u /* in this step a change that was requested in the first is in force */

/* The keys of a policy. */
struct rule {
    const char *policy;
    double mu;
    bool nesterov, masking;
    double clip;
    double decay;       /* what a residual loses before gradients are added */
    double gamma;       /* factor of gradients; 0: 1 */
    unsigned residuals; /* 1, or one per rank */
    /* Requested in the first step, in force from the third on; NULL: no change. */
    const char *change;
    double mu_after, decay_after;
    bool dense, dense_after;
    bool anew; /* velocities begin with 0 then */
};

/* One residual by the plain rules. */
struct plain {
    double v[ELEMENTS], m[ELEMENTS];
};

static void plain_step(struct plain *plain, const double *gradient, const struct rule *rule,
    unsigned ranks_in_it, unsigned ranks)
{
    double norm = 0, limit = rule->clip * ranks_in_it / sqrt(ranks), scale = 1;

    for (unsigned i = 0; i < ELEMENTS; i++) {
        norm += gradient[i] * gradient[i];
    }
    if (rule->clip > 0 && sqrt(norm) > limit) {
        scale = limit / sqrt(norm);
    }
    for (unsigned i = 0; i < ELEMENTS; i++) {
        double g = gradient[i] * scale * (rule->gamma > 0 ? rule->gamma : 1);
        plain->v[i] -= rule->decay * plain->v[i];
        if (rule->nesterov) {
            plain->m[i] = rule->mu * (plain->m[i] + g);
            plain->v[i] += plain->m[i] + g;
        } else {
            plain->m[i] = rule->mu * plain->m[i] + g;
            plain->v[i] += plain->m[i];
        }
    }
}

/* Near means within f32's rounding of sums of gradients up to some thousands. */
static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-4 * (10 + fabs(b))) {
        fail_msg("%g instead of %g", a, b);
    }
}

/* For a tensor that is sent dense the update is the whole plain residual, which is empty
 * afterwards. Velocities go on, whatever masking says. before: the sum of updates before this step.
 */
static void compare_dense(const struct lone_core *lone, struct plain *plain, const double *before)
{
    const float *residual = inside_residual(lone->host.core, lone->job, 0, 0);

    for (unsigned i = 0; i < ELEMENTS; i++) {
        assert_near(lone->applied[0][i] - before[i], plain[0].v[i]);
        assert_near((double)residual[i], 0);
        plain[0].v[i] = 0;
    }
}

/* Selected entries leave the plain residuals as they left the core's. */
static void compare(struct lone_core *lone, struct plain *plain, const struct rule *rule)
{
    const float *residual;

    for (unsigned r = 0; r < rule->residuals; r++) {
        residual = inside_residual(lone->host.core, lone->job, 0, r);
        assert_non_null(residual);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            /* The entry was sent. The first rank keeps the rounding error of the ranks' sum. */
            if (plain[r].v[i] != 0 && fabs((double)residual[i]) <= 1e-6 * fabs(plain[r].v[i])) {
                plain[r].v[i] = (double)residual[i];
                plain[r].m[i] = rule->masking ? 0 : plain[r].m[i];
            }
            assert_near((double)residual[i], plain[r].v[i]);
        }
    }
}

/* From this step on another policy is in force. */
static void change(struct plain *plain, struct rule *rule)
{
    rule->mu = rule->mu_after;
    rule->decay = rule->decay_after;
    rule->dense = rule->dense_after;
    for (unsigned r = 0; rule->anew && r < rule->residuals; r++) {
        (void)memset(plain[r].m, 0, sizeof(plain[r].m));
    }
}

static void check(const struct rule *given)
{
    struct rule its = *given, *rule = &its;
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct plain *plain = calloc(rule->residuals, sizeof(*plain));
    struct lone_core lone;
    unsigned ranks = 2, sent = 0;

    assert_non_null(plain);
    lone_start(&lone, ranks, rule->policy, &spec, 1);
    lone.changed = true;
    for (unsigned s = 0; s < STEPS; s++) {
        double sum[ELEMENTS] = {0}, before[ELEMENTS];
        if (s == 0 && rule->change != NULL) {
            assert_int_equal(lone_change(&lone, 1, rule->change), ADTOPK_OK);
        } else if (s == CHANGED && rule->change != NULL) {
            assert_int_equal(lone_job(&lone).policy.version, 1);
            change(plain, rule);
        }
        lone_push_all(&lone);
        for (unsigned r = 0; r < ranks; r++) {
            double own[ELEMENTS];
            for (unsigned i = 0; i < ELEMENTS; i++) {
                own[i] = lone_gradient(lone.step, r, 0, i);
                sum[i] += own[i];
            }
            if (rule->residuals > 1) {
                plain_step(&plain[r], own, rule, 1, ranks);
            }
        }
        if (rule->residuals == 1) {
            plain_step(&plain[0], sum, rule, ranks, ranks);
        }
        lone_end_all(&lone);
        (void)memcpy(before, lone.applied[0], sizeof(before));
        lone_close(&lone);
        if (rule->dense) {
            compare_dense(&lone, plain, before);
        } else {
            compare(&lone, plain, rule);
        }
        for (unsigned i = 0; i < ELEMENTS; i++) {
            sent += fabs(plain[0].v[i]) < 1;
        }
    }
    assert_true(sent > 0);
    lone_free(&lone);
    free(plain);
}

#define POLICY(more) "{" LONE_EXACT "," more "}"

static void test_momentum(void **state)
{
    (void)state;
    check(&(struct rule){
        .policy = POLICY("\"momentum\":0.9"), .mu = 0.9, .masking = true, .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"momentum\":0.9,\"momentum_masking\":false"),
        .mu = 0.9,
        .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"momentum\":0.7,\"scope\":\"rank\""),
        .mu = 0.7,
        .masking = true,
        .residuals = 2});
    check(&(struct rule){.policy = POLICY("\"momentum\":0.8,\"nesterov\":true"),
        .mu = 0.8,
        .nesterov = true,
        .masking = true,
        .residuals = 1});
}

/* Velocities go on if the next policy has momentum, too. */
static void test_changed(void **state)
{
    static const char *const alike[] = {"{\"bucket_bytes\":100}",
        "{\"sparse_collective\":\"auto\"}", "{\"momentum\":0.5}", "{\"density\":0.2}",
        "{\"sparsifier\":\"topk\"}"};

    (void)state;
    for (unsigned i = 0; i < sizeof(alike) / sizeof(alike[0]); i++) {
        double mu = strstr(alike[i], "momentum") != NULL ? 0.5 : 0.9;
        check(&(struct rule){.policy = POLICY("\"momentum\":0.9"),
            .mu = 0.9,
            .masking = true,
            .residuals = 1,
            .change = alike[i],
            .mu_after = mu});
        check(&(struct rule){.policy = POLICY("\"momentum\":0.9,\"scope\":\"rank\""),
            .mu = 0.9,
            .masking = true,
            .residuals = 2,
            .change = alike[i],
            .mu_after = mu});
    }
    check(&(struct rule){.policy = POLICY("\"momentum\":0"),
        .masking = true,
        .residuals = 1,
        .change = "{\"momentum\":0.9}",
        .mu_after = 0.9,
        .anew = true});
}

static void test_feedback(void **state)
{
    (void)state;
    check(&(struct rule){.policy = POLICY("\"beta\":0.9"), .decay = 0.1, .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"gamma\":3"), .gamma = 3, .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"gamma\":0.25,\"sparsifier\":\"dense\""),
        .gamma = 0.25,
        .dense = true,
        .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"beta\":0,\"clip\":100,\"gamma\":0.5"),
        .decay = 1,
        .clip = 100,
        .gamma = 0.5,
        .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"beta\":0.5,\"scope\":\"rank\",\"gamma\":2"),
        .decay = 0.5,
        .gamma = 2,
        .residuals = 2});
    check(&(struct rule){.policy = POLICY("\"gamma\":2,\"momentum\":0.5"),
        .mu = 0.5,
        .masking = true,
        .gamma = 2,
        .residuals = 1});
}

/* The keys change while it trains, and what was lost so far stays in the ledger. */
static void test_feedback_changed(void **state)
{
    (void)state;
    check(&(struct rule){
        .policy = POLICY("\"beta\":0.9"), .decay = 0.1, .residuals = 1, .change = "{\"beta\":1}"});
    check(&(struct rule){.policy = POLICY("\"beta\":1"),
        .residuals = 1,
        .change = "{\"beta\":0.75}",
        .decay_after = 0.25});
}

static void test_clip(void **state)
{
    (void)state;
    check(&(struct rule){.policy = POLICY("\"clip\":100"), .clip = 100, .residuals = 1});
    check(&(struct rule){.policy = POLICY("\"clip\":1000000"), .clip = 1000000, .residuals = 1});
    check(&(struct rule){
        .policy = POLICY("\"clip\":50,\"scope\":\"rank\""), .clip = 50, .residuals = 2});
    check(&(struct rule){.policy = POLICY("\"clip\":300,\"momentum\":0.5"),
        .mu = 0.5,
        .masking = true,
        .clip = 300,
        .residuals = 1});
}

/* A tensor that is sent dense gets the updates of momentum SGD, clipped. */
static void test_dense(void **state)
{
    static const char *const policy[] = {
        POLICY("\"sparsifier\":\"dense\",\"momentum\":0.9"),
        POLICY("\"sparsifier\":\"dense\",\"momentum\":0.9,\"momentum_masking\":false"),
        POLICY("\"sparsifier\":\"dense\",\"momentum\":0.8,\"nesterov\":true"),
        POLICY("\"sparsifier\":\"dense\",\"clip\":100"),
        POLICY("\"sparsifier\":\"dense\",\"clip\":300,\"momentum\":0.5"),
    };
    static const double mu[] = {0.9, 0.9, 0.8, 0, 0.5}, clip[] = {0, 0, 0, 100, 300};

    (void)state;
    for (unsigned i = 0; i < sizeof(policy) / sizeof(policy[0]); i++) {
        check(&(struct rule){.policy = policy[i],
            .mu = mu[i],
            .nesterov = i == 2,
            .clip = clip[i],
            .residuals = 1,
            .dense = true});
    }
}

/* Velocities go on when a tensor begins to be sent dense, and when that ends. */
static void test_dense_halfway(void **state)
{
    static const char *const dense[] = {"{\"sparsifier\":\"dense\"}", "{\"plan\":\"4194304:1d\"}"};

    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        check(&(struct rule){.policy = POLICY("\"sparsifier\":\"auto\",\"momentum\":0.9"),
            .mu = 0.9,
            .masking = true,
            .residuals = 1,
            .change = dense[i],
            .mu_after = 0.9,
            .dense_after = true});
    }
    check(&(struct rule){.policy = POLICY("\"sparsifier\":\"dense\",\"momentum\":0.9"),
        .mu = 0.9,
        .masking = true,
        .residuals = 1,
        .dense = true,
        .change = "{\"sparsifier\":\"adtopk\"}",
        .mu_after = 0.9});
}

/* Without masking, updates and residuals together equal the updates of momentum SGD. That holds
 * however often the tensor changes to dense and back, by node or by rank. */
static void test_velocity_stays(void **state)
{
    static const char *const changes[] = {"{\"plan\":\"4194304:1d\"}", "{\"scope\":\"rank\"}",
        "{\"plan\":\"4194304:1d\"}", "{\"plan\":\"\"}",
        "{\"sparsifier\":\"dense\",\"scope\":\"node\"}",
        "{\"sparsifier\":\"topk\",\"scope\":\"rank\"}", "{\"scope\":\"node\"}",
        "{\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}"};
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct plain *plain = calloc(1, sizeof(*plain));
    const struct rule rule = {.mu = 0.9};
    struct lone_core lone;

    (void)state;
    assert_non_null(plain);
    lone_start(&lone, 2,
        POLICY("\"sparsifier\":\"auto\",\"momentum\":0.9,\"momentum_masking\":false"), &spec, 1);
    lone.changed = true;
    for (unsigned s = 0; s < 4 * sizeof(changes) / sizeof(changes[0]); s++) {
        double sum[ELEMENTS], have;
        float residual[ELEMENTS];
        if (s % 4 == 0) {
            assert_int_equal(lone_change(&lone, s + 1, changes[s / 4]), ADTOPK_OK);
        }
        for (unsigned i = 0; i < ELEMENTS; i++) {
            sum[i] = lone_gradient(lone.step, 0, 0, i) + lone_gradient(lone.step, 1, 0, i);
        }
        plain_step(plain, sum, &rule, 2, 2);
        lone_train(&lone, 1);
        for (unsigned i = 0; i < ELEMENTS; i++) {
            have = lone.applied[0][i];
            for (unsigned r = 0; inside_residual_copy(lone.host.core, lone.job, 0, r, residual);
                 r++) {
                have += (double)residual[i];
            }
            assert_true(fabs(have - plain->v[i]) < 0.1); /* of sums up to 100,000, in f32 */
        }
    }
    assert_int_equal(lone_job(&lone).policy.version, sizeof(changes) / sizeof(changes[0]));
    lone_free(&lone);
    free(plain);
}

/* A step with NaN is withdrawn: residuals and momentum are as before, to rounding. */
static void check_withdrawn(const char *policy)
{
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});
    struct lone_core lone;
    float before[ELEMENTS], after[ELEMENTS], momentum[ELEMENTS];

    lone_start(&lone, 2, policy, &spec, 1);
    lone.changed = true;
    lone_train(&lone, 3);
    (void)memcpy(before, inside_residual(lone.host.core, lone.job, 0, 0), sizeof(before));
    if (strstr(policy, "momentum") != NULL) {
        (void)memcpy(momentum, lone.host.core->jobs->plan->tensor[0].selection[0].momentum,
            sizeof(momentum));
    }
    lone_withdraw(&lone);
    (void)memcpy(after, inside_residual(lone.host.core, lone.job, 0, 0), sizeof(after));
    for (unsigned i = 0; i < ELEMENTS; i++) {
        assert_near((double)after[i], (double)before[i]);
        if (strstr(policy, "momentum") == NULL) {
            continue;
        }
        assert_near((double)lone.host.core->jobs->plan->tensor[0].selection[0].momentum[i],
            (double)momentum[i]);
    }
    lone_train(&lone, 2);
    lone_free(&lone);
}

static void test_withdrawn(void **state)
{
    (void)state;
    check_withdrawn(POLICY("\"beta\":0.5,\"gamma\":2"));
    check_withdrawn(POLICY("\"momentum\":0.5,\"clip\":20000"));
    check_withdrawn(POLICY("\"sparsifier\":\"dense\",\"momentum\":0.5,\"clip\":20000"));
    check_withdrawn(POLICY(
        "\"sparsifier\":\"dense\",\"dense_values\":\"bf16\",\"momentum\":0.5,\"clip\":20000"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_momentum),
        cmocka_unit_test(test_changed),
        cmocka_unit_test(test_feedback),
        cmocka_unit_test(test_feedback_changed),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_dense_halfway),
        cmocka_unit_test(test_velocity_stays),
        cmocka_unit_test(test_withdrawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Orders that find no memory, on a core of one node. The job ends with a sentence, whichever of a
 * tensor's orders it was, and the worker returns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>
#include <unistd.h>

#include "daemon/job/model.h"
#include "lone_core.h"

#define PATIENCE_S 60u /* a worker that does not return ends the test */

/* The host's engine, without memory for the first of a tensor's orders of one kind. */
static enum engine_kind scarce;

static void scarce_run(
    void *context, const struct engine_batch *batch, const struct parallel *parallel)
{
    engine_host.run(context, batch, parallel);
    for (unsigned i = 0; i < batch->count; i++) {
        if (batch->order[i].kind == scarce &&
            (i == 0 || batch->order[i].tensor != batch->order[i - 1].tensor)) {
            batch->result[i].status = ADTOPK_ERR_MEMORY;
        }
    }
}

static const struct engine_ops scarce_engine = {.name = "scarce", .run = scarce_run};

static void make_scarce(struct lone_core *lone, enum engine_kind kind)
{
    scarce = kind;
    lone->host.core->config.engine = &scarce_engine;
    (void)alarm(PATIENCE_S);
}

static void expect_failed(struct lone_core *lone, const char *what)
{
    (void)alarm(0);
    assert_int_equal(lone->failed, lone->ranks);
    assert_int_equal(lone->failure.code, ADTOPK_ERR_MEMORY);
    assert_non_null(strstr(lone->failure.text, what));
    lone_free(lone);
}

/* One tensor, of which each rank has a residual. */
static void begin(struct lone_core *lone)
{
    const struct tensor_spec spec = lone_spec("w", 2, (const uint64_t[]){16, 40});

    lone_start(lone, 2,
        "{\"sparsifier\":\"topk\",\"scope\":\"rank\",\"momentum\":0.5," LONE_EXACT "}", &spec, 1);
    lone->changed = true;
    lone_train(lone, 1);
}

/* Each rank's residual has an order of its own. */
static void test_first_of_ranks(void **state)
{
    struct lone_core lone;

    (void)state;
    begin(&lone);
    make_scarce(&lone, ENGINE_ADD);
    lone_must(&lone, lone_push(&lone, 0, 0));
    lone_must(&lone, lone_push(&lone, 1, 0));
    expect_failed(&lone, "no memory to select");
}

/* The order that joins residuals is followed by one for the velocity. */
static void test_first_of_a_switch(void **state)
{
    struct lone_core lone;

    (void)state;
    begin(&lone);
    assert_int_equal(lone_change(&lone, 1, "{\"scope\":\"node\"}"), ADTOPK_OK);
    lone_train(&lone, 1);
    make_scarce(&lone, ENGINE_JOIN);
    lone_push_all(&lone);
    lone_end_all(&lone);
    expect_failed(&lone, "no memory to make its residuals fit another policy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_of_ranks),
        cmocka_unit_test(test_first_of_a_switch),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

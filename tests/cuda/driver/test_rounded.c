/*
 * Residuals in bf16, in a part with residuals in f32: the engine cuda against that of this
 * processor, while workers are killed.
 */
#include <string.h>

#include "kernels/kernels.h"
#include "tests/cuda/driver/sides.h"
#include "tests/host/sanitized.h"

static struct engine_place place_in(unsigned part, unsigned t)
{
    return (struct engine_place){part, sides_first(t) * sizeof(float)};
}

/* All residuals of one part become those of the other, in this type, and are read there. One is
 * always in f32. */
static void convert(struct side *side, unsigned from, bool was, unsigned to, bool is)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order = sides_order(side, ENGINE_CONVERT, t);

        order->convert =
            (struct engine_convert){.element = place_in(to, t), .rounded = is && t != SIDES_F32};
        order->residual.element = place_in(from, t);
        order->residual.rounded = was && t != SIDES_F32;
        sides_read(side, t);
        order[1].residual.element = place_in(to, t);
        order[1].residual.rounded = is && t != SIDES_F32;
        order[2].residual.element = place_in(to, t);
        order[2].residual.rounded = is && t != SIDES_F32;
    }
}

static void converted(unsigned from, bool was, unsigned to, bool is)
{
    convert(&sides.host, from, was, to, is);
    convert(&sides.cuda, from, was, to, is);
    sides_run(sides_kill);
    sides_compare();
}

/* Gradients come in per fibre, or are withdrawn. */
static void fibres(struct side *side, uint64_t stamp, enum engine_kind kind)
{
    for (unsigned t = 0; t < TENSORS; t++) {
        struct engine_order *order;

        sides_add(side, t, stamp);
        order = &side->batch.order[side->batch.count - 1];
        order->kind = kind;
        order->add.selects = kind == ENGINE_ADD;
        order->add.sparsifier = sides_sparsifier("adtopk");
        order->add.shape = (struct tensor_shape){2, {sides.size[t] / 20, 20}};
    }
}

static void added(uint64_t stamp, enum engine_kind kind)
{
    fibres(&sides.host, stamp, kind);
    fibres(&sides.cuda, stamp, kind);
    sides_run(sides_kill);
    sides_compare();
    for (unsigned t = 0; t < TENSORS; t++) {
        sides_read(&sides.host, t);
        sides_read(&sides.cuda, t);
    }
    sides_run(NULL);
    sides_compare();
}

/* Turns in bf16, in f32 in the other part, and in bf16 again. */
static void test_rounded(void **state)
{
    uint64_t stamp = 0;

    (void)state;
    sides.rounded = true;
    sides_open("chance:4", "", 0, SIDES_MEDIUM);
    sides_open_part(OTHER, sides_first(TENSORS) * sizeof(float));
    for (unsigned round = 0; round < CASES(4, 1); round++) {
        sides_step(++stamp, sides_kill);
        sides_step(++stamp, NULL);
        added(++stamp, ENGINE_ADD);
        added(++stamp, ENGINE_WITHDRAW);
        converted(RESIDUALS, true, OTHER, true);
        converted(RESIDUALS, true, OTHER, false);
        converted(OTHER, false, RESIDUALS, true);
    }
    sides_close();
    sides.rounded = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

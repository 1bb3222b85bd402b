#include "model_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STOPPED = 7 }; /* the result of an announcement that ends the pass */

void *checked(void *memory)
{
    assert_non_null(memory);
    return memory;
}

void assert_close(double got, double expected, double tolerance)
{
    if (!(fabs(got - expected) <= tolerance)) {
        fail_msg("got %.9g, expected %.9g within %.3g", got, expected, tolerance);
    }
}

double largest(const float *values, size_t count)
{
    double most = 0;

    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)values[i]));
    }
    return most;
}

/* Draws biases away from zero, so that no unit lies on the bend of its ReLU. */
void model_check_draw(struct model_check *check, uint64_t seed, struct random *random)
{
    *random = random_start(seed, 1000);
    tensors_init(check->tensors, check->count, seed);
    for (size_t t = 0; t < check->count; t++) {
        const struct tensor *tensor = &check->tensors[t];
        for (size_t i = 0; i < tensor_size(tensor); i++) {
            if (tensor->dims == 1) {
                tensor->values[i] = random_symmetric(random, 0.3f);
            }
            check->parameters[t][i] = (double)tensor->values[i];
        }
    }
}

void model_check_begin(
    struct model_check *check, struct model *model, uint64_t seed, struct random *random)
{
    check->model = checked(model);
    check->tensors = model_tensors(model, &check->count);
    assert_true(check->count <= MODEL_CHECK_TENSORS);
    for (size_t t = 0; t < check->count; t++) {
        const size_t size = tensor_size(&check->tensors[t]);
        check->parameters[t] = checked(malloc(size * sizeof(double)));
        check->gradients[t] = checked(calloc(size, sizeof(float)));
    }
    model_check_draw(check, seed, random);
}

void model_check_end(struct model_check *check)
{
    for (size_t t = 0; t < check->count; t++) {
        free(check->parameters[t]);
        free(check->gradients[t]);
    }
    model_destroy(check->model);
}

static double finite_difference(
    double *parameter, double nudge, model_check_loss loss, const void *fixture)
{
    const double before = *parameter;
    double above, below;

    *parameter = before + nudge;
    above = loss(fixture);
    *parameter = before - nudge;
    below = loss(fixture);
    *parameter = before;
    return (above - below) / (2 * nudge);
}

void model_check_gradients(struct model_check *check, const struct model_check_bounds *bounds,
    model_check_loss loss, const void *fixture)
{
    for (size_t t = 0; t < check->count; t++) {
        const size_t size = tensor_size(&check->tensors[t]);
        const size_t apart =
            bounds->elements > 0 && size > bounds->elements ? size / bounds->elements : 1;
        const double most = largest(check->gradients[t], size);
        assert_true(most > 1e-3);
        for (size_t i = 0; i < size; i += apart) {
            const double expected = bounds->scale * finite_difference(&check->parameters[t][i],
                                                        bounds->nudge, loss, fixture);
            assert_close((double)check->gradients[t][i], expected,
                bounds->relative * most + bounds->absolute);
        }
    }
}

/* ---- announcements ---- */

struct listener {
    struct model_check *check;
    float *seen[MODEL_CHECK_TENSORS]; /* gradients when they were announced */
    size_t order[MODEL_CHECK_TENSORS];
    size_t calls;
    size_t stop_at; /* number of the call that ends the pass; 0: none */
};

/* Spoils the gradient, which the pass must not use any more. */
static int announce(void *context, size_t tensor)
{
    struct listener *listener = context;
    float *gradient = listener->check->gradients[tensor];
    const size_t size = tensor_size(&listener->check->tensors[tensor]);

    assert_true(listener->calls < listener->check->count);
    listener->order[listener->calls++] = tensor;
    memcpy(listener->seen[tensor], gradient, size * sizeof(float));
    for (size_t i = 0; i < size; i++) {
        gradient[i] = NAN;
    }
    return listener->calls == listener->stop_at ? STOPPED : 0;
}

/* A pass of which the given announcement ends it, or none. */
static void announced_pass(
    struct listener *listener, const struct model_batch *batch, size_t stop_at, const size_t *order)
{
    struct model_check *check = listener->check;
    const size_t calls = stop_at > 0 ? stop_at : check->count;

    listener->calls = 0;
    listener->stop_at = stop_at;
    model_forward(check->model, batch);
    assert_int_equal(model_backward(check->model, 1, check->gradients, announce, listener),
        stop_at > 0 ? STOPPED : 0);
    assert_int_equal(listener->calls, calls);
    assert_memory_equal(listener->order, order, calls * sizeof *order);
    for (size_t i = 0; i < calls; i++) {
        const size_t size = tensor_size(&check->tensors[order[i]]);
        for (size_t e = 0; e < size; e++) {
            assert_true(isnan(check->gradients[order[i]][e]));
        }
    }
}

void model_check_announcements(
    struct model_check *check, const struct model_batch *batch, const size_t *order)
{
    struct listener listener = {.check = check};
    float *expected[MODEL_CHECK_TENSORS];

    for (size_t t = 0; t < check->count; t++) {
        const size_t bytes = tensor_size(&check->tensors[t]) * sizeof(float);
        listener.seen[t] = checked(malloc(bytes));
        expected[t] = checked(malloc(bytes));
    }
    model_forward(check->model, batch);
    assert_int_equal(model_backward(check->model, 1, expected, NULL, NULL), 0);
    for (size_t stop_at = 0; stop_at <= check->count; stop_at++) {
        announced_pass(&listener, batch, stop_at, order);
    }
    for (size_t t = 0; t < check->count; t++) {
        const size_t bytes = tensor_size(&check->tensors[t]) * sizeof(float);
        assert_memory_equal(listener.seen[t], expected[t], bytes);
        free(listener.seen[t]);
        free(expected[t]);
    }
}

/*
 * What the tests of the examples' models share: a model with drawn parameters, a copy of these in
 * double precision for a reference, and checks of its backward pass.
 */
#ifndef ADTOPK_TESTS_MODEL_CHECK_H
#define ADTOPK_TESTS_MODEL_CHECK_H

#include "common/model.h"
#include "common/random.h"

enum { MODEL_CHECK_TENSORS = 256 };

struct model_check {
    struct model *model;
    const struct tensor *tensors;
    size_t count;
    double *parameters[MODEL_CHECK_TENSORS];
    float *gradients[MODEL_CHECK_TENSORS];
};

/** Takes a model and draws its parameters. Sets *random to numbers for a batch. */
void model_check_begin(
    struct model_check *check, struct model *model, uint64_t seed, struct random *random);

/** Draws the parameters again. */
void model_check_draw(struct model_check *check, uint64_t seed, struct random *random);

/** Frees the model as well. */
void model_check_end(struct model_check *check);

/** The loss of a reference with the parameters of the check. `fixture` is the test's. */
typedef double (*model_check_loss)(const void *fixture);

/** How a gradient is compared with the finite difference of a loss. */
struct model_check_bounds {
    double scale;    /* of the loss in the backward pass */
    double nudge;    /* by which a parameter is changed */
    double relative; /* tolerances: relative to the tensor's largest gradient, and absolute */
    double absolute;
    size_t elements; /* that are compared per tensor, if it has as many; 0: all */
};

/** Compares the gradients of the last backward pass with finite differences of the loss. */
void model_check_gradients(struct model_check *check, const struct model_check_bounds *bounds,
    model_check_loss loss, const void *fixture);

/** Checks that a backward pass announces each tensor once, in this order, with its final gradient.
 * It does not change that gradient afterwards. Any announcement can end the pass. */
void model_check_announcements(
    struct model_check *check, const struct model_batch *batch, const size_t *order);

/** Fails the test where there is no memory. */
void *checked(void *memory);

void assert_close(double got, double expected, double tolerance);

/** The largest magnitude. */
double largest(const float *values, size_t count);

#endif

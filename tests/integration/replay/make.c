/*
 * Makes real gradients: trains a small model with ranks that each draw batches of their own, and
 * writes what every rank's gradients are in every step.
 *
 *     test-gradients KIND DATA OUT STEPS RANKS
 *
 * Each parameter's gradient is compared with what the loss does along it. Prints the mean loss of
 * the first and of the last quarter of the steps.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/integration/replay/models.h"

#define MAKE_STEP 2e-3      /* of the loss's slope along a gradient of length 1 */
#define MAKE_TOLERANCE 0.15 /* for what f32 and corners of relu do */

struct training {
    struct model model;
    float *sum; /* of the ranks' gradients */
    FILE *out;
};

/* The loss of a batch with a parameter moved along its gradient. */
static double make_moved(
    struct model *model, uint32_t p, const float *value, const float *grad, double by)
{
    for (uint64_t i = 0; i < model->params.tensor[p].numel; i++) {
        model->param[p].value[i] = value[i] + (float)by * grad[i];
    }
    return (double)model_batch(model, 0);
}

/* Whether the loss rises along each parameter's gradient as steeply as that says. */
static int make_check(struct model *model, uint32_t p)
{
    const uint64_t numel = model->params.tensor[p].numel;
    float *grad = tape_need(numel, sizeof(*grad)), *value = tape_need(numel, sizeof(*value));
    double square = 0, by, slope;

    (void)model_batch(model, 0);
    memcpy(grad, model->param[p].grad, numel * sizeof(*grad));
    memcpy(value, model->param[p].value, numel * sizeof(*value));
    for (uint64_t i = 0; i < numel; i++) {
        square += (double)grad[i] * (double)grad[i];
    }
    by = MAKE_STEP / sqrt(square);
    slope = (make_moved(model, p, value, grad, by) - make_moved(model, p, value, grad, -by)) /
            (2 * by * square);
    memcpy(model->param[p].value, value, numel * sizeof(*value));
    free(grad);
    free(value);
    if (!(fabs(slope - 1) < MAKE_TOLERANCE)) {
        (void)fprintf(stderr, "the gradient of %s is %g times what the loss says\n",
            model->params.tensor[p].name, 1 / slope);
    }
    return fabs(slope - 1) < MAKE_TOLERANCE;
}

/* One rank's gradients into the file and the sum; false: they could not be written. */
static int make_rank(struct training *training, uint64_t seed, double *loss)
{
    const struct model *model = &training->model;
    float *sum = training->sum;

    *loss += (double)model_batch(&training->model, seed);
    for (uint32_t p = 0; p < model->params.header.tensors; p++) {
        const uint64_t numel = model->params.tensor[p].numel;
        const float *grad = model->param[p].grad;
        if (fwrite(grad, sizeof(*grad), numel, training->out) != numel) {
            return 0;
        }
        for (uint64_t i = 0; i < numel; i++) {
            *sum++ += grad[i];
        }
    }
    return 1;
}

static void make_update(struct training *training, unsigned ranks)
{
    const struct model *model = &training->model;
    float *sum = training->sum;

    for (uint32_t p = 0; p < model->params.header.tensors; p++) {
        for (uint64_t i = 0; i < model->params.tensor[p].numel; i++) {
            model->param[p].value[i] -= model->learning_rate / (float)ranks * *sum;
            *sum++ = 0;
        }
    }
}

static int make_all(struct training *training)
{
    const struct capture_header *header = &training->model.params.header;
    double first = 0, last = 0;

    for (uint32_t step = 0; step < header->steps; step++) {
        double loss = 0;
        for (uint32_t rank = 0; rank < header->ranks; rank++) {
            if (!make_rank(training, step * UINT64_C(1000) + rank, &loss)) {
                return 0;
            }
        }
        make_update(training, header->ranks);
        first += step < header->steps / 4 ? loss : 0;
        last += step >= header->steps - header->steps / 4 ? loss : 0;
    }
    (void)printf("%u tensors, %u elements, loss %.4f to %.4f\n", header->tensors, header->elements,
        first / (header->steps / 4 * header->ranks), last / (header->steps / 4 * header->ranks));
    return 1;
}

int main(int argc, char **argv)
{
    static struct training training; /* large */
    int done;

    if (argc != 6 || !model_init(&training.model, argv[1], argv[2])) {
        (void)fprintf(stderr, "usage: %s KIND DATA OUT STEPS RANKS\n", argv[0]);
        return 2;
    }
    for (uint32_t p = 0; p < training.model.params.header.tensors; p++) {
        if (!make_check(&training.model, p)) {
            return 1;
        }
    }
    training.model.params.header.steps = (uint32_t)strtoul(argv[4], NULL, 10);
    training.model.params.header.ranks = (uint32_t)strtoul(argv[5], NULL, 10);
    training.sum = tape_need(training.model.params.header.elements, sizeof(float));
    training.out = fopen(argv[3], "w");
    done = training.out != NULL && capture_begin(&training.model.params, training.out) &&
           make_all(&training);
    if (training.out == NULL || fclose(training.out) != 0 || !done) {
        perror(argv[3]);
        return 1;
    }
    free(training.sum);
    model_free(&training.model);
    return 0;
}

/* The digits as the training loop sees them. */
#include "../common/task.h"

#include <stdlib.h>
#include <string.h>

#include "data.h"
#include "model.h"

enum { BATCH_NORM };

const struct options_task task_options = {
    .program = "adtopk-digits",
    .about = "Trains a small convolutional network on hand-written digits, data-parallel\n"
             "through adtopkd.\n",
    .data = "CSV: 64 pixels 0..16 and a label 0..9 per line (unpack\n"
            "                        digits.csv.gz for it)",
    .steps = 440,
    .batch = 128,
    .warmup = 40,
    .tested = 4096,
    .lr = 0.04f,
    .adamw_lr = 0.002f,
    .sizes = {[BATCH_NORM] = {"batch-norm", "1: normalise batches after convolutions", 0, 1, 0}},
};

struct task {
    struct data data;
    struct model *model;
    float *images; /* of the examples in use */
    uint8_t *labels;
};

struct task *task_create(const struct options *options, char error[TASK_ERROR_SIZE])
{
    struct task *task = calloc(1, sizeof *task);
    if (!task) {
        snprintf(error, TASK_ERROR_SIZE, "no memory");
    } else if (data_load(&task->data, options->data, error) != 0) {
        free(task);
        task = NULL;
    }
    return task;
}

int task_build(struct task *task, const struct options *options)
{
    const size_t batch = options->batch;
    task->model = model_create(batch, options->sizes[BATCH_NORM] != 0);
    task->images = malloc(batch * MODEL_PIXELS * sizeof *task->images);
    task->labels = malloc(batch);
    return task->model && task->images && task->labels ? 0 : -1;
}

void task_destroy(struct task *task)
{
    if (!task) {
        return;
    }
    model_destroy(task->model);
    data_free(&task->data);
    free(task->images);
    free(task->labels);
    free(task);
}

struct model *task_model(const struct task *task)
{
    return task->model;
}

float *task_statistics(struct task *task, size_t *count)
{
    return model_statistics(task->model, count);
}

static const struct data_set *task_set(const struct task *task, enum task_part part)
{
    return part == TASK_TRAIN ? &task->data.train : &task->data.test;
}

size_t task_count(const struct task *task, enum task_part part)
{
    return task_set(task, part)->count;
}

struct score task_forward(
    struct task *task, enum task_part part, const size_t *examples, size_t count)
{
    const struct data_set *set = task_set(task, part);
    for (size_t i = 0; i < count; i++) {
        memcpy(task->images + i * MODEL_PIXELS, set->images + examples[i] * MODEL_PIXELS,
            MODEL_PIXELS * sizeof(float));
        task->labels[i] = set->labels[examples[i]];
    }
    const struct model_batch batch = {task->images, task->labels, count, part == TASK_TRAIN};
    return model_forward(task->model, &batch);
}

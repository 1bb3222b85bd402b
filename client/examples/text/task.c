/* The text as the training loop sees it. */
#include "../common/task.h"

#include <stdlib.h>
#include <string.h>

#include "../common/corpus.h"
#include "model.h"

enum { CONTEXT, EMBEDDING_WIDTH, HIDDEN_WIDTH, LAYERS };

const struct options_task task_options = {
    .program = "adtopk-text",
    .about = "Trains a small model of characters on a text, data-parallel through adtopkd.\n",
    .data = "text of at least ten lines, such as kjv-pentateuch.txt",
    .steps = 600,
    .batch = 256,
    .warmup = 60,
    .tested = 4096,
    .lr = 0.3f,
    .adamw_lr = 0.008f,
    .sizes =
        {
            [CONTEXT] = {"context", "characters that it sees", 1, 256, 16},
            [EMBEDDING_WIDTH] = {"embedding", "numbers per character", 1, 1024, 32},
            [HIDDEN_WIDTH] = {"hidden", "units per hidden layer", 1, 16384, 128},
            [LAYERS] = {"layers", "number of hidden layers", 1, MODEL_MAX_LAYERS, 2},
        },
};

struct task {
    struct corpus corpus;
    size_t context;
    struct model *model;
    uint8_t *contexts; /* of the examples in use */
    uint8_t *labels;
};

struct task *task_create(const struct options *options, char error[TASK_ERROR_SIZE])
{
    struct task *task = calloc(1, sizeof *task);
    if (!task) {
        snprintf(error, TASK_ERROR_SIZE, "no memory");
        return NULL;
    }
    task->context = options->sizes[CONTEXT];
    if (corpus_load(&task->corpus, options->data, task->context, error) != 0) {
        free(task);
        return NULL;
    }
    return task;
}

int task_build(struct task *task, const struct options *options)
{
    const struct model_sizes sizes = {.symbols = task->corpus.symbols,
        .context = task->context,
        .embedding = options->sizes[EMBEDDING_WIDTH],
        .hidden = options->sizes[HIDDEN_WIDTH],
        .layers = options->sizes[LAYERS]};
    task->model = model_create(&sizes, options->batch);
    task->contexts = malloc(options->batch * task->context);
    task->labels = malloc(options->batch);
    return task->model && task->contexts && task->labels ? 0 : -1;
}

void task_destroy(struct task *task)
{
    if (!task) {
        return;
    }
    model_destroy(task->model);
    corpus_free(&task->corpus);
    free(task->contexts);
    free(task->labels);
    free(task);
}

struct model *task_model(const struct task *task)
{
    return task->model;
}

float *task_statistics(struct task *task, size_t *count)
{
    (void)task;
    *count = 0;
    return NULL;
}

size_t task_count(const struct task *task, enum task_part part)
{
    return part == TASK_TRAIN ? task->corpus.train_count : task->corpus.test_count;
}

struct score task_forward(
    struct task *task, enum task_part part, const size_t *examples, size_t count)
{
    const struct corpus *corpus = &task->corpus;
    const size_t *positions = part == TASK_TRAIN ? corpus->train : corpus->test;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *next = corpus->text + positions[examples[i]];
        memcpy(task->contexts + i * task->context, next - task->context, task->context);
        task->labels[i] = *next;
    }
    const struct model_batch batch = {task->contexts, task->labels, count};
    return model_forward(task->model, &batch);
}

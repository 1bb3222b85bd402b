/* The text as the training loop sees it, for a transformer. */
#include "../common/task.h"

#include <stdlib.h>
#include <string.h>

#include "../common/corpus.h"
#include "model.h"
#include "windows.h"

enum { CONTEXT, WIDTH, LAYERS, HEADS };

const struct options_task task_options = {
    .program = "adtopk-transformer",
    .about = "Trains a small transformer of characters on a text, data-parallel through\n"
             "adtopkd.\n",
    .data = "text of at least ten lines, such as kjv-pentateuch.txt",
    .steps = 1000,
    .batch = 32,
    .warmup = 100,
    .tested = 256,
    .lr = 0.2f,
    .adamw_lr = 0.006f,
    .sizes =
        {
            [CONTEXT] = {"context", "characters of an example", 1, 1024, 64},
            [WIDTH] = {"width", "numbers per character", 1, 4096, 96},
            [LAYERS] = {"layers", "number of blocks", 1, MODEL_MAX_LAYERS, 2},
            [HEADS] = {"heads", "heads of attention; a divisor of --width", 1, 256, 4},
        },
};

struct task {
    struct corpus corpus;
    struct windows windows[2]; /* of each enum task_part */
    struct model_sizes sizes;
    struct model *model;
    uint8_t *symbols; /* of the examples in use */
    size_t *scored;
};

static int task_list_windows(struct task *task, char error[TASK_ERROR_SIZE])
{
    const struct corpus *corpus = &task->corpus;
    const size_t context = task->sizes.context;
    if (windows_to_train(&task->windows[TASK_TRAIN], corpus->train, corpus->train_count, context) !=
            0 ||
        windows_to_test(&task->windows[TASK_TEST], corpus->test, corpus->test_count, context) !=
            0) {
        snprintf(error, TASK_ERROR_SIZE, "no memory");
        return -1;
    }
    if (task->windows[TASK_TRAIN].count == 0) {
        snprintf(error, TASK_ERROR_SIZE,
            "--context %zu: no stretch between held-out lines has so many characters", context);
        return -1;
    }
    return 0;
}

struct task *task_create(const struct options *options, char error[TASK_ERROR_SIZE])
{
    struct task *task = calloc(1, sizeof *task);
    if (!task) {
        snprintf(error, TASK_ERROR_SIZE, "no memory");
        return NULL;
    }
    task->sizes = (struct model_sizes){.context = options->sizes[CONTEXT],
        .width = options->sizes[WIDTH],
        .layers = options->sizes[LAYERS],
        .heads = options->sizes[HEADS]};
    int result = -1;
    if (task->sizes.width % task->sizes.heads != 0) {
        snprintf(error, TASK_ERROR_SIZE, "--heads %zu does not divide --width %zu",
            task->sizes.heads, task->sizes.width);
    } else if (corpus_load(&task->corpus, options->data, 1, error) == 0) {
        task->sizes.symbols = task->corpus.symbols;
        result = task_list_windows(task, error);
    }
    if (result != 0) {
        task_destroy(task);
        return NULL;
    }
    return task;
}

int task_build(struct task *task, const struct options *options)
{
    const size_t batch = options->batch;
    task->model = model_create(&task->sizes, batch);
    task->symbols = malloc(batch * (task->sizes.context + 1));
    task->scored = malloc(batch * sizeof *task->scored);
    return task->model && task->symbols && task->scored ? 0 : -1;
}

void task_destroy(struct task *task)
{
    if (!task) {
        return;
    }
    model_destroy(task->model);
    windows_free(&task->windows[TASK_TRAIN]);
    windows_free(&task->windows[TASK_TEST]);
    corpus_free(&task->corpus);
    free(task->symbols);
    free(task->scored);
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
    return task->windows[part].count;
}

/* An example takes the character before its window and as many as are scored. Behind them there may
 * be no text, so that the rest is filled with a symbol that no scored position sees. */
struct score task_forward(
    struct task *task, enum task_part part, const size_t *examples, size_t count)
{
    const size_t room = task->sizes.context + 1;
    memset(task->symbols, 0, count * room);
    for (size_t i = 0; i < count; i++) {
        const struct window *window = &task->windows[part].list[examples[i]];
        memcpy(task->symbols + i * room, task->corpus.text + window->start - 1, window->scored + 1);
        task->scored[i] = window->scored;
    }
    const struct model_batch batch = {task->symbols, task->scored, count};
    return model_forward(task->model, &batch);
}

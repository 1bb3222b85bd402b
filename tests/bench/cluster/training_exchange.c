/*
 * The exchange of the examples' training loop (client/examples/common/exchange.h) without adtopk.
 * The address says how:
 *
 *     none    no exchange: every rank goes on with its own gradients
 *     PATH    gloo, through gloo_bridge.py. Gradients lie in the file PATH.memory, one tensor after
 *             the other. The fifo PATH.ready carries the sizes (count, then numels, 8 bytes each),
 *             then the numbers of tensors that are ready, a byte each. A byte from the fifo
 *             PATH.done says that all gradients of a step have become their mean over the ranks.
 *
 * Opening a fifo waits for the other side. Failures: a bridge that has ended shows as an error of
 * the fifo, and ends the run.
 */
#include "common/exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TENSORS_MAX 64
#define PATH_SIZE 256

struct exchange {
    struct exchange_options options;
    const struct tensor *tensors;
    size_t count;
    float *memory; /* all gradients; NULL: none yet */
    size_t size;   /* of it, in bytes */
    float *gradients[TENSORS_MAX];
    int ready, done; /* fifos; -1: none */
    int failed;
    char message[512];
};

static int fail(struct exchange *exchange, const char *what, const char *why)
{
    exchange->failed = 1;
    (void)snprintf(exchange->message, sizeof(exchange->message), "%s: %s", what, why);
    return -1;
}

static bool bridged(const struct exchange *exchange)
{
    return strcmp(exchange->options.address, "none") != 0;
}

static int open_beside(struct exchange *exchange, const char *end, int flags)
{
    char path[PATH_SIZE];
    int fd;

    (void)snprintf(path, sizeof(path), "%s.%s", exchange->options.address, end);
    fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) {
        (void)fail(exchange, path, strerror(errno));
    }
    return fd;
}

/* Zeroed memory for all gradients: private, or that of the file. */
static int map_memory(struct exchange *exchange)
{
    int fd = -1;
    void *memory;

    for (size_t t = 0; t < exchange->count; t++) {
        exchange->size += tensor_size(&exchange->tensors[t]) * sizeof(float);
    }
    if (bridged(exchange)) {
        fd = open_beside(exchange, "memory", O_RDWR | O_CREAT);
        if (fd < 0) {
            return -1;
        }
        if (ftruncate(fd, (off_t)exchange->size) != 0) {
            (void)close(fd);
            return fail(exchange, "memory for gradients", strerror(errno));
        }
    }
    memory = mmap(NULL, exchange->size, PROT_READ | PROT_WRITE,
        fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0);
    if (fd >= 0) {
        (void)close(fd);
    }
    if (memory == MAP_FAILED) {
        return fail(exchange, "memory for gradients", strerror(errno));
    }
    exchange->memory = memory;
    for (size_t t = 0, at = 0; t < exchange->count; t++) {
        exchange->gradients[t] = exchange->memory + at;
        at += tensor_size(&exchange->tensors[t]);
    }
    return 0;
}

static int meet_bridge(struct exchange *exchange)
{
    uint64_t sizes[1 + TENSORS_MAX] = {exchange->count};
    const size_t bytes = (1 + exchange->count) * sizeof(sizes[0]);

    for (size_t t = 0; t < exchange->count; t++) {
        sizes[1 + t] = tensor_size(&exchange->tensors[t]);
    }
    exchange->ready = open_beside(exchange, "ready", O_WRONLY);
    exchange->done = exchange->ready < 0 ? -1 : open_beside(exchange, "done", O_RDONLY);
    if (exchange->done < 0) {
        return -1;
    }
    return write(exchange->ready, sizes, bytes) == (ssize_t)bytes
               ? 0
               : fail(exchange, "the bridge", strerror(errno));
}

struct exchange *exchange_open(
    const struct exchange_options *options, const struct tensor *tensors, size_t count)
{
    struct exchange *exchange = calloc(1, sizeof(*exchange));

    if (exchange == NULL) {
        return NULL;
    }
    exchange->options = *options;
    exchange->tensors = tensors;
    exchange->ready = exchange->done = -1;
    if (options->address == NULL || options->rank < 0 || options->world < 1) {
        (void)fail(exchange, "options", "--address, --rank and --world are needed");
    } else if (count > TENSORS_MAX) {
        (void)fail(exchange, "model", "too many tensors");
    } else {
        exchange->count = count;
        if (map_memory(exchange) == 0 && bridged(exchange)) {
            (void)meet_bridge(exchange);
        }
    }
    return exchange;
}

void exchange_close(struct exchange *exchange)
{
    if (exchange == NULL) {
        return;
    }
    if (exchange->memory != NULL) {
        (void)munmap(exchange->memory, exchange->size);
    }
    if (exchange->ready >= 0) {
        (void)close(exchange->ready);
    }
    if (exchange->done >= 0) {
        (void)close(exchange->done);
    }
    free(exchange);
}

int exchange_failed(const struct exchange *exchange)
{
    return exchange->failed;
}

int exchange_rank(const struct exchange *exchange)
{
    return exchange->options.rank;
}

int exchange_world(const struct exchange *exchange)
{
    return exchange->options.world;
}

const char *exchange_message(const struct exchange *exchange)
{
    return exchange->message;
}

const struct tensor *exchange_tensors(const struct exchange *exchange, size_t *count)
{
    *count = exchange->count;
    return exchange->tensors;
}

int exchange_is_first(struct exchange *exchange)
{
    return exchange->options.rank == 0;
}

/* All ranks begin with the same ones: they follow from the seed. */
int exchange_share_parameters(struct exchange *exchange)
{
    (void)exchange;
    return 0;
}

float *const *exchange_gradients(const struct exchange *exchange)
{
    return exchange->gradients;
}

int exchange_push(void *context, size_t tensor)
{
    struct exchange *exchange = context;
    const unsigned char number = (unsigned char)tensor;

    if (!bridged(exchange) || write(exchange->ready, &number, 1) == 1) {
        return 0;
    }
    return fail(exchange, "the bridge", strerror(errno));
}

enum exchange_step exchange_wait(struct exchange *exchange)
{
    char done;

    if (!bridged(exchange) || read(exchange->done, &done, 1) == 1) {
        return EXCHANGE_ACCEPTED;
    }
    (void)fail(exchange, "the bridge", "it has ended");
    return EXCHANGE_FAILED;
}

const float *exchange_update(struct exchange *exchange, size_t tensor)
{
    return exchange->gradients[tensor];
}

int exchange_look_ahead(struct exchange *exchange, size_t tensor, const float *parameters,
    const struct optimiser_reach *reach, float *shifted)
{
    (void)reach; /* a dense exchange leaves nothing behind */
    memcpy(shifted, parameters, tensor_size(&exchange->tensors[tensor]) * sizeof(float));
    return 0;
}

/* Of the losses, for the log only: each rank's own. */
int exchange_sum(struct exchange *exchange, float *values, size_t count)
{
    (void)exchange;
    (void)values;
    (void)count;
    return 0;
}

int exchange_check_words(struct exchange *exchange, const char *words)
{
    (void)exchange;
    (void)words;
    return 0;
}

int exchange_check_equal(struct exchange *exchange, uint64_t hash)
{
    (void)exchange;
    (void)hash;
    return 0;
}

int exchange_checkpoint_due(struct exchange *exchange)
{
    (void)exchange;
    return 0;
}

int exchange_save(struct exchange *exchange, const char *folder)
{
    return fail(exchange, folder, "there are no checkpoints without daemons");
}

int exchange_load(struct exchange *exchange, const char *folder)
{
    return exchange_save(exchange, folder);
}

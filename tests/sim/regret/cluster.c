/*
 * See cluster.h. Happy path: the next event happens: a packet arrives, a compute ends, a timer is
 * due, or a gradient is ready. Packets that nodes send because of it enter the network at that
 * time.
 *
 * Failures: a failure of a node is one of the cluster. A step or a job that does not end within
 * PATIENCE_US is an error, and so is memory that the network lacks.
 */
#include "tests/sim/regret/cluster.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/link/link.h"
#include "tests/bench/perf/data.h"

/* As ranks of tests/bench/cluster do it: gradients are stretches of so many random numbers, from a
 * place that moves with every turn. */
#define NUMBERS 4194301
#define MOVE 1000003

#define BEGIN_US 1e6    /* the clock of a machine is never at 0 */
#define PAUSE_US 1000.0 /* between steps */
#define PATIENCE_US 600e6

struct cluster {
    struct cluster_config config;
    struct fabric *fabric;
    struct host *host[CLUSTER_NODES];
    struct sender {
        struct cluster *cluster;
        unsigned number;
    } sender[CLUSTER_NODES];
    unsigned pushed[CLUSTER_NODES]; /* in the open step */
    float *numbers;
    double now_us, step_us; /* the step's beginning */
    uint64_t turn;
    bool no_memory;
};

/* A packet on its way. */
struct parcel {
    uint16_t from;
    enum link_lane lane;
    size_t size;
    uint8_t bytes[];
};

/* ------------------------------------------------------------------ network */

static bool transmit(void *context, uint16_t peer, enum link_lane lane, const uint8_t *header,
    size_t header_size, const uint8_t *body, size_t body_size, struct buffer *owner)
{
    struct sender *sender = context;
    struct cluster *cluster = sender->cluster;
    struct parcel *parcel = malloc(sizeof(*parcel) + header_size + body_size);
    struct fabric_message message = {
        .from = sender->number, .to = peer, .bytes = header_size + body_size, .cargo = parcel};

    (void)owner;
    if (parcel != NULL) {
        *parcel = (struct parcel){(uint16_t)sender->number, lane, header_size + body_size};
        (void)memcpy(parcel->bytes, header, header_size);
        if (body_size > 0) {
            (void)memcpy(parcel->bytes + header_size, body, body_size);
        }
    }
    if (parcel == NULL || !fabric_send(cluster->fabric, 1e-6 * cluster->now_us, &message)) {
        free(parcel);
        cluster->no_memory = true;
        return false;
    }
    return true;
}

/* ------------------------------------------------------------------ life */

static bool is_ready(const struct cluster *cluster)
{
    bool ready = true;

    for (unsigned n = 0; n < cluster->config.nodes; n++) {
        ready = ready && host_ready(cluster->host[n]);
    }
    return ready;
}

static bool is_over(const struct cluster *cluster)
{
    bool over = true;

    for (unsigned n = 0; n < cluster->config.nodes; n++) {
        over = over && host_steps(cluster->host[n]) == cluster->turn;
    }
    return over;
}

/* Pushes the gradients of a node that are ready. */
static bool push(struct cluster *cluster, unsigned n, struct error *err)
{
    bool ok = host_push(cluster->host[n], cluster->pushed[n]++, cluster->now_us, err);

    if (ok && cluster->pushed[n] == cluster->config.shapes->count) {
        ok = host_end_step(cluster->host[n], cluster->now_us, err);
    }
    return ok;
}

static double next_push(const struct cluster *cluster, unsigned n)
{
    return cluster->pushed[n] < cluster->config.shapes->count
               ? cluster->step_us + 1e-3 * (double)cluster->config.at_ns[cluster->pushed[n]]
               : INFINITY;
}

/* The next event, except packets, and its node. */
static double next_turn(const struct cluster *cluster, unsigned *node, bool *pushes)
{
    double next = INFINITY;

    for (unsigned n = 0; n < cluster->config.nodes; n++) {
        double turn = host_next(cluster->host[n]), ready = next_push(cluster, n);
        if (fmin(turn, ready) < next) {
            next = fmin(turn, ready);
            *node = n;
            *pushes = ready < turn;
        }
    }
    return fmax(next, cluster->now_us);
}

static void deliver(struct cluster *cluster, const struct fabric_message *message)
{
    struct parcel *parcel = message->cargo;

    host_packet(cluster->host[message->to], parcel->from, parcel->lane, parcel->bytes, parcel->size,
        cluster->now_us);
    free(parcel);
}

static bool one_event(struct cluster *cluster, struct error *err)
{
    struct fabric_message message;
    unsigned node = 0;
    bool pushes = false;
    double seconds, next = next_turn(cluster, &node, &pushes);

    if (fabric_next_until(cluster->fabric, 1e-6 * next, &message, &seconds)) {
        cluster->now_us = fmax(cluster->now_us, 1e6 * seconds);
        deliver(cluster, &message);
        return true;
    }
    cluster->now_us = next;
    if (pushes) {
        return push(cluster, node, err);
    }
    host_turn(cluster->host[node], cluster->now_us);
    return true;
}

/* Until the condition holds. */
static bool run(
    struct cluster *cluster, bool (*holds)(const struct cluster *cluster), struct error *err)
{
    double until = cluster->now_us + PATIENCE_US;

    while (!holds(cluster)) {
        if (!one_event(cluster, err)) {
            return false;
        }
        for (unsigned n = 0; n < cluster->config.nodes; n++) {
            if (host_failure(cluster->host[n]) != NULL) {
                *err = *host_failure(cluster->host[n]);
                return false;
            }
        }
        if (cluster->no_memory || cluster->now_us > until) {
            (void)error_set(err, cluster->no_memory ? ADTOPK_ERR_MEMORY : ADTOPK_ERR_STATE, "%s",
                cluster->no_memory ? "no memory for a packet" : "the nodes do not get on");
            return false;
        }
    }
    return true;
}

static bool open_hosts(struct cluster *cluster, struct error *err)
{
    const struct cluster_config *config = &cluster->config;

    for (unsigned n = 0; n < config->nodes; n++) {
        const struct host_config host = {.number = n,
            .nodes = config->nodes,
            .workers = config->workers,
            .costs = config->costs,
            .computed = config->computed,
            .computed_context = config->computed_context,
            .shapes = config->shapes,
            .policy = config->policy,
            .transmit = transmit,
            .transmit_context = &cluster->sender[n]};
        cluster->sender[n] = (struct sender){cluster, n};
        cluster->host[n] = host_open(&host, cluster->now_us, err);
        if (cluster->host[n] == NULL) {
            return false;
        }
    }
    for (unsigned n = 0; n < config->nodes; n++) {
        cluster->pushed[n] = config->shapes->count;
        if (!host_join(cluster->host[n], cluster->now_us, err)) {
            return false;
        }
    }
    return run(cluster, is_ready, err);
}

struct cluster *cluster_open(const struct cluster_config *config, struct error *err)
{
    struct cluster *cluster = calloc(1, sizeof(*cluster));
    bool all;

    if (cluster == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a cluster");
        return NULL;
    }
    cluster->config = *config;
    cluster->now_us = BEGIN_US;
    cluster->numbers = malloc(NUMBERS * sizeof(float));
    cluster->fabric = fabric_open(&config->links, config->nodes);
    all = cluster->numbers != NULL && cluster->fabric != NULL;
    if (!all) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for gradients");
    } else {
        data_fill(cluster->numbers, NUMBERS, DATA_NORMAL, 1);
        all = open_hosts(cluster, err);
    }
    if (!all) {
        cluster_close(cluster);
        return NULL;
    }
    return cluster;
}

void cluster_close(struct cluster *cluster)
{
    struct fabric_message message;
    double seconds;

    if (cluster == NULL) {
        return;
    }
    while (cluster->fabric != NULL && fabric_next(cluster->fabric, &message, &seconds)) {
        free(message.cargo);
    }
    for (unsigned n = 0; n < cluster->config.nodes; n++) {
        host_close(cluster->host[n]);
    }
    fabric_close(cluster->fabric);
    free(cluster->numbers);
    free(cluster);
}

/* ------------------------------------------------------------------ steps */

static void fill(struct cluster *cluster, unsigned n)
{
    /* A stretch of each node's own: a part of the numbers from the next node's. */
    uint64_t from = (cluster->turn * MOVE + n * (NUMBERS / cluster->config.nodes)) % NUMBERS;

    for (unsigned t = 0; t < cluster->config.shapes->count; t++) {
        const uint64_t numel = shapes_numel(&cluster->config.shapes->tensor[t].shape);
        float *gradient = host_gradient(cluster->host[n], t);

        for (uint64_t done = 0, part; done < numel; done += part) {
            part = numel - done < NUMBERS - from ? numel - done : NUMBERS - from;
            (void)memcpy(gradient + done, cluster->numbers + from, part * sizeof(float));
            from = (from + part) % NUMBERS;
        }
    }
}

void cluster_set_bandwidth(struct cluster *cluster, double bandwidth)
{
    fabric_set_bandwidth(cluster->fabric, bandwidth);
}

bool cluster_step(struct cluster *cluster, double *us, struct error *err)
{
    cluster->turn++;
    cluster->step_us = cluster->now_us + PAUSE_US;
    for (unsigned n = 0; n < cluster->config.nodes; n++) {
        fill(cluster, n);
        cluster->pushed[n] = 0;
    }
    if (!run(cluster, is_over, err)) {
        return false;
    }
    *us = cluster->now_us - cluster->step_us;
    return true;
}

const char *cluster_plan(const struct cluster *cluster)
{
    return host_plan(cluster->host[0]);
}

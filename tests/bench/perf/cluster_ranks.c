#include "tests/bench/perf/cluster_ranks.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/bench/perf/perf.h"
#include "tests/bench/perf/stop.h"

#define JOB "adtopk-perf"
#define STRIDE (CLUSTER_FIGURES + 1) /* the last one: this rank stops */
#define NOTHING (-1.0f)
#define HALF 0xffffffu /* 24 bits, which a float holds */

enum adtopk_status cluster_failed(const struct cluster *cluster, enum adtopk_status status,
    const adtopk_context *context, struct error *err)
{
    const int rank = cluster->context != NULL ? adtopk_rank(cluster->context) : -1;

    return rank >= 0 ? error_set(err, status, "rank %d: %s", rank, adtopk_message(context))
                     : error_set(err, status, "%s", adtopk_message(context));
}

static uint64_t cluster_hash(uint64_t hash, const char *text)
{
    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Ranks of one machine that use the daemon at the same address have the same place. */
static uint64_t cluster_place(void)
{
    char boot[64] = "", host[128] = "";
    const char *address = getenv("ADTOPK_ADDRESS");
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);

    if (fd >= 0) {
        if (read(fd, boot, sizeof(boot) - 1) < 0) {
            boot[0] = '\0';
        }
        (void)close(fd);
    }
    (void)gethostname(host, sizeof(host) - 1);
    return cluster_hash(cluster_hash(cluster_hash(UINT64_C(0xcbf29ce484222325), boot), host),
        address != NULL ? address : "");
}

static bool cluster_is_remote(void)
{
    const char *address = getenv("ADTOPK_ADDRESS");

    return address != NULL && strncmp(address, "tcp://", 6) == 0;
}

static enum adtopk_status cluster_join(struct cluster *cluster, struct error *err)
{
    const char *job = getenv("ADTOPK_JOB");
    const struct adtopk_options options = {
        .size = sizeof options, .job = job != NULL && *job != '\0' ? NULL : JOB};
    const struct adtopk_tensor_spec nothing = {
        .size = sizeof nothing, .name = "nothing", .dims = 1, .shape = {1}};
    enum adtopk_status status = adtopk_open(&options, &cluster->context);

    if (status == ADTOPK_OK) {
        status = adtopk_register(cluster->context, &nothing, NULL);
    }
    if (status == ADTOPK_OK) {
        status = adtopk_commit(cluster->context);
    }
    if (status != ADTOPK_OK) {
        return cluster_failed(cluster, status, cluster->context, err);
    }
    cluster->rank = (unsigned)adtopk_rank(cluster->context);
    cluster->world = (unsigned)adtopk_world_size(cluster->context);
    cluster->figure = malloc((size_t)cluster->world * STRIDE * sizeof(float));
    cluster->node = calloc(cluster->world, sizeof(*cluster->node));
    cluster->lead = calloc(cluster->world, sizeof(*cluster->lead));
    return cluster->figure != NULL && cluster->node != NULL && cluster->lead != NULL
               ? ADTOPK_OK
               : perf_no_memory(err, (size_t)cluster->world * STRIDE * sizeof(float));
}

enum adtopk_status cluster_gather(
    struct cluster *cluster, const double *figures, unsigned count, struct error *err)
{
    float *own = &cluster->figure[cluster->rank * STRIDE];
    enum adtopk_status status;

    memset(cluster->figure, 0, (size_t)cluster->world * STRIDE * sizeof(float));
    for (unsigned i = 0; i < count; i++) {
        own[i] = isnan(figures[i]) ? NOTHING : (float)figures[i];
    }
    own[CLUSTER_FIGURES] = stop_requested() ? 1 : 0;
    status = adtopk_allreduce(cluster->context, cluster->figure, (size_t)cluster->world * STRIDE);
    for (unsigned rank = 0; rank < cluster->world && status == ADTOPK_OK; rank++) {
        cluster->stopped = cluster->stopped || cluster->figure[rank * STRIDE + CLUSTER_FIGURES] > 0;
    }
    return status == ADTOPK_OK ? status : cluster_failed(cluster, status, cluster->context, err);
}

double cluster_figure(const struct cluster *cluster, unsigned rank, unsigned figure)
{
    const float told = cluster->figure[rank * STRIDE + figure];

    return told == NOTHING ? NAN : (double)told;
}

static bool cluster_same_place(const struct cluster *cluster, unsigned one, unsigned other)
{
    return cluster_figure(cluster, one, 0) == cluster_figure(cluster, other, 0) &&
           cluster_figure(cluster, one, 1) == cluster_figure(cluster, other, 1);
}

/* Numbers the places in the order of their first ranks. */
static enum adtopk_status cluster_find_nodes(struct cluster *cluster, struct error *err)
{
    const uint64_t place = cluster_place();
    const double figures[] = {(double)(place & HALF), (double)(place >> 24 & HALF)};
    enum adtopk_status status = cluster_gather(cluster, figures, 2, err);

    for (unsigned rank = 0; rank < cluster->world && status == ADTOPK_OK; rank++) {
        unsigned node = 0;

        while (node < cluster->nodes && !cluster_same_place(cluster, cluster->lead[node], rank)) {
            node++;
        }
        if (node == cluster->nodes) {
            cluster->lead[cluster->nodes++] = rank;
        }
        cluster->node[rank] = node;
    }
    return status;
}

enum adtopk_status cluster_open(struct cluster *cluster, struct error *err)
{
    enum adtopk_status status = cluster_join(cluster, err);

    if (status == ADTOPK_OK) {
        status = cluster_find_nodes(cluster, err);
    }
    cluster->daemon = (struct told_daemon){NAN, NAN, NAN, NAN};
    if (status == ADTOPK_OK) {
        cluster->leads = cluster->lead[cluster->node[cluster->rank]] == cluster->rank;
    }
    if (cluster->leads && cluster_is_remote()) {
        (void)error_set(&cluster->silence, ADTOPK_ERR_UNREACHABLE,
            "the daemon is on another machine, where its control socket is");
    } else if (cluster->leads) {
        cluster->asks = told_daemon(&cluster->daemon, &cluster->silence);
    }
    return status;
}

void cluster_close(struct cluster *cluster)
{
    adtopk_close(cluster->context);
    free(cluster->figure);
    free(cluster->node);
    free(cluster->lead);
    *cluster = (struct cluster){.context = NULL};
}

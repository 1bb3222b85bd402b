#include "tests/sim/regret/measuring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/regret/cluster.h"

#define LEAST_LOG2 9u /* elements of the smallest bucket */
#define MOST_LOG2 23u
#define STEP_LOG2 2u
#define FURTHER_LOG2 15u /* of that which is measured with several tensors, too */
#define FURTHER_TENSORS 64u
#define ROW 512u /* elements of a matrix's rows, which "adtopk" selects from */
#define WARMUP 2u
#define FAST 1e12 /* bytes per second */

/* The sums of one step of all nodes, then the times of steps. */
struct samples {
    double open[COSTS_STAGES];
    double *closed[COSTS_STAGES];
    unsigned count;
};

static void computed(void *context, const struct host_compute *compute)
{
    struct samples *samples = context;

    samples->open[compute->stage] += compute->ns;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;

    return (*x > *y) - (*x < *y);
}

/* The mean of the middle half: turns of "adtopk" differ, so a median would be that of one kind. */
static double middle(double *ns, unsigned count)
{
    double sum = 0;

    qsort(ns, count, sizeof(double), ascending);
    for (unsigned i = count / 4; i < count - count / 4; i++) {
        sum += ns[i];
    }
    return sum / (count - 2 * (count / 4));
}

/* One bucket, of equal matrices. */
static struct shapes *one_bucket(uint64_t elements, unsigned tensors)
{
    struct shapes *shapes = calloc(1, sizeof(*shapes));

    for (unsigned t = 0; shapes != NULL && t < tensors; t++) {
        struct model_tensor *tensor = &shapes->tensor[t];
        (void)snprintf(tensor->name, sizeof(tensor->name), "t%u", t);
        tensor->shape.dims = 2;
        tensor->shape.size[0] = elements / tensors / ROW;
        tensor->shape.size[1] = ROW;
        shapes->count = tensors;
        shapes->elements = elements;
    }
    return shapes;
}

static bool play(struct cluster *cluster, unsigned nodes, unsigned steps, struct samples *samples,
    struct error *err)
{
    double us;

    for (unsigned i = 0; i < WARMUP + steps; i++) {
        (void)memset(samples->open, 0, sizeof(samples->open));
        if (!cluster_step(cluster, &us, err)) {
            return false;
        }
        for (unsigned s = 0; i >= WARMUP && s < COSTS_STAGES; s++) {
            samples->closed[s][samples->count] = samples->open[s] / nodes;
        }
        samples->count += i >= WARMUP;
    }
    return true;
}

static void print_row(
    enum choice choice, unsigned tensors, uint64_t elements, const struct samples *samples)
{
    printf("%s,%u,%llu", choice_name(choice), tensors, (unsigned long long)elements);
    for (unsigned s = 0; s < COSTS_STAGES; s++) {
        printf(",%.0f", middle(samples->closed[s], samples->count));
    }
    printf("\n");
}

/* The policy under which every possible tensor is sent in this way. */
static void policy_of(enum choice choice, double density, char *text, size_t size)
{
    if (choice == CHOICE_DENSE || choice == CHOICE_DENSE_BF16) {
        (void)snprintf(text, size,
            "{\"sparsifier\":\"dense\",\"dense_values\":\"%s\",\"bucket_bytes\":1073741824}",
            choice == CHOICE_DENSE ? "f32" : "bf16");
    } else {
        (void)snprintf(text, size,
            "{\"density\":%g,\"sparsifier\":\"adtopk\",\"sparse_collective\":\"%s\","
            "\"bucket_bytes\":1073741824}",
            density, choice_name(choice));
    }
}

static bool measure(struct cluster_config *config, enum choice choice, uint64_t elements,
    unsigned tensors, unsigned steps, struct samples *samples, struct error *err)
{
    static const uint64_t at_ns[FURTHER_TENSORS] = {0};
    struct shapes *shapes = one_bucket(elements, tensors);
    struct cluster *cluster;
    bool done;

    if (shapes == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory for tensors") == ADTOPK_OK;
    }
    config->shapes = shapes;
    config->at_ns = at_ns;
    samples->count = 0;
    cluster = cluster_open(config, err);
    done = cluster != NULL && play(cluster, config->nodes, steps, samples, err);
    cluster_close(cluster);
    free(shapes);
    if (done) {
        print_row(choice, tensors, elements, samples);
    }
    return done;
}

static bool measure_choice(struct cluster_config *config, enum choice choice, unsigned steps,
    struct samples *samples, struct error *err)
{
    bool done = true;

    for (unsigned bits = LEAST_LOG2; done && bits <= MOST_LOG2; bits += STEP_LOG2) {
        done = measure(config, choice, UINT64_C(1) << bits, 1, steps, samples, err);
    }
    return done && measure(config, choice, UINT64_C(1) << FURTHER_LOG2, FURTHER_TENSORS, steps,
                       samples, err);
}

bool measuring_print(unsigned nodes, double density, unsigned steps, struct error *err)
{
    struct samples samples = {.count = 0};
    char policy[256];
    struct cluster_config config = {.nodes = nodes,
        .workers = 1,
        .links = {.bandwidth = FAST, .narrowing = 1},
        .computed = computed,
        .computed_context = &samples,
        .policy = policy};
    bool done = true;

    for (unsigned s = 0; s < COSTS_STAGES; s++) {
        samples.closed[s] = malloc(steps * sizeof(double));
        done = done && samples.closed[s] != NULL;
    }
    if (!done) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for samples");
    } else {
        printf("# ns on one thread, %u steps, %u nodes, density %g\n", steps, nodes, density);
        printf("choice,tensors,elements,select,combine,reduce,settle\n");
    }
    for (unsigned c = 0; done && c < CHOICES; c++) {
        policy_of((enum choice)c, density, policy, sizeof(policy));
        done = measure_choice(&config, (enum choice)c, steps, &samples, err);
    }
    for (unsigned s = 0; s < COSTS_STAGES; s++) {
        free(samples.closed[s]);
    }
    return done;
}

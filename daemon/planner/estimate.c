/*
 * Running estimates of a node (estimate.h). estimate_pack.c sends them to other nodes.
 */
#include "daemon/planner/estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/cost.h"
#include "daemon/planner/estimate_line.h"

#define SMOOTHING 0.125  /* of a running value, by the latest observation */
#define JUMP_MIN_US 1000 /* an arrival moves by this much at once, or by as much as it is */
#define LEAST_US 1.0     /* shorter times say nothing */
#define LEAST_OF_REFERENCE 0.05
#define LEAST_US_BYTE 4e-5 /* 200 Gbit/s */
#define RATIO_MAX 1e3      /* of bytes by formula: beyond that it is not an exchange */
#define ROUND_TRIPS 4      /* a shorter time on the link is mostly latency */

bool estimate_init(struct estimates *estimates, uint32_t tensors, unsigned nodes)
{
    *estimates = (struct estimates){.tensors = tensors, .nodes = nodes};
    estimates->arrival_us = malloc((tensors > 0 ? tensors : 1) * sizeof(*estimates->arrival_us));
    for (uint32_t t = 0; estimates->arrival_us != NULL && t < tensors; t++) {
        estimates->arrival_us[t] = -1;
    }
    return estimates->arrival_us != NULL;
}

void estimate_free(struct estimates *estimates)
{
    free(estimates->arrival_us);
    *estimates = (struct estimates){.tensors = 0};
}

void estimate_copy(struct estimates *to, const struct estimates *from)
{
    double *arrival_us = to->arrival_us;

    *to = *from;
    to->arrival_us = arrival_us;
    (void)memcpy(arrival_us, from->arrival_us, from->tensors * sizeof(*arrival_us));
}

void estimate_plan(struct estimates *estimates, uint64_t version)
{
    estimates->plan = version;
    estimates->warmed = 0;
    estimates->steps = (struct estimate_steps){.count = 0};
}

/* Clocks may stand still between two events; nothing takes no time. */
static bool is_time(double us)
{
    return isfinite(us) && us >= 0;
}

/* A running value moves towards an observation, by no more than `jump` of it. */
static void follow(double *value, double observed, double jump)
{
    double change = observed - *value;

    change = change > jump ? jump : change < -jump ? -jump : change;
    *value += SMOOTHING * change;
}

void estimate_arrival(struct estimates *estimates, uint32_t tensor, double us)
{
    double *arrival = &estimates->arrival_us[tensor];

    if (!is_time(us)) {
        return;
    }
    if (*arrival < 0) {
        *arrival = us;
    } else {
        follow(arrival, us, fmax(*arrival, JUMP_MIN_US));
    }
}

/* A compute, of so much reference cost. */
static void add_compute(struct estimate_line *line, double reference_us, double us)
{
    estimate_line_add(line, reference_us, us, LEAST_US + LEAST_OF_REFERENCE * reference_us);
}

/* gamma as far as it is known. */
static double gamma_now(const struct estimates *estimates)
{
    return estimates->gamma > 0 ? estimates->gamma : cost_gamma(estimates->nodes);
}

void estimate_select(struct estimates *estimates, enum choice choice, uint64_t elements,
    uint64_t entries, unsigned threads, double us)
{
    double x = cost_select(choice, (struct cost_load){elements, entries, 0});

    add_compute(
        &estimates->select[choice], x, us * cost_share(elements, threads > 0 ? threads : 1));
}

void estimate_reduce(struct estimates *estimates, enum choice choice, uint64_t elements,
    uint64_t entries, unsigned threads, double us)
{
    double x = cost_reduce(
        choice, estimates->nodes, gamma_now(estimates), (struct cost_load){elements, entries, 0});

    add_compute(
        &estimates->reduce[choice], x, us * cost_share(elements, threads > 0 ? threads : 1));
}

void estimate_settle(
    struct estimates *estimates, uint64_t dense_elements, uint64_t entries, double us)
{
    add_compute(&estimates->settle, cost_settle(dense_elements, entries), us);
}

void estimate_exchange(struct estimates *estimates, enum choice choice, struct cost_load load,
    uint64_t bytes, double us)
{
    double expected = cost_bytes(choice, estimates->nodes, gamma_now(estimates), load);
    double *volume = &estimates->volume[choice], *link = &estimates->exchange_link[choice];
    double ratio = expected > 0 ? fmin((double)bytes / expected, RATIO_MAX) : 0;
    bool first;

    if (bytes == 0 || ratio <= 0) {
        return;
    }
    if (*volume > 0) {
        follow(volume, ratio, *volume);
    } else {
        *volume = ratio;
    }
    if (!(us >= LEAST_US)) {
        return;
    }
    first = !estimate_line_known(&estimates->exchange[choice]);
    estimate_line_add(
        &estimates->exchange[choice], (double)bytes, us, LEAST_US + LEAST_US_BYTE * (double)bytes);
    *link = *link > 0 && estimates->link_us_byte > 0 && !first
                ? *link + SMOOTHING * (estimates->link_us_byte - *link)
                : estimates->link_us_byte;
}

void estimate_link(struct estimates *estimates, uint64_t bytes, double us, double round_trip_us)
{
    double cost = bytes > 0 ? us / (double)bytes : 0;

    if (is_time(round_trip_us) && round_trip_us > 0) {
        if (estimates->round_trip_us > 0) {
            follow(&estimates->round_trip_us, round_trip_us, estimates->round_trip_us);
        } else {
            estimates->round_trip_us = round_trip_us;
        }
    }
    if (!is_time(us) || cost <= 0) {
        return;
    }
    if (us < ROUND_TRIPS * estimates->round_trip_us) {
        bool first = estimates->link_bound_us_byte <= 0;
        estimates->link_bound_us_byte =
            first || cost < estimates->link_bound_us_byte ? cost : estimates->link_bound_us_byte;
    } else if (estimates->link_us_byte > 0) {
        follow(&estimates->link_us_byte, cost, 2 * estimates->link_us_byte);
    } else {
        estimates->link_us_byte = cost;
    }
}

void estimate_gamma(struct estimates *estimates, uint64_t entries_of_sum, uint64_t entries)
{
    double gamma = entries > 0 ? (double)entries_of_sum / (double)entries : 0;

    gamma = fmin(fmax(gamma, 1), estimates->nodes);
    if (entries == 0) {
        return;
    }
    if (estimates->gamma > 0) {
        follow(&estimates->gamma, gamma, estimates->nodes);
    } else {
        estimates->gamma = gamma;
    }
}

/* Sorts a small array. */
static void sort(double *value, unsigned count)
{
    for (unsigned i = 1; i < count; i++) {
        double moved = value[i];
        unsigned j = i;
        for (; j > 0 && value[j - 1] > moved; j--) {
            value[j] = value[j - 1];
        }
        value[j] = moved;
    }
}

static double median(const double *sorted, unsigned count)
{
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

/* The median of the latest steps, and its error: 1.25 standard deviations divided by the root of
 * their number. A standard deviation is 0.74 of the quartiles' distance, as if steps were normally
 * distributed. */
static void summarise(struct estimates *estimates)
{
    struct estimate_steps *steps = &estimates->steps;
    unsigned count = steps->count < ESTIMATE_STEPS ? steps->count : ESTIMATE_STEPS;
    double sorted[ESTIMATE_STEPS];

    (void)memcpy(sorted, estimates->latest_us, count * sizeof(*sorted));
    sort(sorted, count);
    steps->median_us = median(sorted, count);
    steps->error_us =
        count < 4 ? steps->median_us
                  : 1.25 * 0.74 * (sorted[count - 1 - count / 4] - sorted[count / 4]) / sqrt(count);
}

/* The shortest and the longest of the latest few steps. */
static void look_at_recent(struct estimates *estimates)
{
    struct estimate_steps *steps = &estimates->steps;

    steps->least_us = steps->most_us = 0;
    for (uint32_t i = 1; steps->count >= ESTIMATE_RECENT && i <= ESTIMATE_RECENT; i++) {
        double us = estimates->latest_us[(steps->count - i) % ESTIMATE_STEPS];
        steps->least_us = i == 1 ? us : fmin(steps->least_us, us);
        steps->most_us = fmax(steps->most_us, us);
    }
}

void estimate_step(struct estimates *estimates, double us)
{
    for (unsigned c = 0; c < CHOICES; c++) {
        estimate_line_end(&estimates->select[c]);
        estimate_line_end(&estimates->reduce[c]);
        estimate_line_end(&estimates->exchange[c]);
    }
    estimate_line_end(&estimates->settle);
    if (!is_time(us) || us <= 0 || estimates->warmed++ < ESTIMATE_WARMUP) {
        return;
    }
    estimates->latest_us[estimates->steps.count++ % ESTIMATE_STEPS] = us;
    summarise(estimates);
    look_at_recent(estimates);
}

/*
 * From estimates to costs of every choice: see forecast_costs.h.
 */
#include "daemon/planner/forecast_costs.h"

#include <math.h>

#define COMPUTE_US 20.0     /* the time of a compute of any size, where nothing was observed */
#define MESSAGE_US 10.0     /* the same for a message */
#define ROUND_TRIP_US 100.0 /* of a link that was never measured */
#define LINK_US_BYTE 0.0008 /* of such a link: 10 Gbit/s */
#define LINK_FAR                                                                                   \
    2.0 /* a change by more than that is far, and then bytes take up to so many times */
#define LINK_OFF 2.0        /* as long as the link says, or as short */
#define LINK_CHANGE_MAX 1e4 /* a link cannot change by more than that */

/* Sums over lines: how much slower than the reference. */
struct slowness {
    double sum, weight;
};

static void add_slowness(struct slowness *slowness, const struct estimate_line *line)
{
    const struct line usual = {.offset = COMPUTE_US, .slope = 1};

    if (estimate_line_known(line)) {
        /* Large computes say more about it than small ones do: by the reference cost. */
        double mean = line->x / line->weight;
        slowness->sum += mean * estimate_line_fit(line, usual).slope;
        slowness->weight += mean;
    }
}

static bool is_slowness(struct slowness slowness)
{
    return slowness.weight > 0 && slowness.sum > 0;
}

/* The line of a choice's computes. If none was observed, it is as slow as the computes of its sort,
 * or else as all computes. */
static struct line compute_line(
    const struct estimates *estimates, const struct estimate_line lines[CHOICES], unsigned choice)
{
    struct slowness alike = {.sum = 0}, all = {.sum = 0};
    struct line usual = {.offset = COMPUTE_US, .slope = 1};

    for (unsigned c = 0; c < CHOICES; c++) {
        add_slowness(&all, &estimates->select[c]);
        add_slowness(&all, &estimates->reduce[c]);
        if (choice_is_sparse((enum choice)c) == choice_is_sparse((enum choice)choice)) {
            add_slowness(&alike, &lines[c]);
        }
    }
    if (is_slowness(alike) || is_slowness(all)) {
        usual.slope = is_slowness(alike) ? alike.sum / alike.weight : all.sum / all.weight;
    }
    return estimate_line_fit_guess(&lines[choice], usual);
}

/* us a byte of the link as it is now. */
static double link_now(const struct estimates *estimates)
{
    double bound = estimates->link_bound_us_byte;

    if (estimates->link_us_byte > 0) {
        return estimates->link_us_byte;
    }
    return bound > 0 && bound < LINK_US_BYTE ? bound : LINK_US_BYTE;
}

/* The cost of a byte that was observed moves with the link's. */
static double link_change(const struct estimates *estimates, enum choice choice)
{
    double then = estimates->exchange_link[choice], now = estimates->link_us_byte;

    return then > 0 && now > 0 ? fmin(fmax(now / then, 1 / LINK_CHANGE_MAX), LINK_CHANGE_MAX) : 1;
}

/* The present cost of a byte that cost `then` before the link changed. If the link changed by far,
 * that is about the link's own cost, because the earlier cost of the link is only known roughly. */
static double forecast_costs_moved(double then, double change, double link)
{
    double now = then * change;

    return change > 1 / LINK_FAR && change < LINK_FAR
               ? now
               : fmin(fmax(now, link / LINK_OFF), link * LINK_OFF);
}

/* The factor of a choice's bytes to the formula: as observed, or else as observed for its kind. */
static double volume_of(const struct estimates *estimates, enum choice choice)
{
    double sum = 0;
    unsigned seen = 0;

    if (estimates->volume[choice] > 0) {
        return estimates->volume[choice];
    }
    for (unsigned c = 0; c < CHOICES; c++) {
        if (estimates->volume[c] > 0 &&
            choice_is_sparse((enum choice)c) == choice_is_sparse(choice)) {
            sum += estimates->volume[c];
            seen++;
        }
    }
    return seen > 0 ? sum / seen : 1;
}

static void set_exchange(
    struct forecast_costs *costs, const struct estimates *estimates, enum choice choice)
{
    double round_trip = estimates->round_trip_us > 0 ? estimates->round_trip_us : ROUND_TRIP_US;
    double latency = cost_hops(choice, estimates->nodes) * round_trip / 2;
    struct line expected = {.slope = costs->link_us_byte};
    struct line *line = &costs->exchange[choice];

    /* An exchange alone takes its latency, too; others may use the link meanwhile. */
    expected.offset = latency + fmax(cost_messages(choice, estimates->nodes), 1) * MESSAGE_US;
    *line = estimate_line_fit(&estimates->exchange[choice], expected);
    line->slope =
        forecast_costs_moved(line->slope, link_change(estimates, choice), costs->link_us_byte);
    costs->latency_us[choice] = fmin(latency, line->offset);
    line->offset -= costs->latency_us[choice];
}

void forecast_costs_set(struct forecast_costs *costs, const struct estimates *estimates)
{
    const struct line usual = {.offset = COMPUTE_US, .slope = 1};

    costs->gamma = estimates->gamma > 0 ? estimates->gamma : cost_gamma(estimates->nodes);
    costs->link_us_byte = link_now(estimates);
    costs->settle = estimate_line_fit_guess(&estimates->settle, usual);
    for (unsigned c = 0; c < CHOICES; c++) {
        costs->select[c] = compute_line(estimates, estimates->select, c);
        costs->reduce[c] = compute_line(estimates, estimates->reduce, c);
        costs->volume[c] = volume_of(estimates, (enum choice)c);
        set_exchange(costs, estimates, (enum choice)c);
    }
}

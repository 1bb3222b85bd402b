/*
 * Estimates on their way between nodes: packed, checked, merged.
 *
 *   bytes of it    field
 *   4, 4, 4, 4     ESTIMATE_VERSION, tensors, nodes, steps
 *   8              plan
 *   8 * NUMBERS    the numbers in the order of number_at(), as IEEE doubles
 *   4 * tensors    arrivals in us, NEVER if there was none
 */
#include <math.h>
#include <string.h>

#include "daemon/planner/estimate.h"
#include "daemon/planner/estimate_line.h"

#define HEADER_SIZE 24u
#define LINES (3u * CHOICES + 1)
#define LINE_NUMBERS 6u
#define OTHERS (2u * CHOICES + 8)
#define NUMBERS (LINES * LINE_NUMBERS + OTHERS)
#define NEVER UINT32_MAX
#define NUMBER_MAX 1e12  /* the largest number that is not a sum of a line */
#define VOLUME_MAX 1e4   /* no node sends so many times the formula's bytes */
#define STEP_MIN_US 1e-3 /* clocks count microseconds; products of shorter times would be 0 */

static struct estimate_line *estimate_pack_line_at(struct estimates *estimates, unsigned i)
{
    unsigned c = i % CHOICES;

    switch (i / CHOICES) {
    case 0: return &estimates->select[c];
    case 1: return &estimates->reduce[c];
    case 2: return &estimates->exchange[c];
    default: return &estimates->settle;
    }
}

/* The i-th number of the packed form. */
static double *number_at(struct estimates *estimates, unsigned i)
{
    if (i < LINES * LINE_NUMBERS) {
        struct estimate_line *line = estimate_pack_line_at(estimates, i / LINE_NUMBERS);
        double *const number[LINE_NUMBERS] = {
            &line->weight, &line->x, &line->xx, &line->y, &line->xy, &line->count};
        return number[i % LINE_NUMBERS];
    }
    i -= LINES * LINE_NUMBERS;
    if (i < 2 * CHOICES) {
        return i < CHOICES ? &estimates->exchange_link[i] : &estimates->volume[i - CHOICES];
    }
    double *const other[OTHERS - 2 * CHOICES] = {&estimates->link_us_byte,
        &estimates->link_bound_us_byte, &estimates->round_trip_us, &estimates->gamma,
        &estimates->steps.median_us, &estimates->steps.error_us, &estimates->steps.least_us,
        &estimates->steps.most_us};
    return other[i - 2 * CHOICES];
}

static void estimate_pack_put(uint8_t *bytes, uint64_t value, unsigned size)
{
    for (unsigned i = 0; i < size; i++) {
        bytes[i] = (uint8_t)(value >> 8 * i);
    }
}

static uint64_t estimate_pack_get(const uint8_t *bytes, unsigned size)
{
    uint64_t value = 0;

    for (unsigned i = size; i-- > 0;) {
        value = value << 8 | bytes[i];
    }
    return value;
}

size_t estimate_packed_size(uint32_t tensors)
{
    return HEADER_SIZE + sizeof(double) * NUMBERS + sizeof(uint32_t) * (size_t)tensors;
}

static uint32_t whole_us(double us)
{
    return us < 0 ? NEVER : us < NEVER - 1.0 ? (uint32_t)us : NEVER - 1;
}

void estimate_pack(const struct estimates *estimates, uint8_t *bytes)
{
    struct estimates from = *estimates;

    estimate_pack_put(bytes, ESTIMATE_VERSION, 4);
    estimate_pack_put(bytes + 4, estimates->tensors, 4);
    estimate_pack_put(bytes + 8, estimates->nodes, 4);
    estimate_pack_put(bytes + 12, estimates->steps.count, 4);
    estimate_pack_put(bytes + 16, estimates->plan, 8);
    bytes += HEADER_SIZE;
    for (unsigned i = 0; i < NUMBERS; i++, bytes += sizeof(double)) {
        uint64_t bits;
        (void)memcpy(&bits, number_at(&from, i), sizeof(bits));
        estimate_pack_put(bytes, bits, sizeof(bits));
    }
    for (uint32_t t = 0; t < estimates->tensors; t++, bytes += sizeof(uint32_t)) {
        estimate_pack_put(bytes, whole_us(estimates->arrival_us[t]), sizeof(uint32_t));
    }
}

/* Whether a step can have taken so long; 0 means that none was measured. */
static bool is_step(double us, bool measured)
{
    return measured ? us >= STEP_MIN_US : us <= 0;
}

/* Whether these can be measurements. */
static bool is_sane(struct estimates *estimates)
{
    const struct estimate_steps *steps = &estimates->steps;

    for (unsigned i = 0; i < LINES; i++) {
        if (!estimate_line_sane(estimate_pack_line_at(estimates, i))) {
            return false;
        }
    }
    for (unsigned i = LINES * LINE_NUMBERS; i < NUMBERS; i++) {
        double number = *number_at(estimates, i);
        if (!isfinite(number) || number < 0 || number > NUMBER_MAX) {
            return false;
        }
    }
    for (unsigned c = 0; c < CHOICES; c++) {
        if (estimates->volume[c] > VOLUME_MAX) {
            return false;
        }
    }
    return is_step(steps->median_us, steps->count > 0) &&
           is_step(steps->least_us, steps->count >= ESTIMATE_RECENT) &&
           steps->least_us <= steps->most_us &&
           (estimates->gamma <= 0 ||
               (estimates->gamma >= 1 && estimates->gamma <= estimates->nodes));
}

static enum adtopk_status estimate_pack_check_header(
    const struct estimates *estimates, const uint8_t *bytes, size_t size, struct error *err)
{
    if (size < HEADER_SIZE || estimate_pack_get(bytes, 4) != ESTIMATE_VERSION) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "estimates: %zu bytes, of version %u where %d is known", size,
            size < HEADER_SIZE ? 0 : (unsigned)estimate_pack_get(bytes, 4), ESTIMATE_VERSION);
    }
    if (estimate_pack_get(bytes + 4, 4) != estimates->tensors ||
        estimate_pack_get(bytes + 8, 4) != estimates->nodes) {
        return error_set(err, ADTOPK_ERR_PROTOCOL,
            "estimates: of %u tensors among %u nodes, where the job has %u and %u",
            (unsigned)estimate_pack_get(bytes + 4, 4), (unsigned)estimate_pack_get(bytes + 8, 4),
            estimates->tensors, estimates->nodes);
    }
    if (size != estimate_packed_size(estimates->tensors)) {
        return error_set(err, ADTOPK_ERR_PROTOCOL, "estimates: %zu bytes instead of %zu", size,
            estimate_packed_size(estimates->tensors));
    }
    return ADTOPK_OK;
}

enum adtopk_status estimate_unpack(
    struct estimates *estimates, const uint8_t *bytes, size_t size, struct error *err)
{
    struct estimates read = {.tensors = estimates->tensors, .nodes = estimates->nodes};

    if (estimate_pack_check_header(estimates, bytes, size, err) != ADTOPK_OK) {
        return ADTOPK_ERR_PROTOCOL;
    }
    read.steps.count = (uint32_t)estimate_pack_get(bytes + 12, 4);
    read.plan = estimate_pack_get(bytes + 16, 8);
    bytes += HEADER_SIZE;
    for (unsigned i = 0; i < NUMBERS; i++, bytes += sizeof(double)) {
        uint64_t bits = estimate_pack_get(bytes, sizeof(bits));
        (void)memcpy(number_at(&read, i), &bits, sizeof(bits));
    }
    if (!is_sane(&read)) {
        return error_set(
            err, ADTOPK_ERR_PROTOCOL, "estimates: numbers that cannot be measurements");
    }
    read.arrival_us = estimates->arrival_us;
    for (uint32_t t = 0; t < read.tensors; t++, bytes += sizeof(uint32_t)) {
        uint32_t us = (uint32_t)estimate_pack_get(bytes, sizeof(us));
        read.arrival_us[t] = us == NEVER ? -1.0 : us;
    }
    *estimates = read;
    return ADTOPK_OK;
}

static void take_larger(double *into, double other)
{
    *into = *into > other ? *into : other;
}

static void take_known_least(double *into, double other)
{
    *into = *into > 0 && (other <= 0 || *into < other) ? *into : other;
}

static void merge_steps(struct estimates *into, const struct estimates *other)
{
    struct estimate_steps *a = &into->steps;
    const struct estimate_steps *b = &other->steps;

    if (into->plan != other->plan || a->count == 0 || b->count == 0) {
        *a = (struct estimate_steps){.count = 0};
        return;
    }
    a->count = a->count < b->count ? a->count : b->count;
    take_larger(&a->median_us, b->median_us);
    take_larger(&a->error_us, b->error_us);
    take_larger(&a->least_us, b->least_us);
    take_larger(&a->most_us, b->most_us);
    if (a->count < ESTIMATE_RECENT) { /* as on a node that has measured so few steps */
        a->least_us = a->most_us = 0;
    }
}

void estimate_merge(struct estimates *into, const struct estimates *other)
{
    struct estimates from = *other;

    for (unsigned i = 0; i < LINES; i++) {
        struct estimate_line *a = estimate_pack_line_at(into, i),
                             *b = estimate_pack_line_at(&from, i);
        bool exchange = i / CHOICES == 2, known = estimate_line_known(a);
        bool slower = estimate_line_slower(a, b) == b;
        if (!known || (estimate_line_known(b) && slower != exchange)) {
            *a = *b;
            if (exchange) {
                into->exchange_link[i % CHOICES] = other->exchange_link[i % CHOICES];
            }
        }
    }
    for (unsigned c = 0; c < CHOICES; c++) {
        take_larger(&into->volume[c], other->volume[c]);
    }
    take_known_least(&into->link_us_byte, other->link_us_byte);
    take_known_least(&into->link_bound_us_byte, other->link_bound_us_byte);
    take_larger(&into->round_trip_us, other->round_trip_us);
    take_larger(&into->gamma, other->gamma);
    for (uint32_t t = 0; t < into->tensors; t++) {
        take_larger(&into->arrival_us[t], other->arrival_us[t]);
    }
    merge_steps(into, other);
}

/*
 * The search for the tensors that should be dense: see candidate.h for how good it is.
 */
#include "daemon/planner/candidate_search.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/planner/candidate.h"

#define VISITS 160000 /* tensors that all predictions of a search look at, about */
#define PREDICTIONS_MIN 24
#define PREDICTIONS_MAX 600
#define GRID 8   /* places at which a search for the best number of dense tensors begins */
#define UNITS 24 /* tensors or groups that change sides together */

/* Tensors in some order. */
struct ordered {
    uint64_t key;
    uint32_t tensor;
};

struct candidate_search {
    struct choices now, best; /* the set that is being tried, and the best so far */
    double best_us;
    struct ordered *by_size; /* all tensors, smallest first; never changes */
    uint32_t *list;          /* the tensors to choose for, in some order */
    uint32_t *unit;          /* [tensors]: with which of them it changes sides */
    uint32_t count;          /* number of tensors to choose for */
    unsigned left;           /* predictions that may still be made */
    struct forecast *forecast;
    enum choice dense, sparse;
};

void candidate_search_free(struct candidate_search *search)
{
    if (search != NULL) {
        choices_free(&search->now);
        choices_free(&search->best);
        free(search->by_size);
        free(search->list);
        free(search->unit);
        free(search);
    }
}

static int by_key(const void *a, const void *b)
{
    const struct ordered *one = a, *other = b;

    if (one->key != other->key) {
        return one->key < other->key ? -1 : 1;
    }
    return one->tensor < other->tensor ? -1 : one->tensor > other->tensor;
}

struct candidate_search *candidate_search_create(const struct planner_config *config)
{
    struct candidate_search *search = calloc(1, sizeof(*search));
    uint32_t n = config->tensors;
    bool all;

    if (search == NULL) {
        return NULL;
    }
    search->by_size = malloc(n * sizeof(*search->by_size));
    search->list = malloc(n * sizeof(*search->list));
    search->unit = malloc(n * sizeof(*search->unit));
    all = choices_init(&search->now, n);
    all = choices_init(&search->best, n) && all;
    if (!all || search->by_size == NULL || search->list == NULL || search->unit == NULL) {
        candidate_search_free(search);
        return NULL;
    }
    for (uint32_t t = 0; t < n; t++) {
        search->by_size[t] = (struct ordered){config->tensor[t].numel, t};
    }
    qsort(search->by_size, n, sizeof(*search->by_size), by_key);
    return search;
}

/* Predicts the set that is being tried, and keeps it if it is the best. */
static bool try(struct candidate_search *search)
{
    struct forecast_result result;

    if (search->left == 0) {
        return false;
    }
    search->left--;
    forecast_run(search->forecast, &search->now, &result);
    if (search->best_us > 0 && result.step_us >= search->best_us) {
        return false;
    }
    search->best_us = result.step_us;
    choices_copy(&search->best, &search->now);
    return true;
}

static bool is_free(const struct candidate_search *search, uint32_t t)
{
    uint32_t both = 1u << search->dense | 1u << search->sparse;

    return (search->forecast->config->tensor[t].allowed & both) == both;
}

static void list_by_size(struct candidate_search *search)
{
    search->count = 0;
    for (uint32_t i = 0; i < search->forecast->config->tensors; i++) {
        if (is_free(search, search->by_size[i].tensor)) {
            search->list[search->count++] = search->by_size[i].tensor;
        }
    }
}

static void list_by_arrival(struct candidate_search *search)
{
    uint32_t n = search->forecast->config->tensors, used = 0;

    for (uint32_t t = 0; t < n; t++) {
        search->unit[search->forecast->rank[t]] = t; /* ranks are a permutation */
    }
    for (uint32_t i = 0; i < n; i++) {
        if (is_free(search, search->unit[i])) {
            search->list[used++] = search->unit[i];
        }
    }
}

static void reverse_list(struct candidate_search *search)
{
    for (uint32_t i = 0; i < search->count / 2; i++) {
        uint32_t t = search->list[i];
        search->list[i] = search->list[search->count - 1 - i];
        search->list[search->count - 1 - i] = t;
    }
}

/* The first `dense` tensors of the list are dense. */
static bool try_first(struct candidate_search *search, uint32_t dense)
{
    for (uint32_t i = 0; i < search->count; i++) {
        search->now.choice[search->list[i]] = (uint8_t)(i < dense ? search->dense : search->sparse);
    }
    return try(search);
}

/* How many of the list's first: the best place of a grid, then halfway to its neighbours. */
static void search_first(struct candidate_search *search)
{
    uint32_t count = search->count, place = 0;
    uint32_t step = (count + GRID - 1) / GRID;

    for (uint32_t dense = 0; dense < count + step; dense += step) {
        uint32_t some = dense < count ? dense : count;
        place = try_first(search, some) ? some : place;
    }
    while (step > 1) {
        step /= 2;
        if (place >= step && try_first(search, place - step)) {
            place -= step;
        } else if (place + step <= count && try_first(search, place + step)) {
            place += step;
        }
    }
}

/* Every set. */
static void search_all(struct candidate_search *search)
{
    for (uint32_t set = 0; set < 1u << search->count; set++) {
        for (uint32_t i = 0; i < search->count; i++) {
            search->now.choice[search->list[i]] =
                (uint8_t)((set >> i & 1) != 0 ? search->dense : search->sparse);
        }
        (void)try(search);
    }
}

/* Makes units of tensors. Half of the units are the largest tensors, one each. The others hold the
 * rest by time of arrival (the list is in that order). If there are few tensors, each is a unit.
 * Returns the number of units. */
static unsigned make_units(struct candidate_search *search)
{
    uint32_t n = search->forecast->config->tensors, alone = 0, seen = 0, rest;

    if (search->count <= UNITS) {
        for (uint32_t i = 0; i < search->count; i++) {
            search->unit[search->list[i]] = i;
        }
        return search->count;
    }
    for (uint32_t i = 0; i < search->count; i++) {
        search->unit[search->list[i]] = UNITS;
    }
    for (uint32_t i = n; i-- > 0 && alone < UNITS / 2;) {
        uint32_t t = search->by_size[i].tensor;
        if (is_free(search, t)) {
            search->unit[t] = alone++;
        }
    }
    rest = search->count - alone;
    for (uint32_t i = 0; i < search->count; i++) {
        uint32_t t = search->list[i];
        if (search->unit[t] == UNITS) {
            search->unit[t] = alone + (uint32_t)((uint64_t)seen++ * (UNITS - alone) / rest);
        }
    }
    return UNITS;
}

/* The tensors of two units (perhaps the same) change sides. */
static void flip(struct candidate_search *search, unsigned a, unsigned b)
{
    for (uint32_t i = 0; i < search->count; i++) {
        uint8_t *choice = &search->now.choice[search->list[i]];
        unsigned unit = search->unit[search->list[i]];
        if (unit == a || unit == b) {
            *choice = (uint8_t)(*choice == (uint8_t)search->dense ? search->sparse : search->dense);
        }
    }
}

/* Units, then pairs of them, change sides as long as that helps. */
static void improve(struct candidate_search *search, unsigned units)
{
    bool better = true;

    while (better && search->left > 0) {
        better = false;
        for (unsigned a = 0; a < units; a++) {
            choices_copy(&search->now, &search->best);
            flip(search, a, a);
            better = try(search) || better;
        }
        for (unsigned a = 0; !better && a < units; a++) {
            for (unsigned b = a + 1; b < units; b++) {
                choices_copy(&search->now, &search->best);
                flip(search, a, b);
                better = try(search) || better;
            }
        }
    }
}

const struct choices *candidate_search(struct candidate_search *search, struct forecast *forecast,
    const struct choices *base, enum choice dense, enum choice sparse)
{
    unsigned left = VISITS / forecast->config->tensors;

    search->forecast = forecast;
    search->dense = dense;
    search->sparse = sparse;
    search->best_us = 0;
    choices_copy(&search->now, base);
    list_by_size(search);
    if (search->count == 0) {
        return NULL;
    }
    search->left = left < PREDICTIONS_MIN ? PREDICTIONS_MIN : left;
    search->left = search->left < PREDICTIONS_MAX ? search->left : PREDICTIONS_MAX;
    if (search->count <= CANDIDATE_EXHAUSTIVE) {
        search_all(search);
        return &search->best;
    }
    search_first(search);
    reverse_list(search);
    search_first(search);
    list_by_arrival(search);
    search_first(search);
    reverse_list(search);
    search_first(search);
    improve(search, make_units(search));
    return &search->best;
}

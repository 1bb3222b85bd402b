#include "tests/bench/perf/perf.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t perf_next_size(const struct options *options, uint64_t size)
{
    const double next = (double)size * options->factor;

    if (size >= options->max) {
        return 0;
    }
    return next < (double)options->max ? (uint64_t)next : options->max;
}

void perf_progress(const struct perf *perf, const char *what, uint64_t size, uint64_t samples)
{
    if (!perf->progress) {
        return;
    }
    (void)fprintf(stderr, "\r%s %s, %" PRIu64 " bytes", perf->benchmark, what, size);
    if (samples > 0) {
        (void)fprintf(stderr, ": %" PRIu64 " of %" PRIu64, samples, perf->options.iterations);
    }
    (void)fprintf(stderr, "\033[K");
}

void perf_progress_end(const struct perf *perf)
{
    if (perf->progress) {
        (void)fprintf(stderr, "\r\033[K");
    }
}

enum adtopk_status perf_row(struct perf *perf, const struct row *row, struct error *err)
{
    perf_progress_end(perf);
    return report_row(perf->report, row, err);
}

static void fill_number(uint64_t *number, uint64_t fallback)
{
    *number = *number != 0 ? *number : fallback;
}

static void fill_list(struct number_list *list, const struct number_list *fallback)
{
    if (list->count == 0) {
        *list = *fallback;
    }
}

static void fill_names(name_set *set, name_set fallback)
{
    *set = *set != 0 ? *set : fallback;
}

/* A bound that was given wins over the other bound's default. */
static void fill_sizes(struct options *options, const struct options *defaults)
{
    const bool min_given = options->min != 0;

    fill_number(&options->min, defaults->min);
    fill_number(&options->max, defaults->max);
    if (options->min > options->max) {
        if (min_given) {
            options->max = options->min;
        } else {
            options->min = options->max;
        }
    }
}

void perf_fill(struct options *options, const struct options *defaults)
{
    fill_sizes(options, defaults);
    options->factor = options->factor > 0 ? options->factor : defaults->factor;
    fill_number(&options->iterations, defaults->iterations);
    if (!options->warmup_given) {
        options->warmup = defaults->warmup;
    }
    fill_list(&options->densities, &defaults->densities);
    fill_list(&options->lists, &defaults->lists);
    fill_list(&options->ranks, &defaults->ranks);
    fill_list(&options->tensors, &defaults->tensors);
    fill_names(&options->distributions, defaults->distributions);
    fill_names(&options->dtypes, defaults->dtypes);
    fill_names(&options->residuals, defaults->residuals);
    fill_names(&options->views, defaults->views);
    fill_list(&options->columns, &defaults->columns);
    fill_list(&options->threads, &defaults->threads);
    fill_names(&options->sparsifiers, defaults->sparsifiers);
    fill_names(&options->indices, defaults->indices);
    fill_names(&options->values, defaults->values);
    fill_names(&options->modes, defaults->modes);
    fill_names(&options->security, defaults->security);
    fill_number(&options->fibre, defaults->fibre);
    fill_number(&options->pause_ms, defaults->pause_ms);
    fill_number(&options->burners, defaults->burners);
}

enum adtopk_status perf_no_threads(struct error *err, double threads)
{
    return error_set(err, ADTOPK_ERR_SYSTEM, "cannot start %.0f threads", threads);
}

enum adtopk_status perf_no_memory(struct error *err, uint64_t bytes)
{
    return error_set(err, ADTOPK_ERR_MEMORY, "no memory for %" PRIu64 " bytes", bytes);
}

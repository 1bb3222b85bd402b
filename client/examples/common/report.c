#include "report.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 40, LINES = 10 };

struct report {
    FILE *log; /* NULL: none */
    const char *program;
    const char *path;
    uint64_t steps;
    uint64_t printed; /* progress lines so far, when stderr is no terminal */
    int terminal;
};

struct report *report_open(const char *program, const char *log_path, uint64_t steps)
{
    struct report *report = calloc(1, sizeof *report);
    if (!report) {
        fprintf(stderr, "%s: no memory\n", program);
        return NULL;
    }
    report->steps = steps;
    report->program = program;
    report->path = log_path;
    report->terminal = isatty(STDERR_FILENO);
    report->log = log_path ? fopen(log_path, "w") : NULL;
    if (log_path && !report->log) {
        fprintf(stderr, "%s: --log %s: %s\n", program, log_path, strerror(errno));
        free(report);
        return NULL;
    }
    return report;
}

/* JSON knows neither NaN nor infinity. */
static void report_number(FILE *log, const char *name, double value)
{
    if (isfinite(value)) {
        fprintf(log, "\"%s\":%.9g", name, value);
    } else {
        fprintf(log, "\"%s\":null", name);
    }
}

static void report_phases(FILE *log, const struct report_phases *phases)
{
    fprintf(log, "\"seconds\":{");
    report_number(log, "compute", phases->compute);
    fputc(',', log);
    report_number(log, "wait", phases->wait);
    fputc(',', log);
    report_number(log, "apply", phases->apply);
    fputc('}', log);
}

static void report_test(FILE *log, const struct report_test *test)
{
    report_number(log, "test_accuracy", test->accuracy);
    fputc(',', log);
    report_number(log, "test_loss", test->loss);
    fputc(',', log);
}

static void report_log_step(FILE *log, const struct report_step *step)
{
    fprintf(log, "{\"step\":%" PRIu64 ",", step->step);
    report_number(log, "loss", step->loss);
    fputc(',', log);
    report_number(log, "lr", step->lr);
    fprintf(log, ",\"withdrawn\":%s,", step->withdrawn ? "true" : "false");
    if (step->tested) {
        report_test(log, &step->test);
    }
    report_phases(log, &step->seconds);
    fputs("}\n", log);
}

static void report_progress(struct report *report, const struct report_step *last)
{
    const uint64_t done = last->step + 1;
    const double seconds = last->seconds.compute + last->seconds.wait + last->seconds.apply;
    if (report->terminal) {
        char bar[BAR_WIDTH + 1] = {0};
        const size_t filled = (size_t)((double)done / (double)report->steps * BAR_WIDTH);
        memset(bar, '.', BAR_WIDTH);
        memset(bar, '#', filled < BAR_WIDTH ? filled : BAR_WIDTH);
        fprintf(stderr, "\r[%s] %" PRIu64 "/%" PRIu64 "  loss %.4f  %.1f ms a step  ", bar, done,
            report->steps, last->loss, 1e3 * seconds);
        if (done == report->steps) {
            fputc('\n', stderr);
        }
    } else if (done == report->steps || done * LINES >= (report->printed + 1) * report->steps) {
        report->printed = done * LINES / report->steps;
        fprintf(stderr, "step %" PRIu64 "/%" PRIu64 "  loss %.4f  %.1f ms\n", done, report->steps,
            last->loss, 1e3 * seconds);
    }
}

void report_steps(struct report *report, const struct report_step *steps, size_t count)
{
    for (size_t i = 0; report->log && i < count; i++) {
        report_log_step(report->log, &steps[i]);
    }
    if (report->log) {
        fflush(report->log);
    }
    if (count > 0) {
        report_progress(report, &steps[count - 1]);
    }
}

void report_final(struct report *report, const struct report_final *final)
{
    printf("test accuracy %.2f%%  test loss %.4f  parameters %016" PRIx64 "\n"
           "%" PRIu64 " steps in %.2f s: compute %.2f s, wait %.2f s, apply %.2f s\n",
        100 * final->test.accuracy, final->test.loss, final->parameter_hash, final->steps,
        final->seconds, final->totals.compute, final->totals.wait, final->totals.apply);
    if (!report->log) {
        return;
    }
    fprintf(report->log,
        "{\"final\":true,\"steps\":%" PRIu64 ",\"withdrawn\":%" PRIu64 ",\"world\":%d,",
        final->steps, final->withdrawn, final->world);
    report_test(report->log, &final->test);
    fprintf(report->log, "\"parameter_hash\":\"%016" PRIx64 "\",", final->parameter_hash);
    report_number(report->log, "training_seconds", final->seconds);
    fputc(',', report->log);
    report_phases(report->log, &final->totals);
    fputs("}\n", report->log);
}

int report_close(struct report *report)
{
    int result = 0;
    if (!report) {
        return 0;
    }
    if (report->log) {
        const int wrong = ferror(report->log);
        if (fclose(report->log) != 0 || wrong) {
            fprintf(stderr, "%s: --log %s: cannot write\n", report->program, report->path);
            result = -1;
        }
    }
    free(report);
    return result;
}

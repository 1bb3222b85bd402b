/*
 * Predictions and their corrections: see planner_survey.h.
 */
#include "daemon/planner/planner_survey.h"

#include <math.h>

/* A candidate is worth a trial if its predicted steps take at most so many times the best time.
 * Plans that differ in bucket size may promise a little more time, because the model does not have
 * all of its effect. A kind without measurements may promise more still, because the model may
 * misjudge it by more. */
#define GAIN_OF_BEST 1.02
#define GAIN_OF_KIND 0.97
#define GAIN_OF_NEW 1.4
#define TRIALS_OF_KIND 3
#define CORRECTION_MAX 4.0

/* A state is new for so many trials, in which the link may be taken to be so many times slower. */
#define YOUNG_TRIALS 4
#define SLOWER_MAX 100.0
#define SLOWER_STEP 1.05

/* How much longer a plan's steps take than predicted. */
static double off_by(const struct record *record)
{
    double off = record_us(record) / fmax(record->predicted.step_us, 1);

    return fmin(fmax(off, 1 / CORRECTION_MAX), CORRECTION_MAX);
}

static bool measured(const struct record *record)
{
    return record->used && record_us(record) > 0;
}

/* The plan that corrects predictions of a kind: the one of the kind whose buckets are most similar.
 */
static const struct record *planner_survey_alike(
    const struct planner *planner, unsigned kind, uint64_t bytes)
{
    const struct record *best = NULL;
    double least = 0;

    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        const struct record *record = &planner->records.item[i];
        double distance = fabs(log2((double)record->plan.bucket_bytes / (double)bytes));
        if (measured(record) && record->kind == kind && (best == NULL || distance < least)) {
            best = record;
            least = distance;
        }
    }
    return best;
}

static bool related(unsigned a, unsigned b)
{
    return (candidate_dense(a) < CHOICES && candidate_dense(a) == candidate_dense(b)) ||
           (candidate_sparse(a) < CHOICES && candidate_sparse(a) == candidate_sparse(b));
}

/* The factor that corrects a prediction. If no plan of the kind was measured, it is the mean of the
 * plans that share a choice with it; otherwise the plan in force determines half of it. */
static double correction(const struct planner *planner, unsigned kind, uint64_t bytes)
{
    const struct record *record = planner_survey_alike(planner, kind, bytes);
    double sum = 0;
    unsigned count = 0;

    if (record != NULL) {
        return off_by(record);
    }
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        record = &planner->records.item[i];
        if (measured(record) && related(record->kind, kind)) {
            sum += log(off_by(record));
            count++;
        }
    }
    if (count > 0) {
        return exp(sum / count);
    }
    return measured(planner->in_force) ? sqrt(off_by(planner->in_force)) : 1;
}

static void list(struct planner *planner, const struct choices *plan, unsigned kind,
    const struct forecast_result *result)
{
    struct listed one = {.plan = plan, .result = result, .kind = kind};
    unsigned at = planner->listed_count++;

    one.predicted_us = result->step_us * correction(planner, kind, plan->bucket_bytes);
    for (; at > 0 && planner->listed[at - 1].predicted_us > one.predicted_us; at--) {
        planner->listed[at] = planner->listed[at - 1];
    }
    planner->listed[at] = one;
}

/* Whether there is a record of the plan, or of a plan that only differs in a number. */
static bool is_recorded(const struct planner *planner, const struct candidate *candidate)
{
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        const struct record *record = &planner->records.item[i];
        if (record->used && candidate_same(&record->plan, &record->predicted, &candidate->plan,
                                &candidate->result)) {
            return true;
        }
    }
    return false;
}

/* The predicted step time of the plan in force on a link that is so many times slower. */
static double step_on(struct planner *planner, const struct estimates *estimates, double slower)
{
    struct estimates scaled = *estimates;
    struct forecast_result result;

    scaled.link_us_byte *= slower;
    forecast_set(&planner->forecast, &scaled);
    forecast_run(&planner->forecast, &planner->in_force->plan, &result);
    return result.step_us;
}

/* Sets the estimated costs. A new state has few estimates: then the link's cost is the one that
 * explains the step time of the plan in force. */
static void set_costs(struct planner *planner, const struct estimates *estimates)
{
    double us = record_us(planner->in_force), slower = 1;

    if (step_on(planner, estimates, 1) >= us || planner->states == 0 ||
        planner->trials >= YOUNG_TRIALS) {
        return;
    }
    for (double step = SLOWER_MAX; step > SLOWER_STEP; step = sqrt(step)) {
        slower *= step_on(planner, estimates, slower * step) < us ? step : 1;
    }
    (void)step_on(planner, estimates, slower);
}

void survey_run(struct planner *planner, const struct estimates *estimates)
{
    double weight[KINDS];

    set_costs(planner, estimates);
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        struct record *record = &planner->records.item[i];
        if (record->used) {
            forecast_run(&planner->forecast, &record->plan, &record->predicted);
        }
    }
    for (unsigned kind = 0; kind < KINDS; kind++) {
        weight[kind] = correction(planner, kind, planner->in_force->plan.bucket_bytes);
    }
    candidates_make(&planner->candidates, &planner->forecast, weight);
    planner->listed_count = 0;
    for (unsigned i = 0; i < planner->candidates.count; i++) {
        const struct candidate *candidate = &planner->candidates.item[i];
        if (!is_recorded(planner, candidate)) {
            list(planner, &candidate->plan, candidate->kind, &candidate->result);
        }
    }
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        const struct record *record = &planner->records.item[i];
        if (record->used) {
            list(planner, &record->plan, record->kind, &record->predicted);
        }
    }
    planner->surveyed_at = planner->in_force->now.count;
}

void survey_drop(struct planner *planner, const struct record *record)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < planner->listed_count; i++) {
        if (planner->listed[i].plan != &record->plan) {
            planner->listed[kept++] = planner->listed[i];
        }
    }
    planner->listed_count = kept;
}

static double gain_of(
    const struct planner *planner, const struct listed *one, const struct record *best)
{
    if (one->kind == best->kind) {
        return GAIN_OF_BEST;
    }
    return planner_survey_alike(planner, one->kind, one->plan->bucket_bytes) != NULL ? GAIN_OF_KIND
                                                                                     : GAIN_OF_NEW;
}

const struct listed *survey_promising(const struct planner *planner, const struct record *best)
{
    const struct listed *found = NULL;
    double least = 1;

    for (unsigned i = 0; i < planner->listed_count; i++) {
        const struct listed *one = &planner->listed[i];
        const struct record *record = records_find(&planner->records, one->plan);
        double part = one->predicted_us / (record_us(best) * gain_of(planner, one, best));
        bool may = record == NULL || (!record->tried && !record->refused && !measured(record));
        if (may && planner->trials_of_kind[one->kind] < TRIALS_OF_KIND && part < least) {
            least = part;
            found = one;
        }
    }
    return found;
}

bool planner_candidate(
    const struct planner *planner, unsigned index, struct planner_candidate *candidate)
{
    const struct listed *one = &planner->listed[index];
    const struct record *record;

    if (index >= planner->listed_count) {
        return false;
    }
    record = records_find(&planner->records, one->plan);
    *candidate = (struct planner_candidate){
        .plan = one->plan,
        .predicted_us = one->predicted_us,
        .measured_us = record != NULL ? record_us(record) : 0,
        .finish_us = one->result->finish_us,
        .select_us = one->result->select_us,
        .link_us = one->result->link_us,
        .reduce_us = one->result->reduce_us,
        .bytes = one->result->bytes,
        .in_force = record != NULL && record == planner->in_force,
    };
    candidate_name(one->kind, candidate->name);
    return true;
}

/*
 * The planner's decisions: see planner.h.
 *
 * Happy path: the planner measures steps under the plan in force. Then it tries the candidate that
 * promises most for TRIAL_STEPS, remembers its step time and tries the next one. When no candidate
 * promises enough, it puts the best measured plan in force and rests.
 *
 * Other paths:
 * - a trial is bad: it ends after some steps;
 * - steps vary so much that the outcome of a trial is not clear: it goes on, up to TRIAL_STEPS_MAX;
 * - a proposal is refused (the plan in force stays): it is not proposed again;
 * - a plan is set from outside: it is measured like any other, and may be left;
 * - steps, or the link, have changed under the same plan: this is another state (planner_state.h).
 * In a known state its best plan is put in force again; in a new one trials begin. If states
 *   alternate, that happens only after ever longer times;
 * - steps become far longer: the same, but at once, however often that happens;
 * - nothing changes for a long time: some trials are made again, ever more rarely.
 */
#include "daemon/planner/planner.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/planner/planner_state.h"

/* Trials, in steps. A plan is measured after TRIAL_STEPS, or up to TRIAL_STEPS_MAX if the outcome
 * is not clear. It is left after STEPS_MIN if it is FAR_TOO_SLOW. */
#define STEPS_MIN 3
#define TRIAL_STEPS 10
#define TRIAL_STEPS_MAX 30
#define FAR_TOO_SLOW 1.5
#define TRIALS_MAX 16           /* until the planner rests */
#define TRIALS_UNTIL_IT_LASTS 3 /* in a new state, for LASTING_STEPS, if another was before */
#define LASTING_STEPS 64

/* Two plans count as equal within UNCLEAR standard errors, unless these are PRECISE. After its
 * trial a plan is left if another takes less by more than WORSE; at rest the difference must be
 * larger. */
#define UNCLEAR 2.0
#define PRECISE 0.015
#define WORSE 1.01
#define WORSE_AT_REST 1.015

/* Steps have changed if they are off by DRIFT and by more than NOISE standard errors for
 * PATIENCE_MIN steps. The link has changed if its bytes take LINK_DRIFT times as long, or as short.
 * After each change the next one must last twice as long, up to PATIENCE_MAX, until nothing has
 * changed in CALM_STEPS. A plan whose steps become far longer is left at once all the same. */
#define DRIFT 0.2
#define NOISE 4.0
#define PATIENCE_MAX 1024
#define ALTERNATING 32 /* from that patience on states alternate */
#define CALM_STEPS 4000
#define LINK_DRIFT 1.5

#define REVIEW_STEPS 2000u /* of rest, until some trials are made again; then twice as many */
#define REVIEW_TRIALS 4
#define SURVEY_STEPS 16 /* at rest candidates are predicted that often */

/* ------------------------------------------------------------------ life */

static bool planner_is_valid(const struct planner_config *config)
{
    for (uint32_t t = 0; t < config->tensors; t++) {
        if ((config->tensor[t].allowed & ((1u << CHOICES) - 1)) == 0) {
            return false;
        }
    }
    return config->tensors > 0 && config->nodes > 0 && config->threads > 0;
}

struct planner *planner_create(const struct planner_config *config, struct error *err)
{
    struct planner *planner = calloc(1, sizeof(*planner));
    size_t size = config->tensors * sizeof(*planner->tensor);
    bool all;

    assert(planner_is_valid(config));
    if (planner != NULL) {
        planner->config = *config;
        planner->tensor = malloc(size);
        planner->config.tensor = planner->tensor;
    }
    all = planner != NULL && planner->tensor != NULL;
    if (all) {
        (void)memcpy(planner->tensor, config->tensor, size);
        all = forecast_init(&planner->forecast, &planner->config) &&
              candidates_init(&planner->candidates, &planner->config) &&
              records_init(&planner->records, config->tensors);
        planner->trials_max = TRIALS_MAX;
        planner->rest = REVIEW_STEPS;
        planner->patience = PATIENCE_MIN;
    }
    if (!all) {
        planner_free(planner);
        (void)error_set(
            err, ADTOPK_ERR_MEMORY, "planner: no memory for %u tensors", (unsigned)config->tensors);
        return NULL;
    }
    return planner;
}

void planner_free(struct planner *planner)
{
    if (planner != NULL) {
        forecast_free(&planner->forecast);
        candidates_free(&planner->candidates);
        records_free(&planner->records);
        free(planner->tensor);
        free(planner);
    }
}

/* ------------------------------------------------------------------ words */

#define SIZE_TEXT 32

static const char *size_text(uint64_t bytes, char text[SIZE_TEXT])
{
    if (bytes % (1u << 20) == 0) {
        (void)snprintf(text, SIZE_TEXT, "%" PRIu64 " MiB", bytes >> 20);
    } else if (bytes % (1u << 10) == 0) {
        (void)snprintf(text, SIZE_TEXT, "%" PRIu64 " KiB", bytes >> 10);
    } else {
        (void)snprintf(text, SIZE_TEXT, "%" PRIu64 " bytes", bytes);
    }
    return text;
}

/* Begins the sentence that explains a decision: the action and the plan. */
static void say(struct planner_decision *decision, const char *what, const struct choices *plan,
    unsigned kind, const char *format, ...) __attribute__((format(printf, 5, 6)));

static void say(struct planner_decision *decision, const char *what, const struct choices *plan,
    unsigned kind, const char *format, ...)
{
    char name[CANDIDATE_NAME_SIZE], size[SIZE_TEXT];
    va_list args;
    int used;

    candidate_name(kind, name);
    used = snprintf(decision->why, PLANNER_WHY_SIZE, "%s %s in buckets of %s: ", what, name,
        size_text(plan->bucket_bytes, size));
    va_start(args, format);
    (void)vsnprintf(decision->why + used, PLANNER_WHY_SIZE - (size_t)used, format, args);
    va_end(args);
}

/* ------------------------------------------------------------------ the plan in force */

/* The record of a plan, a new one if there is none. Candidates that are listed may move. */
static struct record *planner_remember(
    struct planner *planner, const struct choices *plan, unsigned kind)
{
    bool known = records_find(&planner->records, plan) != NULL;
    struct record *record = records_of(&planner->records, plan, kind, planner->in_force);

    if (!known) {
        survey_drop(planner, record);
    }
    return record;
}

static void unsettle(struct planner *planner)
{
    planner->settled = (struct estimate_steps){.count = 0};
    planner->settled_link = 0;
    planner->drifted_at = planner->surveyed_at = 0;
}

/* Another plan is in force than before, or its steps are counted anew. */
static void note_plan(struct planner *planner, struct record *record)
{
    planner->left = planner->trying ? NULL : planner->in_force;
    planner->in_force = record;
    planner->begun = planner->looked_at = 0;
    planner->recalled = planner->urgent;
    planner->urgent = false;
    unsettle(planner);
}

/* Notes which plan is in force, and how long its steps take. */
static void observe(
    struct planner *planner, const struct estimates *estimates, const struct choices *in_force)
{
    struct record *record = planner->in_force;

    if (planner->proposed != NULL && !choices_equal(&planner->proposed->plan, in_force)) {
        /* One that was in force before may be gone back to, when there is another trial left. */
        planner->proposed->refused = record_us(planner->proposed) <= 0;
        planner->trying = false;
    }
    planner->proposed = NULL;
    if (record == NULL || !choices_equal(&record->plan, in_force)) {
        if (record != NULL && planner->drifted_at > 0) {
            record_set(record, state_usual_us(planner)); /* in this state, not in those of the
                                                          * others */
        } else if (record != NULL) {
            record_leave(record);
        }
        note_plan(planner,
            planner_remember(planner, in_force, candidate_kind(&planner->config, in_force)));
        planner->in_force->refused = false;
    } else if (estimates->steps.count < planner->begun + record->now.count) {
        record_leave(record);
        note_plan(planner, record);
    }
    planner->in_force->now = estimates->steps;
    planner->in_force->now.count -= planner->begun;
    state_look(planner);
}

/* Changes the state: steps, or the link, have been different for so many steps. */
static void change_state(struct planner *planner, uint32_t steps, bool urgent)
{
    state_change(planner, steps, TRIALS_MAX);
    unsettle(planner);
    planner->trying = false;
    planner->urgent = urgent;
    planner->calm = 0;
    planner->rest = REVIEW_STEPS;
    planner->patience = 2 * planner->patience < PATIENCE_MAX ? 2 * planner->patience : PATIENCE_MAX;
}

/* Forgets the measurements of all plans except the one in force. */
static void start_again(struct planner *planner, unsigned trials)
{
    struct estimate_steps now = planner->in_force->now;

    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        record_forget(&planner->records.item[i]);
    }
    (void)memset(planner->trials_of_kind, 0, sizeof(planner->trials_of_kind));
    planner->in_force->now = now;
    planner->trials = 0;
    planner->trials_max = trials;
    planner->trying = false;
    unsettle(planner);
}

/* Whether the steps, or the link, have changed under this plan. */
static bool is_off(const struct planner *planner, const struct estimates *estimates)
{
    const struct record *record = planner->in_force;
    bool settled = planner->settled.count > 0;
    double before = settled ? planner->settled.median_us : record->past_us;
    double error = settled ? planner->settled.error_us : record->past_error_us;
    double far = fmax(DRIFT * before, NOISE * hypot(error, record->now.error_us));
    double link = estimates->link_us_byte;

    if (planner->settled_link > 0 && link > 0 &&
        (link > LINK_DRIFT * planner->settled_link || planner->settled_link > LINK_DRIFT * link)) {
        return true;
    }
    return (settled || record->past_steps >= TRIAL_STEPS) &&
           fabs(record->now.median_us - before) > far;
}

/* How many steps there were since the last call, without those in which plans changed. */
static uint32_t steps_since(struct planner *planner)
{
    uint32_t before = planner->looked_at, now = planner->in_force->now.count;

    planner->looked_at = now;
    return now > before ? now - before : 0;
}

/* Nothing is off: after a long time of that, changes are taken up as fast as the first. */
static void note_calm(struct planner *planner, uint32_t steps)
{
    planner->calm = planner->calm < CALM_STEPS ? planner->calm + steps : CALM_STEPS;
    if (planner->calm == CALM_STEPS) {
        planner->patience = PATIENCE_MIN;
    }
}

/* How long another state must last. States may have alternated before, and the best plan of the
 * state that it now seems to be may be bad in another. Then it must last until that risk cannot
 * cost more than staying. */
static uint32_t patience_now(const struct planner *planner)
{
    double steps = planner->patience < ALTERNATING ? 0 : state_steps_to_lose(planner);

    return steps > planner->patience ? (uint32_t)fmin(steps, PATIENCE_MAX) : planner->patience;
}

/* Looks after drifts. True while it is not clear yet whether there is one. */
static bool is_drifting(struct planner *planner, const struct estimates *estimates)
{
    uint32_t steps = planner->in_force->now.count, since = steps_since(planner);

    if (!is_off(planner, estimates)) {
        planner->drifted_at = 0;
        note_calm(planner, since);
        if (planner->settled.count < ESTIMATE_STEPS && steps > planner->settled.count) {
            planner->settled = planner->in_force->now;
            planner->settled_link = estimates->link_us_byte;
        }
        return false;
    }
    planner->calm = 0;
    if (planner->drifted_at == 0) {
        planner->drifted_at = steps;
    }
    if (steps < planner->drifted_at + patience_now(planner)) {
        return true;
    }
    change_state(planner, planner->patience, false);
    return planner->in_force->now.count < TRIAL_STEPS;
}

/* ------------------------------------------------------------------ the next action */

static void planner_propose(
    struct planner *planner, struct record *record, bool trial, struct planner_decision *decision)
{
    planner->proposed = record;
    planner->was_trying = planner->trying;
    planner->trying = trial;
    planner->counted = false;
    planner->trials += 1;
    decision->change = true;
    decision->plan = &record->plan;
}

void planner_withdraw(struct planner *planner)
{
    if (planner->proposed == NULL) {
        return;
    }
    planner->trials -= 1;
    planner->trials_of_kind[planner->proposed->kind] -= planner->counted ? 1 : 0;
    planner->trying = planner->was_trying;
    planner->proposed = NULL;
}

static void try_next(struct planner *planner, const struct listed *next, double best_us,
    struct planner_decision *decision)
{
    double predicted_us = planner->expected_us = next->predicted_us;
    struct record *record = planner_remember(planner, next->plan, next->kind);

    planner_propose(planner, record, true, decision);
    planner->trials_of_kind[record->kind]++;
    planner->counted = true;
    say(decision, "trying", &record->plan, record->kind,
        "predicted %.4g ms per step, the best so far took %.4g ms", 1e-3 * predicted_us,
        1e-3 * best_us);
}

/* Whether it takes more steps to tell whether the plan on trial is a good one. */
static bool is_unclear(const struct planner *planner, const struct record *best)
{
    const struct record *record = planner->in_force;
    double us = record_us(record), error = record_error_us(record);

    return planner->trying && best != record && record->now.count < TRIAL_STEPS_MAX &&
           error > PRECISE * us &&
           fabs(us - record_us(best)) < UNCLEAR * hypot(error, record_error_us(best));
}

/* Whether to put the best plan in force again. That is so after a trial, or when more steps show
 * that the plan in force takes longer than another did. */
static bool go_back(const struct planner *planner, const struct record *best)
{
    const struct record *record = planner->in_force;
    double now = record_us(record), then = record_us(best);

    if (best == record || planner->urgent || planner->trying) {
        return best != record && now > WORSE * then;
    }
    return record->now.count >= ESTIMATE_STEPS && planner->trials < planner->trials_max &&
           now > WORSE_AT_REST * then + record->now.error_us;
}

/* Nothing is to be tried: the best one is put in force, or stays. */
static void planner_rest(
    struct planner *planner, struct record *best, struct planner_decision *decision)
{
    const struct record *record = planner->in_force;
    uint32_t steps = record->now.count;

    if (go_back(planner, best)) {
        planner_propose(planner, best, !planner->trying, decision);
        planner->expected_us = 0;
        say(decision, "back to", &best->plan, best->kind,
            "%.4g ms per step, the last one took %.4g ms", 1e-3 * record_us(best),
            1e-3 * record_us(record));
        return;
    }
    planner->trying = false;
    if (steps >= planner->rest) {
        planner->rest = planner->rest < UINT32_MAX / 2 ? 2 * planner->rest : UINT32_MAX;
        start_again(planner, REVIEW_TRIALS);
    }
    say(decision, "keeping", &record->plan, record->kind,
        "%.4g ms per step, and no other plan promises enough", 1e-3 * record_us(record));
}

/* Whether another trial may be made: where states alternate only a few, until one has lasted. */
static bool may_try(const struct planner *planner)
{
    bool lasts = planner->patience == PATIENCE_MIN || planner->calm >= LASTING_STEPS;

    return planner->trials < (lasts ? planner->trials_max : TRIALS_UNTIL_IT_LASTS);
}

/* Called when a trial is over, or when no better plan is known. */
static void planner_choose(struct planner *planner, const struct estimates *estimates,
    struct record *best, struct planner_decision *decision)
{
    const struct listed *next = NULL;
    bool due = planner->trying || planner->surveyed_at == 0 ||
               planner->in_force->now.count >= planner->surveyed_at + SURVEY_STEPS;

    planner->in_force->tried = true;
    if (planner->urgent ? !go_back(planner, best) : due) {
        survey_run(planner, estimates);
        next = may_try(planner) ? survey_promising(planner, best) : NULL;
    }
    if (next != NULL) {
        try_next(planner, next, record_us(best), decision);
    } else {
        planner_rest(planner, best, decision);
    }
}

/* Steps that suddenly take another time are of another state, unless the time was a recalled one.
 */
static void heed_jump(struct planner *planner)
{
    struct record *record = planner->in_force;
    const bool jumped = state_has_jumped(planner);

    if (jumped && planner->recalled) {
        record->past_us = record->past_steps = 0; /* the recalled time was wrong */
        planner->recalled = false;
    } else if (jumped || state_flatters(planner, records_best(&planner->records))) {
        change_state(planner, ESTIMATE_RECENT, true);
    }
}

/* Whether the plan on trial takes so long that a few steps are enough. */
static bool is_far_too_slow(const struct planner *planner, const struct record *best)
{
    const struct record *record = planner->in_force;

    return planner->trying && best != record && record->now.count >= STEPS_MIN &&
           record_us(record) > FAR_TOO_SLOW * record_us(best);
}

void planner_decide(struct planner *planner, const struct estimates *estimates,
    const struct choices *in_force, struct planner_decision *decision)
{
    const struct record *record;
    struct record *best;

    *decision = (struct planner_decision){.change = false};
    observe(planner, estimates, in_force);
    record = planner->in_force;
    heed_jump(planner);
    best = records_best(&planner->records); /* NULL: no plan was measured in this state */
    if (best != NULL && (planner->urgent || is_far_too_slow(planner, best))) {
        planner->urgent = planner->urgent && record->now.count < TRIAL_STEPS;
        planner_choose(planner, estimates, best, decision);
    } else if (best == NULL || record->now.count < TRIAL_STEPS || is_unclear(planner, best)) {
        say(decision, "keeping", &record->plan, record->kind, "measuring, %" PRIu32 " steps so far",
            record->now.count);
    } else if (is_drifting(planner, estimates)) {
        say(decision, "keeping", &record->plan, record->kind,
            "steps take %.4g ms now, or the link has changed: looking whether that lasts",
            1e-3 * record->now.median_us);
    } else {
        planner_choose(planner, estimates, records_best(&planner->records), decision);
    }
}

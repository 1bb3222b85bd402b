/*
 * States: see planner_state.h.
 */
#include "daemon/planner/planner_state.h"

#include <math.h>
#include <string.h>

/* Steps that take JUMP times as long, or as short, belong to another state. Those that take ALIKE
 * times as long may belong to the same. */
#define JUMP 2.0
#define ALIKE 1.5
/* A plan that takes so much less than predicted, and than the best, owes it to the conditions. */
#define FLATTERED 2.0
/* A plan that became far slower is left after about so many steps. */
#define LOST_STEPS 8
/* A trial so few steps before was made in two states. */
#define BLURRED_STEPS 8

double state_usual_us(const struct planner *planner)
{
    const struct record *record = planner->in_force;

    return planner->settled.count > 0 ? planner->settled.median_us : record->past_us;
}

/* The time of the latest steps. */
static double latest_us(const struct planner *planner)
{
    const struct estimate_steps *now = &planner->in_force->now;

    return now->least_us > 0 ? sqrt(now->least_us * now->most_us) : now->median_us;
}

bool state_has_jumped(const struct planner *planner)
{
    const struct estimate_steps *now = &planner->in_force->now;
    double usual = state_usual_us(planner);

    if (usual <= 0 || now->least_us <= 0) {
        return false;
    }
    return now->least_us > JUMP * usual ||
           (planner->patience == PATIENCE_MIN && JUMP * now->most_us < usual);
}

bool state_flatters(const struct planner *planner, const struct record *best)
{
    double most = planner->in_force->now.most_us;

    return planner->trying && planner->expected_us > 0 && most > 0 && best != NULL &&
           FLATTERED * most < planner->expected_us && FLATTERED * most < record_us(best);
}

/* How far the step time of the plan in force is from that in a state, as a factor of at least 1. */
static double planner_state_distance(const struct planner *planner, unsigned state)
{
    double then = planner->in_force->then_us[state];

    return state == planner->now || then <= 0 ? INFINITY
                                              : exp(fabs(log(latest_us(planner) / then)));
}

/* The remembered state that the present one resembles; STATES_MAX if none does. */
static unsigned recognise(const struct planner *planner)
{
    unsigned found = 0;

    for (unsigned s = 1; s < STATES_MAX; s++) {
        found =
            planner_state_distance(planner, s) < planner_state_distance(planner, found) ? s : found;
    }
    return planner_state_distance(planner, found) < ALIKE ? found : STATES_MAX;
}

double state_steps_to_lose(const struct planner *planner)
{
    unsigned state = recognise(planner);
    double us = latest_us(planner), best = us;

    for (unsigned i = 0; state < STATES_MAX && i < RECORDS_MAX; i++) {
        double then = planner->records.item[i].then_us[state];
        best = then > 0 ? fmin(best, then) : best;
    }
    return best < us ? planner->lost_us / (us - best) : 0;
}

/* Room for a new one: the state that was left the longest time ago is forgotten. */
static unsigned forget_oldest(struct planner *planner, unsigned trials)
{
    unsigned oldest = planner->now == 0 ? 1 : 0;

    for (unsigned s = 0; s < STATES_MAX; s++) {
        bool older = planner->state[s].left_at < planner->state[oldest].left_at;
        oldest = s != planner->now && older ? s : oldest;
    }
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        planner->records.item[i].then_us[oldest] = 0;
    }
    planner->state[oldest] = (struct planner_state){.trials_max = trials};
    return oldest;
}

/* The record of a plan in the state that ends. */
static double known_us(const struct planner *planner, const struct record *record)
{
    bool blurred = record == planner->left && planner->in_force->now.count <= BLURRED_STEPS;

    return record == planner->in_force ? state_usual_us(planner) : blurred ? 0 : record_us(record);
}

static void move_records(struct planner *planner, unsigned to)
{
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        struct record *record = &planner->records.item[i];
        if (record->used) {
            record_move(record, planner->now, known_us(planner, record), to);
        }
    }
}

/* The present step time of the plan in force, which is more recent than the recalled one. */
static void begin_anew(struct planner *planner, struct estimate_steps now, uint32_t steps)
{
    struct record *record = planner->in_force;

    steps = steps < now.count ? steps : now.count;
    planner->begun += now.count - steps;
    planner->looked_at = steps;
    record->past_us = record->past_steps = record->past_error_us = 0;
    record->now = now;
    record->now.count = steps;
    state_look(planner);
}

void state_change(struct planner *planner, uint32_t steps, unsigned trials)
{
    struct estimate_steps now = planner->in_force->now;
    unsigned to = recognise(planner);
    struct planner_state *left = &planner->state[planner->now];

    if (latest_us(planner) > JUMP * state_usual_us(planner)) {
        planner->lost_us = LOST_STEPS * latest_us(planner);
    }
    to = to < STATES_MAX ? to : forget_oldest(planner, trials);
    move_records(planner, to);
    left->trials = planner->trials;
    left->trials_max = planner->trials_max;
    left->left_at = ++planner->states;
    (void)memcpy(left->trials_of_kind, planner->trials_of_kind, sizeof(left->trials_of_kind));
    planner->trials = planner->state[to].trials;
    planner->trials_max = planner->state[to].trials_max;
    (void)memcpy(planner->trials_of_kind, planner->state[to].trials_of_kind,
        sizeof(planner->trials_of_kind));
    planner->now = to;
    begin_anew(planner, now, steps);
}

void state_look(struct planner *planner)
{
    struct estimate_steps *now = &planner->in_force->now;

    if (planner->begun > 0 && now->count <= ESTIMATE_STEPS / 2) {
        now->median_us = latest_us(planner);
        now->error_us = now->least_us > 0 ? (now->most_us - now->least_us) / 2 : now->error_us;
    }
}

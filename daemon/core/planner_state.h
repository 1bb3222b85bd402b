/*
 * The states that the planner has seen: conditions under which the same plans take other times,
 * such as a fast and a slow link. For planner.c.
 *
 * A state is known by what steps under the plan in force take in it. What was measured of all plans
 * is kept for each of the latest STATES_MAX states, so that the best plan of one that comes again
 * is put in force at once.
 */
#ifndef ADTOPK_PLANNER_STATE_H
#define ADTOPK_PLANNER_STATE_H

#include "daemon/core/planner_survey.h"

/** What steps under the plan in force took in this state before any change; 0: not known. */
double state_usual_us(const struct planner *planner);

/** Whether the latest steps are so much longer, or shorter, than those of the plan in force were
 * that they cannot be noise. A shorter one counts only while the planner believes changes fast. */
bool state_has_jumped(const struct planner *planner);

/** Whether the plan on trial is so much faster than was predicted, and than all others, that the
 * conditions are others, rather than the plan a good one. */
bool state_flatters(const struct planner *planner, const struct record *best);

/**
 * Another state has begun, so many steps ago: the remembered one in which the plan in force took as
 * long as it takes now, else a new one. trials: how many a new one gets.
 */
void state_change(struct planner *planner, uint32_t steps, unsigned trials);

/** How many steps it takes until staying with the plan in force has cost as much, beside the best
 * of the state that it looks like now, as leaving a plan that became far slower did the last time.
 */
double state_steps_to_lose(const struct planner *planner);

/** Corrects the median of steps of the plan in force, most of which are of the state before. */
void state_look(struct planner *planner);

#endif

/*
 * The states that the planner has seen: conditions in which the same plans take other times, such
 * as a fast and a slow link. For planner.c.
 *
 * The planner recognises a state by the step time of the plan in force. It keeps the measurements
 * of all plans for each of the latest STATES_MAX states. So when a state returns, its best plan is
 * put in force at once.
 */
#ifndef ADTOPK_PLANNER_STATE_H
#define ADTOPK_PLANNER_STATE_H

#include "daemon/planner/planner_survey.h"

/** The step time under the plan in force in this state before any change; 0: not known. */
double state_usual_us(const struct planner *planner);

/** Whether the latest steps are so much longer, or shorter, than the plan's earlier steps that it
 * cannot be noise. A shorter one counts only while the planner believes changes fast. */
bool state_has_jumped(const struct planner *planner);

/** Whether the plan on trial is so much faster than predicted, and than all others, that the
 * conditions must have changed. */
bool state_flatters(const struct planner *planner, const struct record *best);

/**
 * Another state began so many steps ago. If the plan in force took as long in a remembered state,
 * that one is meant; otherwise it is a new one, which gets `trials` trials.
 */
void state_change(struct planner *planner, uint32_t steps, unsigned trials);

/** The number of steps until staying with the plan in force has cost too much. That is as much,
 * compared with the best plan of the present state, as leaving a plan that became far slower cost
 * the last time. */
double state_steps_to_lose(const struct planner *planner);

/** Corrects the median of steps of the plan in force, most of which are of the state before. */
void state_look(struct planner *planner);

#endif

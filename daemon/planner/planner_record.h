/*
 * What the planner remembers of plans: the measurements while each was in force. For planner.c.
 */
#ifndef ADTOPK_PLANNER_RECORD_H
#define ADTOPK_PLANNER_RECORD_H

#include "daemon/planner/candidate.h"

#define RECORDS_MAX 32
#define STATES_MAX 4 /* conditions, such as a fast and a slow link, that are remembered */

struct record {
    struct choices plan;
    unsigned kind;
    bool used;    /* this slot has a plan */
    bool refused; /* proposed, but never in force */
    bool tried;   /* its trial is over */
    /* Of the times it was in force before: their mean, of how many steps (0:
     * never), and how far off that may be. */
    double past_us, past_steps, past_error_us;
    /* Of this time, as the latest estimates say; the count is 0 while it is not in force. */
    struct estimate_steps now;
    double then_us[STATES_MAX];       /* the step time in each other state; 0: not known */
    struct forecast_result predicted; /* with the latest estimates */
};

struct records {
    struct record item[RECORDS_MAX];
};

/** Room for plans of so many tensors; false without memory. Freed by records_free(). */
bool records_init(struct records *records, uint32_t tensors);
void records_free(struct records *records);

/** The record of a plan; a new one, in place of the worst but `spare`, if there is none. */
struct record *records_of(
    struct records *records, const struct choices *plan, unsigned kind, const struct record *spare);

/** The same, but NULL if there is none. */
const struct record *records_find(const struct records *records, const struct choices *plan);

/** The step time under it; 0: not known. */
double record_us(const struct record *record);

/** How far off that may be (a standard error). */
double record_error_us(const struct record *record);

/** It took so long, whatever the latest steps say. */
void record_set(struct record *record, double us);

/** It is no longer in force. */
void record_leave(struct record *record);

/** Notes the step time in the state that ends (0: not known), and recalls the one of the state that
 * begins. */
void record_move(struct record *record, unsigned from, double us, unsigned to);

/** Forgets the measurements in the present state, and that the plan was refused. */
void record_forget(struct record *record);

/** The plan with the shortest steps; NULL if none was measured. */
struct record *records_best(struct records *records);

#endif

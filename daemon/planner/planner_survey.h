/*
 * The planner's view of all plans: the predicted step time of each, corrected by measurements, and
 * which of them promises most. For planner.c, which decides.
 */
#ifndef ADTOPK_PLANNER_SURVEY_H
#define ADTOPK_PLANNER_SURVEY_H

#include "daemon/planner/planner_record.h"

/* A candidate, or a plan that was measured but is none. */
struct listed {
    const struct choices *plan;
    const struct forecast_result *result;
    unsigned kind;
    double predicted_us;
};

#define PATIENCE_MIN 8 /* steps; see planner.c */

/* The data of a state besides the plans' times. */
struct planner_state {
    unsigned trials, trials_max, trials_of_kind[KINDS];
    uint64_t left_at; /* the planner's count of states when it was left; 0: never entered */
};

struct planner {
    struct planner_config config;
    struct planner_tensor *tensor;
    struct forecast forecast;
    struct candidates candidates;
    struct records records;
    struct record *in_force; /* NULL: no decision yet */
    struct record *proposed; /* NULL: nothing is */
    bool trying;             /* the plan in force, or proposed, is on trial */
    bool was_trying;         /* before that was proposed: it may be withdrawn */
    bool counted;            /* whether it counts among those of its kind */
    unsigned trials, trials_max, trials_of_kind[KINDS];
    /* the times of the plan in force and of the link, when they were settled; 0: they are not */
    struct estimate_steps settled;
    double settled_link;
    uint32_t drifted_at;  /* steps when they were first seen to be others; 0: they are not */
    uint32_t patience;    /* steps that they must stay others, until another state is believed */
    uint32_t calm;        /* steps since they were others the last time */
    uint32_t looked_at;   /* steps when that was counted the last time */
    uint32_t surveyed_at; /* steps when candidates were predicted the last time */
    uint32_t rest;        /* steps of rest until the next review */
    /* Conditions under which plans take other times, such as a slow link; records know them. */
    struct planner_state state[STATES_MAX];
    unsigned now;        /* the state that is now */
    uint64_t states;     /* how often another one began */
    uint32_t begun;      /* steps of the plan in force before that */
    bool recalled;       /* the plan in force is, as recalled, the best of a state that began */
    bool urgent;         /* steps became far longer: another plan is due at once */
    struct record *left; /* the plan before the one in force, if that was left after a trial */
    double expected_us;  /* predicted step time of the plan on trial */
    double lost_us;      /* the approximate cost of leaving a plan that had become far slower */
    struct listed listed[CANDIDATES_MAX + RECORDS_MAX]; /* for people, best first */
    unsigned listed_count;
};

/** Predicts all candidates and all plans that were measured. */
void survey_run(struct planner *planner, const struct estimates *estimates);

/** Removes the plan in this record's slot from the list, because another plan will get the slot. */
void survey_drop(struct planner *planner, const struct record *record);

/** The candidate that promises most, against the best that was measured, if it is worth a trial;
 * NULL if none is. */
const struct listed *survey_promising(const struct planner *planner, const struct record *best);

#endif

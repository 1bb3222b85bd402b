#include "daemon/job/states.h"

#include <stddef.h>

#define TO(state) (1u << (state))

const struct machine_table job_machine = {
    .name = "job",
    .states = JOB_STATES,
    .events = JOB_EVENTS,
    .state_name = {"forming", "prepared", "active", "ended"},
    .event_name = {"prepare", "commit", "fail", "leave"},
    .next =
        {
            [JOB_FORMING] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
            [JOB_PREPARED] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_COMMIT] = TO(JOB_ACTIVE),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
            [JOB_ACTIVE] =
                {
                    [JOB_ON_PREPARE] = TO(JOB_PREPARED),
                    [JOB_ON_FAIL] = TO(JOB_ENDED),
                    [JOB_ON_LEAVE] = TO(JOB_ENDED),
                },
        },
};

const struct machine_table rank_machine = {
    .name = "rank",
    .states = RANK_STATES,
    .events = RANK_EVENTS,
    .state_name = {"open", "committed", "mapped", "ready", "left", "vacant"},
    .event_name = {"register", "commit", "mapped", "ready", "push", "step_end", "op", "leave",
        "loss"},
    .next =
        {
            [RANK_OPEN] =
                {
                    [RANK_ON_REGISTER] = TO(RANK_OPEN),
                    [RANK_ON_COMMIT] = TO(RANK_COMMITTED),
                    [RANK_ON_LEAVE] = TO(RANK_LEFT),
                },
            [RANK_COMMITTED] =
                {
                    [RANK_ON_MAPPED] = TO(RANK_MAPPED) | TO(RANK_OPEN),
                    [RANK_ON_LEAVE] = TO(RANK_LEFT),
                },
            [RANK_MAPPED] =
                {
                    [RANK_ON_READY] = TO(RANK_READY),
                    [RANK_ON_LEAVE] = TO(RANK_LEFT),
                },
            [RANK_READY] =
                {
                    [RANK_ON_REGISTER] = TO(RANK_READY),
                    [RANK_ON_COMMIT] = TO(RANK_READY),
                    [RANK_ON_MAPPED] = TO(RANK_READY),
                    [RANK_ON_READY] = TO(RANK_READY),
                    [RANK_ON_PUSH] = TO(RANK_READY),
                    [RANK_ON_STEP_END] = TO(RANK_READY),
                    [RANK_ON_OP] = TO(RANK_READY),
                    [RANK_ON_LEAVE] = TO(RANK_LEFT),
                    [RANK_ON_LOSS] = TO(RANK_VACANT),
                },
        },
};

const struct machine_table step_machine = {
    .name = "step",
    .states = STEP_STATES,
    .events = STEP_EVENTS,
    .state_name = {"idle", "open", "settle", "withdraw"},
    .event_name = {"open", "delivered", "done", "hold"},
    .next =
        {
            [STEP_IDLE] = {[STEP_ON_OPEN] = TO(STEP_OPEN)},
            [STEP_OPEN] = {[STEP_ON_DELIVERED] = TO(STEP_SETTLE) | TO(STEP_WITHDRAW),
                [STEP_ON_HOLD] = TO(STEP_IDLE)},
            [STEP_SETTLE] = {[STEP_ON_DONE] = TO(STEP_IDLE)},
            [STEP_WITHDRAW] = {[STEP_ON_DONE] = TO(STEP_IDLE)},
        },
};

const struct machine_table round_machine = {
    .name = "round",
    .states = ROUND_STATES,
    .events = ROUND_EVENTS,
    .state_name = {"idle", "collect", "select", "exchange", "combine", "reduce", "fetch",
        "delivered"},
    .event_name = {"open", "collected", "computed", "phase", "freeze", "held", "copy", "split",
        "close"},
    .next =
        {
            [ROUND_IDLE] = {[ROUND_ON_OPEN] = TO(ROUND_COLLECT) | TO(ROUND_DELIVERED)},
            [ROUND_COLLECT] =
                {
                    [ROUND_ON_COLLECTED] = TO(ROUND_SELECT),
                    [ROUND_ON_HELD] = TO(ROUND_FETCH),
                    [ROUND_ON_SPLIT] = TO(ROUND_IDLE),
                    [ROUND_ON_CLOSE] = TO(ROUND_IDLE),
                },
            [ROUND_SELECT] = {[ROUND_ON_COMPUTED] =
                                  TO(ROUND_EXCHANGE) | TO(ROUND_COLLECT) | TO(ROUND_IDLE)},
            [ROUND_EXCHANGE] =
                {
                    [ROUND_ON_PHASE] = TO(ROUND_COMBINE) | TO(ROUND_REDUCE),
                    [ROUND_ON_FREEZE] = TO(ROUND_COLLECT),
                    [ROUND_ON_SPLIT] = TO(ROUND_IDLE),
                },
            [ROUND_COMBINE] = {[ROUND_ON_COMPUTED] =
                                   TO(ROUND_EXCHANGE) | TO(ROUND_COLLECT) | TO(ROUND_IDLE)},
            [ROUND_REDUCE] = {[ROUND_ON_COMPUTED] = TO(ROUND_DELIVERED)},
            [ROUND_FETCH] =
                {
                    [ROUND_ON_COPY] = TO(ROUND_DELIVERED),
                    [ROUND_ON_FREEZE] = TO(ROUND_COLLECT),
                },
            [ROUND_DELIVERED] = {[ROUND_ON_CLOSE] = TO(ROUND_IDLE)},
        },
};

const struct machine_table switch_machine = {
    .name = "switch",
    .states = SWITCH_STATES,
    .events = SWITCH_EVENTS,
    .state_name = {"none", "proposed", "held", "moving"},
    .event_name = {"propose", "hold", "commit", "abort", "done"},
    .next =
        {
            [SWITCH_NONE] =
                {
                    [SWITCH_ON_PROPOSE] = TO(SWITCH_PROPOSED),
                    [SWITCH_ON_COMMIT] = TO(SWITCH_MOVING),
                },
            [SWITCH_PROPOSED] =
                {
                    [SWITCH_ON_HOLD] = TO(SWITCH_HELD),
                    [SWITCH_ON_ABORT] = TO(SWITCH_NONE),
                },
            [SWITCH_HELD] =
                {
                    [SWITCH_ON_COMMIT] = TO(SWITCH_MOVING),
                    [SWITCH_ON_ABORT] = TO(SWITCH_NONE),
                },
            [SWITCH_MOVING] = {[SWITCH_ON_DONE] = TO(SWITCH_NONE)},
        },
};

const struct machine_table *const core_machines[] = {
    &job_machine, &rank_machine, &step_machine, &round_machine, &switch_machine, NULL};

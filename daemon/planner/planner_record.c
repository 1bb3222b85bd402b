/*
 * Measurements of plans: see planner_record.h.
 */
#include "daemon/planner/planner_record.h"

#include <math.h>
#include <string.h>

#define MEASURED_MIN 3 /* fewer steps say nothing */

/* A recalled time counts as so many steps, and may be off by that part. */
#define RECALLED_STEPS 10
#define RECALLED_ERROR 0.05

bool records_init(struct records *records, uint32_t tensors)
{
    bool all = true;

    *records = (struct records){.item = {{.used = false}}};
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        all = choices_init(&records->item[i].plan, tensors) && all;
    }
    return all;
}

void records_free(struct records *records)
{
    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        choices_free(&records->item[i].plan);
    }
}

double record_us(const struct record *record)
{
    double steps = record->now.count;

    if (steps >= ESTIMATE_STEPS || (record->past_steps <= 0 && steps >= MEASURED_MIN)) {
        return record->now.median_us;
    }
    if (record->past_steps <= 0 || steps < MEASURED_MIN) {
        return record->past_us;
    }
    return (record->past_us * record->past_steps + record->now.median_us * steps) /
           (record->past_steps + steps);
}

double record_error_us(const struct record *record)
{
    return record->now.count >= MEASURED_MIN ? record->now.error_us : record->past_error_us;
}

void record_leave(struct record *record)
{
    double steps = fmin(record->now.count, ESTIMATE_STEPS);

    if (steps >= MEASURED_MIN) {
        record->past_us = record_us(record);
        record->past_error_us = record->now.error_us;
        record->past_steps = fmin(record->past_steps + steps, ESTIMATE_STEPS);
    }
    record->now = (struct estimate_steps){.count = 0};
}

void record_forget(struct record *record)
{
    record->past_us = record->past_steps = record->past_error_us = 0;
    record->now = (struct estimate_steps){.count = 0};
    record->refused = record->tried = false;
}

void record_set(struct record *record, double us)
{
    record->past_us = us;
    record->past_steps = RECALLED_STEPS;
    record->past_error_us = RECALLED_ERROR * us;
    record->now = (struct estimate_steps){.count = 0};
}

void record_move(struct record *record, unsigned from, double us, unsigned to)
{
    record->then_us[from] = us;
    record_forget(record);
    if (record->then_us[to] > 0) {
        record_set(record, record->then_us[to]);
        record->tried = true;
    }
}

/* The slot of a plan; RECORDS_MAX if it has none. */
static unsigned planner_record_slot_of(const struct records *records, const struct choices *plan)
{
    unsigned i = 0;

    while (i < RECORDS_MAX &&
           !(records->item[i].used && choices_equal(&records->item[i].plan, plan))) {
        i++;
    }
    return i;
}

const struct record *records_find(const struct records *records, const struct choices *plan)
{
    unsigned slot = planner_record_slot_of(records, plan);

    return slot < RECORDS_MAX ? &records->item[slot] : NULL;
}

/* Whether a plan is less likely to be wanted again: it was never measured, or it is slower. */
static bool less_wanted(const struct record *record, const struct record *than)
{
    double us = record_us(record), other = record_us(than);

    return other > 0 && (us <= 0 || us > other);
}

/* A free slot, else that of the plan that is least likely to be wanted again. */
static struct record *slot_for(struct records *records, const struct record *spare)
{
    struct record *worst = NULL;

    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        struct record *record = &records->item[i];
        if (!record->used) {
            return record;
        }
        if (record != spare && (worst == NULL || less_wanted(record, worst))) {
            worst = record;
        }
    }
    return worst;
}

struct record *records_of(
    struct records *records, const struct choices *plan, unsigned kind, const struct record *spare)
{
    unsigned slot = planner_record_slot_of(records, plan);
    struct record *record;

    if (slot < RECORDS_MAX) {
        return &records->item[slot];
    }
    record = slot_for(records, spare);
    record_forget(record);
    (void)memset(record->then_us, 0, sizeof(record->then_us));
    choices_copy(&record->plan, plan);
    record->kind = kind;
    record->used = true;
    return record;
}

struct record *records_best(struct records *records)
{
    struct record *best = NULL;

    for (unsigned i = 0; i < RECORDS_MAX; i++) {
        struct record *record = &records->item[i];
        double us = record->used && !record->refused ? record_us(record) : 0;
        if (us > 0 && (best == NULL || us < record_us(best))) {
            best = record;
        }
    }
    return best;
}

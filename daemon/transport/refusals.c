#include "daemon/transport/refusals.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "daemon/transport/clock.h"

#define REFUSAL_LINE_SIZE 512

static bool refusals_may_say(struct refusal_budget *budget)
{
    uint64_t now = transport_now_us();
    uint64_t earned = (now - budget->refilled_us) / REFUSAL_REFILL_US;

    budget->used -= earned < budget->used ? earned : budget->used;
    budget->refilled_us += earned * REFUSAL_REFILL_US;
    if (budget->used >= REFUSAL_BURST) {
        return false;
    }
    budget->used++;
    return true;
}

void refusals_add(struct refusals *refusals, enum refusal reason, const char *line)
{
    struct refusal_budget *budget = &refusals->budget[reason];
    char more[REFUSAL_LINE_SIZE];

    budget->count++;
    if (refusals->warn == NULL || !refusals_may_say(budget)) {
        budget->unsaid++;
        return;
    }
    if (budget->unsaid > 0) {
        (void)snprintf(more, sizeof(more), "%s (and %" PRIu64 " more of this sort before)", line,
            budget->unsaid);
        line = more;
    }
    budget->unsaid = 0;
    refusals->warn(refusals->context, line);
}

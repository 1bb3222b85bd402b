/* Which declared moves of the core's state machines were made, over all runs of this process. */
#include <stdio.h>

#include "daemon/job/states.h"
#include "tests/sim/world.h"

#define MAX_TABLES 8

static bool counting = true;
static uint64_t hits[MAX_TABLES][MACHINE_MAX_STATES][MACHINE_MAX_EVENTS][MACHINE_MAX_STATES];

void coverage_move(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to)
{
    (void)context;
    (void)id;
    for (unsigned i = 0; counting && core_machines[i] != NULL; i++) {
        if (core_machines[i] == table) {
            hits[i][from][event][to]++;
        }
    }
}

void coverage_count(bool on)
{
    counting = on;
}

unsigned coverage_print(void)
{
    unsigned missed = 0;

    for (unsigned i = 0; core_machines[i] != NULL; i++) {
        const struct machine_table *table = core_machines[i];
        unsigned declared = 0, reached = 0;
        for (unsigned s = 0; s < table->states; s++) {
            for (unsigned e = 0; e < table->events; e++) {
                for (unsigned n = 0; n < table->states; n++) {
                    if ((table->next[s][e] & 1u << n) == 0) {
                        continue;
                    }
                    declared++;
                    if (hits[i][s][e][n] > 0) {
                        reached++;
                    } else {
                        (void)printf("# not reached: %s %s -%s-> %s\n", table->name,
                            table->state_name[s], table->event_name[e], table->state_name[n]);
                    }
                }
            }
        }
        (void)printf(
            "# coverage: %-6s %2u of %2u declared moves\n", table->name, reached, declared);
        missed += declared - reached;
    }
    return missed;
}

#include "daemon/job/machine.h"

#include <stdio.h>
#include <stdlib.h>

void machine_init(struct machine *machine, const struct machine_table *table,
    const struct machine_trace *trace, uint64_t id)
{
    *machine = (struct machine){.table = table, .trace = trace, .id = id, .state = 0};
}

void machine_fire(struct machine *machine, unsigned event, unsigned next)
{
    const struct machine_table *table = machine->table;

    if (event >= table->events || next >= table->states ||
        (table->next[machine->state][event] & 1u << next) == 0) {
        (void)fprintf(stderr, "adtopk: %s %llu: no move from %s on %s to state %u\n", table->name,
            (unsigned long long)machine->id, table->state_name[machine->state],
            event < table->events ? table->event_name[event] : "?", next);
        abort();
    }
    if (machine->trace != NULL && machine->trace->move != NULL) {
        machine->trace->move(
            machine->trace->context, table, machine->id, machine->state, event, next);
    }
    machine->state = next;
}

const char *machine_state(const struct machine *machine)
{
    return machine->table->state_name[machine->state];
}

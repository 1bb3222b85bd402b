/*
 * Prints what the code declares, for the model: the states, events and moves of its machines, and
 * the messages between daemons with their fields. As Promela, or with --list one name a line.
 */
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "daemon/job/states.h"
#include "peer.pb-c.h"

static void print_upper(const char *text)
{
    for (; *text != '\0'; text++) {
        (void)putchar(toupper((unsigned char)*text));
    }
}

static void print_name(const struct machine_table *table, const char *part, const char *name)
{
    print_upper(table->name);
    (void)fputs(part, stdout);
    print_upper(name);
}

static void define(
    const struct machine_table *table, const char *part, const char *name, unsigned value)
{
    (void)fputs("#define ", stdout);
    print_name(table, part, name);
    (void)printf(" %u\n", value);
}

/* A condition on a state, an event and the next state: whether the table has the move. */
static void define_moves(const struct machine_table *table)
{
    (void)printf("#define %s_moves(from, event, to) (0", table->name);
    for (unsigned from = 0; from < table->states; from++) {
        for (unsigned event = 0; event < table->events; event++) {
            if (table->next[from][event] != 0) {
                (void)printf(" \\\n    || ((from) == %u && (event) == %u && (%u & (1 << (to))))",
                    from, event, table->next[from][event]);
            }
        }
    }
    (void)puts(")");
}

static void print_promela(const struct machine_table *table)
{
    for (unsigned s = 0; s < table->states; s++) {
        define(table, "_", table->state_name[s], s);
    }
    for (unsigned e = 0; e < table->events; e++) {
        define(table, "_ON_", table->event_name[e], e);
    }
    define_moves(table);
}

static void list_machine(const struct machine_table *table)
{
    for (unsigned from = 0; from < table->states; from++) {
        for (unsigned event = 0; event < table->events; event++) {
            for (unsigned to = 0; to < table->states; to++) {
                if ((table->next[from][event] & (1u << to)) != 0) {
                    print_name(table, "_", table->state_name[from]);
                    (void)putchar(' ');
                    print_name(table, "_ON_", table->event_name[event]);
                    (void)putchar(' ');
                    print_name(table, "_", table->state_name[to]);
                    (void)putchar('\n');
                }
            }
        }
    }
}

/* The fields of the messages that are fields of this one. */
static void list_messages(const char *prefix, const ProtobufCMessageDescriptor *all)
{
    for (unsigned m = 0; m < all->n_fields; m++) {
        const ProtobufCMessageDescriptor *message = all->fields[m].descriptor;

        for (unsigned f = 0;
             all->fields[m].type == PROTOBUF_C_TYPE_MESSAGE && f < message->n_fields; f++) {
            (void)printf("%s%s.%s\n", prefix, all->fields[m].name, message->fields[f].name);
        }
    }
}

int main(int argc, char **argv)
{
    const bool list = argc == 2 && strcmp(argv[1], "--list") == 0;

    if (argc > 1 && !list) {
        (void)fputs("usage: model_tables [--list]\n", stderr);
        return 2;
    }
    for (unsigned i = 0; core_machines[i] != NULL; i++) {
        list ? list_machine(core_machines[i]) : print_promela(core_machines[i]);
    }
    if (list) {
        list_messages("", &adtopk__peer_message__descriptor);
        list_messages("seed_", &adtopk__peer_seed_message__descriptor);
    }
    return 0;
}

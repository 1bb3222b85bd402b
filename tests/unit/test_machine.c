/*
 * State tables: they make and trace declared moves, and abort on all others.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/job/states.h"

enum { SHUT, OPEN, LOCKED };
enum { PUSH, PULL, TURN };

static const struct machine_table door = {
    .name = "door",
    .states = 3,
    .events = 3,
    .state_name = {"shut", "open", "locked"},
    .event_name = {"push", "pull", "turn"},
    .next =
        {
            [SHUT] = {[PUSH] = 1u << OPEN, [PULL] = 1u << SHUT, [TURN] = 1u << LOCKED | 1u << SHUT},
            [OPEN] = {[PULL] = 1u << SHUT},
            [LOCKED] = {[TURN] = 1u << SHUT},
        },
};

struct move {
    const struct machine_table *table;
    uint64_t id;
    unsigned from, event, to;
};

struct log {
    struct move move[8];
    unsigned moves;
};

static void note(void *context, const struct machine_table *table, uint64_t id, unsigned from,
    unsigned event, unsigned to)
{
    struct log *log = context;

    assert_true(log->moves < 8);
    log->move[log->moves++] = (struct move){table, id, from, event, to};
}

static void test_moves(void **state)
{
    static const unsigned path[][2] = {
        {TURN, SHUT}, {TURN, LOCKED}, {TURN, SHUT}, {PUSH, OPEN}, {PULL, SHUT}, {PULL, SHUT}};
    static const char *const names[] = {"shut", "locked", "shut", "open", "shut", "shut"};
    struct log log = {.moves = 0};
    struct machine_trace trace = {.move = note, .context = &log};
    struct machine machine;
    unsigned from = SHUT;

    (void)state;
    machine_init(&machine, &door, &trace, 42);
    assert_string_equal(machine_state(&machine), "shut");
    assert_int_equal(log.moves, 0);
    for (unsigned i = 0; i < 6; i++) {
        machine_fire(&machine, path[i][0], path[i][1]);
        assert_int_equal(log.moves, i + 1);
        assert_ptr_equal(log.move[i].table, &door);
        assert_int_equal(log.move[i].id, 42);
        assert_int_equal(log.move[i].from, from);
        assert_int_equal(log.move[i].event, path[i][0]);
        assert_int_equal(log.move[i].to, path[i][1]);
        assert_int_equal(machine.state, path[i][1]);
        assert_string_equal(machine_state(&machine), names[i]);
        from = path[i][1];
    }
}

static void test_without_trace(void **state)
{
    static const struct machine_trace nothing;
    struct machine machine;

    (void)state;
    machine_init(&machine, &door, NULL, 1);
    machine_fire(&machine, PUSH, OPEN);
    assert_int_equal(machine.state, OPEN);
    machine_init(&machine, &door, &nothing, 1);
    machine_fire(&machine, PUSH, OPEN);
    assert_int_equal(machine.state, OPEN);
}

/* Makes one move in a child. True if abort() killed the child. `said` gets its output. */
static bool aborts(unsigned from, unsigned event, unsigned to, char *said, size_t size)
{
    int status = 0, channel[2];
    size_t got = 0;
    ssize_t more;
    pid_t child;

    assert_int_equal(pipe(channel), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct machine machine;
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        (void)signal(SIGABRT, SIG_DFL);
        (void)dup2(channel[1], STDERR_FILENO);
        machine_init(&machine, &door, NULL, 7);
        machine.state = from;
        machine_fire(&machine, event, to);
        _exit(machine.state == to ? 0 : 1);
    }
    (void)close(channel[1]);
    while (got + 1 < size && (more = read(channel[0], said + got, size - got - 1)) > 0) {
        got += (size_t)more;
    }
    said[got] = '\0';
    (void)close(channel[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

/* All of them, and states and events that do not exist. */
static void test_undeclared_moves_abort(void **state)
{
    char said[256];

    (void)state;
    for (unsigned from = 0; from < door.states; from++) {
        for (unsigned event = 0; event <= door.events; event++) {
            for (unsigned to = 0; to <= door.states; to++) {
                bool declared = event < door.events && to < door.states &&
                                (door.next[from][event] & 1u << to) != 0;
                assert_int_equal(aborts(from, event, to, said, sizeof(said)), !declared);
            }
        }
    }
    assert_true(aborts(LOCKED, PUSH, OPEN, said, sizeof(said)));
    assert_non_null(strstr(said, "door 7"));
    assert_non_null(strstr(said, "locked"));
    assert_non_null(strstr(said, "push"));
    assert_true(aborts(SHUT, 1000, 5000, said, sizeof(said)));
}

/* The core's own tables: names for everything, no move out of range, every state reachable. */
static void test_tables_of_the_core(void **state)
{
    (void)state;
    for (unsigned m = 0; core_machines[m] != NULL; m++) {
        const struct machine_table *table = core_machines[m];
        unsigned reached = 1;
        assert_non_null(table->name);
        assert_in_range(table->states, 1, MACHINE_MAX_STATES);
        assert_in_range(table->events, 1, MACHINE_MAX_EVENTS);
        for (unsigned e = 0; e < table->events; e++) {
            assert_non_null(table->event_name[e]);
        }
        for (unsigned turn = 0; turn < table->states; turn++) {
            for (unsigned s = 0; s < table->states; s++) {
                assert_non_null(table->state_name[s]);
                for (unsigned e = 0; e < table->events; e++) {
                    assert_int_equal(table->next[s][e] >> table->states, 0);
                    reached |= (reached & 1u << s) != 0 ? table->next[s][e] : 0;
                }
            }
        }
        assert_int_equal(reached, (1u << table->states) - 1);
    }
    assert_non_null(core_machines[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_without_trace),
        cmocka_unit_test(test_undeclared_moves_abort),
        cmocka_unit_test(test_tables_of_the_core),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

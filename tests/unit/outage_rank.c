#include "outage_rank.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "outage_walk.h"

#define PATIENCE_S 100u /* a walk that takes longer hangs */

static struct walkers *shared;
static struct walker self;
static pid_t process[WALKERS];

/* ---- a walk ---- */

static void walker_begin(unsigned number, struct walk_end *end)
{
    memset(end, 0, sizeof(*end));
    self.number = number;
    self.kind = atomic_load(&shared->kind);
    self.context = NULL;
    self.comes_back = false;
    self.first_step = 0;
    self.refusal.code = ADTOPK_OK;
    (void)alarm(PATIENCE_S); /* ends this process */
}

static void walker_end(struct walk_end *end, unsigned place)
{
    if (end->status != ADTOPK_OK) {
        (void)snprintf(end->text, sizeof(end->text), "%s",
            self.refusal.code != ADTOPK_OK ? self.refusal.text : adtopk_message(self.context));
        atomic_store(&shared->failed[place], self.number);
    }
    adtopk_close(self.context);
    (void)alarm(0);
    atomic_store(&shared->done[place], self.number);
}

static void walker_walk(unsigned number, unsigned place)
{
    struct walk_end *end = &shared->end[place];
    const struct walk_call *calls;

    walker_begin(number, end);
    calls = walk_calls(self.kind);
    if (place == WALKER_OPERATOR) {
        end->status = walk_operate(&self);
    }
    for (unsigned i = 0;
         place != WALKER_OPERATOR && calls[i].run != NULL && end->status == ADTOPK_OK; i++) {
        end->status = calls[i].run(&self);
        (void)snprintf(end->call, sizeof(end->call), "%s", calls[i].name);
    }
    walker_end(end, place);
}

static void walker_pause(void)
{
    (void)clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 200000}, NULL);
}

/* Another process: one walk after another, until it is killed. */
static void walker_serve(unsigned place)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        const unsigned order = atomic_load(&shared->order);

        if (order == atomic_load(&shared->done[place])) {
            walker_pause();
            continue;
        }
        walker_walk(order, place);
    }
}

static void walker_start(unsigned place, struct outage_node *node)
{
    (void)fflush(NULL);
    self = (struct walker){.node = node, .shared = shared, .rank = (int)place};
    process[place] = fork();
    if (process[place] == 0) {
        walker_serve(place);
    }
    assert_true(process[place] > 0);
}

void walkers_start(struct outage_node nodes[OUTAGE_NODES])
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(shared, MAP_FAILED);
    for (unsigned i = WALKER_SECOND; i < nodes_count(); i++) {
        walker_start(i, &nodes[i]);
    }
    walker_start(WALKER_OPERATOR, &nodes[0]);
    self = (struct walker){.node = &nodes[0], .shared = shared};
    process[WALKER_FIRST] = getpid();
}

void walkers_stop(void)
{
    for (unsigned place = WALKER_SECOND; place < WALKERS; place++) {
        if (process[place] == 0) {
            continue;
        }
        (void)kill(process[place], SIGKILL);
        (void)waitpid(process[place], NULL, 0);
        outage_forget(process[place]);
        process[place] = 0;
    }
    (void)munmap(shared, sizeof(*shared));
}

pid_t walkers_process(unsigned place)
{
    return process[place];
}

void walk(enum walk_kind kind, struct walk_end end[WALKERS])
{
    const unsigned number = atomic_load(&shared->order) + 1;

    atomic_store(&shared->kind, kind);
    atomic_store(&shared->order, number);
    walker_walk(number, WALKER_FIRST);
    for (unsigned place = WALKER_SECOND; place < WALKERS; place++) {
        while (process[place] != 0 && atomic_load(&shared->done[place]) != number) {
            if (waitpid(process[place], NULL, WNOHANG) != 0) {
                fail_msg("walker %u hangs or has crashed in walk %u", place, number);
            }
            walker_pause();
        }
    }
    memcpy(end, shared->end, sizeof(shared->end));
}

struct outage_node *walk_ends(enum walk_kind kind, struct outage_node nodes[OUTAGE_NODES])
{
    switch (kind) {
    case WALK_KILLED:
    case WALK_STOPPED:
    case WALK_DEVICE_KILLED:
    case WALK_FAR_KILLED: return &nodes[0];
    case WALK_LOST: return &nodes[LOST_NODE];
    default: return NULL;
    }
}

void walk_mend(enum walk_kind kind)
{
    if (kind == WALK_OPERATE && walk_take_again(&self) != ADTOPK_OK) {
        fail_msg("the daemon does not take new ranks again: %s", self.refusal.text);
    }
}

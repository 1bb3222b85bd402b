/* The plain operations of scripted ranks: what each brings, and what all must get. */
#include <string.h>

#include "tests/host/inside.h"
#include "tests/sim/world.h"

/* A sum of all ranks; without those that are lost, that failed alone, and both */
#define OP_SUMS 4u

static float op_value(const struct trainer *trainer, uint32_t rank, uint64_t i)
{
    return (float)(int)(trainer_draw(trainer, trainer->operation, rank, i, 77) % 9);
}

/* Kind, root and size of the rank's next operation: the same on all ranks. It is a sum where any
 * root may be lost. */
static void op_describe(const struct trainer *trainer, struct event *event)
{
    uint64_t x = trainer_draw(trainer, trainer->operation, 5, 5, 5);

    event->op.number = trainer->operation;
    event->op.kind = (enum op_kind)(x % OP_KIND_COUNT);
    event->op.root = (uint32_t)(x / 7 % trainer->world->job[trainer->job].trainers);
    event->op.kind = trainer->world->scenario.grows || trainer->world->scenario.sums
                         ? OP_ALLREDUCE
                         : event->op.kind;
    event->op.size = event->op.kind == OP_BARRIER ? 0 : (uint32_t)(x / 1000 % 40) * 4;
    if (trainer->other_operation) {
        event->op.kind = OP_ALLREDUCE;
        event->op.size = 200; /* a size that no rank would use */
    }
}

void operation_begin(const struct trainer *trainer, struct event *event)
{
    uint64_t offset, result;

    (void)inside_op_layout(
        trainer->world->node[trainer->node].core, trainer->session, &offset, &result);
    op_describe(trainer, event);
    for (uint64_t i = 0; i < event->op.size / 4; i++) {
        float value = op_value(trainer, trainer->rank, i);
        (void)memcpy(trainer->arena[0] + offset + 4 * i, &value, 4);
    }
}

/* An element of the result. A rank that is lost by now, or has failed alone, may be in it or not.
 */
static void op_want(
    const struct trainer *trainer, const struct event *event, uint64_t i, float want[OP_SUMS])
{
    const struct world *world = trainer->world;
    const bool sums = event->op.kind == OP_ALLREDUCE;

    for (uint32_t r = 0; r < world->job[trainer->job].trainers; r++) {
        const struct trainer *other = &world->trainer[world->job[trainer->job].first + r];
        const bool lost = other->lost || other->absent_from == trainer->step + 1;
        const unsigned gone = lost ? 1 : other->state == TRAINER_FAILED ? 2 : 0;
        const bool has =
            sums ? trainer_takes_part(world, trainer->job, trainer->step, r) : r == event->op.root;
        for (unsigned k = 0; k < OP_SUMS; k++) {
            want[k] += has && (!sums || (gone & k) == 0) ? op_value(trainer, r, i) : 0;
        }
    }
}

void operation_check(const struct trainer *trainer)
{
    struct world *world = trainer->world;
    const uint8_t *from = world->node[trainer->node].memory[trainer->job].results[0];
    bool right[OP_SUMS] = {true, true, true, true};
    struct event event = {0};
    uint64_t offset, result;

    (void)inside_op_layout(world->node[trainer->node].core, trainer->session, &offset, &result);
    op_describe(trainer, &event);
    for (uint64_t i = 0; i < event.op.size / 4; i++) {
        float got, want[OP_SUMS] = {0};
        (void)memcpy(&got, from + result + 4 * i, 4);
        op_want(trainer, &event, i, want);
        for (unsigned k = 0; k < OP_SUMS; k++) {
            right[k] = right[k] && got == want[k];
        }
        if (memchr(right, true, sizeof(right)) == NULL &&
            world->job[trainer->job].outcome == NULL) {
            world_violate(world, "operation %llu of rank %u: element %llu is %g, not %g",
                (unsigned long long)trainer->operation, trainer->rank, (unsigned long long)i,
                (double)got, (double)want[0]);
        }
    }
}

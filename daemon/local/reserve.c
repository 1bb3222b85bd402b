/*
 * Reserves gradient arenas outside the loop. The kernel clears memory that it gives. For a large
 * arena that takes seconds, and a daemon that is silent for so long counts as dead.
 *
 * The daemon knows the arena's size before the core asks for it: the size of all tensors that the
 * core has accepted, laid out as in its plan. So a commit waits here until the keeper has filled
 * the segment, and becomes an event only then. memory.c hands the segment to the core.
 */
#include <stddef.h>

#include "daemon/local/local_session.h"
#include "daemon/session/joining.h"

#define RESERVE_INLINE (4u << 20) /* cleared in a few milliseconds, which is not worth a thread */
#define RESERVE_ALIGN 64u         /* alignment of a tensor in the arena */
#define RESERVE_LIMIT (UINT64_MAX / 4)

static const char reserve_name[] = "gradient arena";

enum adtopk_status reserve_count(
    struct session *session, const struct tensor_spec *spec, struct error *err)
{
    struct reserve *reserve = &local_session(session)->reserve;
    uint64_t bytes = spec->dtype == DTYPE_F32 ? 4 : 2;

    (void)err;
    if (spec->on_gpu) {
        return ADTOPK_OK; /* the rest takes no time */
    }
    for (unsigned i = 0; i < spec->shape.dims; i++) {
        if (spec->shape.size[i] == 0 || bytes > RESERVE_LIMIT / spec->shape.size[i]) {
            reserve->counted = UINT64_MAX;
            return ADTOPK_OK;
        }
        bytes *= spec->shape.size[i];
    }
    bytes = (bytes + RESERVE_ALIGN - 1) / RESERVE_ALIGN * RESERVE_ALIGN;
    reserve->counted =
        reserve->counted > RESERVE_LIMIT - bytes ? UINT64_MAX : reserve->counted + bytes;
    return ADTOPK_OK;
}

static struct local_session *reserve_session(struct keeper_task *task)
{
    return (struct local_session *)(void *)((char *)task -
                                            offsetof(struct local_session, reserve.task));
}

static bool reserve_start(struct keeper_task *task)
{
    struct local_session *session = reserve_session(task);
    const struct local *local = session->local;
    struct reserve *reserve = &session->reserve;
    struct error *err = &reserve->error;

    if (session->base.state != SESSION_RESERVING ||
        (local->config.afford != NULL && local->config.afford(local->context, session->base.uid,
                                             reserve->size, err) != ADTOPK_OK) ||
        segment_create(&reserve->prepared, reserve_name, reserve->size, err) != ADTOPK_OK ||
        memory_afford_prepared(session, err) != ADTOPK_OK) {
        return false;
    }
    atomic_store(&task->filling, reserve->prepared.size);
    return true;
}

static void reserve_run(struct keeper_task *task)
{
    struct reserve *reserve = &reserve_session(task)->reserve;

    (void)keeper_fill(
        task, &reserve->prepared, reserve_name, 0, reserve->prepared.size, &reserve->error);
}

static void reserve_done(struct keeper_task *task)
{
    struct local_session *session = reserve_session(task);

    if (session->base.state == SESSION_RESERVING) {
        joining_commit(&session->base);
    }
    /* The core never asked for it. */
    keeper_release(&session->local->keeper, &session->reserve.prepared,
        segment_taken(&session->reserve.prepared));
    session_drop(&session->base);
}

bool reserve_begin(struct session *base)
{
    struct local_session *session = local_session(base);
    struct reserve *reserve = &session->reserve;
    const uint64_t operations = base->lent == 0 ? CORE_OP_SIZE : 0;

    reserve->error.code = ADTOPK_OK;
    reserve->size = 0;
    if (reserve->counted > RESERVE_LIMIT || reserve->counted + operations <= RESERVE_INLINE) {
        return false; /* the core refuses a size that is too large to count */
    }
    reserve->size = reserve->counted + operations;
    base->users++;
    joining_wait(base);
    reserve->task =
        (struct keeper_task){.start = reserve_start, .run = reserve_run, .done = reserve_done};
    keeper_add(&session->local->keeper, &reserve->task);
    return true;
}

/*
 * Reserving gradient arenas off the loop. The kernel clears what it gives, which takes a large
 * arena seconds, and a daemon that is silent for so long counts as dead.
 *
 * The arena's size is known before the core asks for it: all tensors that the core has accepted,
 * as its plan lays them out. So a commit waits here until the keeper has filled the segment, and
 * only then becomes an event; memory.c hands the segment out.
 */
#include <stddef.h>

#include "daemon/local/session.h"

#define RESERVE_INLINE (4u << 20) /* cleared in a few milliseconds: not worth a thread */
#define RESERVE_STRIDE (64u << 20)
#define RESERVE_ALIGN 64u /* of a tensor in the arena */
#define RESERVE_LIMIT (UINT64_MAX / 4)

static const char reserve_name[] = "gradient arena";

void reserve_count(struct session *session, const struct tensor_spec *spec)
{
    uint64_t bytes = spec->dtype == DTYPE_F32 ? 4 : 2;

    for (unsigned i = 0; i < spec->shape.dims; i++) {
        if (spec->shape.size[i] == 0 || bytes > RESERVE_LIMIT / spec->shape.size[i]) {
            session->gradient_size = UINT64_MAX;
            return;
        }
        bytes *= spec->shape.size[i];
    }
    bytes = (bytes + RESERVE_ALIGN - 1) / RESERVE_ALIGN * RESERVE_ALIGN;
    if (session->gradient_size > RESERVE_LIMIT - bytes) {
        session->gradient_size = UINT64_MAX;
    } else {
        session->gradient_size += bytes;
    }
}

enum adtopk_status reserve_fill(struct local *local, struct segment *segment, const char *name,
    const struct core_piece *piece, const atomic_bool *stop, struct error *err)
{
    enum adtopk_status status = ADTOPK_OK;

    for (uint64_t done = 0; status == ADTOPK_OK && done < piece->size;) {
        const uint64_t left = piece->size - done;
        const uint64_t size = left < RESERVE_STRIDE ? left : RESERVE_STRIDE;

        if (stop != NULL && atomic_load(stop)) {
            return error_set(err, ADTOPK_ERR_STATE, "the %s is no longer wanted", name);
        }
        status = segment_fill(segment, name, piece->offset + done, size, err);
        (void)atomic_fetch_sub(&local->filling, size);
        done += size;
    }
    return status;
}

static struct session *reserve_session(struct keeper_task *task)
{
    return (struct session *)(void *)((char *)task - offsetof(struct session, reserve));
}

static bool reserve_start(struct keeper_task *task)
{
    struct session *session = reserve_session(task);
    struct error *err = &session->reserve_error;

    if (session->state != SESSION_RESERVING ||
        (session->local->ops->afford != NULL &&
            session->local->ops->afford(session->local->context, (uint32_t)session->uid,
                session->reserve_size, err) != ADTOPK_OK) ||
        segment_create(&session->prepared, reserve_name, session->reserve_size, err) != ADTOPK_OK ||
        memory_afford_prepared(session, err) != ADTOPK_OK) {
        return false;
    }
    atomic_store(&session->local->filling, session->prepared.size);
    return true;
}

static void reserve_run(struct keeper_task *task)
{
    struct session *session = reserve_session(task);

    (void)reserve_fill(session->local, &session->prepared, reserve_name,
        &(struct core_piece){.size = session->prepared.size}, &session->unwanted,
        &session->reserve_error);
}

static void reserve_done(struct keeper_task *task)
{
    struct session *session = reserve_session(task);

    session->reserving = false;
    atomic_store(&session->local->filling, 0);
    if (session->state == SESSION_RESERVING) {
        request_commit_now(session);
    } else {
        keeper_release(&session->local->keeper, &session->prepared);
        session_collect(session);
    }
}

void reserve_begin(struct session *session)
{
    session->reserve_error.code = ADTOPK_OK;
    session->reserve_size = 0;
    if (session->gradient_size > RESERVE_LIMIT ||
        session->gradient_size + CORE_OP_SIZE <= RESERVE_INLINE) {
        request_commit_now(session); /* the core refuses what is too large to count */
        return;
    }
    session->reserve_size = session->gradient_size + CORE_OP_SIZE;
    session->reserving = true;
    session_move(session, SESSION_RESERVING);
    session_watch(session);
    session->reserve =
        (struct keeper_task){.start = reserve_start, .run = reserve_run, .done = reserve_done};
    keeper_add(&session->local->keeper, &session->reserve);
}

void reserve_abandon(struct session *session)
{
    atomic_store(&session->unwanted, true);
}

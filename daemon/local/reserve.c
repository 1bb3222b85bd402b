/*
 * Reserving gradient arenas off the loop. The kernel clears what it gives, which takes a large
 * arena seconds, and a daemon that is silent for so long counts as dead.
 *
 * The arena's size is known before the core asks for it: all tensors that the core has accepted,
 * as its plan lays them out. So a commit waits here until a thread of the loop's pool has filled
 * the segment, and only then becomes an event; memory.c hands the segment out. One arena at a
 * time: together, two could be promised the same memory.
 */
#include "daemon/local/session.h"

#define RESERVE_INLINE (16u << 20) /* cleared in a few milliseconds: not worth a thread */
#define RESERVE_ALIGN 64u          /* of a tensor in the arena */
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

/* On a thread of the pool. */
static void reserve_work(uv_work_t *work)
{
    struct session *session = work->data;

    (void)segment_fill(
        &session->prepared, reserve_name, &session->unwanted, &session->reserve_error);
}

static void reserve_next(struct local *local);

static void reserve_done(uv_work_t *work, int status)
{
    struct session *session = work->data;
    struct local *local = session->local;
    const bool closing = local->closing;

    (void)status; /* nobody cancels it */
    local->reserving = NULL;
    if (session->state == SESSION_RESERVING) {
        request_commit_now(session);
    } else {
        segment_drop(&session->prepared);
        session_collect(session);
    }
    if (!closing) {
        reserve_next(local);
    }
}

static void reserve_start(struct session *session)
{
    struct local *local = session->local;
    struct error *err = &session->reserve_error;

    if (segment_create(&session->prepared, reserve_name, session->reserve_size, err) == ADTOPK_OK &&
        memory_afford_prepared(session, err) == ADTOPK_OK) {
        session->work.data = session;
        if (uv_queue_work(local->loop, &session->work, reserve_work, reserve_done) == 0) {
            local->reserving = session;
            return;
        }
    }
    request_commit_now(session);
}

/* The oldest session that waits: new ones are put in front. */
static struct session *reserve_waiting(const struct local *local)
{
    struct session *waiting = NULL;

    for (struct session *session = local->sessions; session != NULL; session = session->next) {
        waiting = session->state == SESSION_RESERVING ? session : waiting;
    }
    return waiting;
}

/* A session that is started is reserving or no longer waits. */
static void reserve_next(struct local *local)
{
    struct session *session;

    while (local->reserving == NULL && (session = reserve_waiting(local)) != NULL) {
        reserve_start(session);
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
    session_move(session, SESSION_RESERVING);
    session_watch(session);
    reserve_next(session->local);
}

void reserve_abandon(struct session *session)
{
    atomic_store(&session->unwanted, true);
}

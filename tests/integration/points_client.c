/*
 * The fail points of a trainer: before and after each of these functions of the client library.
 * test_rank_points.py uses them.
 */
#include "client/src/comeback.h"
#include "client/src/patience.h"
#include "client/src/ring.h"
#include "tests/integration/points.h"

/* A push, and what waits for its update. */
POINT_OF(status, client_hand_in, (adtopk_context * context, const struct local_entry *entry),
    (context, entry))
POINT_OF(status, client_note_entry, (adtopk_context * context, const struct local_entry *entry),
    (context, entry))
POINT(ring_writer_put, (struct ring_writer * writer, const struct local_entry *entry),
    (writer, entry))
POINT_OF(status, client_sleep,
    (adtopk_context * context, struct pollfd *descriptor, nfds_t count,
        const struct client_patience *patience),
    (context, descriptor, count, patience))
POINT_OF(status, client_settle_arenas, (adtopk_context * context), (context))

/* The way back to a daemon that was started again. */
POINT_OF(status, client_go_away, (adtopk_context * context, const char *hint), (context, hint))
POINT_OF(int, client_connect,
    (const char *path, int timeout_ms, bool interruptible, struct error *err),
    (path, timeout_ms, interruptible, err))
POINT_OF(status, client_say_hello,
    (adtopk_context * context, const struct client_patience *patience), (context, patience))
POINT_OF(status, client_map,
    (adtopk_context * context, const struct client_reply *reply, unsigned index, int protection,
        uint64_t least, struct client_mapping *mapping),
    (context, reply, index, protection, least, mapping))
POINT_OF(uint64_t, client_copy_entry, (adtopk_context * context, const struct local_entry *entry),
    (context, entry))

/*
 * The fail points of adtopkd: before and after each of these functions. test_points.py and
 * test_member_points.py use them.
 */
#include "daemon/compute/grow.h"
#include "daemon/compute/keeping.h"
#include "daemon/compute/layout.h"
#include "daemon/compute/layout_plan.h"
#include "daemon/compute/residual.h"
#include "daemon/compute/rests.h"
#include "daemon/compute/round_exchange.h"
#include "daemon/compute/shrink.h"
#include "daemon/core/agree/coordinate.h"
#include "daemon/core/agree/switch.h"
#include "daemon/core/agree/view.h"
#include "daemon/core/frame.h"
#include "daemon/core/round.h"
#include "daemon/engine/host.h"
#include "daemon/job/loss.h"
#include "daemon/job/newcomers.h"
#include "daemon/job/peer.h"
#include "daemon/link/link.h"
#include "daemon/local/folder.h"
#include "daemon/local/local_session.h"
#include "tests/integration/points.h"

/* A step, and a plain operation. */
POINT(round_push, (struct round * round, unsigned rank), (round, rank))
POINT_OF(status, host_order_add, (const struct host *host), (host))
POINT(journal_close, (struct journal * journal, struct chunk_record *record, uint64_t stamp),
    (journal, record, stamp))
POINT_OF(status, round_begin_exchange, (struct round * round), (round))
POINT_OF(bool, links_send,
    (struct links * links, uint16_t id, enum link_lane lane, const struct share_class *class,
        struct buffer *message),
    (links, id, lane, class, message))
POINT(frame_receive, (struct job * job, uint16_t node, struct buffer *frame), (job, node, frame))
POINT(rests_note_share, (const struct job *job, struct store_tensor *store), (job, store))
POINT_OF(status, host_order_leave, (const struct host *host), (host))
POINT(store_count_step, (struct store_header * store, bool withdrawn, bool due),
    (store, withdrawn, due))
POINT(store_count_op, (struct store_header * store, uint32_t size), (store, size))
POINT(reply_progress, (struct session * base, const struct action *action), (base, action))

/* The store. */
POINT(folder_begin,
    (struct folder * folder, uint64_t job, const struct job_key *key, bool returning),
    (folder, job, key, returning))
POINT_OF(status, folder_part,
    (struct folder * folder, uint64_t job, unsigned part, uint64_t size, uint64_t now,
        struct segment *segment, bool *existing, struct error *err),
    (folder, job, part, size, now, segment, existing, err))
POINT_OF(status, layout_recover, (struct job * job, struct error *err), (job, err))
POINT(peer_send_leave, (struct job * job), (job))
POINT(folder_end, (struct folder * folder, uint64_t job), (folder, job))

/* A change of the policy. */
POINT(switch_propose, (struct job * job, uint16_t from, const Adtopk__PeerPolicyPropose *proposal),
    (job, from, proposal))
POINT_OF(status, layout_kept,
    (struct job * job, struct plan *plan, uint32_t switches, struct error *err),
    (job, plan, switches, err))
POINT_OF(status, residual_open, (struct job * job, struct plan *plan, struct error *err),
    (job, plan, err))
POINT(switch_answer, (struct job * job, uint16_t from, const Adtopk__PeerPolicyAnswer *answer),
    (job, from, answer))
POINT_OF(bool, switch_commit, (struct job * job, const Adtopk__PeerPolicy *policy), (job, policy))

/* A change of the view. */
POINT_OF(bool, view_prepare, (struct job * job, uint16_t from, const Adtopk__PeerPrepare *prepare),
    (job, from, prepare))
POINT(coordinate_state, (struct job * job, uint16_t from, const Adtopk__PeerState *state),
    (job, from, state))
POINT(view_commit, (struct job * job, uint16_t from, const Adtopk__PeerCommit *commit),
    (job, from, commit))

/* A node is lost, and others go on. */
POINT_OF(bool, loss_for_ever, (struct job * job, uint16_t node), (job, node))
POINT(shrink_take, (struct job * job), (job))

/* A node joins while others train. */
POINT(newcomers_note, (struct job * job, const struct member *member), (job, member))
POINT_OF(bool, grow_tell, (const struct job *job, Adtopk__PeerState *state), (job, state))
POINT_OF(bool, grow_hear, (struct member * member, const Adtopk__PeerState *state), (member, state))
POINT(grow_decide,
    (const struct job *job, uint64_t steps, uint32_t *kept, Adtopk__PeerCommit *commit),
    (job, steps, kept, commit))
POINT_OF(bool, grow_take, (struct job * job, const Adtopk__PeerCommit *commit), (job, commit))

/* A checkpoint. */
POINT_OF(status, keeping_take,
    (const struct rank *rank, struct event_keep *keep, struct error *err), (rank, keep, err))

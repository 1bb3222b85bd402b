#include "daemon/loop/quota.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/core/inspect.h"
#include "daemon/job/id_table.h"

#define QUOTA_PARTS (CORE_STORE_PARTS + 1) /* of a job: its stores' and its results */
#define QUOTA_RESULTS CORE_STORE_PARTS
#define QUOTA_GRADIENTS 0u /* of a session: its gradients */
#define QUOTA_TENSORS 1u   /* of a session: about what the core keeps of its registered tensors */
/* A plan has two rounds for each tensor, and in a switch there are two plans. */
#define QUOTA_TENSOR_BYTES UINT64_C(8192)
#define QUOTA_ROOT_SHARE 20u /* the others leave root this part of all memory */

struct quota_user {
    uint32_t uid;
    uint64_t bytes;
};

/* Pieces of a job's results: ascending, with gaps. */
struct quota_pieces {
    struct core_piece *piece;
    unsigned count;
    uint64_t bytes;
};

/* The charges of a session or a job. */
struct quota_holding {
    struct quota_user *user;
    uint64_t bytes[QUOTA_PARTS];
    struct quota_pieces results; /* reserved so far, or about to be */
    struct quota_pieces before;  /* what they were before the reservations that have not ended */
    unsigned reserving;          /* how many those are */
    bool several;                /* they were more than one at a time */
};

struct quota {
    const struct quota_limits *limits;
    const struct core *core;
    struct core_memory inner;
    uint64_t all; /* bytes that the machine has */
    uint64_t used;
    struct id_table users, sessions, jobs;
};

struct quota *quota_create(const struct quota_limits *limits)
{
    struct quota *quota = calloc(1, sizeof(*quota));

    if (quota != NULL) {
        quota->limits = limits;
        quota->all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    }
    return quota;
}

static void quota_free_all(struct id_table *table, void (*drop)(void *thing))
{
    for (uint32_t i = 0; i < table->slots; i++) {
        if (table->slot[i].thing != NULL) {
            drop(table->slot[i].thing);
        }
    }
    id_table_free(table);
}

static void quota_drop_holding(void *thing)
{
    struct quota_holding *holding = thing;

    free(holding->results.piece);
    free(holding->before.piece);
    free(holding);
}

void quota_destroy(struct quota *quota)
{
    if (quota != NULL) {
        quota_free_all(&quota->users, free);
        quota_free_all(&quota->sessions, quota_drop_holding);
        quota_free_all(&quota->jobs, quota_drop_holding);
        free(quota);
    }
}

void quota_watch(struct quota *quota, const struct core *core)
{
    quota->core = core;
}

/* ---- limits ---- */

enum adtopk_status quota_afford(
    const struct quota *quota, uint32_t uid, uint64_t bytes, struct error *err)
{
    const struct quota_user *user = id_table_find(&quota->users, uid);
    const uint64_t has = user != NULL ? user->bytes : 0;
    const uint64_t limit = quota->all / 100 * quota->limits->memory_percent;
    const uint64_t others = quota->all - quota->all / QUOTA_ROOT_SHARE;

    if (uid == 0) {
        return ADTOPK_OK;
    }
    if (bytes > limit || has > limit - bytes) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "user %u has %llu bytes of this node's memory and asks for %llu more, but one user may "
            "have %llu (user_memory: %llu %%)",
            uid, (unsigned long long)has, (unsigned long long)bytes, (unsigned long long)limit,
            (unsigned long long)quota->limits->memory_percent);
    }
    if (bytes > others || quota->used > others - bytes) {
        return error_set(err, ADTOPK_ERR_MEMORY,
            "user %u asks for %llu bytes, but all users have %llu of this node's memory, and the "
            "last %u %% are root's",
            uid, (unsigned long long)bytes, (unsigned long long)quota->used,
            100 / QUOTA_ROOT_SHARE);
    }
    return ADTOPK_OK;
}

enum adtopk_status quota_open(
    const struct quota *quota, const struct job_key *key, struct error *err)
{
    const uint32_t jobs = key->owner != 0 ? core_jobs_beside(quota->core, key) : 0;

    return jobs < quota->limits->jobs
               ? ADTOPK_OK
               : error_set(err, ADTOPK_ERR_DENIED,
                     "user %u has %u job%s on this node, and one user may have %llu (user_jobs)",
                     key->owner, jobs, error_s(jobs), (unsigned long long)quota->limits->jobs);
}

/* ---- counting ---- */

static struct quota_user *quota_user_of(struct quota *quota, uint32_t uid)
{
    struct quota_user *user = id_table_find(&quota->users, uid);

    if (user == NULL && (user = calloc(1, sizeof(*user))) != NULL) {
        user->uid = uid;
        if (!id_table_add(&quota->users, uid, user)) {
            free(user);
            user = NULL;
        }
    }
    return user;
}

/* The charges of the session or job, created if it has none yet. NULL and an error without memory.
 */
static struct quota_holding *quota_holding_of(struct quota *quota, struct id_table *table,
    uint64_t id, const struct job_key *key, struct error *err)
{
    struct quota_holding *holding = id_table_find(table, id);
    struct quota_user *user = key != NULL ? quota_user_of(quota, key->owner) : NULL;

    if (holding == NULL && user != NULL && (holding = calloc(1, sizeof(*holding))) != NULL) {
        holding->user = user;
        if (!id_table_add(table, id, holding)) {
            free(holding);
            holding = NULL;
        }
    }
    if (holding == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory to count memory");
    }
    return holding;
}

static void quota_set(
    struct quota *quota, struct quota_holding *holding, unsigned part, uint64_t bytes)
{
    const uint64_t before = holding->bytes[part];

    holding->bytes[part] = bytes;
    holding->user->bytes += bytes - before;
    quota->used += bytes - before;
}

static void quota_forget(struct quota *quota, struct id_table *table, uint64_t id)
{
    struct quota_holding *holding = id_table_find(table, id);

    if (holding != NULL) {
        for (unsigned part = 0; part < QUOTA_PARTS; part++) {
            quota_set(quota, holding, part, 0);
        }
        id_table_remove(table, id);
        quota_drop_holding(holding);
    }
}

static struct quota_holding *quota_job(struct quota *quota, uint64_t job, struct error *err)
{
    return quota_holding_of(quota, &quota->jobs, job, core_job_key(quota->core, job), err);
}

static uint64_t quota_sum(const struct quota_holding *holding)
{
    uint64_t bytes = 0;

    for (unsigned part = 0; holding != NULL && part < QUOTA_PARTS; part++) {
        bytes += holding->bytes[part];
    }
    return bytes;
}

uint64_t quota_job_bytes(const struct quota *quota, uint64_t job)
{
    uint64_t bytes = quota_sum(id_table_find(&quota->jobs, job));

    for (uint32_t i = 0; i < quota->sessions.slots; i++) {
        const struct id_slot *slot = &quota->sessions.slot[i];

        if (slot->thing != NULL && core_session_job(quota->core, slot->number) == job) {
            bytes += quota_sum(slot->thing);
        }
    }
    return bytes;
}

/* ---- the core's memory ---- */

static const void *quota_gradients(
    void *context, session_id session, unsigned batch, uint64_t size, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_holding_of(
        quota, &quota->sessions, session, core_session_key(quota->core, session), err);
    const void *bytes;

    if (holding == NULL || quota_afford(quota, holding->user->uid, size, err) != ADTOPK_OK) {
        return NULL;
    }
    bytes = quota->inner.gradients(quota->inner.context, session, batch, size, err);
    if (bytes != NULL) {
        quota_set(quota, holding, QUOTA_GRADIENTS,
            (batch > 0 ? holding->bytes[QUOTA_GRADIENTS] : 0) + size);
    }
    return bytes;
}

enum adtopk_status quota_register(struct quota *quota, session_id session, struct error *err)
{
    const struct job_key *key = core_session_key(quota->core, session);
    struct quota_holding *holding;

    if (key == NULL) {
        return ADTOPK_OK; /* the core says why it takes nothing */
    }
    holding = quota_holding_of(quota, &quota->sessions, session, key, err);
    if (holding == NULL ||
        quota_afford(quota, holding->user->uid, QUOTA_TENSOR_BYTES, err) != ADTOPK_OK) {
        return err->code;
    }
    quota_set(quota, holding, QUOTA_TENSORS, holding->bytes[QUOTA_TENSORS] + QUOTA_TENSOR_BYTES);
    return ADTOPK_OK;
}

static void *quota_results(
    void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    struct quota *quota = context;

    return quota->inner.results(quota->inner.context, job, batch, size, existing, err);
}

/* Adds a piece that does not begin before the last one. */
static void quota_append(struct core_piece *to, unsigned *count, struct core_piece piece)
{
    struct core_piece *last = *count > 0 ? &to[*count - 1] : NULL;

    if (last == NULL || piece.offset > last->offset + last->size) {
        to[(*count)++] = piece;
    } else if (piece.offset + piece.size > last->offset + last->size) {
        last->size = piece.offset + piece.size - last->offset;
    }
}

#define QUOTA_ARENA                                                                                \
    (UINT64_C(1) << 56) /* pieces of different arenas lie so far apart, or farther */

/* Merges the job's pieces and the requested ones, both ascending, in `to`, which has room for all.
 * Returns their number. */
static unsigned quota_merge(const struct quota_holding *holding, unsigned batch,
    const struct core_piece *piece, unsigned pieces, struct core_piece *to)
{
    const uint64_t before = batch * QUOTA_ARENA;
    unsigned count = 0, h = 0, p = 0;

    while (h < holding->results.count || p < pieces) {
        if (p == pieces || (h < holding->results.count &&
                               holding->results.piece[h].offset <= before + piece[p].offset)) {
            quota_append(to, &count, holding->results.piece[h++]);
        } else {
            quota_append(to, &count,
                (struct core_piece){.offset = before + piece[p].offset, .size = piece[p].size});
            p++;
        }
    }
    return count;
}

/* What the results have with the pieces of a request. */
static enum adtopk_status quota_pieces_make(const struct quota_holding *holding, unsigned batch,
    const struct core_piece *piece, unsigned pieces, struct quota_pieces *made, struct error *err)
{
    *made = (struct quota_pieces){
        .piece = malloc(((size_t)holding->results.count + pieces + 1) * sizeof(*made->piece))};
    if (made->piece == NULL) {
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to count memory");
    }
    made->count = quota_merge(holding, batch, piece, pieces, made->piece);
    for (unsigned i = 0; i < made->count; i++) {
        made->bytes += made->piece[i].size;
    }
    return ADTOPK_OK;
}

/* No reservation can fail any more. */
static void quota_forget_before(struct quota_holding *holding)
{
    free(holding->before.piece);
    holding->before = (struct quota_pieces){.piece = NULL};
}

/* From now on the results have these pieces. */
static void quota_take(
    struct quota *quota, struct quota_holding *holding, const struct quota_pieces *made, bool later)
{
    holding->several = holding->reserving > 0;
    if (holding->several) {
        free(holding->results.piece);
    } else {
        holding->before = holding->results;
    }
    holding->results = *made;
    quota_set(quota, holding, QUOTA_RESULTS, made->bytes);
    holding->reserving += later ? 1 : 0;
    if (holding->reserving == 0) {
        quota_forget_before(holding);
    }
}

void quota_reserved(struct quota *quota, uint64_t job, bool ok)
{
    struct quota_holding *holding = id_table_find(&quota->jobs, job);

    if (holding == NULL || holding->reserving == 0 || --holding->reserving > 0) {
        return;
    }
    if (!ok && !holding->several) { /* of several, others may have taken memory */
        struct quota_pieces failed = holding->results;

        holding->results = holding->before;
        holding->before = failed;
        quota_set(quota, holding, QUOTA_RESULTS, holding->results.bytes);
    }
    quota_forget_before(holding);
}

/* The results are as large as any policy could need, but only reserved pages take memory. They are
 * charged until the job's end, even if a later policy does not use them. */
static enum adtopk_status quota_reserve_results(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_job(quota, job, err);
    struct quota_pieces made;
    enum adtopk_status status;

    if (holding == NULL ||
        quota_pieces_make(holding, batch, piece, pieces, &made, err) != ADTOPK_OK) {
        return err->code;
    }
    status = made.bytes > holding->bytes[QUOTA_RESULTS]
                 ? quota_afford(
                       quota, holding->user->uid, made.bytes - holding->bytes[QUOTA_RESULTS], err)
                 : ADTOPK_OK;
    if (status == ADTOPK_OK) {
        status = quota->inner.reserve_results(
            quota->inner.context, job, batch, piece, pieces, later, err);
    }
    if (status != ADTOPK_OK) {
        free(made.piece);
        return status;
    }
    quota_take(quota, holding, &made, *later);
    return ADTOPK_OK;
}

static void *quota_store(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_job(quota, job, err);
    const uint64_t before = holding != NULL ? holding->bytes[part] : 0;
    void *bytes;

    if (holding == NULL || (size > before && quota_afford(quota, holding->user->uid, size - before,
                                                 err) != ADTOPK_OK)) {
        return NULL;
    }
    bytes = quota->inner.store(quota->inner.context, job, part, size, shown, existing, err);
    if (bytes != NULL) {
        quota_set(quota, holding, part, size);
    }
    return bytes;
}

static void quota_drop_store(void *context, uint64_t job, unsigned part)
{
    struct quota *quota = context;
    struct quota_holding *holding = id_table_find(&quota->jobs, job);

    if (holding != NULL) {
        quota_set(quota, holding, part, 0);
    }
    quota->inner.drop_store(quota->inner.context, job, part);
}

static void quota_release_session(void *context, session_id session)
{
    struct quota *quota = context;

    quota_forget(quota, &quota->sessions, session);
    quota->inner.release_session(quota->inner.context, session);
}

static void quota_release_job(void *context, uint64_t job)
{
    struct quota *quota = context;

    quota_forget(quota, &quota->jobs, job);
    quota->inner.release_job(quota->inner.context, job);
}

static void quota_leave_job(void *context, uint64_t job)
{
    struct quota *quota = context;

    quota_forget(quota, &quota->jobs, job);
    quota->inner.leave_job(quota->inner.context, job);
}

static void quota_open_job(void *context, uint64_t job, const struct job_key *key, bool returning)
{
    struct quota *quota = context;

    quota->inner.open_job(quota->inner.context, job, key, returning);
}

static bool quota_has_store(void *context, const struct job_key *key)
{
    struct quota *quota = context;

    return quota->inner.has_store(quota->inner.context, key);
}

struct core_memory quota_memory(struct quota *quota, const struct core_memory *inner)
{
    assert((inner->open_job == NULL) == (inner->has_store == NULL));
    assert((inner->open_job == NULL) == (inner->leave_job == NULL));
    quota->inner = *inner;
    return (struct core_memory){.context = quota,
        .open_job = inner->open_job != NULL ? quota_open_job : NULL,
        .has_store = inner->has_store != NULL ? quota_has_store : NULL,
        .leave_job = inner->leave_job != NULL ? quota_leave_job : NULL,
        .gradients = quota_gradients,
        .results = quota_results,
        .reserve_results = quota_reserve_results,
        .store = quota_store,
        .drop_store = quota_drop_store,
        .release_session = quota_release_session,
        .release_job = quota_release_job};
}

#include "daemon/quota.h"

#include <assert.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/core/id_table.h"
#include "daemon/core/inspect.h"

#define QUOTA_PARTS (CORE_STORE_PARTS + 1) /* of a job: its stores' and its results */
#define QUOTA_RESULTS CORE_STORE_PARTS
#define QUOTA_ROOT_SHARE 20u /* the others leave root this part of all memory */

struct quota_user {
    uint32_t uid;
    uint64_t bytes;
};

/* What a session (part 0 only) or a job has. */
struct quota_holding {
    struct quota_user *user;
    uint64_t bytes[QUOTA_PARTS];
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

static void quota_free_all(struct id_table *table)
{
    for (uint32_t i = 0; i < table->slots; i++) {
        free(table->slot[i].thing);
    }
    id_table_free(table);
}

void quota_destroy(struct quota *quota)
{
    if (quota != NULL) {
        quota_free_all(&quota->users);
        quota_free_all(&quota->sessions);
        quota_free_all(&quota->jobs);
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
        return error_set(err, ADTOPK_ERR_DENIED,
            "user %u has %llu bytes of this node's memory and asks for %llu more, but one user may "
            "have %llu (user_memory: %llu %%)",
            uid, (unsigned long long)has, (unsigned long long)bytes, (unsigned long long)limit,
            (unsigned long long)quota->limits->memory_percent);
    }
    if (bytes > others || quota->used > others - bytes) {
        return error_set(err, ADTOPK_ERR_DENIED,
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
                     "user %u has %u jobs on this node, and one user may have %llu (user_jobs)",
                     key->owner, jobs, (unsigned long long)quota->limits->jobs);
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

/* What the session or job has, made if it has nothing yet. NULL and an error without memory. */
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
        free(holding);
    }
}

static struct quota_holding *quota_job(struct quota *quota, uint64_t job, struct error *err)
{
    return quota_holding_of(quota, &quota->jobs, job, core_job_key(quota->core, job), err);
}

/* ---- the core's memory ---- */

static const void *quota_gradients(
    void *context, session_id session, uint64_t size, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_holding_of(
        quota, &quota->sessions, session, core_session_key(quota->core, session), err);
    const void *bytes;

    if (holding == NULL || quota_afford(quota, holding->user->uid, size, err) != ADTOPK_OK) {
        return NULL;
    }
    bytes = quota->inner.gradients(quota->inner.context, session, size, err);
    if (bytes != NULL) {
        quota_set(quota, holding, 0, size);
    }
    return bytes;
}

static void *quota_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct quota *quota = context;

    return quota->inner.results(quota->inner.context, job, size, existing, err);
}

/* The results are as large as any policy could need, but only what is reserved takes memory. */
static enum adtopk_status quota_reserve_results(void *context, uint64_t job,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_job(quota, job, err);
    uint64_t bytes = 0, before;

    for (unsigned i = 0; i < pieces; i++) {
        bytes += piece[i].size;
    }
    if (holding == NULL) {
        return err->code;
    }
    before = holding->bytes[QUOTA_RESULTS];
    if (bytes > before) {
        if (quota_afford(quota, holding->user->uid, bytes - before, err) != ADTOPK_OK) {
            return err->code;
        }
        quota_set(quota, holding, QUOTA_RESULTS, bytes);
    }
    return quota->inner.reserve_results(quota->inner.context, job, piece, pieces, later, err);
}

static void *quota_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct quota *quota = context;
    struct quota_holding *holding = quota_job(quota, job, err);
    void *bytes;

    if (holding == NULL || quota_afford(quota, holding->user->uid, size, err) != ADTOPK_OK) {
        return NULL;
    }
    bytes = quota->inner.store(quota->inner.context, job, part, size, existing, err);
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

struct core_memory quota_memory(struct quota *quota, const struct core_memory *inner)
{
    assert(inner->open_job == NULL && inner->has_store == NULL); /* no store outlives the core */
    quota->inner = *inner;
    return (struct core_memory){.context = quota,
        .gradients = quota_gradients,
        .results = quota_results,
        .reserve_results = quota_reserve_results,
        .store = quota_store,
        .drop_store = quota_drop_store,
        .release_session = quota_release_session,
        .release_job = quota_release_job};
}

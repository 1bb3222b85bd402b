/* Memory that the core works on: gradients of sessions, results and stores of jobs. */
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/local/session.h"

#define MEMORY_MAX_HOLES (64u << 20)

/* What has been promised and not been taken yet: the rest of the arena that is being reserved, and
 * what nobody has touched of the stores. */
static uint64_t memory_promised(const struct local *local)
{
    uint64_t bytes = stores_untouched(local->stores);

    if (local->reserving != NULL && local->reserving->prepared.fd >= 0) {
        bytes += segment_missing(&local->reserving->prepared);
    }
    return bytes;
}

/* ---- gradients ---- */

enum adtopk_status memory_afford_prepared(const struct session *session, struct error *err)
{
    return segment_afford("gradient arena", session->reserve_size, session->prepared.size,
        memory_promised(session->local), err);
}

static const void *memory_gradients(void *context, session_id id, uint64_t size, struct error *err)
{
    static const char name[] = "gradient arena";
    struct session *session = session_find(context, id);
    struct segment *segment;

    if (session == NULL || session->gradients.bytes != NULL) {
        (void)error_set(
            err, ADTOPK_ERR_STATE, "session %llu takes no gradient arena", (unsigned long long)id);
        return NULL;
    }
    if (session->reserve_error.code != ADTOPK_OK) {
        *err = session->reserve_error;
        return NULL;
    }
    segment = &session->gradients;
    if (session->prepared.fd >= 0 && session->reserve_size == size) {
        *segment = session->prepared;
        session->prepared = segment_none;
    } else if (segment_create(segment, name, size, err) != ADTOPK_OK ||
               segment_reserve(segment, name, memory_promised(context), err) != ADTOPK_OK) {
        segment_drop(segment);
        return NULL;
    }
    if (segment_map(segment, PROT_READ, name, err) != ADTOPK_OK) {
        segment_drop(segment);
        return NULL;
    }
    return segment->bytes;
}

enum adtopk_status memory_seal_gradients(struct session *session, struct error *err)
{
    static const char name[] = "gradient arena";
    enum adtopk_status status = segment_seal(&session->gradients, SEGMENT_WRITER_SEALED, name, err);
    uint64_t missing;

    /* Until now the client could punch holes. Filling large ones would stop the loop. */
    missing = status == ADTOPK_OK ? segment_missing(&session->gradients) : 0;
    if (missing > MEMORY_MAX_HOLES) {
        status = error_set(err, ADTOPK_ERR_PROTOCOL, "the %s lost %llu bytes to holes", name,
            (unsigned long long)missing);
    } else if (missing > 0) {
        status = segment_reserve(&session->gradients, name, memory_promised(session->local), err);
    }
    segment_close(&session->gradients);
    return status;
}

static void memory_release_session(void *context, session_id id)
{
    struct session *session = session_find(context, id);

    if (session != NULL) {
        segment_drop(&session->gradients);
        session_collect(session);
    }
}

/* ---- results ---- */

static struct results **memory_find(struct local *local, uint64_t job)
{
    struct results **link = &local->results;

    while (*link != NULL && (*link)->job != job) {
        link = &(*link)->next;
    }
    return link;
}

struct results *memory_results(const struct local *local, uint64_t job)
{
    struct results *results = local->results;

    while (results != NULL && results->job != job) {
        results = results->next;
    }
    return results;
}

static void memory_drop_results(struct results **link)
{
    struct results *results = *link;

    *link = results->next;
    segment_drop(&results->memory);
    free(results);
}

static const char memory_results_name[] = "result arena";

/* Sealed before anybody else sees it: ranks can only map it to read. */
static enum adtopk_status memory_make_results(
    struct segment *segment, uint64_t size, struct error *err)
{
    static const char *const name = memory_results_name;
    enum adtopk_status status = segment_create(segment, name, size, err);

    if (status == ADTOPK_OK) {
        status = segment_map(segment, PROT_READ | PROT_WRITE, name, err);
    }
    if (status == ADTOPK_OK) {
        status = segment_seal(segment, SEGMENT_WRITER_SEALED, name, err);
    }
    if (status != ADTOPK_OK) {
        segment_drop(segment);
    }
    return status;
}

static void *memory_get_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct local *local = context;
    struct results *results;

    *existing = false;
    if (memory_results(local, job) != NULL) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's result arena is in use");
        return NULL;
    }
    results = calloc(1, sizeof *results);
    if (results == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a result arena");
        return NULL;
    }
    if (memory_make_results(&results->memory, size, err) != ADTOPK_OK) {
        free(results);
        return NULL;
    }
    results->job = job;
    results->next = local->results;
    local->results = results;
    return results->memory.bytes;
}

/* What is written must never find a page without memory (SIGBUS), and the core wants it now, so it
 * is reserved here, on the loop: a node whose results have several GiB is silent for seconds when
 * the job starts. */
static enum adtopk_status memory_reserve_results(
    void *context, uint64_t job, uint64_t offset, uint64_t size, struct error *err)
{
    struct local *local = context;
    struct results *results = memory_results(local, job);

    if (results == NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "the job has no result arena");
    }
    return segment_reserve_part(
        &results->memory, memory_results_name, offset, size, memory_promised(local), err);
}

/* ---- stores ---- */

static void *memory_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct local *local = context;

    *existing = false;
    return stores_get(local->stores, job, part, size, memory_promised(local), err);
}

static void memory_drop_store(void *context, uint64_t job, unsigned part)
{
    struct local *local = context;

    stores_release(local->stores, job, part);
}

static void memory_release_job(void *context, uint64_t job)
{
    struct local *local = context;
    struct results **link = memory_find(local, job);

    if (*link != NULL) {
        memory_drop_results(link);
    }
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        stores_release(local->stores, job, part);
    }
}

struct core_memory local_memory(struct local *local)
{
    return (struct core_memory){.context = local,
        .gradients = memory_gradients,
        .results = memory_get_results,
        .reserve_results = memory_reserve_results,
        .store = memory_store,
        .drop_store = memory_drop_store,
        .release_session = memory_release_session,
        .release_job = memory_release_job};
}

void memory_drop_all(struct local *local)
{
    while (local->results != NULL) {
        memory_drop_results(&local->results);
    }
    stores_destroy(local->stores);
}

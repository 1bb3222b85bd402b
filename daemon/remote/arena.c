/* Memory of remote sessions: an arena each for the gradients as they arrive. Results and stores
 * are the local module's; remote trainers are sent what the results hold. */
#include <stdlib.h>

#include "daemon/remote/trainer.h"

static const char arena_name[] = "gradient arena of a remote trainer";

/* What was promised to sessions and not taken from the system yet. */
static uint64_t arena_promised(const struct remote *remote)
{
    uint64_t bytes = 0;

    for (const struct trainer *one = remote->trainers; one != NULL; one = one->next) {
        bytes += segment_untouched(&one->gradients);
    }
    return bytes;
}

static const void *arena_gradients(void *context, session_id id, uint64_t size, struct error *err)
{
    struct remote *remote = context;
    struct trainer *trainer;

    if ((id & REMOTE_SESSION) == 0) {
        return remote->local.gradients(remote->local.context, id, size, err);
    }
    trainer = trainer_find(remote, id);
    if (trainer == NULL || trainer->gradients.bytes != NULL) {
        (void)error_set(
            err, ADTOPK_ERR_STATE, "session %llu takes no gradient arena", (unsigned long long)id);
        return NULL;
    }
    if (segment_private(&trainer->gradients, arena_name, size, arena_promised(remote), err) !=
        ADTOPK_OK) {
        return NULL;
    }
    return trainer->gradients.bytes;
}

static void arena_release_session(void *context, session_id id)
{
    struct remote *remote = context;
    struct trainer *trainer;

    if ((id & REMOTE_SESSION) == 0) {
        remote->local.release_session(remote->local.context, id);
        return;
    }
    trainer = trainer_find(remote, id);
    if (trainer != NULL) {
        segment_drop(&trainer->gradients);
    }
}

const uint8_t *arena_results(const struct remote *remote, uint64_t job)
{
    const struct remote_results *results = remote->results;

    while (results != NULL && results->job != job) {
        results = results->next;
    }
    return results != NULL ? results->bytes : NULL;
}

static void *arena_get_results(
    void *context, uint64_t job, uint64_t size, bool *existing, struct error *err)
{
    struct remote *remote = context;
    struct remote_results *results = malloc(sizeof *results);
    void *bytes;

    if (results == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a result arena");
        return NULL;
    }
    bytes = remote->local.results(remote->local.context, job, size, existing, err);
    if (bytes == NULL) {
        free(results);
        return NULL;
    }
    *results = (struct remote_results){.next = remote->results, .job = job, .bytes = bytes};
    remote->results = results;
    return bytes;
}

static void arena_release_job(void *context, uint64_t job)
{
    struct remote *remote = context;

    for (struct trainer *one = remote->trainers; one != NULL; one = one->next) {
        if (one->job == job) {
            one->results = NULL;
        }
    }
    for (struct remote_results **link = &remote->results; *link != NULL;) {
        struct remote_results *results = *link;

        if (results->job == job) {
            *link = results->next;
            free(results);
        } else {
            link = &results->next;
        }
    }
    remote->local.release_job(remote->local.context, job);
}

static enum adtopk_status arena_reserve_results(void *context, uint64_t job,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct remote *remote = context;

    return remote->local.reserve_results(remote->local.context, job, piece, pieces, later, err);
}

static void *arena_store(
    void *context, uint64_t job, unsigned part, uint64_t size, bool *existing, struct error *err)
{
    struct remote *remote = context;

    return remote->local.store(remote->local.context, job, part, size, existing, err);
}

static void arena_drop_store(void *context, uint64_t job, unsigned part)
{
    struct remote *remote = context;

    remote->local.drop_store(remote->local.context, job, part);
}

struct core_memory remote_memory(struct remote *remote, const struct core_memory *local)
{
    remote->local = *local;
    return (struct core_memory){.context = remote,
        .gradients = arena_gradients,
        .results = arena_get_results,
        .reserve_results = local->reserve_results != NULL ? arena_reserve_results : NULL,
        .store = arena_store,
        .drop_store = arena_drop_store,
        .release_session = arena_release_session,
        .release_job = arena_release_job};
}

void arena_drop_all(struct remote *remote)
{
    while (remote->results != NULL) {
        struct remote_results *results = remote->results;

        remote->results = results->next;
        free(results);
    }
}

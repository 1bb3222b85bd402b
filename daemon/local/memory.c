/* The memory on which the core works: gradients of sessions, results and stores of jobs. */
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "daemon/local/local_session.h"

#define MEMORY_MAX_HOLES (4u << 20)
#define MEMORY_COUNT_MS 1000u /* at least, between two counts of all stores */

static uint64_t memory_promised_beside(const struct local *local, uint64_t stores)
{
    const uint64_t bytes = stores + keeper_filling(&local->keeper);
    const uint64_t releasing = keeper_releasing(&local->keeper);

    return bytes > releasing ? bytes - releasing : 0;
}

/* Memory that was promised and not yet taken: the rest of the arena that the keeper is filling, and
 * untouched memory of the stores. If that leaves too little for `wanted`, the function counts all
 * stores anew, because less may be promised than the last count says. */
static uint64_t memory_promised(struct local *local, uint64_t wanted)
{
    const uint64_t promised = memory_promised_beside(local, stores_untouched(local->stores));
    const uint64_t now = uv_now(local->loop);
    struct error ignored;

    if (now - local->counted_ms < MEMORY_COUNT_MS ||
        segment_afford("", wanted, wanted, promised, &ignored) == ADTOPK_OK) {
        return promised;
    }
    local->counted_ms = now;
    return memory_promised_beside(local, stores_count(local->stores));
}

/* ---- gradients ---- */

static const char memory_arena_name[] = "gradient arena";

enum adtopk_status memory_afford_prepared(const struct local_session *session, struct error *err)
{
    const uint64_t missing = session->reserve.prepared.size;

    return segment_afford(memory_arena_name, session->reserve.size, missing,
        memory_promised(session->local, missing), err);
}

static enum adtopk_status memory_make_arena(
    struct local_session *session, struct segment *segment, uint64_t size, struct error *err)
{
    struct reserve *reserve = &session->reserve;

    if (reserve->error.code != ADTOPK_OK) {
        *err = reserve->error;
        return err->code;
    }
    if (reserve->prepared.fd >= 0 && reserve->size == size) {
        *segment = reserve->prepared;
        reserve->prepared = segment_none;
        return ADTOPK_OK;
    }
    if (segment_create(segment, memory_arena_name, size, err) != ADTOPK_OK) {
        return err->code;
    }
    return segment_reserve(segment, memory_arena_name, memory_promised(session->local, size), err);
}

const void *memory_arena(struct session *base, unsigned batch, uint64_t *size, struct error *err)
{
    struct local_session *session = local_session(base);
    struct segment *segment = &session->gradients[batch];
    const bool on_gpu = session->gpu.uuid[0] != '\0';
    uint64_t here = *size;

    if (on_gpu && gpu_host_size(session, batch, &here, err) != ADTOPK_OK) {
        return NULL;
    }
    if (memory_make_arena(session, segment, here, err) != ADTOPK_OK ||
        (on_gpu ? gpu_arena(session, batch, segment, *size, err)
                : segment_map(segment, PROT_READ, memory_arena_name, err)) != ADTOPK_OK) {
        segment_drop(segment);
        return NULL;
    }
    *size = segment->size;
    return segment->bytes;
}

enum adtopk_status memory_seal(struct session *base, struct error *err)
{
    static const char *const name = memory_arena_name;
    struct local_session *session = local_session(base);
    struct segment *segment = &session->gradients[base->lent - 1];
    enum adtopk_status status = segment_seal(segment, SEGMENT_WRITER_SEALED, name, err);
    uint64_t missing;

    /* Until now the client could punch holes. Filling large holes here would stop the loop. */
    missing = status == ADTOPK_OK ? segment_missing(segment) : 0;
    if (missing > MEMORY_MAX_HOLES) {
        status = error_set(err, ADTOPK_ERR_PROTOCOL, "the %s lost %llu bytes to holes", name,
            (unsigned long long)missing);
    } else if (missing > 0) {
        status = segment_reserve(segment, name, memory_promised(session->local, missing), err);
    }
    segment_close(segment);
    session->reserve.counted = 0; /* the next count is for the next batch */
    return status;
}

void memory_give_back(struct session *session)
{
    for (unsigned b = 0; b < CORE_MAX_BATCHES; b++) {
        struct segment *gradients = &local_session(session)->gradients[b];

        gpu_drop(local_session(session), b, gradients->bytes);
        /* Until it is sealed, when the descriptor closes, its rank may make holes. */
        keeper_release(&local_session(session)->local->keeper, gradients,
            gradients->fd >= 0 ? segment_taken(gradients) : gradients->size);
    }
}

static const void *memory_gradients(
    void *context, session_id id, unsigned batch, uint64_t size, struct error *err)
{
    struct local *local = context;

    return session_lend(local->door.doors, id, batch, size, err);
}

static void memory_release_session(void *context, session_id id)
{
    struct local *local = context;

    session_take_back(local->door.doors, id);
}

/* ---- results ---- */

/* A reservation of results. A write must never find a page without memory (SIGBUS), so the job
 * begins after all memory is reserved. The keeper does it, as it may take seconds. */
struct reservation {
    struct keeper_task task;
    struct reservation *next;
    struct local *local;
    struct results *results; /* NULL: dropped meanwhile */
    uint64_t job;
    struct segment file; /* a descriptor of its own, because of that */
    uint64_t bytes;
    struct error error;
    unsigned pieces;
    struct core_piece piece[];
};

static struct results **memory_find(struct local *local, uint64_t job)
{
    struct results **link = &local->results;

    while (*link != NULL && (*link)->job != job) {
        link = &(*link)->next;
    }
    return link;
}

struct results *memory_results(const struct local *local, uint64_t job, unsigned batch)
{
    struct results *results = local->results;

    while (results != NULL && (results->job != job || results->batch != batch)) {
        results = results->next;
    }
    return results;
}

const void *local_results(const struct local *local, uint64_t job, unsigned batch)
{
    const struct results *results = memory_results(local, job, batch);

    return results != NULL ? results->memory.bytes : NULL;
}

static void memory_abandon(struct results *results)
{
    while (results->reservations != NULL) {
        struct reservation *reservation = results->reservations;

        results->reservations = reservation->next;
        reservation->results = NULL;
        atomic_store(&reservation->task.unwanted, true);
    }
}

static void memory_drop_results(struct keeper *keeper, struct results **link)
{
    struct results *results = *link;

    *link = results->next;
    memory_abandon(results);
    /* Without a descriptor it is a file's mapping, and the memory is the file's. */
    keeper_release(
        keeper, &results->memory, results->memory.fd >= 0 ? segment_taken(&results->memory) : 0);
    free(results);
}

static const char memory_results_name[] = "result arena";

/* Seals the results before anybody else sees them: ranks can map them only to read. A file cannot
 * be sealed, and need not be: other users cannot open it, and ranks get a descriptor for reading.
 */
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
    void *context, uint64_t job, unsigned batch, uint64_t size, bool *existing, struct error *err)
{
    struct local *local = context;
    struct results *results;

    *existing = false;
    if (memory_results(local, job, batch) != NULL) {
        (void)error_set(err, ADTOPK_ERR_STATE, "the job's result arena is in use");
        return NULL;
    }
    results = calloc(1, sizeof *results);
    if (results == NULL) {
        (void)error_set(err, ADTOPK_ERR_MEMORY, "no memory for a result arena");
        return NULL;
    }
    if ((local->folder != NULL ? folder_part(local->folder, job, FOLDER_RESULTS + batch, size, 0,
                                     &results->memory, existing, err)
                               : memory_make_results(&results->memory, size, err)) != ADTOPK_OK) {
        free(results);
        return NULL;
    }
    if (local->folder != NULL) {
        segment_close(&results->memory); /* the folder has a descriptor when one is needed */
    }
    results->job = job;
    results->batch = batch;
    results->next = local->results;
    local->results = results;
    return results->memory.bytes;
}

/* The results with a descriptor of their own; -1 if there is none. */
static struct segment memory_results_file(const struct local *local, const struct results *results)
{
    const int fd = local->folder != NULL ? folder_descriptor(local->folder, results->job,
                                               FOLDER_RESULTS + results->batch)
                                         : fcntl(results->memory.fd, F_DUPFD_CLOEXEC, 0);

    return (struct segment){.fd = fd, .size = results->memory.size};
}

int memory_show_results(const struct local *local, const struct results *results, struct error *err)
{
    struct segment file = memory_results_file(local, results);
    const int shown = segment_show(&file, memory_results_name, err);

    segment_close(&file);
    return shown;
}

static struct reservation *reservation_of(struct keeper_task *task)
{
    return (struct reservation *)(void *)((char *)task - offsetof(struct reservation, task));
}

static bool reservation_start(struct keeper_task *task)
{
    struct reservation *reservation = reservation_of(task);
    struct local *local = reservation->local;
    const uint64_t missing = segment_missing(&reservation->file);
    const uint64_t wanted = missing < reservation->bytes ? missing : reservation->bytes;

    if (segment_afford(memory_results_name, reservation->bytes, wanted,
            memory_promised(local, wanted), &reservation->error) == ADTOPK_OK) {
        atomic_store(&task->filling, reservation->bytes);
    }
    return true; /* always, because the core expects its event only after this call */
}

static void reservation_run(struct keeper_task *task)
{
    struct reservation *reservation = reservation_of(task);
    enum adtopk_status status = reservation->error.code;

    for (unsigned i = 0; status == ADTOPK_OK && i < reservation->pieces; i++) {
        status = keeper_fill(task, &reservation->file, memory_results_name,
            reservation->piece[i].offset, reservation->piece[i].size, &reservation->error);
    }
}

static void memory_unlink(const struct reservation *reservation)
{
    struct reservation **link = &reservation->results->reservations;

    while (*link != reservation) {
        link = &(*link)->next;
    }
    *link = reservation->next;
}

static void reservation_done(struct keeper_task *task)
{
    struct reservation *reservation = reservation_of(task);
    struct local *local = reservation->local;
    struct event event = {.type = EVENT_RESERVED, .reserved = {.job = reservation->job}};
    struct error ignored;

    if (reservation->results != NULL) {
        memory_unlink(reservation);
    }
    /* The keeper has finished with the job's store: it came first. */
    (void)stores_filling(local->stores, reservation->job, &reservation->error);
    event.reserved.error = reservation->error.code != ADTOPK_OK ? &reservation->error : NULL;
    if (!local->closing) {
        (void)local->door.doors->event(local->door.doors->context, &event, &ignored);
    }
    segment_close(&reservation->file);
    free(reservation);
}

static enum adtopk_status memory_reserve_results(void *context, uint64_t job, unsigned batch,
    const struct core_piece *piece, unsigned pieces, bool *later, struct error *err)
{
    struct local *local = context;
    struct results *results = memory_results(local, job, batch);
    struct reservation *reservation;
    struct error failed;
    struct segment file;

    *later = false;
    if (results == NULL) {
        return error_set(err, ADTOPK_ERR_STATE, "the job has no result arena");
    }
    file = memory_results_file(local, results);
    if (file.fd < 0) {
        return error_set(err, ADTOPK_ERR_SYSTEM, "no descriptor to reserve a result arena");
    }
    if (segment_missing(&file) == 0 && !stores_filling(local->stores, job, &failed)) {
        segment_close(&file);
        return ADTOPK_OK;
    }
    reservation = calloc(1, sizeof *reservation + pieces * sizeof *piece);
    if (reservation == NULL) {
        segment_close(&file);
        return error_set(err, ADTOPK_ERR_MEMORY, "no memory to reserve a result arena");
    }
    reservation->task = (struct keeper_task){
        .start = reservation_start, .run = reservation_run, .done = reservation_done};
    reservation->local = local;
    reservation->results = results;
    reservation->next = results->reservations;
    results->reservations = reservation;
    reservation->job = job;
    reservation->file = file;
    reservation->pieces = pieces;
    for (unsigned i = 0; i < pieces; i++) {
        reservation->piece[i] = piece[i];
        reservation->bytes += piece[i].size;
    }
    *later = true;
    keeper_add(&local->keeper, &reservation->task);
    return ADTOPK_OK;
}

/* ---- stores ---- */

static void *memory_store(void *context, uint64_t job, unsigned part, uint64_t size, bool shown,
    bool *existing, struct error *err)
{
    struct local *local = context;

    return stores_get(
        local->stores, job, part, size, shown, memory_promised(local, size), existing, err);
}

/* If it fails, for want of descriptors, the rank does not look ahead for now. */
int memory_show(const struct local *local, uint64_t job, unsigned part, uint64_t *size)
{
    struct error ignored;

    return stores_show(local->stores, job, part, size, &ignored);
}

static void memory_drop_store(void *context, uint64_t job, unsigned part)
{
    struct local *local = context;

    stores_release(local->stores, job, part);
}

static void memory_release_job(void *context, uint64_t job)
{
    struct local *local = context;
    for (struct results **link; *(link = memory_find(local, job)) != NULL;) {
        memory_drop_results(&local->keeper, link);
    }
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        stores_release(local->stores, job, part);
    }
    if (local->folder != NULL) {
        folder_end(local->folder, job);
    }
}

/* Without a store in the folder, what is released are mappings only. */
static void memory_leave_job(void *context, uint64_t job)
{
    struct local *local = context;

    folder_leave(local->folder, job);
    memory_release_job(context, job);
}

static void memory_open_job(void *context, uint64_t job, const struct job_key *key, bool returning)
{
    struct local *local = context;
    struct folder_info old;

    if (!returning && local->config.replaced != NULL &&
        folder_replaces(local->folder, job, key, &old)) {
        local->config.replaced(local->context, &old);
    }
    folder_begin(local->folder, job, key, returning);
}

static bool memory_has_store(void *context, const struct job_key *key)
{
    const struct local *local = context;

    return folder_has(local->folder, key);
}

struct core_memory local_memory(struct local *local)
{
    const bool outlive = local->folder != NULL;

    return (struct core_memory){.context = local,
        .open_job = outlive ? memory_open_job : NULL,
        .has_store = outlive ? memory_has_store : NULL,
        .leave_job = outlive ? memory_leave_job : NULL,
        .gradients = memory_gradients,
        .results = memory_get_results,
        .reserve_results = memory_reserve_results,
        .store = memory_store,
        .drop_store = memory_drop_store,
        .release_session = memory_release_session,
        .release_job = memory_release_job};
}

void memory_stop_reserving(struct local *local)
{
    for (struct results *results = local->results; results != NULL; results = results->next) {
        memory_abandon(results);
    }
    stores_stop_filling(local->stores);
}

void memory_drop_all(struct local *local)
{
    while (local->results != NULL) {
        struct results *results = local->results;

        local->results = results->next;
        segment_drop(&results->memory);
        free(results);
    }
    stores_destroy(local->stores);
    folder_close(local->folder);
}

bool local_outlives(const struct local *local)
{
    return local->folder != NULL;
}

struct folder *local_folder(const struct local *local)
{
    return local->folder;
}

bool local_store(const struct local *local, unsigned index, struct folder_info *info)
{
    return local->folder != NULL && folder_look(local->folder, index, info);
}

bool local_expire(struct local *local, uint64_t ttl_s, struct folder_info *gone)
{
    return local->folder != NULL && folder_expire(local->folder, ttl_s, gone);
}

/*
 * Jobs by number, by key and by run, for lookups at every message. A lookup must take no longer if
 * other users have more jobs. A table has a fixed number of lists, so that adding needs no memory.
 */
#include "daemon/job/job_index.h"

#include "daemon/job/hash.h"

static struct job **bucket_of(struct core *core, enum job_index index, uint64_t hash)
{
    return &core->index[index][hash % JOB_BUCKETS];
}

static void take_out(struct job *job, enum job_index index)
{
    struct job_place *place = &job->places.in[index];
    struct job **link = bucket_of(job->core, index, place->hash);

    while (place->in && *link != job) {
        link = &(*link)->places.in[index].next;
    }
    if (place->in) {
        *link = place->next;
        place->in = false;
    }
}

void job_index_put(struct job *job, enum job_index index, uint64_t hash)
{
    struct job **first = bucket_of(job->core, index, hash);

    take_out(job, index);
    job->places.in[index] = (struct job_place){.next = *first, .hash = hash, .in = true};
    *first = job;
}

void job_index_drop(struct job *job)
{
    for (unsigned index = 0; index < JOB_INDEXES; index++) {
        take_out(job, (enum job_index)index);
    }
}

static struct job *same_hash(struct job *job, enum job_index index, uint64_t hash)
{
    while (job != NULL && job->places.in[index].hash != hash) {
        job = job->places.in[index].next;
    }
    return job;
}

struct job *job_index_first(const struct core *core, enum job_index index, uint64_t hash)
{
    return same_hash(core->index[index][hash % JOB_BUCKETS], index, hash);
}

struct job *job_index_next(const struct job *job, enum job_index index)
{
    return same_hash(job->places.in[index].next, index, job->places.in[index].hash);
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    do {
        hash = hash_mix(hash ^ (uint8_t)*text);
    } while (*text++ != '\0');
    return hash;
}

/* The seed of a run's random choices. Every run with the same key has the same seed, so that a run
 * can be repeated. */
uint64_t job_seed(const struct job_key *key)
{
    return mix_text(mix_text(hash_mix(key->owner + 1u), key->name), key->run_id);
}

/* The hash has a seed that no client knows, so that nobody can choose keys that clash. */
static uint64_t key_hash(const struct core *core, const struct job_key *key)
{
    const uint64_t owner = hash_mix(core->config.secret ^ hash_mix(key->owner + 1u));

    return mix_text(mix_text(owner, key->name), key->run_id);
}

struct job *job_find(struct core *core, const struct job_key *key)
{
    struct job *newest = NULL;

    for (struct job *job = job_index_first(core, BY_KEY, key_hash(core, key)); job != NULL;
         job = job_index_next(job, BY_KEY)) {
        if (!job_ended(job) && core_same_job(&job->key, key) &&
            (newest == NULL || job->number > newest->number)) {
            newest = job;
        }
    }
    return newest;
}

struct job *job_by_number(struct core *core, uint64_t number)
{
    struct job *job = job_index_first(core, BY_NUMBER, number);

    return job != NULL && !job_ended(job) ? job : NULL;
}

struct job *job_find_run(struct core *core, uint64_t run)
{
    struct job *job = run != 0 ? job_index_first(core, BY_RUN, run) : NULL;

    while (job != NULL && job_ended(job)) {
        job = job_index_next(job, BY_RUN);
    }
    return job;
}

void job_note_run(struct job *job)
{
    const uint64_t run = job->run.id != 0 ? job->run.id : job->agreement.run;

    if (run != 0) {
        job_index_put(job, BY_RUN, run);
    }
}

bool job_is_ending(const struct core *core, const struct job_key *key)
{
    for (const struct job *job = job_index_first(core, BY_KEY, key_hash(core, key)); job != NULL;
         job = job_index_next(job, BY_KEY)) {
        if (job_ended(job) && core_same_job(&job->key, key)) {
            return true;
        }
    }
    return false;
}

void job_index_enter(struct job *job)
{
    job_index_put(job, BY_NUMBER, job->number);
    job_index_put(job, BY_KEY, key_hash(job->core, &job->key));
    job_note_run(job);
}

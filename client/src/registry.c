#include "client/src/registry.h"

#include <stdio.h>
#include <string.h>

#include "client/src/patience.h"

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static adtopk_context *registry_first;

/* A forked child has no contexts yet. A thread of the parent may have held the lock, and the child
 * does not have that thread. */
static void registry_forget(void)
{
    (void)pthread_mutex_init(&registry_lock, NULL); /* cannot fail on Linux */
    registry_first = NULL;
}

__attribute__((constructor)) static void registry_begin(void)
{
    (void)pthread_atfork(NULL, NULL, registry_forget); /* fails only without memory */
}

/* A context has no rank any more if its session is over. */
static bool registry_lives(const adtopk_context *context)
{
    bool lives;

    client_lock(context);
    lives = context->failure.code == ADTOPK_OK &&
            (context->ring.page == NULL || atomic_load(&context->ring.page->failed) == 0);
    (void)client_unlock(context, ADTOPK_OK);
    return lives;
}

static bool registry_has(const struct client_place *place)
{
    for (const adtopk_context *at = registry_first; at != NULL; at = at->next) {
        if (at->place.rank == place->rank && strcmp(at->place.job, place->job) == 0 &&
            strcmp(at->place.run_id, place->run_id) == 0 && registry_lives(at)) {
            return true;
        }
    }
    return false;
}

/* Changes the name of the context's job until no other context has it. */
static enum adtopk_status registry_number(struct client_place *place, struct error *err)
{
    char job[CLIENT_KEY_MAX + 1];

    memcpy(job, place->job, sizeof job);
    for (unsigned number = 2; registry_has(place); number++) {
        const int length = snprintf(place->job, sizeof place->job, "%s#%u", job, number);

        if ((size_t)length >= sizeof place->job) {
            return error_set(err, ADTOPK_ERR_ARGUMENT,
                "this process has job \"%s\" open already, and \"%.63s#%u\" would have more than "
                "%d bytes: set options.job",
                job, job, number, CLIENT_KEY_MAX);
        }
    }
    return ADTOPK_OK;
}

enum adtopk_status client_registry_add(adtopk_context *context, struct error *err)
{
    enum adtopk_status status;

    (void)pthread_mutex_lock(&registry_lock);
    status = registry_number(&context->place, err);
    if (status == ADTOPK_OK) {
        context->next = registry_first;
        registry_first = context;
    }
    (void)pthread_mutex_unlock(&registry_lock);
    return status;
}

void client_registry_remove(adtopk_context *context)
{
    (void)pthread_mutex_lock(&registry_lock);
    for (adtopk_context **link = &registry_first; *link != NULL; link = &(*link)->next) {
        if (*link == context) {
            *link = context->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&registry_lock);
}

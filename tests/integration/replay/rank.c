#include "tests/integration/replay/rank.h"

#include <stdio.h>

#include <adtopk/adtopk.h>

/* struct rank is the library's context under another name. */
static adtopk_context *rank_context(struct rank *rank)
{
    return (adtopk_context *)(void *)rank;
}

static int rank_said(adtopk_context *context, enum adtopk_status status)
{
    if (status != ADTOPK_OK) {
        (void)fprintf(stderr, "%s: %s\n", adtopk_status_name(status), adtopk_message(context));
    }
    return status == ADTOPK_OK;
}

struct rank *rank_open(
    const char *address, const char *job, int number, int world, const char *policy)
{
    const struct adtopk_options options = {.size = sizeof(options),
        .address = address,
        .job = job,
        .run_id = "0",
        .rank = number,
        .has_rank = 1,
        .world_size = world,
        .policy = policy};
    adtopk_context *context = NULL;

    if (!rank_said(context, adtopk_open(&options, &context))) {
        adtopk_close(context);
        return NULL;
    }
    return (struct rank *)(void *)context;
}

int rank_register(struct rank *rank, const char *name, unsigned dims, const uint64_t *shape)
{
    struct adtopk_tensor_spec spec = {.size = sizeof(spec),
        .name = name,
        .dtype = ADTOPK_F32,
        .dims = (int)dims,
        .forms = ADTOPK_FORM_LIST | ADTOPK_FORM_DENSE};

    for (unsigned d = 0; d < dims; d++) {
        spec.shape[d] = shape[d];
    }
    return rank_said(rank_context(rank), adtopk_register(rank_context(rank), &spec, NULL));
}

int rank_commit(struct rank *rank)
{
    return rank_said(rank_context(rank), adtopk_commit(rank_context(rank)));
}

int rank_push(struct rank *rank, uint32_t tensor, const float *gradient)
{
    return rank_said(rank_context(rank), adtopk_push_tensor(rank_context(rank), tensor, gradient));
}

int rank_step(struct rank *rank)
{
    return rank_said(rank_context(rank), adtopk_step_wait(rank_context(rank)));
}

int rank_update(struct rank *rank, uint32_t tensor, struct rank_update *update)
{
    struct adtopk_update got = {.size = sizeof(got)};
    int done = rank_said(rank_context(rank), adtopk_update(rank_context(rank), tensor, &got));

    *update = (struct rank_update){
        .dense = got.dense, .index = got.index, .value = got.value, .count = got.count};
    return done;
}

void rank_close(struct rank *rank)
{
    adtopk_close(rank_context(rank));
}

#include "daemon/compute/round_memory.h"

#include <stdlib.h>

#include "daemon/compute/round_exchange.h"
#include "daemon/compute/work.h"
#include "daemon/job/machine.h"

void round_drop_parked(struct round *round, uint32_t view, uint64_t number)
{
    struct parked **link = &round->parked;

    while (*link != NULL) {
        struct parked *parked = *link;
        if (parked->header.view >= view && parked->header.number >= number) {
            link = &parked->next;
            continue;
        }
        *link = parked->next;
        buffer_unref(parked->frame);
        free(parked);
    }
}

enum adtopk_status round_init(
    struct round *round, struct job *job, uint32_t bucket, const uint32_t *tensor, unsigned tensors)
{
    *round = (struct round){
        .job = job,
        .bucket = bucket,
        .op = tensors == 0,
        .split_step = UINT64_MAX,
        .tensors = tensors,
        .work = {.job = job, .round = round},
    };
    machine_init(&round->machine, &round_machine, &job->core->trace, bucket);
    if (tensors == 0) {
        return ADTOPK_OK;
    }
    round->tensor = malloc(tensors * sizeof(*round->tensor));
    round->pushes = calloc(job->ranks, sizeof(*round->pushes));
    round->exchange.tensor = calloc(tensors, sizeof(*round->exchange.tensor));
    if (round->tensor == NULL || round->pushes == NULL || round->exchange.tensor == NULL) {
        return ADTOPK_ERR_MEMORY; /* round_free() frees the others */
    }
    for (unsigned i = 0; i < tensors; i++) {
        round->tensor[i] = tensor[i];
    }
    return ADTOPK_OK;
}

void round_free(struct round *round)
{
    round_drop_exchange(round);
    round_drop_parked(round, UINT32_MAX, 0);
    free(round->tensor);
    free(round->pushes);
    free(round->exchange.tensor);
    work_drop(&round->work);
}

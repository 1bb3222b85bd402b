/* Operations on all ranks. Each rank knows what must arrive. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/integration/trainer.h"

bool trainer_barrier(struct trainer *trainer, char **word)
{
    (void)word;
    return trainer_done(trainer, adtopk_barrier(trainer->context));
}

/* Here "pending" is an answer too. */
bool trainer_barrier_look(struct trainer *trainer, char **word)
{
    const enum adtopk_status status = adtopk_barrier_for(trainer->context, atoi(word[1]));

    return status == ADTOPK_PENDING ? printf("ok pending\n") > 0 : trainer_done(trainer, status);
}

bool trainer_broadcast(struct trainer *trainer, char **word)
{
    const size_t size = strtoull(word[1], NULL, 10);
    const int root = atoi(word[2]);
    const bool sends = root == adtopk_rank(trainer->context);
    unsigned char *bytes = malloc(size + 1);
    enum adtopk_status status;
    size_t wrong = 0;

    if (bytes == NULL) {
        return trainer_refuse("no memory");
    }
    for (size_t i = 0; i <= size; i++) {
        bytes[i] = sends ? (unsigned char)(i * 31 + (size_t)root + 1) : 0;
    }
    status = adtopk_broadcast(trainer->context, bytes, size, root);
    for (size_t i = 0; i < size; i++) {
        wrong += bytes[i] != (unsigned char)(i * 31 + (size_t)root + 1);
    }
    wrong += !sends && bytes[size] != 0;
    free(bytes);
    return status == ADTOPK_OK && wrong > 0 ? trainer_refuse("wrong bytes arrived")
                                            : trainer_done(trainer, status);
}

bool trainer_allreduce(struct trainer *trainer, char **word)
{
    const size_t count = strtoull(word[1], NULL, 10);
    const unsigned world = (unsigned)adtopk_world_size(trainer->context);
    const unsigned rank = (unsigned)adtopk_rank(trainer->context);
    float *values = malloc((count + 1) * sizeof *values);
    enum adtopk_status status;
    size_t wrong = 0;

    if (values == NULL) {
        return trainer_refuse("no memory");
    }
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((rank + 1) * (i % 1000));
    }
    status = adtopk_allreduce(trainer->context, values, count);
    for (size_t i = 0; i < count; i++) {
        wrong += values[i] != (float)(world * (world + 1) / 2 * (i % 1000));
    }
    free(values);
    return status == ADTOPK_OK && wrong > 0 ? trainer_refuse("a sum is wrong")
                                            : trainer_done(trainer, status);
}

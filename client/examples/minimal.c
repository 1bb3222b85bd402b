#include <adtopk/adtopk.h>
#include <stdio.h>
int main(void) /* rank and world size come from torchrun, mpirun or srun */
{
    adtopk_context *ctx = NULL;
    struct adtopk_tensor_spec spec = {.name = "w", .dims = 2, .shape = {1000, 1000}};
    struct adtopk_update update;
    uint32_t w;
    if (adtopk_open(NULL, &ctx) || adtopk_register(ctx, &spec, &w) || adtopk_commit(ctx))
        return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
    for (int step = 0; step < 100; step++) {
        float *gradient = adtopk_gradient(ctx, w); /* shared memory: no copy */
        for (int i = 0; i < 1000000; i++)
            gradient[i] = (float)(i % 7 * (adtopk_rank(ctx) + 1));
        if (adtopk_push(ctx, w, NULL) || adtopk_step_wait(ctx) || adtopk_update(ctx, w, &update))
            return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
        /* update.dense[i] is the mean over all ranks: parameters[i] -= lr * update.dense[i] */
    }
    adtopk_close(ctx);
}

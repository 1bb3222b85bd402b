#include <adtopk/adtopk.h>
#include <stdio.h>
int main(void)
{
    adtopk_context *ctx = NULL;
    struct adtopk_tensor_spec t = {.size = sizeof t, .name = "w", .dims = 2, .shape = {1000, 1000}};
    struct adtopk_update u = {.size = sizeof u};
    uint32_t w; /* rank and world size come from torchrun, mpirun or srun */
    if (adtopk_open(NULL, &ctx) || adtopk_register(ctx, &t, &w) || adtopk_commit(ctx))
        return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
    for (int step = 0; step < 100; step++) {
        float *gradient = adtopk_gradient(ctx, w); /* shared memory: no copy */
        for (int i = 0; i < 1000000; i++)
            gradient[i] = (float)(i % 7 * (adtopk_rank(ctx) + 1));
        if (adtopk_push_tensor(ctx, w, NULL) || adtopk_step_wait(ctx) || adtopk_update(ctx, w, &u))
            return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
        /* u.dense[i] is the mean over all ranks: parameters[i] -= lr * u.dense[i] */
    }
    adtopk_close(ctx);
}

#include <adtopk/adtopk.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv)
{
    static float p[1000000]; /* parameters; the loss is the sum of (p[i] - i % 7)^2 / 2 */
    adtopk_context *ctx = NULL;
    struct adtopk_tensor_spec t = {.size = sizeof t, .name = "w", .dims = 2, .shape = {1000, 1000}};
    struct adtopk_update u = {.size = sizeof u};
    uint32_t w; /* rank and world size come from torchrun, mpirun or srun */
    if (adtopk_open(NULL, &ctx) || adtopk_register(ctx, &t, &w) || adtopk_commit(ctx))
        return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
    for (int step = 1, steps = argc > 1 ? atoi(argv[1]) : 200; step <= steps; step++) {
        float *gradient = adtopk_gradient(ctx, w); /* shared memory: no copy */
        for (int i = 0; i < 1000000; i++)
            gradient[i] = p[i] - (float)(i % 7);
        if (adtopk_push_tensor(ctx, w, NULL) || adtopk_step_wait(ctx) || adtopk_update(ctx, w, &u))
            return fprintf(stderr, "%s\n", adtopk_message(ctx)), 1;
        for (int i = 0; i < 1000000; i++)
            p[i] -= 0.02f * u.dense[i]; /* u is the mean over all ranks */
        if ((step & (step - 1)) == 0)
            printf("after step %d p[6] is %g\n", step, p[6]);
    }
    adtopk_close(ctx);
}

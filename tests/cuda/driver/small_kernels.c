/* Kernels for the tests of the library itself. */
#include "tests/cuda/driver/small_kernels.h"

#include "tests/cuda/driver/kernels.h"

static CUresult run_add(const struct standin_launch *launch)
{
    const struct small_add *add = launch->arguments;
    uint32_t *word = (uint32_t *)(uintptr_t)add->words;

    for (uint32_t i = 0; i < add->count; i++) {
        word[i] += add->value;
    }
    return CUDA_SUCCESS;
}

static CUresult run_fault(const struct standin_launch *launch)
{
    (void)launch;
    return CUDA_ERROR_ILLEGAL_ADDRESS;
}

const struct standin_kernel standin_kernels[] = {
    {.name = "small_add", .size = sizeof(struct small_add), .run = run_add},
    {.name = "small_fault", .size = sizeof(struct small_add), .run = run_fault},
    {.name = NULL},
};

/* The host's memory is the kernels' memory. */
#include <cstdlib>

#include "tests/cuda/launch.h"

void *launch_memory(uint64_t bytes)
{
    return std::aligned_alloc(16, (bytes + 15) / 16 * 16);
}

void launch_free(void *memory)
{
    std::free(memory);
}

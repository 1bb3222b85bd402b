/*
 * Stacks for fibres.
 */
#ifndef ADTOPK_TESTS_CUDA_STACKS_H
#define ADTOPK_TESTS_CUDA_STACKS_H

#include <cstddef>

/* Bytes of a stack, only touched where they are used. The lowest page cannot be. Small stacks share
 * fewer sets of the processor's caches: five pages are no power of two. */
#if defined(SHIM_ASAN) || defined(SHIM_TSAN)
constexpr std::size_t STACK = 256 << 10;
#else
constexpr std::size_t STACK = 20 << 10;
#endif

/* Bytes at the top of a fibre's stack that stay unused, for the same reason. */
constexpr std::size_t stack_shift(unsigned fibre)
{
    return fibre * std::size_t{448} % 4096;
}

/** Stacks for so many fibres, one after the other; always the same number. */
char *stacks_take(unsigned fibres);

/** Gives them back. They may be taken again. cut: some fibres stopped anywhere in their work. */
void stacks_give(char *stacks, unsigned fibres, bool cut);

#endif

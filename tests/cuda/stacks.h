/*
 * Stacks for fibres.
 */
#ifndef ADTOPK_TESTS_CUDA_STACKS_H
#define ADTOPK_TESTS_CUDA_STACKS_H

#include <cstddef>

/* Bytes of a stack, only touched where they are used. The lowest page cannot be. */
constexpr std::size_t STACK = 256 << 10;

/** Stacks for so many fibres, one after the other; always the same number. */
char *stacks_take(unsigned fibres);

/** Gives them back. They may be taken again. cut: some fibres stopped anywhere in their work. */
void stacks_give(char *stacks, unsigned fibres, bool cut);

#endif

/* Arrays side by side in one piece of memory. */
#ifndef EXAMPLE_PLACE_H
#define EXAMPLE_PLACE_H

#include <stddef.h>

/* An array of `count` floats, and the pointer to it. */
struct place {
    float **slot;
    size_t count;
};

/* Sets the pointers of all arrays to their places in `memory`, or none if it is NULL. Returns the
 * number of floats that they take together. */
size_t place_all(const struct place *places, size_t count, float *memory);

#endif

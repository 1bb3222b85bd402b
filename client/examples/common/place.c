#include "place.h"

size_t place_all(const struct place *places, size_t count, float *memory)
{
    size_t used = 0;
    for (size_t i = 0; i < count; i++) {
        if (memory) {
            *places[i].slot = memory + used;
        }
        used += places[i].count;
    }
    return used;
}

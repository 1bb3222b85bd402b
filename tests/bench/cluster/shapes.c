#include "tests/bench/cluster/shapes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool find(const char *name, unsigned *model)
{
    for (*model = 0; models_names[*model] != NULL; (*model)++) {
        if (strcmp(models_names[*model], name) == 0) {
            return true;
        }
    }
    return false;
}

uint64_t shapes_numel(const struct tensor_shape *shape)
{
    uint64_t numel = 1;

    for (unsigned d = 0; d < shape->dims; d++) {
        numel *= shape->size[d];
    }
    return numel;
}

struct shapes *shapes_new(const char *name, uint64_t elements)
{
    struct shapes *shapes = calloc(1, sizeof(*shapes));
    uint64_t all = 0;
    unsigned model;

    if (shapes == NULL || !find(name, &model)) {
        free(shapes);
        return NULL;
    }
    while (shapes->count < SHAPES_MAX &&
           models_tensor(model, shapes->count, &shapes->tensor[shapes->count])) {
        all += shapes_numel(&shapes->tensor[shapes->count++].shape);
    }
    for (unsigned i = 0; i < shapes->count; i++) {
        uint64_t *first = &shapes->tensor[i].shape.size[0];
        const double scaled = (double)*first * ((double)elements / (double)all);

        *first = scaled < 1 ? 1 : (uint64_t)llround(scaled);
        shapes->elements += shapes_numel(&shapes->tensor[i].shape);
    }
    return shapes;
}

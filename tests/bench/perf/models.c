#include "tests/bench/perf/models.h"

#include <stdio.h>
#include <string.h>

#define DIMS 4

/* `count` layers of the same shape, numbered from `first` ('#' in the name); each is a tensor
 * NAME.weight and, unless `bias` is 0, one NAME.bias of so many elements. */
struct layers {
    const char *name;
    uint64_t size[DIMS]; /* 0: fewer dimensions */
    uint64_t bias;
    unsigned first, count;
};

/* Simonyan and Zisserman 2014, for ImageNet. */
static const struct layers vgg16[] = {
    {"features.0", {64, 3, 3, 3}, 64, 0, 1},
    {"features.2", {64, 64, 3, 3}, 64, 0, 1},
    {"features.5", {128, 64, 3, 3}, 128, 0, 1},
    {"features.7", {128, 128, 3, 3}, 128, 0, 1},
    {"features.10", {256, 128, 3, 3}, 256, 0, 1},
    {"features.12", {256, 256, 3, 3}, 256, 0, 1},
    {"features.14", {256, 256, 3, 3}, 256, 0, 1},
    {"features.17", {512, 256, 3, 3}, 512, 0, 1},
    {"features.19", {512, 512, 3, 3}, 512, 0, 1},
    {"features.21", {512, 512, 3, 3}, 512, 0, 1},
    {"features.24", {512, 512, 3, 3}, 512, 0, 1},
    {"features.26", {512, 512, 3, 3}, 512, 0, 1},
    {"features.28", {512, 512, 3, 3}, 512, 0, 1},
    {"classifier.0", {4096, 25088}, 4096, 0, 1},
    {"classifier.3", {4096, 4096}, 4096, 0, 1},
    {"classifier.6", {1000, 4096}, 1000, 0, 1},
    {.name = NULL},
};

/* He et al. 2015, for ImageNet. */
static const struct layers resnet50[] = {
    {"conv1", {64, 3, 7, 7}, 0, 0, 1},
    {"bn1", {64}, 64, 0, 1},
    {"layer1.0.conv1", {64, 64, 1, 1}, 0, 0, 1},
    {"layer1.0.downsample.0", {256, 64, 1, 1}, 0, 0, 1},
    {"layer1.0.downsample.1", {256}, 256, 0, 1},
    {"layer1.#.conv1", {64, 256, 1, 1}, 0, 1, 2},
    {"layer1.#.bn1", {64}, 64, 0, 3},
    {"layer1.#.conv2", {64, 64, 3, 3}, 0, 0, 3},
    {"layer1.#.bn2", {64}, 64, 0, 3},
    {"layer1.#.conv3", {256, 64, 1, 1}, 0, 0, 3},
    {"layer1.#.bn3", {256}, 256, 0, 3},
    {"layer2.0.conv1", {128, 256, 1, 1}, 0, 0, 1},
    {"layer2.0.downsample.0", {512, 256, 1, 1}, 0, 0, 1},
    {"layer2.0.downsample.1", {512}, 512, 0, 1},
    {"layer2.#.conv1", {128, 512, 1, 1}, 0, 1, 3},
    {"layer2.#.bn1", {128}, 128, 0, 4},
    {"layer2.#.conv2", {128, 128, 3, 3}, 0, 0, 4},
    {"layer2.#.bn2", {128}, 128, 0, 4},
    {"layer2.#.conv3", {512, 128, 1, 1}, 0, 0, 4},
    {"layer2.#.bn3", {512}, 512, 0, 4},
    {"layer3.0.conv1", {256, 512, 1, 1}, 0, 0, 1},
    {"layer3.0.downsample.0", {1024, 512, 1, 1}, 0, 0, 1},
    {"layer3.0.downsample.1", {1024}, 1024, 0, 1},
    {"layer3.#.conv1", {256, 1024, 1, 1}, 0, 1, 5},
    {"layer3.#.bn1", {256}, 256, 0, 6},
    {"layer3.#.conv2", {256, 256, 3, 3}, 0, 0, 6},
    {"layer3.#.bn2", {256}, 256, 0, 6},
    {"layer3.#.conv3", {1024, 256, 1, 1}, 0, 0, 6},
    {"layer3.#.bn3", {1024}, 1024, 0, 6},
    {"layer4.0.conv1", {512, 1024, 1, 1}, 0, 0, 1},
    {"layer4.0.downsample.0", {2048, 1024, 1, 1}, 0, 0, 1},
    {"layer4.0.downsample.1", {2048}, 2048, 0, 1},
    {"layer4.#.conv1", {512, 2048, 1, 1}, 0, 1, 2},
    {"layer4.#.bn1", {512}, 512, 0, 3},
    {"layer4.#.conv2", {512, 512, 3, 3}, 0, 0, 3},
    {"layer4.#.bn2", {512}, 512, 0, 3},
    {"layer4.#.conv3", {2048, 512, 1, 1}, 0, 0, 3},
    {"layer4.#.bn3", {2048}, 2048, 0, 3},
    {"fc", {1000, 2048}, 1000, 0, 1},
    {.name = NULL},
};

/* Devlin et al. 2018, base, uncased. */
static const struct layers bert_base[] = {
    {"embeddings.word", {30522, 768}, 0, 0, 1},
    {"embeddings.position", {512, 768}, 0, 0, 1},
    {"embeddings.token_type", {2, 768}, 0, 0, 1},
    {"embeddings.norm", {768}, 768, 0, 1},
    {"layer.#.attention.query", {768, 768}, 768, 0, 12},
    {"layer.#.attention.key", {768, 768}, 768, 0, 12},
    {"layer.#.attention.value", {768, 768}, 768, 0, 12},
    {"layer.#.attention.output", {768, 768}, 768, 0, 12},
    {"layer.#.attention.norm", {768}, 768, 0, 12},
    {"layer.#.intermediate", {3072, 768}, 3072, 0, 12},
    {"layer.#.output", {768, 3072}, 768, 0, 12},
    {"layer.#.norm", {768}, 768, 0, 12},
    {"pooler", {768, 768}, 768, 0, 1},
    {.name = NULL},
};

/* Radford et al. 2019, small; its matrices are [inputs, outputs]. */
static const struct layers gpt2[] = {
    {"wte", {50257, 768}, 0, 0, 1},
    {"wpe", {1024, 768}, 0, 0, 1},
    {"h.#.ln_1", {768}, 768, 0, 12},
    {"h.#.attn.c_attn", {768, 2304}, 2304, 0, 12},
    {"h.#.attn.c_proj", {768, 768}, 768, 0, 12},
    {"h.#.ln_2", {768}, 768, 0, 12},
    {"h.#.mlp.c_fc", {768, 3072}, 3072, 0, 12},
    {"h.#.mlp.c_proj", {3072, 768}, 768, 0, 12},
    {"ln_f", {768}, 768, 0, 1},
    {.name = NULL},
};

/* Zaremba et al. 2014, the large one, with the words of WikiText-2: the embedding and what predicts
 * the next word are not shared. */
static const struct layers lstm[] = {
    {"embedding", {33278, 1500}, 0, 0, 1},
    {"lstm.#.input", {6000, 1500}, 6000, 0, 2},
    {"lstm.#.hidden", {6000, 1500}, 6000, 0, 2},
    {"decoder", {33278, 1500}, 33278, 0, 1},
    {.name = NULL},
};

static const struct layers *const models[] = {vgg16, resnet50, bert_base, gpt2, lstm};

const char *const models_names[] = {"vgg16", "resnet50", "bert-base", "gpt2", "lstm", NULL};

_Static_assert(
    sizeof(models) / sizeof(models[0]) == sizeof(models_names) / sizeof(models_names[0]) - 1,
    "a name for every model");

static struct tensor_shape shape_of(const struct layers *layers, bool bias)
{
    struct tensor_shape shape = {.dims = 1, .size = {layers->bias}};

    for (unsigned d = 0; !bias && d < DIMS && layers->size[d] > 0; d++) {
        shape.size[d] = layers->size[d];
        shape.dims = d + 1;
    }
    return shape;
}

/* The name of layer `number`, with '#' replaced by it. */
static void write_name(
    char name[MODELS_NAME_SIZE], const struct layers *layers, unsigned number, bool bias)
{
    const char *end = bias ? "bias" : "weight";
    const size_t mark = strcspn(layers->name, "#");

    if (layers->name[mark] == '\0') {
        (void)snprintf(name, MODELS_NAME_SIZE, "%s.%s", layers->name, end);
        return;
    }
    (void)snprintf(name, MODELS_NAME_SIZE, "%.*s%u%s.%s", (int)mark, layers->name, number,
        layers->name + mark + 1, end);
}

bool models_tensor(unsigned model, unsigned index, struct model_tensor *tensor)
{
    for (const struct layers *layers = models[model]; layers->name != NULL; layers++) {
        const unsigned each = layers->bias > 0 ? 2 : 1;
        const unsigned all = each * layers->count;

        if (index < all) {
            const bool bias = index % each != 0;

            tensor->shape = shape_of(layers, bias);
            write_name(tensor->name, layers, layers->first + index / each, bias);
            return true;
        }
        index -= all;
    }
    return false;
}

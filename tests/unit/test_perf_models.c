/* The shapes of real models have as many parameters and tensors as their authors published. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <string.h>

#include "tests/bench/perf/models.h"

#define TENSORS_MAX 256

static void check_model(unsigned model, uint64_t parameters, unsigned tensors)
{
    static struct model_tensor all[TENSORS_MAX];
    uint64_t sum = 0;
    unsigned count = 0;

    while (models_tensor(model, count, &all[count])) {
        uint64_t numel = 1;

        for (unsigned d = 0; d < all[count].shape.dims; d++) {
            numel *= all[count].shape.size[d];
        }
        assert_true(numel > 0);
        assert_true(strlen(all[count].name) > 5 && strchr(all[count].name, '#') == NULL);
        for (unsigned i = 0; i < count; i++) {
            assert_string_not_equal(all[i].name, all[count].name);
        }
        sum += numel;
        count++;
        assert_in_range(count, 1, TENSORS_MAX - 1);
    }
    assert_int_equal(sum, parameters);
    assert_int_equal(count, tensors);
}

static void test_models(void **state)
{
    static const struct {
        const char *name;
        uint64_t parameters;
        unsigned tensors;
    } known[] = {{"vgg16", 138357544, 32}, {"resnet50", 25557032, 161},
        {"bert-base", 109482240, 199}, {"gpt2", 124439808, 148}, {"lstm", 135891278, 11}};
    unsigned m = 0;

    (void)state;
    for (; models_names[m] != NULL; m++) {
        assert_true(m < sizeof(known) / sizeof(known[0]));
        assert_string_equal(models_names[m], known[m].name);
        check_model(m, known[m].parameters, known[m].tensors);
    }
    assert_int_equal(m, sizeof(known) / sizeof(known[0]));
}

static void test_names(void **state)
{
    struct model_tensor tensor;

    (void)state;
    assert_true(models_tensor(0, 1, &tensor));
    assert_string_equal(tensor.name, "features.0.bias");
    assert_int_equal(tensor.shape.dims, 1);
    assert_int_equal(tensor.shape.size[0], 64);
    assert_true(models_tensor(4, 4, &tensor));
    assert_string_equal(tensor.name, "lstm.1.input.bias");
    assert_true(models_tensor(1, 8, &tensor));
    assert_string_equal(tensor.name, "layer1.2.conv1.weight");
    assert_int_equal(tensor.shape.dims, 4);
    assert_int_equal(tensor.shape.size[1], 256);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

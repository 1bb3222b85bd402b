/*
 * The kernels of kernels/cuda through the driver's calls, in device memory: an update is copied in,
 * scattered and copied out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "kernels/cuda/kernels.h"
#include "proto/driver.h"

enum { ELEMENTS = 3 * 4096, ENTRIES = 500, BLOCKS = 8, THREADS = 256, STRIDE = 3 };

/* What lies in device memory, and what the host copies there and back. */
struct memory {
    struct update_order order;
    uint32_t position[ENTRIES];
    float value[ENTRIES];
    float dense[ELEMENTS];
    uint32_t index[ENTRIES];
};

static struct driver cuda;
static struct driver_device devices[DRIVER_DEVICES_MAX];
static CUcontext context;
static CUmodule module;
static CUstream stream;
static struct memory *page; /* registered host memory */
static CUdeviceptr there;   /* as much on the device */

static int open_context(void **state)
{
    static const char image[1];
    struct error err;
    unsigned count;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_STREAMS", "late", 1);
    page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED || driver_open(&cuda, &err) != ADTOPK_OK ||
           driver_list(&cuda, devices, &count, &err) != ADTOPK_OK ||
           cuda.cuDevicePrimaryCtxRetain(&context, devices[0].handle) != CUDA_SUCCESS ||
           cuda.cuCtxSetCurrent(context) != CUDA_SUCCESS ||
           cuda.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
           cuda.cuMemHostRegister_v2(page, sizeof *page, CU_MEMHOSTREGISTER_DEVICEMAP) !=
               CUDA_SUCCESS ||
           cuda.cuMemAlloc_v2(&there, sizeof *page) != CUDA_SUCCESS ||
           cuda.cuModuleLoadData(&module, image) != CUDA_SUCCESS;
}

static int close_context(void **state)
{
    (void)state;
    (void)cuda.cuDevicePrimaryCtxRelease_v2(devices[0].handle);
    (void)munmap(page, sizeof *page);
    driver_close(&cuda);
    return 0;
}

static CUfunction kernel(const char *name)
{
    CUfunction function = NULL;

    assert_int_equal(cuda.cuModuleGetFunction(&function, module, name), CUDA_SUCCESS);
    return function;
}

static CUresult run(const char *name, unsigned threads, void *parameter)
{
    void *list[] = {parameter};

    return cuda.cuLaunchKernel(kernel(name), BLOCKS, 1, 1, threads, 1, 1, 0, stream, list, NULL);
}

static void *at(size_t offset)
{
    return (void *)(uintptr_t)(there + offset);
}

static void fill(void)
{
    memset(page, 0x77, sizeof *page);
    page->order = (struct update_order){.numel = ELEMENTS,
        .view = {.fibres = STRIDE, .length = ELEMENTS / STRIDE, .stride = STRIDE},
        .list = {at(offsetof(struct memory, position)), at(offsetof(struct memory, value)),
            ENTRIES},
        .dense = at(offsetof(struct memory, dense)),
        .index = at(offsetof(struct memory, index))};
    for (uint32_t i = 0; i < ENTRIES; i++) {
        page->position[i] = i * (ELEMENTS / ENTRIES) + i % 7;
        page->value[i] = (float)i + 1;
    }
}

static void compare(void)
{
    static float expected[ELEMENTS];

    for (uint32_t i = 0; i < ENTRIES; i++) {
        const uint32_t element = (uint32_t)view_element(&page->order.view, page->position[i]);
        expected[element] = page->value[i];
        assert_int_equal(page->index[i], element);
    }
    assert_memory_equal(page->dense, expected, sizeof expected);
}

static void test_update(void **state)
{
    struct update_batch batch = {.order = at(offsetof(struct memory, order)),
        .orders = 1,
        .entries = ENTRIES,
        .elements = ELEMENTS};

    (void)state;
    fill();
    assert_int_equal(cuda.cuMemcpyHtoDAsync_v2(there, page, sizeof *page, stream), CUDA_SUCCESS);
    assert_int_equal(run("update_elements", THREADS, &batch), CUDA_SUCCESS);
    assert_int_equal(run("update_entries", THREADS, &batch), CUDA_SUCCESS);
    assert_int_equal(cuda.cuMemcpyDtoHAsync_v2(page, there, sizeof *page, stream), CUDA_SUCCESS);
    assert_int_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
    compare();
}

static void test_all_are_there(void **state)
{
#define NAME(name, type) #name,
    static const char *const names[] = {CUDA_EVERY(NAME)};
#undef NAME

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(kernel(names[i]));
    }
}

/* Kernels want blocks of so many threads. */
static void test_wrong_block(void **state)
{
    struct update_batch batch = {.orders = 0};

    (void)state;
    assert_int_equal(run("update_entries", THREADS / 2, &batch), CUDA_SUCCESS);
    assert_int_not_equal(cuda.cuStreamSynchronize(stream), CUDA_SUCCESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_update, open_context, close_context),
        cmocka_unit_test_setup_teardown(test_all_are_there, open_context, close_context),
        cmocka_unit_test_setup_teardown(test_wrong_block, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

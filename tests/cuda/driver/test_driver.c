/* The driver's library and its devices: what is listed, and the sentence for each fault. */
#include "proto/driver.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char *library;

static int setup(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_CUDA_LIBRARY", library, 1);
    (void)unsetenv("ADTOPK_TEST_CUDA_FAIL");
    (void)unsetenv("ADTOPK_TEST_CUDA_DEVICES");
    (void)unsetenv("ADTOPK_TEST_CUDA_VERSION");
    return 0;
}

static void assert_refused(enum adtopk_status status, const char *sentence)
{
    struct driver driver;
    struct error err = {.code = ADTOPK_OK};

    assert_int_equal(driver_open(&driver, &err), status);
    assert_non_null(strstr(err.text, sentence));
    assert_null(driver.library);
}

static void test_lists_devices(void **state)
{
    struct driver driver;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_DEVICES", "2", 1);
    (void)setenv("ADTOPK_TEST_CUDA_MEMORY", "123456789", 1);
    assert_int_equal(driver_open(&driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&driver, list, &count, &err), ADTOPK_OK);
    assert_int_equal(count, 2);
    assert_string_equal(list[1].uuid, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a001");
    assert_string_equal(list[1].name, "stand-in 1");
    assert_int_equal(list[0].memory, 123456789);
    assert_int_equal(list[0].major, 9);
    assert_int_equal(list[0].multiprocessors, 4);
    assert_true(list[0].shares && !list[0].instance);
    driver_close(&driver);
    (void)unsetenv("ADTOPK_TEST_CUDA_MEMORY");
}

static void test_names_devices(void **state)
{
    struct driver_device list[6];
    char text[ERROR_TEXT_SIZE];

    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        (void)snprintf(list[i].uuid, sizeof(list[i].uuid), "GPU-%u", i);
    }
    assert_int_equal(driver_index(list, 6, "GPU-4"), 4);
    assert_int_equal(driver_index(list, 4, "GPU-4"), 4);
    driver_names(list, 0, text);
    assert_string_equal(text, "no GPU");
    driver_names(list, 2, text);
    assert_string_equal(text, "GPU-0, GPU-1");
    driver_names(list, 6, text);
    assert_string_equal(text, "GPU-0, GPU-1, GPU-2, GPU-3 and 2 more");
}

static void test_names_an_instance(void **state)
{
    struct driver driver;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_MIG", "1", 1);
    assert_int_equal(driver_open(&driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&driver, list, &count, &err), ADTOPK_OK);
    assert_true(list[0].instance);
    assert_string_equal(list[0].uuid, "MIG-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a000");
    driver_close(&driver);
    (void)unsetenv("ADTOPK_TEST_CUDA_MIG");
}

static void test_no_driver(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_CUDA_LIBRARY", "libcuda-of-nobody.so.1", 1);
    assert_refused(ADTOPK_ERR_ARGUMENT, "this node has no NVIDIA driver: libcuda-of-nobody.so.1");
}

static void test_no_call(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_CUDA_LIBRARY", "libm.so.6", 1);
    assert_refused(ADTOPK_ERR_ARGUMENT, "libm.so.6 has no cuInit");
}

static void test_too_old(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_VERSION", "11080", 1);
    assert_refused(
        ADTOPK_ERR_ARGUMENT, "is for CUDA 11.8, and adtopk needs one for CUDA 12.0 or later");
}

static void test_no_device(void **state)
{
    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_DEVICES", "0", 1);
    assert_refused(ADTOPK_ERR_SYSTEM,
        "cuInit: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE, 100)");
}

static void test_hidden_devices(void **state)
{
    (void)state;
    (void)setenv("CUDA_VISIBLE_DEVICES", "GPU-1234", 1);
    assert_refused(
        ADTOPK_ERR_SYSTEM, "cuInit finds no GPU, and CUDA_VISIBLE_DEVICES is \"GPU-1234\"");
    (void)unsetenv("CUDA_VISIBLE_DEVICES");
}

static enum driver_mps mps_of_first(void)
{
    struct driver driver;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    assert_int_equal(driver_open(&driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&driver, list, &count, &err), ADTOPK_OK);
    driver_close(&driver);
    return list[0].mps;
}

static void test_mps(void **state)
{
    char folder[] = "/tmp/adtopk-mps-XXXXXX", control[sizeof(folder) + sizeof("/control")];

    (void)state;
    assert_non_null(mkdtemp(folder));
    (void)snprintf(control, sizeof(control), "%s/control", folder);
    assert_int_equal(mps_of_first(), DRIVER_MPS_OFF);
    (void)setenv("CUDA_MPS_PIPE_DIRECTORY", folder, 1);
    assert_int_equal(mps_of_first(), DRIVER_MPS_OFF);
    assert_int_equal(close(open(control, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)), 0);
    assert_int_equal(mps_of_first(), DRIVER_MPS_ON);
    (void)unlink(control);
    (void)rmdir(folder);
    (void)unsetenv("CUDA_MPS_PIPE_DIRECTORY");
    (void)setenv("ADTOPK_TEST_CUDA_VERSION", "12000", 1);
    assert_int_equal(mps_of_first(), DRIVER_MPS_UNKNOWN);
}

static void test_call_fails(void **state)
{
    struct driver driver;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    (void)state;
    (void)setenv("ADTOPK_TEST_CUDA_FAIL", "cuDeviceTotalMem_v2:1:4711", 1);
    assert_int_equal(driver_open(&driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&driver, list, &count, &err), ADTOPK_ERR_SYSTEM);
    assert_int_equal(count, 0);
    assert_string_equal(err.text,
        "cuDeviceTotalMem_v2 on GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a000 (stand-in 0): an error "
        "that the driver does not explain (unknown, 4711)");
    driver_close(&driver);
}

/* A GPU that others have: the sentence says what may lie behind it. */
static void test_gpu_of_others(void **state)
{
    static const struct {
        CUresult result;
        const char *hint;
    } cases[] = {
        {46, "or unavailable (CUDA_ERROR_DEVICE_UNAVAILABLE, 46): another process has the GPU"},
        {800, "not permitted (CUDA_ERROR_NOT_PERMITTED, 800): it may be a GPU of another user"},
        {805, "(CUDA_ERROR_MPS_CONNECTION_FAILED, 805): no MPS control daemon of this user"},
        {806, "(CUDA_ERROR_MPS_RPC_FAILURE, 806): the MPS server has ended"},
        {807, "(CUDA_ERROR_MPS_SERVER_NOT_READY, 807): MPS serves one user at a time"},
        {808, "(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, 808): end other processes"}};
    char fail[32];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(fail, sizeof(fail), "cuInit:1:%d", cases[i].result);
        (void)setenv("ADTOPK_TEST_CUDA_FAIL", fail, 1);
        assert_refused(ADTOPK_ERR_SYSTEM, cases[i].hint);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_lists_devices, setup),
        cmocka_unit_test_setup(test_names_devices, setup),
        cmocka_unit_test_setup(test_names_an_instance, setup),
        cmocka_unit_test_setup(test_no_driver, setup),
        cmocka_unit_test_setup(test_no_call, setup),
        cmocka_unit_test_setup(test_too_old, setup),
        cmocka_unit_test_setup(test_no_device, setup),
        cmocka_unit_test_setup(test_hidden_devices, setup),
        cmocka_unit_test_setup(test_mps, setup),
        cmocka_unit_test_setup(test_call_fails, setup),
        cmocka_unit_test_setup(test_gpu_of_others, setup),
    };

    library = strdup(getenv("ADTOPK_CUDA_LIBRARY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}

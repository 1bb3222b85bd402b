/*
 * adtopk-digits with gradients in a GPU's memory. The example is linked with these functions in the
 * place of the client library's, which they call. So the training itself is that of the example.
 *
 * Happy path: the program computes a gradient in host memory. Its push copies that to the device in
 * a stream, to where the library has the gradient, and names the stream.
 *
 * ADTOPK_TEST_DIGITS_DEVICE: the UUID of the GPU. A call of the driver that fails ends the program.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <adtopk/adtopk.h>

#include "proto/driver.h"

#define TENSORS_MAX 16
#define LOOK_MS 1
#define PAGE 4096

enum adtopk_status __real_adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor);
enum adtopk_status __wrap_adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor);
void *__real_adtopk_gradient(adtopk_context *context, uint32_t tensor);
void *__wrap_adtopk_gradient(adtopk_context *context, uint32_t tensor);
enum adtopk_status __wrap_adtopk_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient);
enum adtopk_status __wrap_adtopk_step_wait(adtopk_context *context);

static struct {
    struct driver driver;
    CUstream stream; /* NULL: the driver is not open */
    uint64_t bytes[TENSORS_MAX];
    void *made[TENSORS_MAX]; /* each gradient in host memory */
} digits;

static void digits_try(CUresult result, const char *call)
{
    if (result != CUDA_SUCCESS) {
        (void)fprintf(stderr, "%s: %d\n", call, result);
        exit(EXIT_FAILURE);
    }
}

#define DIGITS_TRY(call, ...) digits_try(digits.driver.call(__VA_ARGS__), #call)

/* The device's primary context is current, as with a framework. */
static void digits_open(const char *uuid)
{
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    CUcontext context;
    unsigned count = 0, at;

    if (driver_open(&digits.driver, &err) != ADTOPK_OK ||
        driver_list(&digits.driver, list, &count, &err) != ADTOPK_OK) {
        (void)fprintf(stderr, "%s\n", err.text);
        exit(EXIT_FAILURE);
    }
    at = driver_index(list, count, uuid);
    if (at == count) {
        (void)fprintf(stderr, "no device %s\n", uuid);
        exit(EXIT_FAILURE);
    }
    DIGITS_TRY(cuDevicePrimaryCtxRetain, &context, list[at].handle);
    DIGITS_TRY(cuCtxSetCurrent, context);
    DIGITS_TRY(cuStreamCreate, &digits.stream, CU_STREAM_NON_BLOCKING);
}

/* Residuals are on the device too, so no rank reads them. */
enum adtopk_status __wrap_adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor)
{
    struct adtopk_tensor_spec there = *spec;
    uint64_t bytes = sizeof(float);
    enum adtopk_status status;

    there.device = getenv("ADTOPK_TEST_DIGITS_DEVICE");
    there.memory = ADTOPK_CUDA;
    if (digits.stream == NULL) {
        digits_open(there.device != NULL ? there.device : "");
    }
    status = __real_adtopk_register(context, &there, tensor);
    for (int d = 0; d < spec->dims; d++) {
        bytes *= spec->shape[d];
    }
    if (status == ADTOPK_OK) {
        digits.bytes[*tensor % TENSORS_MAX] = bytes;
    }
    return status;
}

void *__wrap_adtopk_gradient(adtopk_context *context, uint32_t tensor)
{
    const uint64_t size = (digits.bytes[tensor % TENSORS_MAX] + PAGE - 1) / PAGE * PAGE;
    void **made = &digits.made[tensor % TENSORS_MAX];

    (void)context;
    if (*made == NULL) {
        *made = aligned_alloc(PAGE, size);
        if (*made == NULL) {
            abort();
        }
        (void)memset(*made, 0, size);
        DIGITS_TRY(cuMemHostRegister_v2, *made, size, CU_MEMHOSTREGISTER_DEVICEMAP);
    }
    return *made;
}

enum adtopk_status __wrap_adtopk_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = tensor, .memory = ADTOPK_CUDA, .stream = digits.stream};

    (void)gradient;
    DIGITS_TRY(cuMemcpyHtoDAsync_v2,
        (CUdeviceptr)(uintptr_t)__real_adtopk_gradient(context, tensor),
        digits.made[tensor % TENSORS_MAX], digits.bytes[tensor % TENSORS_MAX], digits.stream);
    return adtopk_push(context, &push);
}

/* Over the library that stands in for the driver nothing happens in a stream before somebody looks.
 */
enum adtopk_status __wrap_adtopk_step_wait(adtopk_context *context)
{
    enum adtopk_status status;

    while ((status = adtopk_step_wait_for(context, LOOK_MS)) == ADTOPK_PENDING) {
        (void)digits.driver.cuStreamQuery(digits.stream);
    }
    return status;
}

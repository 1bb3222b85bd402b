/*
 * The store: a new one, one that is found again, and refusals.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/job/store.h"

#define RUN UINT64_C(0x1122334455667788)
#define DIGEST UINT64_C(0x99aabbccddeeff00)
#define TENSORS 3u
#define ELEMENTS 100u

/* A new store in a block of exactly the size that store_size() asks for. */
static struct store_header *store_new(void)
{
    uint64_t size = store_size(TENSORS, ELEMENTS);
    struct store_header *store = aligned_alloc(4096, (size + 4095) / 4096 * 4096);

    assert_non_null(store);
    memset(store, 0, size);
    assert_int_equal(store_open(store, false, RUN, DIGEST, TENSORS, NULL), ADTOPK_OK);
    return store;
}

static void test_new(void **state)
{
    struct store_header *store = store_new();
    struct error err = {ADTOPK_OK, ""};

    (void)state;
    assert_int_equal(store->magic, STORE_MAGIC);
    assert_int_equal(store->version, STORE_VERSION);
    assert_int_equal(store->run, RUN);
    assert_int_equal(store->digest, DIGEST);
    assert_int_equal(store->tensors, TENSORS);
    assert_int_equal(store->view, 0);
    assert_int_equal(store->steps_done, 0);
    assert_int_equal(store->ops_done, 0);
    assert_int_equal(store->steps_withdrawn[0], 0);
    assert_int_equal(store_open(store, true, RUN, DIGEST, TENSORS, &err), ADTOPK_OK);
    free(store);
}

/* A daemon that restarts in the step still knows that ranks joined with it. */
static void test_grown(void **state)
{
    struct store_header *store = store_new();

    (void)state;
    store->ops_done = 7;
    store->views.grown[1] = 1;
    assert_int_equal(store_grown(store), 0);
    store_count_step(store, false, false);
    assert_int_equal(store_grown(store), 8);
    store_count_step(store, false, false);
    assert_int_equal(store_grown(store), 0);
    free(store);
}

static void test_layout(void **state)
{
    struct store_header *store = store_new();
    float *slots = store_slots(store);

    (void)state;
    /* The slots lie behind the records, aligned for the kernels, and the last element ends with the
     * last byte. */
    assert_true((void *)slots >= (void *)&store->tensor[TENSORS]);
    assert_int_equal((uintptr_t)slots % 64, 0);
    assert_ptr_equal(slots + ELEMENTS, (uint8_t *)store + store_size(TENSORS, ELEMENTS));
    assert_int_equal(store_size(TENSORS, ELEMENTS + 1), store_size(TENSORS, ELEMENTS) + 4);
    for (uint32_t tensors = 0; tensors < 200; tensors++) {
        uint64_t size = store_size(tensors, 0);
        assert_int_equal(size % 64, 0);
        assert_true(size >= sizeof(*store) + tensors * sizeof(store->tensor[0]));
        assert_true(size < sizeof(*store) + tensors * sizeof(store->tensor[0]) + 64);
    }
    /* The largest possible job: nothing overflows. */
    assert_true(store_size(65536, UINT64_C(1) << 56) > UINT64_C(1) << 58);
    free(store);
}

static void test_found_again(void **state)
{
    struct store_header *store = store_new();

    (void)state;
    store->steps_done = 17;
    store->view = 4;
    store->tensor[2].step = 17;
    store->tensor[2].stage = STAGE_DELIVERED;
    store_slots(store)[ELEMENTS - 1] = 2.5f;
    assert_int_equal(store_open(store, true, RUN, DIGEST, TENSORS, NULL), ADTOPK_OK);
    assert_int_equal(store->steps_done, 17);
    assert_int_equal(store->view, 4);
    assert_int_equal(store->tensor[2].step, 17);
    assert_int_equal(store->tensor[2].stage, STAGE_DELIVERED);
    assert_true(store_slots(store)[ELEMENTS - 1] > 2.4f);
    free(store);
}

static void assert_store(struct store_header *store, enum adtopk_status want, uint64_t job,
    uint64_t digest, uint32_t tensors)
{
    struct store_header before = *store;
    struct error err = {ADTOPK_OK, ""};

    assert_int_equal(store_open(store, true, job, digest, tensors, &err), want);
    assert_int_equal(err.code, want);
    assert_true(want == ADTOPK_OK || err.text[0] != '\0');
    assert_memory_equal(store, &before, sizeof(before));
}

static void test_refused(void **state)
{
    struct store_header *store = store_new();

    (void)state;
    assert_store(store, ADTOPK_OK, RUN, DIGEST, TENSORS);
    assert_store(store, ADTOPK_ERR_LOST, RUN + 1, DIGEST, TENSORS);
    assert_store(store, ADTOPK_ERR_MISMATCH, RUN, DIGEST + 1, TENSORS);
    assert_store(store, ADTOPK_ERR_MISMATCH, RUN, DIGEST, TENSORS + 1);
    assert_store(store, ADTOPK_ERR_MISMATCH, RUN, DIGEST, TENSORS - 1);
    store->version = STORE_VERSION + 1;
    assert_store(store, ADTOPK_ERR_LOST, RUN, DIGEST, TENSORS);
    store->version = STORE_VERSION;
    store->magic ^= 1;
    assert_store(store, ADTOPK_ERR_LOST, RUN, DIGEST, TENSORS);
    store->magic = 0; /* memory that was never written */
    assert_store(store, ADTOPK_ERR_LOST, RUN, DIGEST, TENSORS);
    free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_new),
        cmocka_unit_test(test_grown),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_found_again),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

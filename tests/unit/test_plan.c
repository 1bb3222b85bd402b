/*
 * The plan of a job, seen through a core with one rank: which tensors are sent dense, and their
 * buckets.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/core/core.h"
#include "daemon/core/inspect.h"
#include "tests/host/host.h"
#include "tests/host/inside.h"

#define SESSION 1
#define TENSORS_MAX 40

struct scene {
    struct host host;
    uint64_t job;
    bool ready;
};

static void note(void *context, const struct action *action)
{
    struct scene *scene = context;

    assert_int_not_equal(action->type, ACTION_FAILED);
    scene->ready = scene->ready || action->type == ACTION_READY;
}

static void send(struct scene *scene, struct event event)
{
    event.session = SESSION;
    if (host_event(&scene->host, event) != ADTOPK_OK) {
        fail_msg("event %d: %s", (int)event.type, scene->host.refused.text);
    }
}

/* A core whose only rank has registered the tensors and is ready. */
static void scene_init(
    struct scene *scene, const char *policy, const struct tensor_spec *spec, unsigned tensors)
{
    struct event open = {.type = EVENT_RANK_OPEN,
        .open = {.key = {.name = "job", .run_id = "1"}, .world_size = 1, .policy = policy}};

    *scene = (struct scene){
        .host = {.config = {.node = 3}, .now_us = 1, .note = note, .context = scene}};
    host_start(&scene->host);
    send(scene, open);
    scene->job = core_session_job(scene->host.core, SESSION);
    for (unsigned t = 0; t < tensors; t++) {
        send(scene, (struct event){.type = EVENT_RANK_REGISTER, .spec = &spec[t]});
    }
    send(scene, (struct event){.type = EVENT_RANK_COMMIT});
    send(scene, (struct event){.type = EVENT_RANK_MAPPED});
    assert_true(scene->ready);
}

static struct tensor_info tensor_of(const struct scene *scene, uint32_t tensor)
{
    struct tensor_info info;

    assert_true(core_tensor_info(scene->host.core, scene->job, tensor, &info));
    return info;
}

static struct job_info job_of(const struct scene *scene)
{
    struct job_info info;

    assert_int_equal(core_job_count(scene->host.core), 1);
    assert_true(core_job_info(scene->host.core, 0, &info));
    assert_int_equal(info.id, scene->job);
    return info;
}

static struct tensor_spec spec_of(const char *name, unsigned dims, const uint64_t *size)
{
    struct tensor_spec spec = {.forms = 3, .shape = {.dims = dims}};

    (void)snprintf(spec.name, sizeof(spec.name), "%s", name);
    memcpy(spec.shape.size, size, dims * sizeof(*size));
    return spec;
}

/* A tensor alone under a policy: entries per turn, or 0 if it is sent dense. */
struct alone {
    const char *policy;
    unsigned dims;
    uint64_t size[4];
    uint64_t count;
};

static const struct alone choices[] = {
    /* A tensor of one dimension is never sparse. */
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01}", 1, {100}, 0},
    {"{\"density\":1e-6}", 1, {100000}, 0},
    {"{\"sparsifier\":\"topk\",\"density\":0.01}", 1, {100000}, 0},
    /* 64 fibres of 200, 2 entries each. The whole tensor on odd turns: 128 entries as well. */
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01}", 2, {64, 200}, 128},
    /* 300 fibres of 30, at least one each; odd turns take only 90. */
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01}", 2, {300, 30}, 300},
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"interleave\":false}", 2, {300, 30}, 300},
    {"{\"sparsifier\":\"topk\",\"density\":0.01}", 2, {300, 30}, 90},
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"fibres\":\"longest\"}", 2, {300, 30}, 90},
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"scope\":\"rank\"}", 2, {300, 30}, 300},
    /* 8 kernels of 3 x 3 over 1 channel. Fibres of one element select all 72 of them. With f32
     * values the list costs at least 4 * 72 bytes, as much as the dense form. With bf16 it costs 2
     * * 72. */
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"values\":\"f32\"}", 4, {8, 1, 3, 3}, 0},
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"values\":\"bf16\",\"dense_values\":\"bf16\"}",
        4, {8, 1, 3, 3}, 0},
    {"{\"sparsifier\":\"adtopk\",\"density\":0.01,\"values\":\"bf16\",\"dense_values\":\"f32\"}", 4,
        {8, 1, 3, 3}, 72},
    {"{\"density\":0.01,\"values\":\"f32\",\"sparsifier\":\"topk\"}", 4, {8, 1, 3, 3}, 1},
    /* The default: as many two-valued entries as take the bytes of 1% in bf16. */
    {"{}", 2, {300, 30}, 244},
    {"{\"values\":\"bf16\"}", 2, {300, 30}, 90},
    /* The policy asks for everything, or for nothing. */
    {"{\"density\":1,\"values\":\"f32\"}", 2, {64, 200}, 0},
    {"{\"density\":1,\"values\":\"bf16\"}", 2, {64, 200}, 12800},
    {"{\"sparsifier\":\"dense\"}", 2, {64, 200}, 0},
};

static void test_dense_or_sparse(void **state)
{
    (void)state;
    for (unsigned c = 0; c < sizeof(choices) / sizeof(choices[0]); c++) {
        struct tensor_spec spec = spec_of("t", choices[c].dims, choices[c].size);
        struct scene scene;
        struct tensor_info info;
        bool dense = choices[c].count == 0;
        scene_init(&scene, choices[c].policy, &spec, 1);
        info = tensor_of(&scene, 0);
        if ((strcmp(info.collective, "allreduce") == 0) != dense ||
            (!dense && info.count != choices[c].count)) {
            fail_msg(
                "choice %u: %s, %llu entries", c, info.collective, (unsigned long long)info.count);
        }
        assert_int_equal(strcmp(info.sparsifier, "dense") == 0, dense);
        assert_int_equal(info.count, choices[c].count);
        assert_int_equal(info.numel, tensor_numel(&spec.shape));
        assert_int_equal(info.bucket, 0);
        assert_int_equal(job_of(&scene).buckets, 1);
        assert_false(core_tensor_info(scene.host.core, scene.job, 1, &info));
        assert_false(core_tensor_info(scene.host.core, scene.job + 1, 0, &info));
        host_stop(&scene.host);
    }
}

/* Positions that all nodes know are not sent. A collective for dense tensors sums the values. */
static void test_known_positions(void **state)
{
    static const char policy[] = "{\"sparsifier\":\"randomk\",\"density\":0.02,"
                                 "\"sparse_collective\":\"oktopk\",\"dense_collective\":\"ring\"}";
    const struct tensor_spec spec[] = {
        spec_of("known", 2, (const uint64_t[]){64, 200}), spec_of("few", 1, (const uint64_t[]){9})};
    struct tensor_info info;
    struct scene scene;

    (void)state;
    scene_init(&scene, policy, spec, 2);
    info = tensor_of(&scene, 0);
    assert_string_equal(info.sparsifier, "randomk");
    assert_string_equal(info.collective, "ring");
    assert_int_equal(info.count, 256);
    host_stop(&scene.host);
}

static void test_counts(void **state)
{
    const struct tensor_spec spec[] = {
        spec_of("a", 2, (const uint64_t[]){10, 100}),
        spec_of("b", 1, (const uint64_t[]){10}),
        spec_of("c", 3, (const uint64_t[]){5, 40, 2}),
    };
    struct scene scene;
    struct job_info info;

    (void)state;
    scene_init(&scene, "{}", spec, 3);
    info = job_of(&scene);
    assert_int_equal(info.tensors, 3);
    assert_int_equal(info.elements, 1000 + 10 + 400);
    assert_int_equal(info.dense_bytes, 0); /* no step yet */
    assert_int_equal(info.world_size, 1);
    assert_int_equal(info.local_ranks, 1);
    assert_int_equal(info.nodes, 1);
    assert_int_equal(info.buckets, 2); /* one of each kind */
    assert_int_equal(tensor_of(&scene, 0).bucket, 0);
    assert_int_equal(tensor_of(&scene, 1).bucket, 1);
    assert_int_equal(tensor_of(&scene, 2).bucket, 0);
    host_stop(&scene.host);
}

/* Every bucket has one kind of tensors, in order of registration. It is filled as long as the next
 * one fits. */
static void check_buckets(const struct scene *scene, unsigned tensors, uint64_t bucket_bytes)
{
    uint32_t buckets = job_of(scene).buckets, next = 0;

    for (int dense = 0; dense < 2; dense++) {
        uint64_t bytes = 0;
        bool begun = false;
        for (uint32_t t = 0; t < tensors; t++) {
            struct tensor_info info = tensor_of(scene, t);
            uint64_t size = 4 * info.numel;
            if ((strcmp(info.sparsifier, "dense") == 0) != (dense == 1)) {
                continue;
            }
            if (!begun || info.bucket == next) { /* this one begins a bucket */
                assert_true(!begun || bytes + size > bucket_bytes);
                assert_int_equal(info.bucket, next);
                next++;
                bytes = size;
            } else {
                assert_int_equal(info.bucket, next - 1);
                bytes += size;
                assert_true(bytes <= bucket_bytes);
            }
            begun = true;
        }
    }
    assert_int_equal(next, buckets);
}

static void test_buckets(void **state)
{
    static const uint64_t limits[] = {1, 399, 400, 1000, 4096, 20000, 1u << 20};
    uint64_t random = 362436069;

    (void)state;
    for (unsigned run = 0; run < 70; run++) {
        struct tensor_spec spec[TENSORS_MAX];
        struct scene scene;
        unsigned tensors = 1 + run * 7 % TENSORS_MAX;
        uint64_t limit = limits[run % 7];
        char policy[64], name[16];
        for (unsigned t = 0; t < tensors; t++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            (void)snprintf(name, sizeof(name), "t%u", t);
            spec[t] = spec_of(name, 1 + (random >> 40) % 2,
                (const uint64_t[]){1 + (random >> 33) % 50, 1 + (random >> 50) % 50});
        }
        (void)snprintf(
            policy, sizeof(policy), "{\"bucket_bytes\":%llu}", (unsigned long long)limit);
        scene_init(&scene, policy, spec, tensors);
        check_buckets(&scene, tensors, limit);
        if (limit == 1) {
            assert_int_equal(job_of(&scene).buckets, tensors);
        }
        host_stop(&scene.host);
    }
}

/* Gradients and updates of different tensors lie apart, inside their arenas. */
static void test_layout(void **state)
{
    struct tensor_spec spec[] = {
        spec_of("a", 2, (const uint64_t[]){10, 101}),
        spec_of("b", 1, (const uint64_t[]){7}),
        spec_of("c", 2, (const uint64_t[]){3, 50}),
    };
    struct scene scene;
    struct tensor_layout before = {.gradient_offset = 0};
    uint64_t op_gradient, op_result;

    (void)state;
    spec[1].dtype = DTYPE_BF16;
    scene_init(&scene, "{}", spec, 3);
    assert_true(inside_op_layout(scene.host.core, SESSION, &op_gradient, &op_result));
    for (uint32_t t = 0; t < 3; t++) {
        struct tensor_layout layout;
        assert_true(inside_layout(scene.host.core, SESSION, t, &layout));
        assert_int_equal(layout.gradient_offset % 64, 0);
        assert_int_equal(layout.update_offset % 64, 0);
        assert_true(t == 0 || layout.gradient_offset > before.gradient_offset);
        assert_true(t == 0 || layout.update_offset > before.update_offset);
        assert_true(layout.gradient_offset >= op_gradient + CORE_OP_SIZE);
        assert_true(layout.update_offset >= op_result + CORE_OP_SIZE);
        before = layout;
    }
    assert_false(inside_layout(scene.host.core, SESSION, 3, &before));
    assert_false(inside_layout(scene.host.core, SESSION + 1, 0, &before));
    host_stop(&scene.host);
}

/* Tensors of one bucket are sent in the same way, whatever rules apply to them. Each is in one
 * bucket. */
static void test_buckets_of_mixed_policies(void **state)
{
    static const char policy[] =
        "{\"bucket_bytes\":9000,\"density\":0.05,\"rules\":["
        "{\"match\":\"?a*\",\"values\":\"f32\"},{\"match\":\"?b*\",\"sparsifier\":\"dense\"},"
        "{\"match\":\"?c*\",\"indices\":\"raw\",\"density\":0.02},"
        "{\"match\":\"*d\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}]}";
    struct tensor_spec spec[TENSORS_MAX];
    struct tensor_info info[TENSORS_MAX];
    struct scene scene;
    char name[16];

    (void)state;
    for (unsigned t = 0; t < TENSORS_MAX; t++) {
        (void)snprintf(name, sizeof(name), "t%c%u%s", 'a' + t % 4, t, t % 5 == 0 ? "d" : "");
        spec[t] = spec_of(name, 2, (const uint64_t[]){20, 40});
    }
    scene_init(&scene, policy, spec, TENSORS_MAX);
    for (unsigned t = 0; t < TENSORS_MAX; t++) {
        unsigned alike = 0, bucket = 0;
        info[t] = tensor_of(&scene, t);
        assert_true(info[t].bucket < job_of(&scene).buckets);
        assert_int_equal(strcmp(info[t].sparsifier, "dense") == 0, t % 4 == 1 || t % 5 == 0);
        for (unsigned other = 0; other < t; other++) {
            bool same = strcmp(info[t].collective, info[other].collective) == 0 &&
                        strcmp(info[t].values, info[other].values) == 0 &&
                        strcmp(info[t].indices, info[other].indices) == 0;
            alike += same ? 1 : 0;
            bucket += info[other].bucket == info[t].bucket ? 1 : 0;
            assert_true(same || info[other].bucket != info[t].bucket);
            assert_true(!same || info[other].bucket <= info[t].bucket); /* in their order */
        }
        assert_true(bucket <= 1); /* two of 3200 bytes fit, three do not */
        assert_int_equal(bucket, alike % 2);
    }
    host_stop(&scene.host);
}

/* Gradients and updates lie at the same places under every policy: a change moves nothing. */
static void test_layout_of_ten_policies(void **state)
{
    static const char *const policies[] = {"{}", "{\"sparsifier\":\"dense\"}",
        "{\"sparsifier\":\"topk\"}", "{\"density\":1}", "{\"density\":0.6}", "{\"density\":1e-6}",
        "{\"scope\":\"rank\"}", "{\"values\":\"f32\"}", "{\"bucket_bytes\":1}",
        "{\"rules\":[{\"match\":\"a\",\"sparsifier\":\"dense\"}]}"};
    const uint64_t size[] = {30, 70};
    struct tensor_spec spec[] = {
        spec_of("a", 2, size), spec_of("b", 1, size), spec_of("c", 2, size), spec_of("d", 2, size)};
    struct tensor_layout first[4], layout;
    uint64_t place[2], first_place[2];

    (void)state;
    spec[2].forms = 1; /* list only */
    spec[3].forms = 2; /* dense only */
    for (unsigned p = 0; p < 10; p++) {
        struct scene scene;
        scene_init(&scene, policies[p], spec, 4);
        assert_true(inside_op_layout(scene.host.core, SESSION, &place[0], &place[1]));
        for (uint32_t t = 0; t < 4; t++) {
            assert_true(inside_layout(scene.host.core, SESSION, t, &layout));
            first[t] = p == 0 ? layout : first[t];
            assert_int_equal(layout.gradient_offset, first[t].gradient_offset);
            assert_int_equal(layout.update_offset, first[t].update_offset);
        }
        if (p == 0) {
            memcpy(first_place, place, sizeof(place));
        }
        assert_memory_equal(place, first_place, sizeof(place));
        host_stop(&scene.host);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense_or_sparse),
        cmocka_unit_test(test_known_positions),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_buckets_of_mixed_policies),
        cmocka_unit_test(test_layout_of_ten_policies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

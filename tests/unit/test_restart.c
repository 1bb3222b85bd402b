/*
 * A restarted daemon and the memory that it finds. It may be memory that was new and not filled in
 * when the daemon was killed, a store of a job with another policy, residuals that were being
 * joined, or a store of another release.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "daemon/compute/work_round.h"
#include "daemon/job/store.h"
#include "kernels/cpu/plain.h"
#include "lone_core.h"
#include "tests/host/inside.h"

#define POLICY "{" LONE_EXACT "}"

static void goes_on(struct lone_core *lone)
{
    lone_restart(lone);
    assert_int_equal(lone->failed, 0);
    lone_train(lone, 3);
    lone_check(lone);
    lone_free(lone);
}

static void test_results_without_their_table(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.results.bytes, 0, lone.host.memory.results.size);
    goes_on(&lone);
}

/* The table shows the last update, for which others may ask. */
static void test_table_in_part(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.results.bytes, 0, lone.host.memory.results.size / 3);
    goes_on(&lone);
}

static void test_empty_store(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    memset(lone.host.memory.store[STORE_MAIN].bytes, 0, lone.host.memory.store[STORE_MAIN].size);
    goes_on(&lone);
}

static void test_other_policy(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, POLICY);
    lone_train(&lone, 2);
    lone.host.config.policy = "{" LONE_EXACT ",\"scope\":\"rank\"}";
    lone_restart(&lone);
    assert_int_equal(lone.failed, lone.ranks);
    assert_int_equal(lone.failure.code, ADTOPK_ERR_MISMATCH);
    assert_non_null(strstr(lone.failure.text, "another policy"));
    lone_free(&lone);
}

/* The record of a tensor's update, as ranks see it. */
static struct local_update *update_of(struct lone_core *lone, unsigned tensor)
{
    uint8_t *bytes = lone->host.memory.results.bytes;
    const struct local_results *table = (const void *)bytes;

    return (void *)(bytes + table->tensor[tensor].update_offset);
}

static void refuses_damage(struct lone_core *lone, const char *words)
{
    lone_restart(lone);
    assert_int_equal(lone->failed, lone->ranks);
    assert_int_equal(lone->failure.code, ADTOPK_ERR_LOST);
    assert_non_null(strstr(lone->failure.text, words));
    lone_free(lone);
}

/* A process that begins a run does not take part in the one to which another rank returns: it would
 * push gradients of other parameters. */
static void test_some_begin_anew(void **state)
{
    (void)state;
    for (unsigned first = 0; first < 2; first++) {
        struct lone_core lone;
        struct event open = {.type = EVENT_RANK_OPEN};

        lone_begin(&lone, POLICY);
        lone_train(&lone, 2);
        host_kill(&lone.host);
        host_start(&lone.host);
        open.open.key = (struct job_key){.owner = 1000, .name = "lone", .run_id = "1"};
        open.open.world_size = lone.ranks;
        open.open.returns = true;
        open.open.run = first == 0 ? lone.run : 0;
        assert_int_equal(lone_rank_event(&lone, 0, open), ADTOPK_OK);
        open.open.rank = 1;
        open.open.run = first == 0 ? 0 : lone.run;
        assert_int_equal(lone_rank_event(&lone, 1, open), ADTOPK_ERR_MISMATCH);
        assert_non_null(strstr(lone.host.refused.text, "another run than the ranks before it"));
        lone_free(&lone);
    }
}

/* Memory has changed since a daemon wrote an update there: its list has more entries than room, or
 * one beyond its tensor. */
static void test_damaged_lists(void **state)
{
    struct lone_core lone;
    struct local_update *update;

    (void)state;
    for (unsigned place = 0; place < 2; place++) {
        lone_begin(&lone, POLICY);
        lone_train(&lone, 2);
        update = update_of(&lone, 0);
        assert_true((update->forms & LOCAL_FORM_LIST) != 0 && update->count > 0);
        if (place == 0) {
            update->count = UINT64_MAX;
        } else {
            uint32_t *index = (void *)(lone.host.memory.results.bytes + update->index_offset);
            index[update->count - 1] = (uint32_t)update->numel;
        }
        refuses_damage(&lone, "is damaged: a list in it names elements");
    }
}

/* The nodes of a view are more than there can be, or do not ascend. */
static void test_damaged_views(void **state)
{
    struct lone_core lone;
    struct views *views;

    (void)state;
    for (unsigned place = 0; place < 4; place++) {
        lone_begin(&lone, POLICY);
        lone_train(&lone, 2);
        views = &((struct store_header *)(void *)lone.host.memory.store[STORE_MAIN].bytes)->views;
        assert_int_equal(views_known(views)->nodes, 1);
        if (place < 2) {
            views->known[(views->changes + place) % 2].nodes = CORE_MAX_NODES + 1;
        } else if (place == 2) {
            views->known[views->changes % 2].nodes = 2; /* the second one is 0 as well */
        } else {
            views->promised[1] = (struct promised_view){.view = 7, .nodes = UINT32_MAX};
        }
        refuses_damage(&lone, "is damaged: a view in it has nodes");
    }
}

/* The node takes part from a step that is far away. Steps would pass by without ranks until then.
 */
static void test_damaged_since(void **state)
{
    struct lone_core lone;
    struct views *views;

    (void)state;
    lone_begin(&lone, POLICY);
    lone_train(&lone, 2);
    views = &((struct store_header *)(void *)lone.host.memory.store[STORE_MAIN].bytes)->views;
    views->known[views->changes % 2].since[0] = UINT64_C(1) << 24;
    refuses_damage(&lone, "is damaged: by a view in it");
}

/* Any bit has changed in the words that say what the store is. A daemon knows from itself or the
 * ranks what each must be. */
static void test_damaged_identity(void **state)
{
    static const struct {
        size_t at, size;
    } words[] = {
        {offsetof(struct store_header, magic), sizeof(uint64_t)},
        {offsetof(struct store_header, version), sizeof(uint32_t)},
        {offsetof(struct store_header, run), sizeof(uint64_t)},
        {offsetof(struct store_header, digest), sizeof(uint64_t)},
        {offsetof(struct store_header, tensors), sizeof(uint32_t)},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        for (unsigned bit = 0; bit < 8 * words[i].size; bit++) {
            struct lone_core lone;

            lone_begin(&lone, POLICY);
            lone_train(&lone, 1);
            lone.host.memory.store[STORE_MAIN].bytes[words[i].at + bit / 8] ^=
                (uint8_t)(1u << bit % 8);
            lone_restart(&lone);
            assert_int_equal(lone.failed, lone.ranks);
            assert_true(
                lone.failure.code == ADTOPK_ERR_LOST || lone.failure.code == ADTOPK_ERR_MISMATCH);
            lone_free(&lone);
        }
    }
}

/* The policy's text has changed: no rank wrote what its parser says of it. */
static void test_damaged_policy(void **state)
{
    struct lone_core lone;
    struct store_header *store;

    (void)state;
    lone_begin(&lone, POLICY);
    lone_must_change(&lone, "{\"density\":0.1}");
    store = (void *)lone.host.memory.store[STORE_MAIN].bytes;
    assert_int_equal(store->policies, 1);
    store->policy[1].text[2] ^= 1;
    refuses_damage(&lone, "is damaged: its policy cannot be read: ");
}

/* A daemon is killed while it forms a sum. Its parts may be in the place of the last list. */
static void test_list_that_is_replaced(void **state)
{
    struct lone_core lone;
    const struct local_update *update;

    (void)state;
    lone_begin(&lone, POLICY);
    lone_train(&lone, 2);
    lone.host.hold = true;
    lone_push_all(&lone);
    lone_compute_until(&lone, &work_reduce);
    update = update_of(&lone, 0);
    assert_true((update->forms & LOCAL_FORM_LIST) != 0 && update->count > 0);
    memset(lone.host.memory.results.bytes + update->index_offset, 0xff, sizeof(uint32_t));
    lone.host.hold = false;
    goes_on(&lone);
}

/* The daemon completes the joining of ranks' residuals. It touches no other tensor, here one that
 * is sent whole and has no residual. */
static void test_joining(void **state)
{
    struct lone_core lone;
    const struct store_header *store;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\",\"rules\":[{\"match\":\"conv*\","
                      "\"sparsifier\":\"dense\",\"scope\":\"node\"}]}");
    lone_train(&lone, 2);
    ((struct store_header *)(void *)lone.host.memory.store[STORE_MAIN].bytes)->joining = 1;
    lone_restart(&lone);
    assert_int_equal(lone.failed, 0);
    store = (const void *)lone.host.memory.store[STORE_MAIN].bytes;
    assert_int_equal(store->joining, 0);
    assert_int_equal(store->tensor[0].filled, 1);
    assert_int_equal(store->tensor[2].filled, 0);
    lone_train(&lone, 3);
    lone_check(&lone);
    lone_free(&lone);
}

/* ------------------------------------------------------------------ stores of other releases */

#define STORED_STEPS 6u /* that were done; in the next one the first tensor was pushed */
#define STORED_BLOCK 64u

/* A block of a part that is not all zero, in a file of tests/data. */
struct stored_block {
    uint32_t part, shown;
    uint64_t size; /* of the part */
    uint64_t offset;
    uint8_t bytes[STORED_BLOCK];
};

/* Leaves a store in the middle of a step, after a change of the policy. */
static void stored_train(struct lone_core *lone)
{
    lone_begin(lone, POLICY);
    lone_train(lone, 3);
    lone_must_change(lone, "{\"density\":0.1}");
    assert_int_equal(lone->step, STORED_STEPS);
    for (unsigned r = 0; r < lone->ranks; r++) {
        lone_must(lone, lone_push(lone, r, 0));
    }
}

static void stored_write_part(unsigned part, const struct host_area *area, FILE *file)
{
    static const uint8_t zeros[STORED_BLOCK];
    struct stored_block block = {.part = part, .shown = area->shown, .size = area->size};

    for (; area->bytes != NULL && block.offset < area->size; block.offset += STORED_BLOCK) {
        const uint64_t left = area->size - block.offset;

        memset(block.bytes, 0, STORED_BLOCK);
        memcpy(block.bytes, area->bytes + block.offset, left < STORED_BLOCK ? left : STORED_BLOCK);
        if (memcmp(block.bytes, zeros, STORED_BLOCK) != 0) {
            assert_int_equal(fwrite(&block, sizeof block, 1, file), 1);
        }
    }
}

/* Writes the file of tests/data of a new version. */
static void stored_write(const char *path)
{
    struct lone_core lone;
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    stored_train(&lone);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        stored_write_part(part, &lone.host.memory.store[part], file);
    }
    assert_int_equal(fclose(file), 0);
    lone_free(&lone);
}

static void stored_put(struct host_memory *memory, const struct stored_block *block)
{
    struct host_area *area = &memory->store[block->part];
    const uint64_t left = block->size - block->offset;

    if (area->bytes == NULL) {
        *area = (struct host_area){.size = block->size, .old = true, .shown = block->shown != 0};
        area->bytes =
            mmap(NULL, area->size + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true((void *)area->bytes != MAP_FAILED);
    }
    assert_int_equal(area->size, block->size);
    memcpy(area->bytes + block->offset, block->bytes, left < STORED_BLOCK ? left : STORED_BLOCK);
}

/* Puts the stored parts in the place of this daemon's, of which nothing is left. */
static void stored_read(const char *path, struct host_memory *memory)
{
    struct stored_block block;
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    memset(memory->results.bytes, 0, memory->results.size);
    for (unsigned part = 0; part < CORE_STORE_PARTS; part++) {
        if (memory->store[part].bytes != NULL) {
            memset(memory->store[part].bytes, 0, memory->store[part].size);
        }
    }
    while (fread(&block, sizeof block, 1, file) == 1) {
        stored_put(memory, &block);
    }
    (void)fclose(file);
}

/* The ledger has all gradients of these steps once, also those that another release added. */
static void stored_check_input(const struct lone_core *lone, uint64_t steps)
{
    for (uint32_t t = 0; t < lone->tensors; t++) {
        double input[2], applied[2], lost[2], wanted[2] = {0, 0};
        float sum[16 * 40];

        for (uint64_t i = 0; i < lone->numel[t]; i++) {
            sum[i] = 0;
            for (uint64_t step = 0; step < steps; step++) {
                sum[i] += lone_gradient(step, 0, t, i) + lone_gradient(step, 1, t, i);
            }
        }
        ledger_sums(sum, lone->numel[t], wanted);
        assert_true(inside_ledger(lone->host.core, lone->job, t, input, applied, lost));
        assert_memory_equal(input, wanted, sizeof wanted);
    }
}

/* A store that an earlier release left. The ranks return to it, and every gradient counts once. */
static void stored_goes_on(const char *path)
{
    struct lone_core lone;
    const struct store_header *store;

    lone_begin(&lone, POLICY);
    stored_read(path, &lone.host.memory);
    store = (const void *)lone.host.memory.store[STORE_MAIN].bytes;
    lone.run = store->run;
    lone.step = STORED_STEPS;
    lone.changed = true; /* what was applied before, the test knows from the ledger only */
    lone_restart(&lone);
    if (lone.failed > 0) {
        fail_msg("%s: %s", path, lone.failure.text);
    }
    assert_int_equal(lone_job(&lone).policy.version, 1);
    lone_train(&lone, 3);
    stored_check_input(&lone, STORED_STEPS + 3);
    lone_check(&lone);
    lone_free(&lone);
}

/* A new version needs a file of its own: see tests/data/README.md. */
static void test_stored(void **state)
{
    char path[sizeof TEST_DATA + 32];

    (void)state;
    (void)snprintf(path, sizeof path, TEST_DATA "/store-%u", STORE_VERSION);
    stored_goes_on(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_without_their_table),
        cmocka_unit_test(test_table_in_part),
        cmocka_unit_test(test_empty_store),
        cmocka_unit_test(test_other_policy),
        cmocka_unit_test(test_some_begin_anew),
        cmocka_unit_test(test_damaged_lists),
        cmocka_unit_test(test_damaged_views),
        cmocka_unit_test(test_damaged_since),
        cmocka_unit_test(test_damaged_identity),
        cmocka_unit_test(test_damaged_policy),
        cmocka_unit_test(test_list_that_is_replaced),
        cmocka_unit_test(test_joining),
        cmocka_unit_test(test_stored),
    };

    if (argc == 2) {
        stored_write(argv[1]);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}

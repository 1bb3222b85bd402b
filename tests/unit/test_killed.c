/*
 * The daemon is killed while it adds gradients, forms a sum, settles and counts a step, joins the
 * residuals of ranks to the node's, or puts another policy in force.
 *
 * A child does this instruction by instruction. It is stopped after every so many instructions, and
 * after each that changed the header or a tensor's record in the store. Then a daemon starts anew
 * from a copy of its memory. That daemon must lose nothing and do nothing twice.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/compute/copy.h"
#include "daemon/compute/settle.h"
#include "daemon/compute/work_job.h"
#include "daemon/compute/work_round.h"
#include "daemon/job/job_index.h"
#include "daemon/job/job_state.h"
#include "daemon/job/model.h"
#include "daemon/link/buffer.h"
#include "lone_core.h"
#include "tests/host/inside.h"
#include "tests/host/sanitized.h"

/* The sums that the ledgers take in if the daemon is not killed. */
struct reference {
    bool known;
    double input[LONE_TENSORS][2], lost[LONE_TENSORS][2];
};

/* The compute or event that is traced, and the recovery after it is killed. */
struct scene {
    void (*traced)(struct lone_core *lone);
    void (*recover)(struct lone_core *lone, struct reference *reference);
    uint64_t interval;
};

/* Runs in a child: stops itself. */
static void let_trace(void)
{
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0) {
        _exit(1);
    }
    (void)raise(SIGSTOP);
}

/* Runs in a child: runs the only compute that is held. */
static void trace_compute(struct lone_core *lone)
{
    let_trace();
    lone->host.held[0]->run(lone->host.held[0]);
    _exit(0);
}

/* Runs in a child: reports that compute as done, so the core's thread goes on. */
static void trace_event(struct lone_core *lone)
{
    struct event done = {
        .type = EVENT_COMPUTE_DONE, .compute = lone->host.held[0], .now_us = ++lone->host.now_us};

    let_trace();
    (void)core_event(lone->host.core, &done, NULL);
    _exit(0);
}

/* The ledgers must take in the same sums wherever the daemon was killed. A velocity, too, moves
 * once per step. */
static void check_reference(const struct lone_core *lone, struct reference *reference)
{
    for (unsigned t = 0; t < lone->tensors; t++) {
        struct tensor_info info = lone_tensor(lone, t);
        if (!reference->known) {
            memcpy(reference->input[t], info.input, sizeof(info.input));
            memcpy(reference->lost[t], info.lost, sizeof(info.lost));
        }
        assert_memory_equal(reference->lost[t], info.lost, sizeof(info.lost));
        assert_memory_equal(reference->input[t], info.input, sizeof(info.input));
    }
    reference->known = true;
}

/* Runs in a child: a new daemon takes over, and the ranks repeat the step and train on. A failed
 * assertion prints its line and ends the process with an error, as in every test. */
static void recover(struct lone_core *lone, struct reference *reference)
{
    host_memory_unshare(&lone->host.memory);
    lone->host.hold = false;
    lone_restart(lone);
    if (lone_job(lone).steps_done > lone->step) {
        assert_int_equal(lone->ready_status, ADTOPK_OK);
        lone->steps = lone->ranks; /* the step counts, although no rank was told */
        lone_close(lone);
    } else {
        lone_train(lone, 1);
    }
    lone_train(lone, 2);
    assert_int_equal(lone_job(lone).steps_withdrawn, 0);
    lone_check(lone);
    check_reference(lone, reference);
    _exit(0);
}

/* All ranks push, one of them a NaN. The computes wait. */
static void push_nan(struct lone_core *lone)
{
    struct tensor_layout layout;
    float nan = NAN;

    lone->host.hold = true;
    lone_push_all(lone);
    assert_true(inside_layout(lone->host.core, 1, 0, &layout));
    memcpy(lone->host.memory.arena[0].bytes + layout.gradient_offset, &nan, sizeof(nan));
}

/* Does the same after a step that is to be withdrawn. */
static void recover_withdrawn(struct lone_core *lone, struct reference *reference)
{
    host_memory_unshare(&lone->host.memory);
    lone_restart(lone);
    if (lone_job(lone).steps_done == lone->step) {
        push_nan(lone);
        lone->withdrawing = true;
        lone->host.hold = false;
        host_compute(&lone->host);
        lone_end_all(lone);
        assert_int_equal(lone->steps, lone->ranks);
    } else {
        assert_int_equal(lone->ready_status, ADTOPK_NONFINITE);
    }
    assert_int_equal(lone_job(lone).steps_withdrawn, 1);
    lone->withdrawing = false;
    lone->host.hold = false;
    lone->steps = 0;
    lone->step++;
    lone_train(lone, 2);
    assert_int_equal(lone_job(lone).steps_withdrawn, 1);
    lone_check(lone);
    check_reference(lone, reference);
    _exit(0);
}

static pid_t start_traced(struct lone_core *lone, const struct scene *scene)
{
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        scene->traced(lone);
    }
    return child;
}

/* Whether a daemon that takes over now recovers correctly. */
static bool recovers(struct lone_core *lone, const struct scene *scene, struct reference *reference)
{
    pid_t child = fork();
    int outcome;

    assert_true(child >= 0);
    if (child == 0) {
        scene->recover(lone, reference);
    }
    assert_int_equal(waitpid(child, &outcome, 0), child);
    return WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

/* With a sanitizer a process takes longer to fork, and more instructions for the same work. */
#define SLOWER CASES(1u, 30u)

/* The records of the store: of the job, without policies, which are long, and of the tensors. */
struct records {
    uint8_t header[offsetof(struct store_header, policy)];
    struct store_tensor tensor[LONE_TENSORS];
};

/* Copies the records. False if they are unchanged. */
static bool records_changed(const struct lone_core *lone, struct records *records)
{
    const struct store_header *store = (const void *)lone->host.memory.store[STORE_MAIN].bytes;
    size_t size = lone->tensors * sizeof(records->tensor[0]);
    bool changed = memcmp(records->tensor, store->tensor, size) != 0 ||
                   memcmp(records->header, store, sizeof(records->header)) != 0;

    memcpy(records->tensor, store->tensor, size);
    memcpy(records->header, store, sizeof(records->header));
    return changed;
}

/* Stops the child after every so many instructions, and after each that changed a record. False if
 * tracing is not allowed. */
static bool kill_everywhere(struct lone_core *lone, const struct scene *scene)
{
    struct records records;
    struct reference *reference =
        mmap(NULL, sizeof(*reference), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = start_traced(lone, scene);
    uint64_t steps = 0;
    int status;
    bool allowed;

    assert_ptr_not_equal(reference, MAP_FAILED);
    memset(&records, 0, sizeof(records));
    assert_int_equal(waitpid(child, &status, 0), child);
    allowed = WIFSTOPPED(status);
    while (WIFSTOPPED(status)) {
        if (records_changed(lone, &records) || steps % (scene->interval * SLOWER) == 0) {
            if (!recovers(lone, scene, reference)) {
                (void)kill(child, SIGKILL);
                fail_msg("killed after instruction %llu", (unsigned long long)steps);
            }
        }
        steps++;
        assert_int_equal(ptrace(PTRACE_SINGLESTEP, child, NULL, NULL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == (allowed ? 0 : 1));
    assert_true(!allowed || steps > 1000);
    assert_int_equal(munmap(reference, sizeof(*reference)), 0);
    return allowed;
}

/* Takes a whole step, and holds its settling. */
static void hold_settling(struct lone_core *lone)
{
    lone->host.hold = true;
    lone_push_all(lone);
    lone_end_all(lone);
    lone_compute_until(lone, &work_settle);
}

/* All ranks have pushed. Holds the first compute of this kind in the step. */
static void hold_computing(struct lone_core *lone, const struct work_kind *kind)
{
    lone->host.hold = true;
    lone_push_all(lone);
    lone_compute_until(lone, kind);
    if (lone->host.helds > 1) {
        lone->host.helds = 1; /* the others have not begun */
    }
}

static void check_computing(const char *policy, const struct work_kind *kind, uint64_t interval)
{
    struct lone_core lone;
    bool allowed;

    lone_begin(&lone, policy);
    lone.changed = strstr(policy, "momentum") != NULL || strstr(policy, "beta") != NULL;
    lone.tolerance =
        strstr(policy, "\"values\"") != NULL || strstr(policy, "beta") != NULL ? 1e-3 : 0;
    lone_train(&lone, 3);
    hold_computing(&lone, kind);
    allowed = kill_everywhere(&lone, &(struct scene){trace_compute, recover, interval});
    lone_free(&lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void test_selecting(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT "}", &work_select, 4001);
}

static void test_selecting_ranks(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT ",\"scope\":\"rank\"}", &work_select, 4001);
}

static void test_selecting_momentum(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT ",\"momentum\":0.5}", &work_select, 4001);
}

static void test_selecting_decay(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT ",\"beta\":0.5,\"gamma\":2}", &work_select, 9001);
}

static void test_selecting_rounded(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT ",\"residual\":\"bf16\"}", &work_select, 4001);
}

/* The tensor is sent whole and has no residual. The sum is written to the memory that ranks see. */
static void test_selecting_dense(void **state)
{
    (void)state;
    check_computing("{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}", &work_select, 499);
}

static void test_reducing(void **state)
{
    (void)state;
    check_computing("{" LONE_EXACT "}", &work_reduce, 4001);
}

/* The daemon is killed between the records of a round's tensors. Other nodes have delivered the
 * round, so a copy arrives. */
static void test_delivered_in_part(void **state)
{
    struct lone_core lone;
    struct error err;
    struct job *job;
    struct round *round;
    struct store_tensor *first, *last;
    struct buffer *copy;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    lone_push_all(&lone);
    job = job_by_number(lone.host.core, lone.job);
    round = step_round(job, 0);
    assert_true(round->tensors > 1);
    first = job->tensor[round->tensor[0]].store;
    last = job->tensor[round->tensor[round->tensors - 1]].store;
    copy = copy_encode(round, job->store->steps_done);
    assert_non_null(copy);
    last->stage = STAGE_ACCUMULATED;
    assert_int_equal(copy_decode(round, copy, &err), ADTOPK_OK);
    assert_int_equal(first->stage, STAGE_DELIVERED);
    assert_int_equal(last->stage, STAGE_DELIVERED);
    last->step--; /* its gradient is not in the residual */
    assert_int_equal(copy_decode(round, copy, &err), ADTOPK_ERR_LOST);
    last->step++;
    buffer_unref(copy);
    lone_end_all(&lone);
    lone_close(&lone);
    lone_check(&lone);
    lone_free(&lone);
}

static void check_settling_of(bool half, const char *policy, uint64_t interval)
{
    struct lone_core lone;
    bool allowed;

    (half ? lone_begin_half : lone_begin)(&lone, policy);
    lone.changed = strstr(policy, "momentum") != NULL;
    lone.tolerance = strstr(policy, "\"values\"") != NULL ? 1e-3 : 0;
    lone_train(&lone, 3);
    hold_settling(&lone);
    allowed = kill_everywhere(&lone, &(struct scene){trace_compute, recover, interval});
    lone_free(&lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void check_settling(const char *policy, uint64_t interval)
{
    check_settling_of(false, policy, interval);
}

/* The rounding error of an update in 16 bits comes back, once. */
static void test_settling_half(void **state)
{
    (void)state;
    check_settling_of(true, "{" LONE_EXACT "}", 97);
    check_settling_of(true, "{" LONE_EXACT ",\"scope\":\"rank\"}", 499);
    check_settling_of(true, "{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}", 97);
    check_settling_of(
        true, "{\"reduce\":\"sum\",\"sparsifier\":\"dense\",\"dense_values\":\"bf16\"}", 499);
    check_settling_of(true,
        "{\"reduce\":\"sum\",\"sparsifier\":\"topk\",\"sparse_collective\":\"exclusive\"}", 499);
}

static void test_settling(void **state)
{
    (void)state;
    check_settling("{" LONE_EXACT "}", 97);
}

static void test_settling_quantised(void **state)
{
    (void)state;
    check_settling("{\"reduce\":\"sum\",\"density\":0.05,\"dense_values\":\"bf16\"}", 101);
}

/* A step that is repeated in another view gets the same random rounding. So the residual loses
 * exactly the entries that were delivered. */
static void test_settling_rounded_at_random(void **state)
{
    const char *policy = "{\"reduce\":\"sum\",\"values\":\"int8\",\"density\":0.05}";

    (void)state;
    check_computing(policy, &work_reduce, 4001);
    check_settling(policy, 499);
}

/* Does the same with means of groups of values. */
static void test_settling_in_two_values(void **state)
{
    (void)state;
    check_settling("{\"reduce\":\"sum\",\"values\":\"two\",\"density\":0.05}", 997);
}

/* Settles a tensor that is sent whole and has no residual. */
static void test_settling_dense(void **state)
{
    (void)state;
    check_settling("{\"reduce\":\"sum\",\"sparsifier\":\"dense\"}", 53);
}

/* The first dense step empties the residual, so the next steps do not use it. */
static void check_emptying(const char *policy)
{
    struct lone_core lone;
    bool allowed;

    lone_begin(&lone, policy);
    lone_train(&lone, 2);
    assert_int_equal(lone_change(&lone, 1, "{\"sparsifier\":\"dense\"}"), ADTOPK_OK);
    lone_train(&lone, 2);
    assert_int_equal(lone.policy.count, 1);
    hold_settling(&lone);
    assert_int_equal(job_by_number(lone.host.core, lone.job)->tensor[0].store->filled, 1);
    allowed = kill_everywhere(&lone, &(struct scene){trace_compute, recover, 997});
    lone_free(&lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void test_emptying(void **state)
{
    (void)state;
    check_emptying("{" LONE_EXACT "}");
    check_emptying("{" LONE_EXACT ",\"residual\":\"bf16\"}");
}

static void test_settling_ranks(void **state)
{
    (void)state;
    check_settling("{\"reduce\":\"sum\",\"density\":0.05,\"scope\":\"rank\"}", 103);
}

static void test_settling_rounded(void **state)
{
    (void)state;
    check_settling("{\"reduce\":\"sum\",\"density\":0.05,\"residual\":\"bf16\"}", 101);
}

/* Halves of halves are exact for so few steps. */
static void test_settling_momentum(void **state)
{
    (void)state;
    check_settling("{" LONE_EXACT ",\"momentum\":0.5}", 101);
}

static void check_joining(const char *from, const char *to, uint64_t interval)
{
    struct lone_core lone;
    bool allowed;

    lone_begin(&lone, from);
    lone.changed = strstr(from, "momentum") != NULL;
    lone_train(&lone, 2);
    assert_int_equal(lone_change(&lone, 1, to), ADTOPK_OK);
    lone_train(&lone, 1);
    hold_settling(&lone);
    lone_compute_until(&lone, &work_switch);
    lone_close(&lone);
    allowed = kill_everywhere(&lone, &(struct scene){trace_compute, recover, interval});
    lone_free(&lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void test_joining(void **state)
{
    (void)state;
    check_joining("{" LONE_EXACT ",\"scope\":\"rank\"}", "{\"scope\":\"node\"}", 89);
}

/* Converts residuals. */
static void test_converting(void **state)
{
    (void)state;
    check_joining("{" LONE_EXACT "}", "{\"residual\":\"bf16\"}", 499);
    check_joining("{" LONE_EXACT ",\"residual\":\"bf16\"}", "{\"residual\":\"f32\"}", 499);
    check_joining(
        "{" LONE_EXACT ",\"scope\":\"rank\"}", "{\"scope\":\"node\",\"residual\":\"bf16\"}", 499);
}

/* Copies velocities. */
static void test_handing_over(void **state)
{
    (void)state;
    check_joining("{" LONE_EXACT ",\"momentum\":0.5}", "{\"bucket_bytes\":100}", 499);
}

/* The held compute has run. The core's thread is killed while it handles the event. */
static void check_event(struct lone_core *lone,
    void (*recover_from)(struct lone_core *lone, struct reference *reference))
{
    bool allowed;

    lone->host.held[0]->run(lone->host.held[0]);
    allowed = kill_everywhere(lone, &(struct scene){trace_event, recover_from, 997});
    lone_free(lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void test_counting(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    hold_settling(&lone);
    check_event(&lone, recover);
}

static void test_counting_withdrawn(void **state)
{
    struct lone_core lone;

    (void)state;
    lone_begin(&lone, "{" LONE_EXACT "}");
    lone_train(&lone, 2);
    push_nan(&lone);
    lone_end_all(&lone);
    lone_compute_until(&lone, &work_withdraw);
    check_event(&lone, recover_withdrawn);
}

/* These cases would take minutes. */
static bool too_slow(void)
{
    if (SLOWER > 1) {
        print_message("# left out: too slow with a sanitizer\n");
    }
    return SLOWER > 1;
}

/* The gradients of a step that is not finite leave the residuals again, and their part leaves the
 * velocities. */
static void check_withdrawing(const char *policy)
{
    struct lone_core lone;
    bool allowed;

    if (too_slow()) {
        return;
    }
    lone_begin(&lone, policy);
    lone.changed = true;
    lone_train(&lone, 2);
    push_nan(&lone);
    lone_end_all(&lone);
    lone_compute_until(&lone, &work_withdraw);
    allowed = kill_everywhere(&lone, &(struct scene){trace_compute, recover_withdrawn, 2003});
    lone_free(&lone);
    if (!allowed) {
        print_message("# tracing is not allowed here\n");
    }
}

static void test_withdrawing(void **state)
{
    (void)state;
    check_withdrawing("{" LONE_EXACT ",\"scope\":\"rank\",\"momentum\":0.5,\"nesterov\":true}");
    check_withdrawing("{" LONE_EXACT ",\"residual\":\"bf16\"}");
}

/* Puts another policy in force, with a scope of node instead of rank. */
static void check_switching(const char *to)
{
    struct lone_core lone;

    if (too_slow()) {
        return;
    }
    lone_begin(&lone, "{" LONE_EXACT ",\"scope\":\"rank\"}");
    lone_train(&lone, 2);
    assert_int_equal(lone_change(&lone, 1, to), ADTOPK_OK);
    lone_train(&lone, 1);
    hold_settling(&lone);
    lone_compute_until(&lone, &work_switch);
    lone_close(&lone);
    check_event(&lone, recover);
}

static void test_switching(void **state)
{
    (void)state;
    check_switching("{\"scope\":\"node\",\"density\":0.1}");
    check_switching("{\"scope\":\"node\",\"density\":0.1,\"residual\":\"bf16\"}");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selecting),
        cmocka_unit_test(test_selecting_ranks),
        cmocka_unit_test(test_selecting_momentum),
        cmocka_unit_test(test_selecting_decay),
        cmocka_unit_test(test_selecting_rounded),
        cmocka_unit_test(test_selecting_dense),
        cmocka_unit_test(test_reducing),
        cmocka_unit_test(test_delivered_in_part),
        cmocka_unit_test(test_settling),
        cmocka_unit_test(test_settling_half),
        cmocka_unit_test(test_settling_quantised),
        cmocka_unit_test(test_settling_rounded_at_random),
        cmocka_unit_test(test_settling_in_two_values),
        cmocka_unit_test(test_settling_dense),
        cmocka_unit_test(test_emptying),
        cmocka_unit_test(test_settling_ranks),
        cmocka_unit_test(test_settling_momentum),
        cmocka_unit_test(test_settling_rounded),
        cmocka_unit_test(test_joining),
        cmocka_unit_test(test_converting),
        cmocka_unit_test(test_handing_over),
        cmocka_unit_test(test_counting),
        cmocka_unit_test(test_counting_withdrawn),
        cmocka_unit_test(test_withdrawing),
        cmocka_unit_test(test_switching),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Clients that break the protocol, in the ring, the memory or the socket. Each loses its own
 * session, with an error that names the reason. A witness trains on undisturbed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/src/patience.h"
#include "client/src/transport.h"
#include "local_witness.h"
#include "proto/codec.h"

static const struct client_patience for_ever = {.deadline_ns = PATIENCE_FOR_EVER};

/* Checks that the session has failed, and that its client and the core know why. The witness is
 * undisturbed. */
static void assert_failed(adtopk_context *context, const char *word)
{
    enum adtopk_status status;
    char pid[32];

    /* Before the library touches the ring again. */
    for (int waited = 0; waited < PATIENCE_MS && daemon_.view->lost == 0; waited++) {
        sleep_ms(1);
    }
    status = adtopk_step_wait(context);
    rank_train(witness);
    assert_true(status > ADTOPK_NONFINITE);
    assert_has(adtopk_message(context), word);
    assert_int_equal(daemon_.view->lost, 1);
    (void)snprintf(pid, sizeof pid, "process %d ", (int)getpid());
    assert_has(daemon_.view->reason, pid);
    assert_has(daemon_.view->reason, word);
    adtopk_close(context);
}

static void submit(adtopk_context *context, struct local_entry entry)
{
    ring_writer_put(&context->ring, &entry);
    client_wake(context);
}

/* ---- the ring ---- */

static void rubbish(struct local_entry entry, const char *word)
{
    adtopk_context *context = open_ready("rubbish");

    rank_train(context);
    submit(context, entry);
    assert_failed(context, word);
}

static void test_unknown_type(void **state)
{
    (void)state;
    rubbish((struct local_entry){.type = 77}, "unknown type 77");
}

static void test_unknown_tensor(void **state)
{
    (void)state;
    rubbish((struct local_entry){.type = LOCAL_PUSH, .tensor = 4000000000u, .number = 1},
        "tensor 4000000000");
}

static void test_wrong_step(void **state)
{
    (void)state;
    rubbish((struct local_entry){.type = LOCAL_PUSH, .tensor = 0, .number = 9}, "step 9");
}

static void test_wrong_operation(void **state)
{
    (void)state;
    rubbish((struct local_entry){.type = LOCAL_OP, .tensor = 3}, "operation 3");
}

static void test_long_operation(void **state)
{
    (void)state;
    rubbish((struct local_entry){.type = LOCAL_OP, .tensor = 1, .size = UINT32_MAX}, "4294967295");
}

static void test_pushed_twice(void **state)
{
    const struct local_entry entry = {.type = LOCAL_PUSH, .tensor = 0, .number = 1};
    adtopk_context *context = open_ready("twice");

    (void)state;
    rank_train(context);
    submit(context, entry);
    submit(context, entry);
    assert_failed(context, "push of tensor 0");
}

static void jump(uint64_t tail)
{
    adtopk_context *context = open_ready("jump");

    rank_train(context);
    atomic_store(&context->ring.ring->tail, tail);
    client_wake(context);
    assert_failed(context, "jumped");
}

static void test_jump_ahead(void **state)
{
    (void)state;
    jump(3 + LOCAL_RING_ENTRIES);
}

static void test_jump_back(void **state)
{
    (void)state;
    jump(1);
}

static void test_random_ring(void **state)
{
    adtopk_context *context = open_ready("random");
    uint64_t random = 88172645463325252u;
    uint8_t *bytes = context->ring_map.bytes;

    (void)state;
    rank_train(context);
    for (size_t i = 128; i < context->ring_map.size; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        bytes[i] = (uint8_t)random;
    }
    atomic_fetch_add(&context->ring.ring->tail, 500);
    client_wake(context);
    assert_failed(context, "its ring");
}

/* ---- memory ---- */

static void test_punched_holes(void **state)
{
    adtopk_context *context = open_ready("holes");
    const uint64_t before = daemon_.view->stats.gradient_bytes;

    (void)state;
    rank_train(context);
    assert_true(before > 0);
    /* Punches a hole into the ring, which then reads as zeros. That is not a valid entry. */
    assert_int_equal(madvise(context->ring_map.bytes, context->ring_map.size, MADV_REMOVE), 0);
    /* The arenas are sealed against holes. */
    assert_int_equal(
        madvise(context->batch.gradients[0].bytes, context->batch.gradients[0].size, MADV_REMOVE),
        -1);
    assert_int_equal(
        madvise(context->batch.results[0].bytes, context->batch.results[0].size, MADV_REMOVE), -1);
    assert_int_equal(madvise(context->page_map.bytes, context->page_map.size, MADV_REMOVE), -1);
    assert_int_equal(mprotect(context->page_map.bytes, 4096, PROT_READ | PROT_WRITE), -1);
    assert_int_equal(mprotect(context->batch.results[0].bytes, 4096, PROT_READ | PROT_WRITE), -1);
    client_wake(context);
    assert_failed(context, "jumped");
}

/* Commits by hand, and changes the arena with `meddle_with` before it reports the arena as mapped.
 */
static void meddle(int (*meddle_with)(int arena), const char *word)
{
    adtopk_context *context = open_job("meddle");
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalCommit commit = ADTOPK__LOCAL_COMMIT__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;
    struct client_reply reply;

    assert_status(context, client_send_tensors(context, context->tensors, &for_ever), ADTOPK_OK);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_COMMIT;
    request.commit = &commit;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    assert_status(context, rank_receive(context, &reply), ADTOPK_OK);
    assert_int_equal(reply.descriptors, 1);
    assert_int_equal(meddle_with(reply.descriptor[0]), 0);
    client_reply_drop(&reply);
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_MAPPED;
    request.mapped = &mapped;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    assert_status(context, rank_receive(context, &reply), ADTOPK_ERR_PROTOCOL);
    assert_has(adtopk_message(context), word);
    assert_has(daemon_.view->reason, word);
    adtopk_close(context);
}

static int shrink(int arena)
{
    return ftruncate(arena, 4096);
}

static int grow(int arena)
{
    return ftruncate(arena, 1 << 30);
}

static int seal_early(int arena)
{
    return fcntl(arena, F_ADD_SEALS, F_SEAL_SEAL);
}

static void test_shrunk_arena(void **state)
{
    (void)state;
    meddle(shrink, "resized");
}

static void test_grown_arena(void **state)
{
    (void)state;
    meddle(grow, "resized");
}

static void test_arena_sealed_early(void **state)
{
    (void)state;
    meddle(seal_early, "sealed");
}

/* ---- the socket ---- */

static void send_raw(adtopk_context *context, const void *bytes, size_t size)
{
    assert_int_equal(send(context->socket, bytes, size, MSG_NOSIGNAL), size);
}

static void test_empty_message(void **state)
{
    adtopk_context *context = open_ready("empty");

    (void)state;
    send_raw(context, "", 0);
    assert_failed(context, "empty");
}

static void test_malformed_message(void **state)
{
    adtopk_context *context = open_ready("malformed");
    uint8_t bytes[1000];

    (void)state;
    memset(bytes, 0xff, sizeof bytes);
    send_raw(context, bytes, sizeof bytes);
    assert_failed(context, "malformed");
}

static void test_long_message(void **state)
{
    static uint8_t bytes[CODEC_LOCAL_MAX + 1];
    adtopk_context *context = open_ready("long");

    (void)state;
    send_raw(context, bytes, sizeof bytes);
    assert_failed(context, "60000");
}

static void test_message_out_of_order(void **state)
{
    adtopk_context *context = open_ready("order");
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalMapped mapped = ADTOPK__LOCAL_MAPPED__INIT;

    (void)state;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_MAPPED;
    request.mapped = &mapped;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    assert_failed(context, "request 4");
}

static void test_sent_descriptors(void **state)
{
    adtopk_context *context = open_ready("descriptors");
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * 4)];
    } control = {0};
    char byte = LOCAL_WAKE; /* even beside a wake-up */
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    const struct msghdr message = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof control};
    const int four[4] = {0, 1, 2, 0};

    (void)state;
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(sizeof four);
    memcpy(CMSG_DATA(&control.header), four, sizeof four);
    assert_int_equal(sendmsg(context->socket, &message, MSG_NOSIGNAL), 1);
    assert_failed(context, "descriptors");
}

/* Opens with this version and job, past the library's own checks. The daemon must refuse with this
 * sentence. */
static void assert_open_refused(
    uint32_t version, const char *job, enum adtopk_status status, const char *sentence)
{
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalOpen open = ADTOPK__LOCAL_OPEN__INIT;
    uint32_t here = 1;
    adtopk_context context = {.transport = &client_local, .here = &here, .sharing = {.wake = -1}};
    struct client_reply reply;
    char run_id[] = "x";
    char name[CORE_KEY_SIZE];

    (void)snprintf(name, sizeof name, "%s", job);
    context.socket = client_connect(daemon_.path, -1, false, NULL);
    assert_true(context.socket >= 0);
    open.version = version;
    open.job = name;
    open.run_id = run_id;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_OPEN;
    request.open = &open;
    assert_status(&context, client_send(&context, &request, &for_ever), ADTOPK_OK);
    assert_status(&context, rank_receive(&context, &reply), status);
    assert_has(context.error.text, sentence);
    (void)close(context.socket);
}

static void test_other_version(void **state)
{
    (void)state;
    assert_open_refused(LOCAL_VERSION + 1, "x", ADTOPK_ERR_PROTOCOL,
        "speaks protocol 3, and this daemon needs version 1.0 of it (protocol 2)");
    assert_open_refused(LOCAL_VERSION - 1, "x", ADTOPK_ERR_PROTOCOL,
        "speaks protocol 1, and this daemon needs version 1.0 of it (protocol 2)");
}

/* Names that nobody could use in a request. */
static void test_bad_job_names(void **state)
{
    (void)state;
    assert_open_refused(LOCAL_VERSION, "job\xff", ADTOPK_ERR_ARGUMENT, "not UTF-8");
    assert_open_refused(
        LOCAL_VERSION, "job\n", ADTOPK_ERR_ARGUMENT, "a control character (0x0a), byte 4");
    assert_open_refused(LOCAL_VERSION, "", ADTOPK_ERR_ARGUMENT, "0 bytes");
}

/* Sends the daemon a tensor that the library would refuse. The answer to the commit reports it. */
static void test_unknown_dtype(void **state)
{
    Adtopk__LocalRequest request = ADTOPK__LOCAL_REQUEST__INIT;
    Adtopk__LocalRegister batch = ADTOPK__LOCAL_REGISTER__INIT;
    Adtopk__LocalTensor tensor = ADTOPK__LOCAL_TENSOR__INIT, *pointer = &tensor;
    adtopk_context *context = open_job("dtype");
    char name[] = "strange";
    uint64_t shape = 3;

    (void)state;
    tensor.name = name;
    tensor.dtype = 9;
    tensor.forms = 2;
    tensor.n_shape = 1;
    tensor.shape = &shape;
    batch.n_tensors = 1;
    batch.tensors = &pointer;
    request.kind_case = ADTOPK__LOCAL_REQUEST__KIND_REGISTER;
    request.register_ = &batch;
    assert_status(context, client_send(context, &request, &for_ever), ADTOPK_OK);
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_ARGUMENT);
    assert_has(adtopk_message(context), "\"strange\" has the unknown dtype 9");
    adtopk_close(context);
}

/* Passes names by the library's check: the daemon has its own. */
static void test_strange_names(void **state)
{
    static const char *const wrong[][2] = {
        {"w\xff", "not UTF-8"}, {"w\xe2\x82", "not UTF-8"}, {"w\n", "control"}};

    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        adtopk_context *context = open_job("names");

        (void)strcpy(context->tensor[0].name, wrong[i][0]);
        assert_status(context, adtopk_commit(context), ADTOPK_ERR_ARGUMENT);
        assert_has(adtopk_message(context), wrong[i][1]);
        adtopk_close(context);
    }
}

/* Another program at the address answers in another protocol. */
static void test_other_server(void **state)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    struct adtopk_options options = {.size = sizeof options, .has_rank = 1, .world_size = 1};
    adtopk_context *context = NULL;
    char address[128];
    pid_t child;

    (void)state;
    (void)snprintf(at.sun_path, sizeof at.sun_path, "%s/other", daemon_.folder);
    (void)snprintf(address, sizeof address, "unix:%s/other", daemon_.folder);
    options.address = address;
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 1), 0);
    child = fork();
    if (child == 0) {
        const int peer = accept(listener, NULL, NULL);
        const bool sent = peer >= 0 && send(peer, "rubbish", 7, MSG_NOSIGNAL) == 7;
        sleep_ms(100);
        _exit(sent ? 0 : 1);
    }
    assert_status(NULL, adtopk_open(&options, &context), ADTOPK_ERR_PROTOCOL);
    assert_has(adtopk_message(NULL), "may be the control socket");
    (void)close(listener);
    (void)unlink(at.sun_path);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void test_zero_size(void **state)
{
    adtopk_context *context = open_job("zero");

    (void)state;
    context->tensor[0].shape[0] = 0; /* past the library's check */
    assert_status(context, adtopk_commit(context), ADTOPK_ERR_ARGUMENT);
    assert_has(adtopk_message(context), "\"w0\" has no elements");
    adtopk_close(context);
}

#define WITNESSED(name) cmocka_unit_test_setup_teardown(name, witness_start, witness_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITNESSED(test_unknown_type),
        WITNESSED(test_unknown_tensor),
        WITNESSED(test_wrong_step),
        WITNESSED(test_wrong_operation),
        WITNESSED(test_long_operation),
        WITNESSED(test_pushed_twice),
        WITNESSED(test_jump_ahead),
        WITNESSED(test_jump_back),
        WITNESSED(test_random_ring),
        WITNESSED(test_punched_holes),
        WITNESSED(test_shrunk_arena),
        WITNESSED(test_grown_arena),
        WITNESSED(test_arena_sealed_early),
        WITNESSED(test_empty_message),
        WITNESSED(test_malformed_message),
        WITNESSED(test_long_message),
        WITNESSED(test_message_out_of_order),
        WITNESSED(test_sent_descriptors),
        WITNESSED(test_other_version),
        WITNESSED(test_bad_job_names),
        WITNESSED(test_unknown_dtype),
        WITNESSED(test_strange_names),
        WITNESSED(test_other_server),
        WITNESSED(test_zero_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

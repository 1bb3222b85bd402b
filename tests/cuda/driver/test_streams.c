/*
 * Streams of a trainer that wait for updates, against a daemon of this test: a thread that answers
 * up to the first step, with memory that the test writes as it likes. No update ever comes from it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <adtopk/stream.h>

#include "client/src/context.h"
#include "proto/codec.h"
#include "proto/driver.h"
#include "tests/cuda/driver/captures.h"

#define TENSORS 3u
#define NUMEL 1000u
#define PLACE 4096u /* of a tensor's gradient, or of its update on the device */
#define OPERATIONS CLIENT_OP_SIZE
#define FLAGS OPERATIONS
#define WORDS (FLAGS + 4096u)
#define HOST (WORDS + 4096u)
#define DEVICE (UINT64_C(4) << 20) /* the arena's offset at which device memory begins */
#define RESULTS (OPERATIONS + 8192u)
#define PAGE (sizeof(struct local_page) + CLIENT_MAX_TENSORS * sizeof(uint64_t))

/* What a test changes in the daemon's answers. */
struct wish {
    uint64_t words; /* offset of the words */
    uint64_t host;  /* bytes of host memory */
    uint64_t step;  /* the first one */
};
static const struct wish usual = {.words = WORDS, .host = HOST};

static struct fake {
    char path[64];
    int listening;
    _Atomic int socket;
    pthread_t thread;
    struct wish wish;
    struct driver driver;
    struct driver_device device;
    CUmemGenericAllocationHandle memory;
    size_t size;       /* of device memory */
    int descriptor[4]; /* of ring, page, arena and device memory */
    struct local_ring *ring;
    struct local_page *page;
    uint8_t *arena;
} fake;

static adtopk_context *context;
static CUstream stream;

/* ---- the daemon ---- */

static int fake_share(uint64_t size, void *bytes)
{
    const int fd = memfd_create("fake", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    *(void **)bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(*(void **)bytes, MAP_FAILED);
    return fd;
}

static void fake_send(const Adtopk__LocalReply *reply, const int *descriptor, unsigned count)
{
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    size_t size = 0;
    uint8_t *bytes = codec_pack(&reply->base, &size);
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *header;

    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptor, count * sizeof(int));
    }
    (void)sendmsg(fake.socket, &message, MSG_NOSIGNAL);
    free(bytes);
}

/* Makes the table of results: every gradient and update has a place of its own. */
static int fake_results(void)
{
    struct local_results *table;
    const int fd = fake_share(RESULTS, &table);

    *table = (struct local_results){.tensors = TENSORS, .op_result_offset = 8192};
    for (unsigned t = 0; t < TENSORS; t++) {
        table->tensor[t].gradient_offset = DEVICE + t * PLACE;
        table->tensor[t].update_offset = 4096 + t * sizeof(struct local_update);
    }
    (void)munmap(table, RESULTS);
    return fd;
}

static void fake_answer(const Adtopk__LocalRequest *request)
{
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    Adtopk__LocalOpened opened = ADTOPK__LOCAL_OPENED__INIT;
    Adtopk__LocalArena arena = ADTOPK__LOCAL_ARENA__INIT;
    Adtopk__LocalReady ready = ADTOPK__LOCAL_READY__INIT;
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    int results;

    switch (request->kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN:
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_OPENED;
        reply.opened = &opened;
        fake_send(&reply, fake.descriptor, 2);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT:
        arena.size = fake.wish.host;
        arena.flags = FLAGS;
        arena.words = fake.wish.words;
        arena.device_offset = DEVICE;
        arena.device_size = fake.size;
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ARENA;
        reply.arena = &arena;
        fake_send(&reply, fake.descriptor + 2, 2);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED:
        results = fake_results();
        ready.size = RESULTS;
        ready.step = fake.wish.step;
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_READY;
        reply.ready = &ready;
        fake_send(&reply, &results, 1);
        (void)close(results);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE:
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
        reply.bye = &bye;
        fake_send(&reply, NULL, 0);
        break;
    default: break;
    }
}

static void *fake_serve(void *unused)
{
    uint8_t bytes[CODEC_LOCAL_MAX];
    ssize_t size;

    (void)unused;
    fake.socket = accept4(fake.listening, NULL, NULL, SOCK_CLOEXEC);
    while ((size = recv(fake.socket, bytes, sizeof bytes, 0)) > 0) {
        struct error err;
        Adtopk__LocalRequest *request = size > 1 ? (Adtopk__LocalRequest *)(void *)codec_unpack(
                                                       &adtopk__local_request__descriptor, bytes,
                                                       (size_t)size, CODEC_LOCAL_MAX, &err)
                                                 : NULL;
        if (request != NULL) {
            fake_answer(request);
            codec_free(&request->base);
        }
    }
    return NULL;
}

static void fake_memory(void)
{
    CUmemAllocationProp kind;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    assert_int_equal(driver_open(&fake.driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&fake.driver, list, &count, &err), ADTOPK_OK);
    fake.device = list[0];
    kind = driver_shared_memory(&fake.device);
    assert_int_equal(fake.driver.cuMemGetAllocationGranularity(
                         &fake.size, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        0);
    assert_int_equal(fake.driver.cuMemCreate(&fake.memory, fake.size, &kind, 0), 0);
    assert_int_equal(fake.driver.cuMemExportToShareableHandle(&fake.descriptor[3], fake.memory,
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        0);
}

static int fake_start(void **state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)state;
    memset(&fake, 0, sizeof fake);
    fake.socket = -1;
    context = NULL;
    fake_memory();
    fake.descriptor[0] = fake_share(sizeof(struct local_ring), &fake.ring);
    fake.descriptor[1] = fake_share(PAGE, &fake.page);
    fake.descriptor[2] = fake_share(HOST, &fake.arena);
    fake.page->version = LOCAL_VERSION;
    fake.wish = usual;
    (void)snprintf(fake.path, sizeof fake.path, "/tmp/adtopk-test-%d.sock", (int)getpid());
    memcpy(address.sun_path, fake.path, strlen(fake.path) + 1);
    (void)unlink(fake.path);
    fake.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return bind(fake.listening, (struct sockaddr *)&address, sizeof address) != 0 ||
           listen(fake.listening, 1) != 0 ||
           pthread_create(&fake.thread, NULL, fake_serve, NULL) != 0;
}

/* The daemon is gone, as after SIGKILL: its page says nothing. */
static void fake_die(void)
{
    (void)shutdown(fake.socket, SHUT_RDWR);
}

static int fake_stop(void **state)
{
    (void)state;
    adtopk_close(context);
    fake_die();
    (void)shutdown(fake.listening, SHUT_RDWR); /* the test may have failed before it opened */
    (void)pthread_join(fake.thread, NULL);
    (void)close(fake.socket);
    (void)close(fake.listening);
    (void)unlink(fake.path);
    (void)munmap(fake.ring, sizeof(struct local_ring));
    (void)munmap(fake.page, PAGE);
    (void)munmap(fake.arena, HOST);
    for (unsigned i = 0; i < 4; i++) {
        (void)close(fake.descriptor[i]);
    }
    (void)fake.driver.cuMemRelease(fake.memory);
    driver_close(&fake.driver);
    return 0;
}

static struct local_word *fake_word(uint32_t at)
{
    return (struct local_word *)(void *)(fake.arena + WORDS) + at;
}

/* What a daemon does for a delivered tensor, or for a step: those have the number TENSORS. */
static void fake_deliver(uint32_t at, uint64_t step, bool right)
{
    if (right) {
        atomic_store(&fake_word(at)->right, local_flag_of(step));
    }
    atomic_store(&fake_word(at)->over, local_flag_of(step));
}

/* ---- the rank ---- */

static void rank_register(unsigned forms)
{
    char address[96];
    struct adtopk_options options = {
        .size = sizeof options, .address = address, .world_size = 1, .answer_timeout_ms = 5000};

    (void)snprintf(address, sizeof address, "unix:%s", fake.path);
    if (adtopk_open(&options, &context) != ADTOPK_OK) {
        fail_msg("%s", adtopk_message(NULL));
    }
    for (unsigned t = 0; t < TENSORS; t++) {
        const char *const name[] = {"a", "b", "c"};
        const struct adtopk_tensor_spec spec = {.size = sizeof spec,
            .name = name[t],
            .dims = 1,
            .shape = {NUMEL},
            .forms = forms,
            .memory = ADTOPK_CUDA,
            .device = fake.device.uuid};
        assert_int_equal(adtopk_register(context, &spec, NULL), ADTOPK_OK);
    }
}

static void rank_join(void)
{
    rank_register(ADTOPK_FORM_LIST | ADTOPK_FORM_DEVICE);
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    stream = NULL;
}

static void rank_push(uint32_t tensor)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = tensor, .memory = ADTOPK_CUDA, .stream = stream};

    assert_int_equal(adtopk_push(context, &push), ADTOPK_OK);
}

/* The streams are those of the device's primary context. */
static CUresult rank_query(void)
{
    CUcontext primary, popped;
    CUresult result;

    assert_int_equal(fake.driver.cuDevicePrimaryCtxRetain(&primary, fake.device.handle), 0);
    assert_int_equal(fake.driver.cuCtxPushCurrent_v2(primary), 0);
    result = fake.driver.cuStreamQuery(stream);
    assert_int_equal(fake.driver.cuCtxPopCurrent_v2(&popped), 0);
    assert_int_equal(fake.driver.cuDevicePrimaryCtxRelease_v2(fake.device.handle), 0);
    return result;
}

static void assert_blocked(void)
{
    assert_int_equal(rank_query(), CUDA_ERROR_NOT_READY);
}

static void assert_done(void)
{
    for (int waited = 0; rank_query() == CUDA_ERROR_NOT_READY && waited < 10000; waited++) {
        (void)usleep(1000);
    }
    assert_int_equal(rank_query(), CUDA_SUCCESS);
}

static bool is_right(const struct adtopk_verdict *verdict)
{
    return *(const volatile uint32_t *)verdict->word == verdict->right;
}

static void assert_refused(enum adtopk_status got, enum adtopk_status expected, const char *words)
{
    assert_int_equal(got, expected);
    if (strstr(adtopk_message(context), words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", adtopk_message(context), words);
    }
}

/* ---- tests ---- */

/* No call of the library spoils a graph that the program captures. */
static void test_waits(void **state)
{
    struct adtopk_verdict verdict = {.size = sizeof verdict};
    const CUstream captured = captures_open(&fake.driver, fake.device.handle);

    (void)state;
    rank_join();
    rank_push(0);
    rank_push(1);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, &verdict), ADTOPK_OK);
    assert_int_equal(captures_close(&fake.driver, fake.device.handle, captured), 0);
    assert_blocked();
    fake_deliver(0, 0, true);
    assert_blocked();
    assert_false(is_right(&verdict));
    fake_deliver(1, 0, true);
    assert_done();
    assert_true(is_right(&verdict));
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_blocked();
    fake_deliver(TENSORS, 0, true);
    assert_done();
}

/* Streams go on when the update is not right, and a kernel sees that. */
static void test_not_right(void **state)
{
    struct adtopk_verdict tensor = {.size = sizeof tensor}, step = {.size = sizeof step};

    (void)state;
    rank_join();
    rank_push(2);
    assert_int_equal(adtopk_wait_stream(context, 2, stream, &tensor), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, &step), ADTOPK_OK);
    fake_deliver(2, 0, false);
    assert_blocked();
    assert_false(is_right(&tensor));
    fake_deliver(TENSORS, 0, false);
    assert_done();
    assert_false(is_right(&step));
}

/* The daemon hears once a step that the rank waits for a tensor, so that it can split the bucket.
 */
static void test_posts_the_wait(void **state)
{
    static const uint32_t expected[] = {LOCAL_PUSH, LOCAL_WAIT, LOCAL_PUSH, LOCAL_STEP_END};

    (void)state;
    rank_join();
    rank_push(1);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_wait_stream(context, 1, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_wait_for(context, 1, 1), ADTOPK_PENDING);
    rank_push(0);
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, NULL), ADTOPK_OK);
    assert_int_equal(atomic_load(&fake.ring->tail), 4);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(fake.ring->entry[i].type, expected[i]);
        assert_int_equal(fake.ring->entry[i].number, 0);
    }
    assert_int_equal(fake.ring->entry[1].tensor, 1);
}

/* Numbers of words wrap around. */
static void test_late_steps(void **state)
{
    static const uint64_t steps[] = {
        UINT64_C(0x7fffffff), UINT64_C(0xfffffffe), UINT64_C(0xffffffff)};
    struct adtopk_verdict verdict = {.size = sizeof verdict};

    for (unsigned i = 0; i < 3; i++) {
        fake.wish.step = steps[i];
        atomic_store(&fake.page->steps_done, steps[i]);
        for (uint32_t at = 0; at <= TENSORS; at++) {
            fake_deliver(at, steps[i] - 1, true);
        }
        rank_join();
        rank_push(0);
        rank_push(1);
        assert_int_equal(adtopk_wait_stream(context, 0, stream, &verdict), ADTOPK_OK);
        assert_blocked();
        assert_false(is_right(&verdict));
        fake_deliver(0, steps[i], true);
        assert_done();
        assert_true(is_right(&verdict));
        assert_int_equal(adtopk_wait_stream(context, 1, stream, &verdict), ADTOPK_OK);
        assert_blocked();
        fake_die();
        assert_done();
        assert_false(is_right(&verdict));
        (void)fake_stop(state);
        assert_int_equal(fake_start(state), 0);
    }
}

/* ---- the end ---- */

static void join_and_wait(struct adtopk_verdict *verdict)
{
    *verdict = (struct adtopk_verdict){.size = sizeof *verdict};
    rank_join();
    rank_push(0);
    assert_int_equal(adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_OK);
    assert_int_equal(adtopk_step_wait_stream(context, stream, verdict), ADTOPK_OK);
    assert_blocked();
}

static void await_cut(void)
{
    while (!client_watch_is_cut(&context->batch.watch)) {
        (void)usleep(1000);
    }
}

/* The stream goes on, and whatever the program calls next says why. */
static void test_daemon_dies(void **state)
{
    struct adtopk_update update = {.size = sizeof update};
    struct adtopk_verdict verdict;

    join_and_wait(&verdict);
    fake_die();
    assert_done();
    assert_false(is_right(&verdict));
    assert_refused(adtopk_step_wait_for(context, 0), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(
        adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(
        adtopk_step_wait_stream(context, stream, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_refused(adtopk_update(context, 0, &update), ADTOPK_ERR_UNREACHABLE, "went away");
    assert_non_null(adtopk_device_update(context, 0));
    (void)state;
}

/* A push does not look at the socket, and is refused all the same. */
static void test_push_after_the_end(void **state)
{
    const struct adtopk_push_spec push = {
        .size = sizeof push, .tensor = 1, .memory = ADTOPK_CUDA, .stream = stream};

    (void)state;
    rank_join();
    rank_push(0);
    assert_int_equal(adtopk_wait_stream(context, 0, stream, NULL), ADTOPK_OK);
    fake_die();
    assert_done();
    assert_refused(adtopk_push(context, &push), ADTOPK_ERR_UNREACHABLE, "went away");
}

/* A daemon that fails the job lets go of streams itself. Then it closes the connection, and the
 * client lets go of them, too. They stay free. */
static void test_job_fails(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    (void)snprintf(fake.page->text, LOCAL_TEXT_SIZE, "rank 7 is gone");
    atomic_store(&fake.page->failed, ADTOPK_ERR_PEER);
    local_let_go(fake_word(0), TENSORS + 1, 0);
    fake_die();
    await_cut();
    assert_done();
    assert_false(is_right(&verdict));
    assert_refused(adtopk_step_wait(context), ADTOPK_ERR_PEER, "rank 7 is gone");
}

/* So does a client that ends the run itself, while the daemon goes on. */
static void test_client_fails(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    assert_int_equal(send(fake.socket, "\xff\xff\xff", 3, MSG_NOSIGNAL), 3);
    assert_refused(adtopk_step_wait(context), ADTOPK_ERR_PROTOCOL, "malformed message");
    assert_done();
    assert_false(is_right(&verdict));
}

/* A step that was accepted before the end counts, for the host as for the stream. */
static void test_accepted_before_the_end(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    atomic_store(&fake.page->delivered[0], 1 << 8);
    fake_deliver(0, 0, true);
    atomic_store(&fake.page->steps_done, 1);
    fake_deliver(TENSORS, 0, true);
    fake_die();
    assert_done();
    assert_true(is_right(&verdict));
    await_cut();
    assert_int_equal(adtopk_step_wait(context), ADTOPK_OK);
    assert_refused(adtopk_push_tensor(context, 0, NULL), ADTOPK_ERR_UNREACHABLE, "went away");
}

/* Closing waits for the device, so it lets go of streams first. */
static void test_close(void **state)
{
    struct adtopk_verdict verdict;

    (void)state;
    join_and_wait(&verdict);
    adtopk_close(context);
    context = NULL;
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
    struct adtopk_verdict verdict = {.size = 4}, old = {.size = 16, .right = 77};

    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE, "before adtopk_commit()");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_STATE, "before adtopk_commit()");
    assert_null(adtopk_device_update(context, 0));
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    assert_refused(adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE,
        "adtopk_wait_stream() for tensor \"a\", which was not pushed in step 0");
    assert_refused(
        adtopk_wait_stream(context, TENSORS, NULL, NULL), ADTOPK_ERR_ARGUMENT, "of tensor 3");
    rank_push(0);
    assert_refused(adtopk_wait_stream(context, 0, NULL, &verdict), ADTOPK_ERR_ARGUMENT,
        "struct adtopk_verdict");
    assert_refused(adtopk_step_wait_stream(context, NULL, &verdict), ADTOPK_ERR_ARGUMENT,
        "struct adtopk_verdict");
    assert_int_equal(adtopk_wait_stream(context, 0, NULL, &old), ADTOPK_OK);
    assert_non_null(old.word);
    assert_int_equal(old.right, 77); /* a program that does not know the field keeps its bytes */
    assert_int_equal(adtopk_wait_stream(NULL, 0, NULL, NULL), ADTOPK_ERR_ARGUMENT);
    assert_int_equal(adtopk_step_wait_stream(NULL, NULL, NULL), ADTOPK_ERR_ARGUMENT);
    assert_null(adtopk_device_update(NULL, 0));
    assert_null(adtopk_device_update(context, TENSORS));
}

/* A daemon of an earlier version does not say which memory it takes. */
static void test_check_device(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_LIST);
    assert_int_equal(adtopk_check_device(context, fake.device.uuid), ADTOPK_OK);
    assert_refused(adtopk_check_device(context, "GPU-0"), ADTOPK_ERR_ARGUMENT, "GPU-0");
    assert_int_equal(adtopk_check_device(NULL, NULL), ADTOPK_ERR_ARGUMENT);
}

static void test_updates_in_host_memory(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_LIST);
    assert_int_equal(adtopk_commit(context), ADTOPK_OK);
    rank_push(0);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_ARGUMENT, "ADTOPK_FORM_DEVICE");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_ARGUMENT, "ADTOPK_FORM_DEVICE");
    assert_null(adtopk_device_update(context, 0));
}

/* A daemon of an earlier version: the rank trains as before. */
static void test_daemon_without_words(void **state)
{
    (void)state;
    fake.wish.words = 0;
    rank_join();
    rank_push(0);
    assert_refused(
        adtopk_wait_stream(context, 0, NULL, NULL), ADTOPK_ERR_STATE, "no stream can wait");
    assert_refused(
        adtopk_step_wait_stream(context, NULL, NULL), ADTOPK_ERR_STATE, "no stream can wait");
    atomic_store(&fake.page->steps_done, 1);
    assert_int_equal(adtopk_step_wait(context), ADTOPK_OK);
}

/* A daemon that says nonsense is not believed. */
static void test_words_elsewhere(void **state)
{
    static const uint64_t offsets[] = {
        WORDS + 8, FLAGS, FLAGS - 4096, HOST, HOST + 4096, UINT64_MAX - 4095, 4096};

    for (unsigned i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        fake.wish.words = offsets[i];
        rank_register(ADTOPK_FORM_DEVICE);
        assert_refused(adtopk_commit(context), ADTOPK_ERR_PROTOCOL, "shared no memory of");
        (void)fake_stop(state);
        assert_int_equal(fake_start(state), 0);
    }
}

/* ---- what the system refuses ---- */

static bool no_thread, no_descriptor;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument);
int __real_eventfd(unsigned value, int flags);
int __wrap_eventfd(unsigned value, int flags);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
    void *(*run)(void *argument), void *argument)
{
    return no_thread ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

int __wrap_eventfd(unsigned value, int flags)
{
    errno = EMFILE;
    return no_descriptor ? -1 : __real_eventfd(value, flags);
}

static void test_no_thread(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    no_thread = true;
    assert_refused(adtopk_commit(context), ADTOPK_ERR_SYSTEM, "no thread to watch the daemon");
    no_thread = false;
}

static void test_no_descriptor(void **state)
{
    (void)state;
    rank_register(ADTOPK_FORM_DEVICE);
    no_descriptor = true;
    assert_refused(adtopk_commit(context), ADTOPK_ERR_SYSTEM, "eventfd failed");
    no_descriptor = false;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fake_start, fake_stop)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(test_waits), TEST(test_not_right),
        TEST(test_posts_the_wait), TEST(test_late_steps), TEST(test_daemon_dies),
        TEST(test_push_after_the_end), TEST(test_job_fails), TEST(test_client_fails),
        TEST(test_accepted_before_the_end), TEST(test_close), TEST(test_refused),
        TEST(test_check_device), TEST(test_updates_in_host_memory), TEST(test_daemon_without_words),
        TEST(test_words_elsewhere), TEST(test_no_thread), TEST(test_no_descriptor)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}

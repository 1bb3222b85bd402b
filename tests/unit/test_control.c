/* The control socket, over a core made of plain data: the documents say what the core says, and no
 * client can harm another one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <cjson/cJSON.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/core/inspect.h"
#include "proto/codec.h"
#include "proto/control.pb-c.h"

#define PATIENCE_MS 10000
#define IDLE_MS 400
#define BIG_JOB_TENSORS 3000u

/* ------------------------------------------------------------------ a core of plain data */

struct core {
    uint32_t jobs;
    struct job_info job[2];
    uint32_t peers;
    struct peer_info peer[2];
};

uint32_t core_job_count(const struct core *core)
{
    return core->jobs;
}

bool core_job_info(const struct core *core, uint32_t index, struct job_info *info)
{
    if (index < core->jobs) {
        *info = core->job[index];
    }
    return index < core->jobs;
}

bool core_tensor_info(
    const struct core *core, uint64_t job, uint32_t tensor, struct tensor_info *info)
{
    (void)core;
    *info = (struct tensor_info){.numel = 100 + tensor,
        .sparsifier = "adtopk",
        .collective = "allgather",
        .bucket = tensor / 2,
        .turn = 7,
        .count = 10,
        .input = {1.5, -2},
        .applied = {0.25, 4}};
    info->spec.dtype = DTYPE_BF16;
    (void)snprintf(info->spec.name, sizeof(info->spec.name), "layer%u.weight", tensor);
    return job != 0;
}

uint64_t core_session_job(const struct core *core, session_id session)
{
    return session <= core->jobs ? core->job[session - 1].id : 0;
}

uint32_t core_peer_count(const struct core *core)
{
    return core->peers;
}

bool core_peer_info(const struct core *core, uint32_t index, struct peer_info *info)
{
    if (index < core->peers) {
        *info = core->peer[index];
    }
    return index < core->peers;
}

const char *phase_name(enum phase phase)
{
    static const char *const names[PHASE_COUNT] = {
        "collect", "select", "exchange", "reduce", "settle"};

    return names[phase];
}

static void fill_core(struct core *core)
{
    *core = (struct core){.jobs = 2, .peers = 2};
    core->job[0] = (struct job_info){.id = 1,
        .key = {.owner = 1000, .name = "digits", .run_id = "r7"},
        .state = "active",
        .waiting_for = "rank 3 to push",
        .world_size = 4,
        .local_ranks = 2,
        .nodes = 2,
        .view = 1,
        .tensors = 3,
        .buckets = 2,
        .elements = 303,
        .steps_done = 40,
        .steps_withdrawn = 2,
        .rounds = 80,
        .rounds_retried = 5,
        .dense_bytes = 48480,
        .bytes_sent = 9000,
        .payload_bytes = 8000,
        .sparse_payload_bytes = 6000,
        .sparse_nonzeros = 1500,
        .phase_us = {1000000, 2000000, 3000000, 4000000, 500000}};
    core->job[1] = (struct job_info){.id = 2,
        .key = {.owner = 0, .name = "b\xFFg \"\xC3\xBC\"", .run_id = "0"},
        .state = "forming",
        .tensors = BIG_JOB_TENSORS};
    core->peer[0] = (struct peer_info){.node = 1,
        .up = true,
        .incarnation = UINT64_MAX,
        .link = {.bytes_sent = 123, .resent = 4, .round_trip_us = 250}};
    core->peer[1] = (struct peer_info){.node = 5};
}

/* ------------------------------------------------------------------ a daemon and its clients */

struct daemon {
    uv_loop_t loop;
    struct core core;
    struct history history;
    struct control *control;
    char directory[64];
    char path[96];
};

static uint32_t nine_sessions(void *context)
{
    (void)context;
    return 9;
}

static struct control *open_control(struct daemon *daemon, const char *path, struct error *err)
{
    struct control_config config = {.path = path,
        .core = &daemon->core,
        .history = &daemon->history,
        .node = 3,
        .incarnation = 0xABCDEF,
        .sessions = nine_sessions,
        .idle_ms = IDLE_MS};

    return control_create(&daemon->loop, &config, err);
}

static int setup(void **state)
{
    struct daemon *daemon = calloc(1, sizeof(*daemon));

    if (daemon == NULL || uv_loop_init(&daemon->loop) != 0) {
        return -1;
    }
    fill_core(&daemon->core);
    (void)strcpy(daemon->directory, "/tmp/adtopk-test-control-XXXXXX");
    if (mkdtemp(daemon->directory) == NULL) {
        return -1;
    }
    (void)snprintf(daemon->path, sizeof(daemon->path), "%s/control", daemon->directory);
    daemon->control = open_control(daemon, daemon->path, NULL);
    *state = daemon;
    return daemon->control != NULL ? 0 : -1;
}

static int teardown(void **state)
{
    struct daemon *daemon = *state;
    int left;

    if (daemon->control != NULL) {
        control_close(daemon->control);
    }
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    left = uv_loop_close(&daemon->loop);
    (void)rmdir(daemon->directory);
    free(daemon);
    return left;
}

static int new_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    return fd;
}

static void connect_socket(const struct daemon *daemon, int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)strcpy(address.sun_path, daemon->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static int connect_client(const struct daemon *daemon)
{
    int fd = new_socket();

    connect_socket(daemon, fd);
    return fd;
}

/* Lets the daemon run until the client has something to read. */
static void await_readable(struct daemon *daemon, int fd)
{
    uint64_t end = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    struct pollfd entry = {.fd = fd, .events = POLLIN};

    do {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        assert_true(uv_hrtime() < end);
    } while (poll(&entry, 1, 1) == 0);
}

static void send_request(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    char name[80] = "";
    uint8_t bytes[128];

    request.version = 1;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATUS;
    request.status = &status;
    if (job != NULL) {
        (void)snprintf(name, sizeof(name), "%s", job);
        stats.job = name;
        request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATS;
        request.stats = &stats;
    }
    assert_true(send(fd, bytes, adtopk__control_request__pack(&request, bytes), 0) > 0);
}

/* The whole answer; *status is the daemon's. NULL: the daemon closed the connection. */
static char *receive_answer(struct daemon *daemon, int fd, uint32_t *status, unsigned *replies)
{
    char *document = NULL;
    size_t size = 0;
    bool more = true;

    *replies = 0;
    while (more) {
        static uint8_t bytes[CODEC_LOCAL_MAX];
        Adtopk__ControlReply *reply;
        ssize_t received;

        await_readable(daemon, fd);
        received = recv(fd, bytes, sizeof(bytes), 0);
        if (received <= 0) {
            assert_null(document);
            return NULL;
        }
        reply = adtopk__control_reply__unpack(NULL, (size_t)received, bytes);
        assert_non_null(reply);
        document = realloc(document, size + strlen(reply->text) + 1);
        assert_non_null(document);
        (void)strcpy(document + size, reply->text);
        size += strlen(reply->text);
        *status = reply->status;
        more = reply->more != 0;
        (*replies)++;
        adtopk__control_reply__free_unpacked(reply, NULL);
    }
    return document;
}

static cJSON *ask(struct daemon *daemon, int fd, const char *job, unsigned *replies)
{
    uint32_t status = ADTOPK_ERR_SYSTEM;
    cJSON *document;
    char *text;

    send_request(fd, job);
    text = receive_answer(daemon, fd, &status, replies);
    assert_non_null(text);
    assert_int_equal(status, ADTOPK_OK);
    document = cJSON_Parse(text);
    assert_non_null(document);
    free(text);
    return document;
}

/* A client that behaves is served, whatever the others did. */
static void assert_serves(struct daemon *daemon)
{
    int fd = connect_client(daemon);
    unsigned replies;

    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    (void)close(fd);
}

static void assert_refused(
    struct daemon *daemon, int fd, enum adtopk_status expected, const char *words)
{
    uint32_t status = ADTOPK_OK;
    unsigned replies;
    char *text = receive_answer(daemon, fd, &status, &replies);

    assert_non_null(text);
    assert_int_equal(status, expected);
    assert_non_null(strstr(text, words));
    free(text);
    assert_null(receive_answer(daemon, fd, &status, &replies));
    (void)close(fd);
    assert_serves(daemon);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item)) {
        fail_msg("%s is no number", name);
    }
    return item->valuedouble;
}

static void assert_number(const cJSON *object, const char *name, double expected)
{
    if (number(object, name) != expected) {
        fail_msg("%s is %g, not %g", name, number(object, name), expected);
    }
}

static const char *text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsString(item)) {
        fail_msg("%s is no text", name);
    }
    return item->valuestring;
}

static const cJSON *element(const cJSON *object, const char *name, int index)
{
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(object, name), index);

    assert_non_null(item);
    return item;
}

/* ------------------------------------------------------------------ documents */

static void test_status(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, NULL, &replies);
    const cJSON *job = element(document, "jobs", 0);

    assert_int_equal(replies, 1);
    assert_number(document, "schema", 1);
    assert_string_equal(text(document, "version"), ADTOPK_VERSION);
    assert_number(document, "node", 3);
    assert_number(document, "pid", getpid());
    assert_number(document, "uptime_s", 0);
    assert_string_equal(text(document, "incarnation"), "0000000000abcdef");
    assert_number(document, "sessions", 9);
    assert_number(element(document, "peers", 0), "node", 1);
    assert_string_equal(text(element(document, "peers", 0), "state"), "up");
    assert_string_equal(text(element(document, "peers", 0), "incarnation"), "ffffffffffffffff");
    assert_string_equal(text(element(document, "peers", 1), "state"), "down");
    assert_string_equal(text(job, "name"), "digits");
    assert_string_equal(text(job, "run_id"), "r7");
    assert_string_equal(text(job, "state"), "active");
    assert_string_equal(text(job, "waiting_for"), "rank 3 to push");
    assert_number(job, "owner", 1000);
    assert_number(job, "world_size", 4);
    assert_number(job, "local_ranks", 2);
    assert_number(job, "nodes", 2);
    assert_number(job, "view", 1);
    assert_number(job, "steps_done", 40);
    /* An invalid byte must not make the document invalid. */
    assert_string_equal(text(element(document, "jobs", 1), "name"), "b?g \"\xC3\xBC\"");
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_stats_of_one_job(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, "digits", &replies);
    const cJSON *job = element(document, "jobs", 0);
    const cJSON *phases = cJSON_GetObjectItemCaseSensitive(job, "phase_seconds");
    const cJSON *tensor = element(job, "tensors_detail", 2);

    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_number(document, "schema", 1);
    assert_string_equal(text(job, "name"), "digits");
    assert_number(job, "steps", 40);
    assert_number(job, "steps_withdrawn", 2);
    assert_number(job, "tensors", 3);
    assert_number(job, "elements", 303);
    assert_number(job, "rounds", 80);
    assert_number(job, "rounds_retried", 5);
    assert_number(job, "dense_bytes", 48480);
    assert_number(job, "wire_bytes_sent", 9000);
    assert_number(job, "payload_bytes", 8000);
    assert_number(job, "sparse_bytes_sent", 6000);
    assert_number(job, "nonzeros_sent", 1500);
    assert_number(job, "bits_per_nonzero", 32);
    assert_number(phases, "collect", 1);
    assert_number(phases, "select", 2);
    assert_number(phases, "exchange", 3);
    assert_number(phases, "reduce", 4);
    assert_number(phases, "settle", 0.5);
    assert_number(job, "tensors_omitted", 0);
    assert_string_equal(text(tensor, "name"), "layer2.weight");
    assert_string_equal(text(tensor, "dtype"), "bf16");
    assert_number(tensor, "elements", 102);
    assert_true(element(tensor, "input", 1)->valuedouble == -2);
    assert_true(element(tensor, "applied", 0)->valuedouble == 0.25);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_long_document(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document = ask(daemon, fd, "", &replies);
    const cJSON *job = element(document, "jobs", 1);

    assert_true(replies > 3);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 2);
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(job, "bits_per_nonzero")));
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(job, "tensors_detail")), 1024);
    assert_number(job, "tensors_omitted", BIG_JOB_TENSORS - 1024);
    assert_string_equal(text(element(job, "tensors_detail", 1023), "name"), "layer1023.weight");
    assert_number(element(document, "links", 0), "bytes_sent", 123);
    assert_number(element(document, "links", 0), "resent", 4);
    cJSON_Delete(document);
    cJSON_Delete(ask(daemon, fd, NULL, &replies)); /* the connection goes on */
    (void)close(fd);
}

static void test_ended_jobs(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    unsigned replies;
    cJSON *document;

    history_record(&daemon->history, &daemon->core, 2);
    history_record(&daemon->history, &daemon->core, 77); /* of no job */
    daemon->core.job[0].steps_done = 41;
    history_record(&daemon->history, &daemon->core, 1);
    document = ask(daemon, fd, NULL, &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 2);
    assert_string_equal(text(element(document, "jobs", 0), "state"), "active");
    cJSON_Delete(document);

    daemon->core.jobs = 0; /* both end */
    document = ask(daemon, fd, "digits", &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), 1);
    assert_string_equal(text(element(document, "jobs", 0), "state"), "ended");
    assert_number(element(document, "jobs", 0), "steps", 41);
    assert_number(element(document, "jobs", 0), "tensors", 3);
    assert_number(element(document, "jobs", 0), "tensors_omitted", 3);
    cJSON_Delete(document);

    daemon->core.jobs = 1; /* the first is started again, and ends again and again */
    daemon->core.job[0].steps_done = 5;
    for (unsigned i = 0; i < 3 * HISTORY_JOBS; i++) {
        history_record(&daemon->history, &daemon->core, 1);
    }
    assert_int_equal(daemon->history.count, 2);
    for (unsigned i = 0; i < 3 * HISTORY_JOBS; i++) {
        daemon->core.job[0].id = 1000 + i;
        daemon->core.job[0].steps_done = i;
        history_record(&daemon->history, &daemon->core, 1);
    }
    daemon->core.jobs = 0;
    document = ask(daemon, fd, NULL, &replies);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(document, "jobs")), HISTORY_JOBS);
    assert_number(element(document, "jobs", 0), "steps_done", 2 * HISTORY_JOBS);
    assert_number(element(document, "jobs", HISTORY_JOBS - 1), "steps_done", 3 * HISTORY_JOBS - 1);
    cJSON_Delete(document);
    (void)close(fd);
}

static void test_unknown_job(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);

    send_request(fd, "nobody");
    assert_refused(daemon, fd, ADTOPK_ERR_ARGUMENT, "\"nobody\"");
}

/* ------------------------------------------------------------------ clients that misbehave */

static void test_rubbish(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t rubbish[] = {0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0x00, 0x12};
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, rubbish, sizeof(rubbish), 0), sizeof(rubbish));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "malformed");
}

static void test_unknown_request_and_version(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t no_kind[] = {0x08, 0x01};
    static const uint8_t other_version[] = {0x08, 0x02, 0x12, 0x00};
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, no_kind, sizeof(no_kind), 0), sizeof(no_kind));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "does not know");
    fd = connect_client(daemon);
    assert_int_equal(send(fd, other_version, sizeof(other_version), 0), sizeof(other_version));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "version 1");
}

static void test_too_long_request(void **state)
{
    struct daemon *daemon = *state;
    static const uint8_t zeros[50000];
    int fd = connect_client(daemon);

    assert_int_equal(send(fd, zeros, sizeof(zeros), 0), sizeof(zeros));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "more than 4096");
}

static void test_empty_message(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint32_t status;
    unsigned replies;

    assert_int_equal(send(fd, "", 0, 0), 0);
    assert_null(receive_answer(daemon, fd, &status, &replies));
    (void)close(fd);
    assert_serves(daemon);
}

static unsigned open_descriptors(void)
{
    DIR *directory = opendir("/proc/self/fd");
    unsigned count = 0;

    assert_non_null(directory);
    while (readdir(directory) != NULL) {
        count++;
    }
    (void)closedir(directory);
    return count;
}

static void test_descriptors(void **state)
{
    struct daemon *daemon = *state;
    unsigned before = open_descriptors();
    int fd = connect_client(daemon);
    uint8_t request[] = {0x08, 0x01, 0x12, 0x00};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(3 * sizeof(int))];
    } control = {.header = {.cmsg_len = CMSG_LEN(3 * sizeof(int)),
                     .cmsg_level = SOL_SOCKET,
                     .cmsg_type = SCM_RIGHTS}};
    struct iovec part = {.iov_base = request, .iov_len = sizeof(request)};
    struct msghdr message = {.msg_iov = &part,
        .msg_iovlen = 1,
        .msg_control = &control,
        .msg_controllen = sizeof(control)};
    int passed[3] = {STDIN_FILENO, STDOUT_FILENO, fd};

    memcpy(CMSG_DATA(&control.header), passed, sizeof(passed));
    assert_int_equal(sendmsg(fd, &message, 0), sizeof(request));
    assert_refused(daemon, fd, ADTOPK_ERR_PROTOCOL, "descriptors");
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT); /* closes what is still open */
    }
    assert_int_equal(open_descriptors(), before);
}

/* Waits until the daemon has hung up on the client, which may have unread data. */
static void await_hangup(struct daemon *daemon, int fd)
{
    uint64_t end = uv_hrtime() + PATIENCE_MS * UINT64_C(1000000);
    struct pollfd entry = {.fd = fd};

    do {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        assert_true(uv_hrtime() < end);
        (void)poll(&entry, 1, 1);
    } while ((entry.revents & POLLHUP) == 0);
}

static void test_client_that_does_not_read(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint64_t start = uv_hrtime();

    for (int i = 0; i < 5; i++) { /* more documents than the socket has room for */
        send_request(fd, "");
    }
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
    }
    assert_serves(daemon);
    await_hangup(daemon, fd);
    assert_true(uv_hrtime() - start >= (IDLE_MS - 50) * UINT64_C(1000000));
    (void)close(fd);
    assert_serves(daemon);
}

static void test_client_that_says_nothing(void **state)
{
    struct daemon *daemon = *state;
    int fd = connect_client(daemon);
    uint64_t start = uv_hrtime();

    await_hangup(daemon, fd);
    assert_true(uv_hrtime() - start >= (IDLE_MS - 50) * UINT64_C(1000000));
    (void)close(fd);
    assert_serves(daemon);
}

static void test_client_that_leaves_at_once(void **state)
{
    struct daemon *daemon = *state;

    for (int i = 0; i < 200; i++) {
        int fd = connect_client(daemon);

        if (i % 2 == 0) {
            send_request(fd, "");
        }
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
        (void)close(fd);
    }
    assert_serves(daemon);
}

static void test_too_many_clients(void **state)
{
    struct daemon *daemon = *state;
    unsigned limit = getuid() == 0 ? CONTROL_CLIENTS : CONTROL_CLIENTS_A_USER;
    int fd[CONTROL_CLIENTS + 1];
    unsigned replies;
    uint32_t status;

    for (unsigned i = 0; i <= limit; i++) {
        fd[i] = connect_client(daemon);
    }
    assert_null(receive_answer(daemon, fd[limit], &status, &replies));
    cJSON_Delete(ask(daemon, fd[0], NULL, &replies));
    for (unsigned i = 0; i <= limit; i++) {
        (void)close(fd[i]);
    }
    for (int i = 0; i < 5; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
    }
    assert_serves(daemon);
}

static void set_descriptor_limit(rlim_t count, struct rlimit *old)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    if (old != NULL) {
        *old = limit;
    }
    limit.rlim_cur = count;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Without descriptors a connection is dropped at the price of the spare one. */
static void test_no_descriptors_left(void **state)
{
    struct daemon *daemon = *state;
    int fd = new_socket();
    int filler[128];
    unsigned fillers = 0;
    struct rlimit old;
    uint32_t status;
    unsigned replies;

    set_descriptor_limit(100, &old);
    while (fillers < 128 && (filler[fillers] = dup(STDIN_FILENO)) >= 0) {
        fillers++;
    }
    assert_int_equal(errno, EMFILE);
    connect_socket(daemon, fd);
    assert_null(receive_answer(daemon, fd, &status, &replies));
    while (fillers > 0) {
        (void)close(filler[--fillers]);
    }
    set_descriptor_limit(old.rlim_cur, NULL);
    (void)close(fd);
    assert_serves(daemon);
}

/* When even that fails the loop sleeps instead of spinning, and recovers. */
static void test_no_spare_descriptor_either(void **state)
{
    struct daemon *daemon = *state;
    int fd = new_socket();
    struct rlimit old;
    unsigned turns = 0;
    unsigned replies;
    uint64_t end;

    set_descriptor_limit(0, &old);
    connect_socket(daemon, fd);
    end = uv_hrtime() + 300 * UINT64_C(1000000);
    while (uv_hrtime() < end) {
        (void)uv_run(&daemon->loop, UV_RUN_ONCE);
        turns++;
    }
    set_descriptor_limit(old.rlim_cur, NULL);
    assert_true(turns < 30);
    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    (void)close(fd);
    assert_serves(daemon);
}

static long allocations_left;

static void *failing_malloc(size_t size)
{
    return allocations_left-- > 0 ? malloc(size) : NULL;
}

/* Wherever memory runs out while a document is built: the client is dropped, or gets all of it. */
static void test_no_memory(void **state)
{
    struct daemon *daemon = *state;
    cJSON_Hooks hooks = {.malloc_fn = failing_malloc, .free_fn = free};
    char *document = NULL;
    long first = 0;

    daemon->core.jobs = 1;
    for (; document == NULL && first < 10000; first++) {
        int fd = connect_client(daemon);
        uint32_t status;
        unsigned replies;

        allocations_left = first;
        cJSON_InitHooks(&hooks);
        send_request(fd, "");
        document = receive_answer(daemon, fd, &status, &replies);
        cJSON_InitHooks(NULL);
        (void)close(fd);
    }
    assert_non_null(document);
    assert_true(first > 50); /* it did fail at many places */
    assert_serves(daemon);
    free(document);
}

/* ------------------------------------------------------------------ the socket's file */

static void assert_cannot_open(
    struct daemon *daemon, const char *path, enum adtopk_status expected, const char *words)
{
    struct error err = {.code = ADTOPK_OK};

    assert_null(open_control(daemon, path, &err));
    assert_int_equal(err.code, expected);
    assert_non_null(strstr(err.text, words));
}

static void test_bad_paths(void **state)
{
    struct daemon *daemon = *state;
    char path[200];
    int fd;

    assert_cannot_open(daemon, daemon->path, ADTOPK_ERR_STATE, "in use");
    assert_serves(daemon);
    assert_cannot_open(
        daemon, "/nonexistent/control", ADTOPK_ERR_SYSTEM, "/nonexistent/control: No such");
    assert_cannot_open(daemon, daemon->directory, ADTOPK_ERR_STATE, "not a socket");
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_cannot_open(daemon, path, ADTOPK_ERR_ARGUMENT, "199");
    assert_cannot_open(daemon, "", ADTOPK_ERR_ARGUMENT, "0");
    (void)snprintf(path, sizeof(path), "%s/file", daemon->directory);
    fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_cannot_open(daemon, path, ADTOPK_ERR_STATE, "not a socket");
    assert_int_equal(unlink(path), 0);
}

static void test_stale_file_is_replaced(void **state)
{
    struct daemon *daemon = *state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = new_socket();

    control_close(daemon->control);
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    assert_int_not_equal(access(daemon->path, F_OK), 0);
    (void)strcpy(address.sun_path, daemon->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    (void)close(fd); /* as a daemon that was killed leaves it */
    daemon->control = open_control(daemon, daemon->path, NULL);
    assert_non_null(daemon->control);
    assert_serves(daemon);
}

static void test_only_our_file_is_unlinked(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    assert_int_equal(unlink(daemon->path), 0);
    fd = open(daemon->path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    (void)close(fd);
    control_close(daemon->control);
    daemon->control = NULL;
    (void)uv_run(&daemon->loop, UV_RUN_DEFAULT);
    assert_int_equal(unlink(daemon->path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_status, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stats_of_one_job, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_document, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ended_jobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_job, setup, teardown),
        cmocka_unit_test_setup_teardown(test_rubbish, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_request_and_version, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_long_request, setup, teardown),
        cmocka_unit_test_setup_teardown(test_empty_message, setup, teardown),
        cmocka_unit_test_setup_teardown(test_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_that_does_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_that_says_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_that_leaves_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_many_clients, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_descriptors_left, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_spare_descriptor_either, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_paths, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stale_file_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(test_only_our_file_is_unlinked, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

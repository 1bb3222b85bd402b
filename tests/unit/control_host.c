#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "control_host.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/codec.h"
#include "proto/control.pb-c.h"

/* ------------------------------------------------------------------ a core of plain data */

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

bool core_find_job(const struct core *core, uint64_t id, struct job_info *info)
{
    for (uint32_t i = 0; core_job_info(core, i, info); i++) {
        if (info->id == id) {
            return true;
        }
    }
    return false;
}

bool core_rank_info(const struct core *core, uint64_t job, uint32_t index, struct rank_info *info)
{
    (void)core;
    (void)job;
    *info = (struct rank_info){.number = 2 * index,
        .pid = index == 0 ? 0 : 4711,
        .state = "ready",
        .step = 12,
        .pushed = index == 0,
        .pace_steps = index == 0 ? 0 : 12,
        .pace_us = 1.5,
        .pace_last_us = 3};
    return index < 2;
}

const struct node_ranks *core_roster(const struct core *core, uint64_t job, uint32_t index)
{
    static struct rank_info ranks[2] = {
        {.number = 1, .pid = 99, .state = "ready", .step = 13, .pace_steps = 1, .pace_us = 7},
        {.number = 3, .state = "left"}};
    static const struct node_ranks nodes[2] = {
        {.node = 6, .answered = true, .ranks = 2, .rank = ranks}, {.node = 8}};

    (void)core;
    (void)job;
    return index < 2 ? &nodes[index] : NULL;
}

bool core_tensor_info(
    const struct core *core, uint64_t job, uint32_t tensor, struct tensor_info *info)
{
    *info = (struct tensor_info){.numel = 100 + tensor,
        .sparsifier = "adtopk",
        .collective = "allgather",
        .density = 0.1,
        .scope = "rank",
        .values = "bf16",
        .indices = "rice",
        .bucket = tensor / 2,
        .turn = 7,
        .count = 10,
        .choice = CHOICE_BALANCED,
        .allowed = 1u << CHOICE_DENSE | 1u << CHOICE_BALANCED,
        .arrival_us = tensor == 2 ? -1 : 500.5 * tensor,
        .input = {1.5, -2},
        .applied = {0.25, 4},
        .verified = {.step = core->verified_step,
            .input = {3, 1},
            .applied = {2, 1},
            .residual = {1, tensor == core->broken ? 0.5 : 0},
            .magnitude = 1},
        .read = {.step = core->verified_step, .magnitude = 1}};
    info->spec.dtype = DTYPE_BF16;
    (void)snprintf(info->spec.name, sizeof(info->spec.name), "layer%u.weight", tensor);
    return job != 0;
}

bool core_policy_change(
    const struct core *core, uint64_t job, uint32_t index, struct policy_past *past)
{
    if (job != 1 || index >= core->changes) {
        return false;
    }
    *past = (struct policy_past){.change = {.version = core->changes - index,
                                     .step = 10 * (core->changes - index),
                                     .node = 5,
                                     .uid = 1000,
                                     .pid = 77},
        .at_us = 1000000,
        .what = "density=0.5"};
    return true;
}

const char *core_unmatched_rule(const struct core *core, uint64_t job, uint32_t index)
{
    return job == 1 && index < core->unmatched ? "lost*" : NULL;
}

struct residual_info core_residual_info(const struct core *core, uint64_t job)
{
    const struct residual_info residual = {.read = true,
        .magnitude = 5,
        .elements = 200,
        .step = 39,
        .verified = true,
        .unbalanced = 2};

    (void)core;
    return job == 1 ? residual : (struct residual_info){.read = false};
}

bool core_plan_info(const struct core *core, uint64_t job, struct plan_info *info)
{
    (void)core;
    *info = (struct plan_info){.automatic = true,
        .replan = true,
        .coordinator = 5,
        .bucket_bytes = 4096,
        .text = "4096:2b1d",
        .why = "keeping balanced",
        .decisions = 7,
        .proposals = 2,
        .predicted_us = 900,
        .steps = 12,
        .step_us = 1000,
        .gamma = 1.5,
        .link_us_byte = 0.01};
    return job == 1;
}

bool core_plan_candidate(
    const struct core *core, uint64_t job, uint32_t index, struct planner_candidate *candidate)
{
    static uint8_t choice[3] = {CHOICE_BALANCED, CHOICE_BALANCED, CHOICE_DENSE};
    static const struct choices plan = {.bucket_bytes = 4096, .tensors = 3, .choice = choice};

    (void)core;
    *candidate = (struct planner_candidate){.plan = &plan,
        .name = "balanced",
        .predicted_us = 900,
        .measured_us = index == 0 ? 1000 : 0,
        .finish_us = 800,
        .select_us = 10,
        .link_us = 20,
        .reduce_us = 30,
        .bytes = 12345,
        .in_force = index == 0};
    return job == 1 && index < 2;
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

struct link_refused core_refused(const struct core *core)
{
    return core->refused;
}

static void fill_core(struct core *core)
{
    *core = (struct core){.jobs = 2, .peers = 2, .verified_step = 39, .broken = UINT32_MAX};
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
        .sparse = {.bytes = 6000, .nonzeros = 1500},
        .checkpoint = {.due = 40, .read = 38},
        .phases.us = {1000000, 2000000, 3000000, 4000000, 500000},
        .policy = {.text = "{\"density\":0.1}",
            .version = 2,
            .step = 20,
            .next_version = 3,
            .next_step = 50}};
    core->job[1] = (struct job_info){.id = 2,
        .key = {.owner = 0, .name = "b\xFFg \"\xC3\xBC\"", .run_id = "0"},
        .state = "forming",
        .tensors = BIG_JOB_TENSORS};
    core->peer[0] = (struct peer_info){.node = 1,
        .up = true,
        .incarnation = UINT64_MAX,
        .link = {.bytes_sent = 123,
            .resent = 4,
            .resent_bytes = 567,
            .copied_bytes = 5678,
            .checked_bytes = 56789,
            .reopened = 2,
            .round_trip_us = 250}};
    core->peer[1] = (struct peer_info){.node = 5};
}

/* ------------------------------------------------------------------ a daemon and its clients */

static struct report_trainers some_trainers(void *context)
{
    (void)context;
    return (struct report_trainers){.sessions = 9,
        .opened = 20,
        .refused = 3,
        .keys = 4,
        .handshakes = 5,
        .lost = 6,
        .protocol_errors = 1};
}

static enum adtopk_status take_event(void *context, struct event *event, struct error *err)
{
    struct daemon *daemon = context;

    if (daemon->refusal != ADTOPK_OK) {
        return error_set(err, daemon->refusal, "the core says no");
    }
    daemon->events++;
    daemon->event = *event;
    if (event->type == EVENT_POLICY) {
        (void)snprintf(daemon->policy, sizeof(daemon->policy), "%s", event->policy.text);
        daemon->event.policy.text = daemon->policy;
    }
    return ADTOPK_OK;
}

static const char *default_policy(void *context)
{
    (void)context;
    return "{\"density\": 0.25}";
}

static void log_line(void *context, enum control_topic topic, uint32_t uid, const char *line)
{
    struct daemon *daemon = context;
    size_t used = strlen(daemon->log);

    (void)uid;
    (void)snprintf(daemon->log + used, sizeof(daemon->log) - used, "%d %s\n", (int)topic, line);
}

static struct report_load some_load(void *context)
{
    (void)context;
    return (struct report_load){.longest_us = 1840,
        .minute_us = 310,
        .cpu_us = 72000,
        .workers = 2,
        .busy_us = 51000,
        .lines_left_out = 7,
        .lines_lost = 5};
}

static uint64_t some_memory(void *context, uint64_t job)
{
    (void)context;
    return 1000 + job;
}

void daemon_turn(struct daemon *daemon)
{
    for (int i = 0; i < 10; i++) {
        (void)uv_run(&daemon->loop, UV_RUN_NOWAIT);
    }
}

void daemon_finish(struct daemon *daemon, enum action_type type, uint64_t ticket,
    enum adtopk_status status, const char *why)
{
    struct error err = {.code = ADTOPK_OK};
    struct action action = {
        .type = type, .ticket = ticket, .status = status, .operation = 3, .number = 39};

    if (status != ADTOPK_OK) {
        (void)error_set(&err, status, "%s", why);
        action.error = &err;
    }
    control_apply(daemon->control, &action);
}

struct control *open_control(struct daemon *daemon, const char *path, struct error *err)
{
    struct control_config config = {.path = path,
        .core = &daemon->core,
        .history = &daemon->history,
        .node = 3,
        .incarnation = 0xABCDEF,
        .group = daemon->group,
        .trainers = some_trainers,
        .load = some_load,
        .memory = some_memory,
        .event = take_event,
        .policy = default_policy,
        .log = log_line,
        .context = daemon,
        .idle_ms = IDLE_MS};

    return control_create(&daemon->loop, &config, err);
}

int daemon_setup(void **state)
{
    struct daemon *daemon = calloc(1, sizeof(*daemon));

    if (daemon == NULL || uv_loop_init(&daemon->loop) != 0) {
        return -1;
    }
    fill_core(&daemon->core);
    daemon->group = "no-such-group";
    (void)strcpy(daemon->directory, "/tmp/adtopk-test-control-XXXXXX");
    if (mkdtemp(daemon->directory) == NULL) {
        return -1;
    }
    (void)snprintf(daemon->path, sizeof(daemon->path), "%s/control", daemon->directory);
    daemon->control = open_control(daemon, daemon->path, NULL);
    *state = daemon;
    return daemon->control != NULL ? 0 : -1;
}

int daemon_teardown(void **state)
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

int new_socket(void)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0);
    return fd;
}

void connect_socket(const struct daemon *daemon, int fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    (void)strcpy(address.sun_path, daemon->path);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

int connect_client(const struct daemon *daemon)
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

void send_message(int fd, Adtopk__ControlRequest *request)
{
    uint8_t bytes[8192];

    request->version = 1;
    assert_true(adtopk__control_request__get_packed_size(request) <= sizeof(bytes));
    assert_true(send(fd, bytes, adtopk__control_request__pack(request, bytes), 0) > 0);
}

void send_request(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlStatus status = ADTOPK__CONTROL_STATUS__INIT;
    Adtopk__ControlStats stats = ADTOPK__CONTROL_STATS__INIT;
    char name[80] = "";

    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATUS;
    request.status = &status;
    if (job != NULL) {
        (void)snprintf(name, sizeof(name), "%s", job);
        stats.job = name;
        request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_STATS;
        request.stats = &stats;
    }
    send_message(fd, &request);
}

char *receive_answer(struct daemon *daemon, int fd, uint32_t *status, unsigned *replies)
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
        if (reply->note[0] != '\0') {
            assert_string_equal(reply->text, "");
            assert_true(reply->more);
            (void)snprintf(daemon->note, sizeof(daemon->note), "%s", reply->note);
        }
        more = reply->more != 0;
        (*replies)++;
        adtopk__control_reply__free_unpacked(reply, NULL);
    }
    return document;
}

cJSON *ask(struct daemon *daemon, int fd, const char *job, unsigned *replies)
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

cJSON *receive_document(struct daemon *daemon, int fd)
{
    uint32_t status = ADTOPK_ERR_SYSTEM;
    unsigned replies;
    char *text = receive_answer(daemon, fd, &status, &replies);
    cJSON *document;

    assert_non_null(text);
    if (status != ADTOPK_OK) {
        fail_msg("%s", text);
    }
    document = cJSON_Parse(text);
    assert_non_null(document);
    assert_true(cJSON_GetObjectItem(document, "schema")->valuedouble == 1);
    free(text);
    return document;
}

double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsNumber(item)) {
        fail_msg("%s is no number", name);
    }
    return item->valuedouble;
}

void assert_number(const cJSON *object, const char *name, double expected)
{
    if (number(object, name) != expected) {
        fail_msg("%s is %g, not %g", name, number(object, name), expected);
    }
}

const char *text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

    if (!cJSON_IsString(item)) {
        fail_msg("%s is no text", name);
    }
    return item->valuestring;
}

const cJSON *element(const cJSON *object, const char *name, int index)
{
    const cJSON *item = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(object, name), index);

    assert_non_null(item);
    return item;
}

void assert_serves(struct daemon *daemon)
{
    int fd = connect_client(daemon);
    unsigned replies;

    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    (void)close(fd);
}

void assert_turned_away(
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
}

void assert_refused(struct daemon *daemon, int fd, enum adtopk_status expected, const char *words)
{
    assert_turned_away(daemon, fd, expected, words);
    (void)close(fd);
    assert_serves(daemon);
}

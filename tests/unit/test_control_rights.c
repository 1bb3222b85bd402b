/*
 * The rights of clients, from the credentials that the kernel reports. As root, the test becomes
 * other users while it connects. Otherwise it skips those cases.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <grp.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control_host.h"
#include "daemon/admin/rights.h"

#define STRANGER 54321u
#define GROUP 43210u

static bool is_root(void)
{
    if (geteuid() != 0) {
        print_message("# only root can be somebody else\n");
    }
    return geteuid() == 0;
}

/* Becomes a user with this group and these other groups, connects, and becomes root again with user
 * 0. */
static void become(uid_t uid, gid_t gid, const gid_t *groups, size_t count)
{
    if (uid == 0) {
        assert_int_equal(seteuid(0), 0);
    }
    assert_int_equal(setgroups(count, groups), 0);
    assert_int_equal(setegid(gid), 0);
    assert_int_equal(seteuid(uid), 0);
}

/* Makes a connection whose other end belongs to this user. Returns one end. */
static int connection_of(uid_t uid, gid_t gid, const gid_t *groups, size_t count, int *other)
{
    int pair[2];

    become(uid, gid, groups, count);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    become(0, 0, NULL, 0);
    *other = pair[1];
    return pair[0];
}

static void assert_rights(
    const struct rights *rights, int fd, bool owner_of_5, bool admin, uint32_t owner)
{
    struct ucred who;
    socklen_t size = sizeof(who);

    assert_int_equal(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size), 0);
    assert_true(rights_allow(rights, RIGHT_READ, fd, &who, owner));
    assert_int_equal(rights_allow(rights, RIGHT_OWNER, fd, &who, owner), owner_of_5 || admin);
    assert_int_equal(rights_allow(rights, RIGHT_ADMIN, fd, &who, owner), admin);
    assert_false(rights_allow(rights, (enum right)7, fd, &who, owner)); /* not in the table */
}

static void test_rights(void **state)
{
    static const gid_t in[] = {7, GROUP, 9};
    static const gid_t out[] = {7, GROUP + 1};
    struct rights rights = {.self = 999, .has_group = true, .group = GROUP};
    static const struct {
        uid_t uid;
        gid_t gid;
        const gid_t *groups;
        size_t count;
        uint32_t owner;
        bool owns, admin;
    } cases[] = {
        {STRANGER, STRANGER, NULL, 0, 5, false, false},
        {STRANGER, STRANGER, out, 2, 5, false, false},
        {STRANGER, STRANGER, out, 2, STRANGER, true, false},
        {STRANGER, STRANGER, in, 3, 5, false, true},
        {STRANGER, GROUP, NULL, 0, 5, false, true},
        {999, STRANGER, NULL, 0, 5, false, true}, /* the daemon's own user */
        {0, 0, NULL, 0, 5, false, true},
    };

    (void)state;
    if (!is_root()) {
        return;
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int other;
        int fd = connection_of(cases[i].uid, cases[i].gid, cases[i].groups, cases[i].count, &other);

        assert_rights(&rights, fd, cases[i].owns, cases[i].admin, cases[i].owner);
        (void)close(fd);
        (void)close(other);
    }
}

static void test_without_the_group(void **state)
{
    static const gid_t in[] = {GROUP, 0};
    struct rights rights = rights_of(999, "no-such-group-anywhere");
    int other;
    int fd;

    (void)state;
    assert_false(rights.has_group);
    assert_false(rights_of(999, "").has_group);
    if (!is_root()) {
        return;
    }
    /* The group number 0 has no special meaning. */
    fd = connection_of(STRANGER, rights.group, in, 2, &other);
    assert_rights(&rights, fd, false, false, 5);
    (void)close(fd);
    (void)close(other);
}

static void test_group_is_found(void **state)
{
    struct group *root = getgrgid(0);
    struct rights rights;

    (void)state;
    if (root == NULL) {
        return;
    }
    rights = rights_of(999, root->gr_name);
    assert_true(rights.has_group);
    assert_int_equal(rights.group, 0);
}

/* ------------------------------------------------------------------ over the socket */

static int connect_as(struct daemon *daemon, uid_t uid)
{
    int fd = new_socket();

    assert_int_equal(chmod(daemon->directory, 0755), 0);
    become(uid, uid, NULL, 0);
    connect_socket(daemon, fd);
    become(0, 0, NULL, 0);
    return fd;
}

static void send_verify(int fd, const char *job)
{
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlVerify verify = ADTOPK__CONTROL_VERIFY__INIT;
    char name[64];

    (void)snprintf(name, sizeof(name), "%s", job);
    verify.job = name;
    verify.timeout_ms = 1000;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_VERIFY;
    request.verify = &verify;
    send_message(fd, &request);
}

static void test_a_stranger_may_look_only(void **state)
{
    struct daemon *daemon = *state;
    Adtopk__ControlRequest request = ADTOPK__CONTROL_REQUEST__INIT;
    Adtopk__ControlPolicySet set = ADTOPK__CONTROL_POLICY_SET__INIT;
    Adtopk__ControlDrain drain = ADTOPK__CONTROL_DRAIN__INIT;
    Adtopk__ControlCheckpoint checkpoint = ADTOPK__CONTROL_CHECKPOINT__INIT;
    char job[] = "digits";
    char policy[] = "{}";
    unsigned replies;
    int fd;

    if (!is_root()) {
        return;
    }
    fd = connect_as(daemon, STRANGER);
    cJSON_Delete(ask(daemon, fd, NULL, &replies));
    cJSON_Delete(ask(daemon, fd, "digits", &replies));
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_DRAIN;
    request.drain = &drain;
    send_message(fd, &request);
    assert_refused(daemon, fd, ADTOPK_ERR_DENIED,
        "uid 54321 may not drain this node: only root, the daemon's user and members of the group");
    assert_false(control_is_draining(daemon->control));
    assert_non_null(strstr(daemon->log, "3 refused a request of uid 54321, pid "));

    fd = connect_as(daemon, STRANGER);
    set.job = job;
    set.policy = policy;
    set.timeout_ms = 1000;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_POLICY_SET;
    request.policy_set = &set;
    send_message(fd, &request);
    assert_refused(daemon, fd, ADTOPK_ERR_DENIED,
        "may not change the policy of job 1000:digits/r7: only its owner, root");
    fd = connect_as(daemon, STRANGER);
    send_verify(fd, "digits");
    assert_refused(daemon, fd, ADTOPK_ERR_DENIED, "may not verify job 1000:digits/r7");
    fd = connect_as(daemon, STRANGER);
    checkpoint.job = job;
    checkpoint.timeout_ms = 1000;
    request.kind_case = ADTOPK__CONTROL_REQUEST__KIND_CHECKPOINT;
    request.checkpoint = &checkpoint;
    send_message(fd, &request);
    assert_refused(
        daemon, fd, ADTOPK_ERR_DENIED, "may not ask for a checkpoint of job 1000:digits/r7");
    assert_int_equal(daemon->events, 0);
}

static void test_the_owner_may_change_the_job(void **state)
{
    struct daemon *daemon = *state;
    cJSON *document;
    int fd;

    if (!is_root()) {
        return;
    }
    fd = connect_as(daemon, 1000);
    send_verify(fd, "digits");
    daemon_turn(daemon);
    daemon_finish(daemon, ACTION_VERIFIED, daemon->event.asked.ticket, ADTOPK_OK, NULL);
    document = receive_document(daemon, fd);
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(document, "conserved")));
    cJSON_Delete(document);
    daemon->core.job[1].key = (struct job_key){.owner = 0, .name = "other", .run_id = "1"};
    send_verify(fd, "other");
    assert_refused(daemon, fd, ADTOPK_ERR_DENIED, "job 0:other/1");
    assert_int_equal(daemon->events, 1);
}

/* The clients of one user leave room for other users, and for root. */
static void test_a_flood_of_one_user(void **state)
{
    struct daemon *daemon = *state;
    int fd[CONTROL_CLIENTS_A_USER + 1];
    unsigned replies;
    int other;

    if (!is_root()) {
        return;
    }
    for (unsigned i = 0; i <= CONTROL_CLIENTS_A_USER; i++) {
        fd[i] = connect_as(daemon, STRANGER);
    }
    assert_turned_away(
        daemon, fd[CONTROL_CLIENTS_A_USER], ADTOPK_ERR_STATE, "no room for another client");
    cJSON_Delete(ask(daemon, fd[0], NULL, &replies));
    other = connect_as(daemon, STRANGER + 1);
    cJSON_Delete(ask(daemon, other, NULL, &replies));
    assert_serves(daemon);
    for (unsigned i = 0; i <= CONTROL_CLIENTS_A_USER; i++) {
        (void)close(fd[i]);
    }
    (void)close(other);
}

/* Many users together leave room for root. */
static void test_a_flood_of_many_users(void **state)
{
    struct daemon *daemon = *state;
    int fd[CONTROL_CLIENTS];

    if (!is_root()) {
        return;
    }
    for (unsigned i = 0; i < CONTROL_CLIENTS; i++) {
        fd[i] = connect_as(daemon, STRANGER + i / CONTROL_CLIENTS_A_USER);
        daemon_turn(daemon);
    }
    for (unsigned i = CONTROL_CLIENTS - CONTROL_CLIENTS_FREE; i < CONTROL_CLIENTS; i++) {
        assert_turned_away(daemon, fd[i], ADTOPK_ERR_STATE, "no room for another client");
    }
    assert_serves(daemon);
    for (unsigned i = 0; i < CONTROL_CLIENTS; i++) {
        (void)close(fd[i]);
    }
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, daemon_setup, daemon_teardown)

/* The unfinished requests of one user keep out neither other users nor administrators. */
static void test_requests_of_one_user(void **state)
{
    struct daemon *daemon = *state;
    int fd;

    if (!is_root()) {
        return;
    }
    for (unsigned i = 0; i < CONTROL_PENDING_A_USER; i++) {
        fd = connect_as(daemon, 1000);
        send_verify(fd, "digits");
        daemon_turn(daemon);
        (void)close(fd);
        daemon_turn(daemon);
    }
    assert_int_equal(daemon->events, CONTROL_PENDING_A_USER);
    fd = connect_as(daemon, 1000);
    send_verify(fd, "digits");
    assert_refused(daemon, fd, ADTOPK_ERR_STATE,
        "user 1000 has 16 requests under way on this node, and one user may have 16");
    fd = connect_client(daemon);
    send_verify(fd, "digits");
    daemon_turn(daemon);
    assert_int_equal(daemon->events, CONTROL_PENDING_A_USER + 1);
    (void)close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rights),
        cmocka_unit_test(test_without_the_group),
        cmocka_unit_test(test_group_is_found),
        WITH_DAEMON(test_a_stranger_may_look_only),
        WITH_DAEMON(test_the_owner_may_change_the_job),
        WITH_DAEMON(test_a_flood_of_one_user),
        WITH_DAEMON(test_requests_of_one_user),
        WITH_DAEMON(test_a_flood_of_many_users),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

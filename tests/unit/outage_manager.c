#include "outage_manager.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/host/outage.h"
#include "tests/unit/service_manager.h"

#define AGED '-' /* begins the name of what is not passed on */
#define STATE_SIZE (FILES_NAME_SIZE + 64)

/* What other processes see of it. */
struct keeping {
    _Atomic int descriptors, allocations;
};

static struct keeping *keeping; /* NULL: there is no manager */
static struct sockaddr_un address;
static int door, answers[2]; /* its socket, and a pair: the daemon-to-be has the first */
static pid_t process;

/* Room for all descriptors of a message. */
struct passing {
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MANAGER_MOST * sizeof(int))];
    struct iovec content;
    struct mmsghdr message;
};

static void passing_prepare(struct passing *passing, void *content, size_t size)
{
    memset(passing, 0, sizeof(*passing));
    passing->content = (struct iovec){.iov_base = content, .iov_len = size};
    passing->message.msg_hdr.msg_iov = &passing->content;
    passing->message.msg_hdr.msg_iovlen = 1;
    passing->message.msg_hdr.msg_control = passing->control;
    passing->message.msg_hdr.msg_controllen = sizeof(passing->control);
}

/* Takes the descriptors of a message. Returns how many there are. */
static unsigned passing_descriptors(struct passing *passing, int fd[MANAGER_MOST])
{
    const struct cmsghdr *header = CMSG_FIRSTHDR(&passing->message.msg_hdr);

    if (header == NULL || header->cmsg_type != SCM_RIGHTS) {
        return 0;
    }
    memcpy(fd, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
    return (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
}

/* ---- the manager ---- */

/* Whether a store has it. Otherwise each daemon has it from its start: notes of all GPUs. */
static bool keeping_is_stored(const char *name)
{
    return strchr(name, '.') != NULL;
}

static void keeping_count(void)
{
    int descriptors = 0, allocations = 0;

    for (unsigned at = 0; at < manager.count; at++) {
        const char *name = manager.name[at];

        const bool is_handle = strchr(name, '@') != NULL;

        descriptors += keeping_is_stored(name) + is_handle;
        allocations += keeping_is_stored(name);
        allocations += is_handle || strcmp(strchrnul(name, '.'), ".0") == 0;
    }
    atomic_store(&keeping->descriptors, descriptors);
    atomic_store(&keeping->allocations, allocations);
}

static void keeping_age(void)
{
    for (unsigned at = 0; at < manager.count; at++) {
        if (keeping_is_stored(manager.name[at])) {
            manager.name[at][0] = AGED;
        }
    }
}

static void keeping_answer(void)
{
    struct passing passing;
    struct cmsghdr *header;

    for (unsigned at = manager.count; at-- > 0;) {
        if (manager.name[at][0] == AGED) {
            manager_forget(at);
        }
    }
    passing_prepare(&passing, &manager, sizeof(manager));
    passing.message.msg_hdr.msg_controllen =
        manager.count > 0 ? CMSG_SPACE(manager.count * sizeof(int)) : 0;
    header = CMSG_FIRSTHDR(&passing.message.msg_hdr);
    if (header != NULL) {
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(manager.count * sizeof(int));
        memcpy(CMSG_DATA(header), manager.fd, manager.count * sizeof(int));
    }
    (void)sendmmsg(answers[1], &passing.message, 1, 0);
}

/* What a daemon says to its manager, or the test. Other states are of no interest. */
static void keeping_take(const char *state, int fd)
{
    const char *begin = strstr(state, "FDNAME=");
    char name[FILES_NAME_SIZE] = "";

    if (begin != NULL) {
        begin += strlen("FDNAME=");
        (void)snprintf(name, sizeof(name), "%.*s", (int)(strchrnul(begin, '\n') - begin), begin);
    }
    if (strcmp(state, "PASS") == 0) {
        keeping_answer();
    } else if (strcmp(state, "AGE") == 0) {
        keeping_age();
    } else if (begin != NULL && fd >= 0 && manager.count < MANAGER_MOST) {
        manager_keep(name, fd);
    } else if (begin != NULL && fd < 0) {
        (void)manager_tell(name, -1, NULL);
    }
    keeping_count();
}

static void keeping_serve(void)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        struct passing passing;
        char state[STATE_SIZE] = "";
        int fd[MANAGER_MOST] = {-1};

        passing_prepare(&passing, state, sizeof(state) - 1);
        if (recvmmsg(door, &passing.message, 1, 0, NULL) == 1) {
            (void)passing_descriptors(&passing, fd);
            keeping_take(state, fd[0]);
        }
        if (fd[0] >= 0) {
            (void)close(fd[0]);
        }
    }
}

/* ---- the test, and daemons ---- */

/* By a call that is not wrapped. */
static void keeping_tell(const char *state)
{
    (void)sendto(door, state, strlen(state), 0, (struct sockaddr *)&address, sizeof(address));
}

void outage_manager_start(const char *folder)
{
    address.sun_family = AF_UNIX;
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/manager", folder);
    door = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(door, (struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, answers), 0);
    keeping =
        mmap(NULL, sizeof(*keeping), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(keeping, MAP_FAILED);
    (void)fflush(NULL);
    process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        keeping_serve();
    }
}

void outage_manager_stop(void)
{
    if (keeping == NULL) {
        return;
    }
    (void)kill(process, SIGKILL);
    (void)waitpid(process, NULL, 0);
    outage_forget(process);
    (void)close(door);
    (void)close(answers[0]);
    (void)close(answers[1]);
    (void)munmap(keeping, sizeof(*keeping));
    keeping = NULL;
}

void outage_manager_age(void)
{
    if (keeping != NULL) {
        keeping_tell("AGE");
    }
}

void outage_manager_pass(void)
{
    struct passing passing;
    char most[16];

    passing_prepare(&passing, &manager, sizeof(manager));
    keeping_tell("PASS");
    if (recvmmsg(answers[0], &passing.message, 1, 0, NULL) != 1) {
        abort();
    }
    for (unsigned at = 0, count = passing_descriptors(&passing, manager.fd); at < count; at++) {
        const int fd = manager.fd[at];

        manager.fd[at] = dup2(fd, MANAGER_ASIDE + (int)at);
        (void)close(fd);
    }
    (void)close_range(MANAGER_FIRST, MANAGER_ASIDE - 1, 0); /* what the test has open */
    manager_pass();
    while (manager.count > 0) {
        manager_forget(0);
    }
    (void)snprintf(most, sizeof(most), "%u", MANAGER_MOST);
    (void)setenv("FDSTORE", most, 1);
    (void)setenv("NOTIFY_SOCKET", address.sun_path, 1);
}

int outage_manager_descriptors(void)
{
    return keeping != NULL ? atomic_load(&keeping->descriptors) : 0;
}

int outage_manager_allocations(void)
{
    return keeping != NULL ? atomic_load(&keeping->allocations) : 0;
}

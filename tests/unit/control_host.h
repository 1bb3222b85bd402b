/*
 * For tests of the control socket: a daemon with a core of plain data, and its clients. The daemon
 * runs in the test's own thread, whenever a client waits for it.
 */
#ifndef ADTOPK_TESTS_CONTROL_HOST_H
#define ADTOPK_TESTS_CONTROL_HOST_H

#include <stdint.h>

#include <cjson/cJSON.h>
#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/core/inspect.h"
#include "proto/control.pb-c.h"

#define PATIENCE_MS 60000 /* how long a test waits for the daemon before it fails */
#define IDLE_MS 400       /* silence after which the daemon hangs up on a client */
#define BIG_JOB_TENSORS 3000u

/* A core that has the first `jobs` and `peers` entries. */
struct core {
    uint32_t jobs;
    struct job_info job[2];
    uint32_t peers;
    struct peer_info peer[2];
    struct link_refused refused;
    unsigned changes;       /* of job 1's policy so far */
    uint32_t unmatched;     /* rules of that policy that match no tensor */
    uint64_t verified_step; /* of all tensors; job 1's tensor `broken` is out of balance */
    uint32_t broken;
};

struct daemon {
    uv_loop_t loop;
    struct core core;
    struct history history;
    struct control *control;    /* NULL: the test has closed it */
    enum adtopk_status refusal; /* the core's answer to the next events */
    unsigned events;            /* events so far */
    struct event event;         /* the last event; its policy.text points to `policy` */
    char policy[4096];
    const char *group; /* the group that may change things, from the next open_control() on */
    char log[8192];
    char note[256]; /* the last note that a client got */
    char directory[64];
    char path[96]; /* path of the socket, in `directory` */
};

/** A test's set-up: *state is a struct daemon that serves. It has two jobs, "digits" and one of
 * BIG_JOB_TENSORS tensors. */
int daemon_setup(void **state);

/** A test's teardown: it fails if the daemon leaves handles open in its loop. */
int daemon_teardown(void **state);

/** Lets the daemon take a few turns. */
void daemon_turn(struct daemon *daemon);

/** Reports the outcome of a ticket, as the core does. */
void daemon_finish(struct daemon *daemon, enum action_type type, uint64_t ticket,
    enum adtopk_status status, const char *why);

/** Lets the daemon serve at `path`. NULL and *err (which may be NULL) if it cannot. */
struct control *open_control(struct daemon *daemon, const char *path, struct error *err);

/** Makes a client's socket, not yet connected, which the caller closes. */
int new_socket(void);
void connect_socket(const struct daemon *daemon, int fd);

/** Makes a client's socket and connects it. */
int connect_client(const struct daemon *daemon);

/** Sends a request and fills in its version. */
void send_message(int fd, Adtopk__ControlRequest *request);

/** Asks for the statistics of a job ("": all jobs), or for the status if `job` is NULL. */
void send_request(int fd, const char *job);

/** Receives the whole answer, which the caller frees, in *replies messages. *status is the
 * daemon's. NULL: the daemon closed the connection. */
char *receive_answer(struct daemon *daemon, int fd, uint32_t *status, unsigned *replies);

/** Sends a request, which must succeed. The caller deletes the document. */
cJSON *ask(struct daemon *daemon, int fd, const char *job, unsigned *replies);

/** Receives the answer, which must be a document of schema 1. The caller deletes it. */
cJSON *receive_document(struct daemon *daemon, int fd);

/** The value under a name in a document. They fail the test if it has another type. */
double number(const cJSON *object, const char *name);
const char *text(const cJSON *object, const char *name);
const cJSON *element(const cJSON *object, const char *name, int index);
void assert_number(const cJSON *object, const char *name, double expected);

/** Checks that the daemon serves a client that behaves, whatever others did. */
void assert_serves(struct daemon *daemon);

/** Checks that the answer is this error, that its text has `words`, and that the daemon closes this
 * connection. */
void assert_turned_away(
    struct daemon *daemon, int fd, enum adtopk_status expected, const char *words);

/** Likewise, and the daemon serves others. Closes fd. */
void assert_refused(struct daemon *daemon, int fd, enum adtopk_status expected, const char *words);

#endif

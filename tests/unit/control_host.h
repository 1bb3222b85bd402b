/*
 * For tests of the control socket: a daemon whose core is made of plain data, and its clients. The
 * daemon runs in the test's own thread, whenever a client waits for it.
 */
#ifndef ADTOPK_TESTS_CONTROL_HOST_H
#define ADTOPK_TESTS_CONTROL_HOST_H

#include <stdint.h>

#include <cjson/cJSON.h>
#include <uv.h>

#include "daemon/admin/control.h"
#include "daemon/core/inspect.h"
#include "proto/control.pb-c.h"

#define PATIENCE_MS 10000 /* how long a test waits for the daemon before it fails */
#define IDLE_MS 400       /* after which the daemon hangs up on a client */
#define BIG_JOB_TENSORS 3000u

/* The first `jobs` and `peers` entries count. */
struct core {
    uint32_t jobs;
    struct job_info job[2];
    uint32_t peers;
    struct peer_info peer[2];
    struct link_refused refused;
    unsigned changes;       /* of job 1's policy */
    uint32_t unmatched;     /* rules of it */
    uint64_t verified_step; /* of all tensors; job 1's tensor `broken` is out of balance */
    uint32_t broken;
};

struct daemon {
    uv_loop_t loop;
    struct core core;
    struct history history;
    struct control *control;    /* NULL: closed by the test */
    enum adtopk_status refusal; /* what the core says to the next events */
    unsigned events;            /* taken so far */
    struct event event;         /* the last one; policy.text points to `policy` */
    char policy[4096];
    const char *group; /* whose members may change things, from the next open_control() on */
    char log[8192];
    char note[256]; /* the last one that a client got */
    char directory[64];
    char path[96]; /* of the socket, in `directory` */
};

/** A test's set-up: *state is a struct daemon with two jobs, "digits" and one of
 * BIG_JOB_TENSORS tensors, that serves. */
int daemon_setup(void **state);

/** A test's teardown: it fails if the daemon leaves anything open in its loop. */
int daemon_teardown(void **state);

/** Lets the daemon go on for a few turns. */
void daemon_turn(struct daemon *daemon);

/** The outcome of a ticket, as the core would tell it. */
void daemon_finish(struct daemon *daemon, enum action_type type, uint64_t ticket,
    enum adtopk_status status, const char *why);

/** Lets the daemon serve at `path`; NULL and *err (which may be NULL) if it cannot. */
struct control *open_control(struct daemon *daemon, const char *path, struct error *err);

/** A client's socket, not yet connected; the caller closes it. */
int new_socket(void);
void connect_socket(const struct daemon *daemon, int fd);

/** ... and connected. */
int connect_client(const struct daemon *daemon);

/** Sends any request; its version is filled in. */
void send_message(int fd, Adtopk__ControlRequest *request);

/** Asks for the statistics of a job ("": of all), or for the status if `job` is NULL. */
void send_request(int fd, const char *job);

/** The whole answer, to be freed, in *replies messages; *status is the daemon's. NULL: the daemon
 * closed the connection. */
char *receive_answer(struct daemon *daemon, int fd, uint32_t *status, unsigned *replies);

/** Sends a request, which must succeed; the caller deletes the document. */
cJSON *ask(struct daemon *daemon, int fd, const char *job, unsigned *replies);

/** Takes the answer, which must be a document of schema 1; the caller deletes it. */
cJSON *receive_document(struct daemon *daemon, int fd);

/** What a document has under a name; they fail the test if it is something else. */
double number(const cJSON *object, const char *name);
const char *text(const cJSON *object, const char *name);
const cJSON *element(const cJSON *object, const char *name, int index);
void assert_number(const cJSON *object, const char *name, double expected);

/** A client that behaves is served, whatever the others did. */
void assert_serves(struct daemon *daemon);

/** The answer is this error, its text has `words`, and the daemon closes the connection but serves
 * others. Closes fd. */
void assert_refused(struct daemon *daemon, int fd, enum adtopk_status expected, const char *words);

#endif

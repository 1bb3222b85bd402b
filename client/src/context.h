/*
 * A context, and what the files of the library share.
 *
 *   options.c  defaults from the environment       message.c  errors, versions
 *   session.c  open, commit, close                 tensor.c   registering
 *   step.c     push, step_end, wait, step_wait     update.c   reading updates
 *   ops.c      broadcast, barrier, all-reduce
 *
 * transport.h has the operations by which these reach the daemon:
 *
 *   local.c    the daemon on this node: memory     connect.c  ... its socket
 *   ring.c     ... submitting                      wait.c     ... spinning, then sleeping
 *   remote.c   a daemon elsewhere: what is sent    remote_gate.c    ... its sockets
 *   remote_intake.c  ... what it sends
 *
 * Internal functions begin with client_; only adtopk_* leaves the library.
 */
#ifndef ADTOPK_CLIENT_CONTEXT_H
#define ADTOPK_CLIENT_CONTEXT_H

#include <stdbool.h>
#include <sys/un.h>

#include <adtopk/adtopk.h>

#include "client/src/ring.h"
#include "proto/error.h"
#include "proto/local.h"
#include "proto/local.pb-c.h"

#define CLIENT_NAME_MAX 127
#define CLIENT_KEY_MAX 63
#define CLIENT_ADDRESS_SIZE 280
#define CLIENT_OP_SIZE (1u << 20) /* bytes of the operation area; longer operations are cut */
#define CLIENT_MAX_TENSORS 65536u

/* Options with all defaults filled in. */
struct client_options {
    char address[CLIENT_ADDRESS_SIZE];
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* of a local daemon's socket, or "" */
    const char *key_file;                                   /* the caller's; NULL: no keys */
    const char *server_key;                                 /* ... */
    char job[CLIENT_KEY_MAX + 1];
    char run_id[CLIENT_KEY_MAX + 1];
    int rank;
    int world_size;
    const char *policy; /* the caller's; "" for the daemon's */
    int connect_timeout_ms;
};

struct client_tensor {
    char name[CLIENT_NAME_MAX + 1];
    enum adtopk_dtype dtype;
    unsigned forms;
    int dims;
    uint64_t shape[ADTOPK_MAX_DIMS];
    uint64_t numel;
    uint64_t bytes; /* of its gradient */
    void *gradient;
    const struct local_update *update;
    uint64_t pushed; /* step + 1 of the last push; 0: none */
    uint64_t waited; /* step + 1 of the last adtopk_wait() that returned OK */
    uint64_t posted; /* step + 1 of the last LOCAL_WAIT */
};

struct client_mapping {
    void *bytes; /* NULL: none */
    uint64_t size;
};

enum client_step_state {
    CLIENT_STEP_NEW,  /* nothing was pushed; the last step's updates may be read */
    CLIENT_STEP_OPEN, /* something was pushed */
    CLIENT_STEP_ENDED /* ended, and not waited for */
};

struct adtopk_context {
    uint32_t *here; /* a page that a forked child finds wiped */
    const struct client_transport *transport;
    struct client_remote *remote; /* what remote.c keeps */
    int socket;
    char address[CLIENT_ADDRESS_SIZE];
    int rank, world_size;
    bool committed;
    struct error error;   /* of the last call */
    struct error failure; /* final; code OK: none */

    struct client_tensor *tensor;
    uint32_t tensors, capacity;
    uint32_t sent;  /* of them, to the daemon */
    uint32_t *slot; /* hash table of names: tensor + 1, or 0 */
    uint32_t slots; /* a power of two */

    struct client_mapping ring_map, page_map, gradients, results;
    struct ring_writer ring;
    uint64_t crowded_until_ns; /* somebody else needs the core: do not spin */

    uint64_t step;
    enum client_step_state step_state;
    uint64_t accepted; /* step + 1 whose updates may be read; 0: none */
    bool withdrawn;    /* the last step that was waited for was not finite */
    uint64_t operation;
    uint8_t *op_in;        /* operation area of the gradient arena */
    const uint8_t *op_out; /* ... of the result arena */
};

/* ---- message.c ---- */

/** Refuses the call: fills the context's message. */
enum adtopk_status client_refuse(adtopk_context *context, enum adtopk_status status,
    const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Ends the context: every later call returns this. The first failure stays. */
enum adtopk_status client_fail(adtopk_context *context, enum adtopk_status status,
    const char *format, ...) __attribute__((format(printf, 3, 4)));

/** What adtopk_message(NULL) returns in this thread. */
struct error *client_open_error(void);

/** The checks that every call begins with: this process's context, and not failed. */
enum adtopk_status client_enter(adtopk_context *context);

/** As client_enter(), but what was reached before the session ended can still be read. */
enum adtopk_status client_enter_to_read(adtopk_context *context);

/** ... and committed, and the tensor exists. */
enum adtopk_status client_enter_tensor(
    adtopk_context *context, const char *call, uint32_t tensor, bool reads);

/** True in a forked child of the process that opened the context. */
bool client_is_elsewhere(const adtopk_context *context);

/* ---- options.c ---- */

/** Fills in all defaults. `options` may be NULL. Errors: ARGUMENT, naming field or variable. */
enum adtopk_status client_options_resolve(
    const struct adtopk_options *options, struct client_options *resolved, struct error *err);

/* ---- connect.c ---- */

/** Connects, waiting for the socket to appear; the descriptor, or -1 and err. */
int client_connect(const char *path, int timeout_ms, struct error *err);

/** Sends a request; blocks while the socket is full. */
enum adtopk_status client_send(adtopk_context *context, const Adtopk__LocalRequest *request);

/** Sends a wake-up if the daemon sleeps. */
void client_wake(adtopk_context *context);

/* A reply of the daemon with its descriptors. */
struct client_reply {
    Adtopk__LocalReply *message;
    int descriptor[2];
    unsigned descriptors;
};

/** Takes the next reply, waiting for it up to timeout_ms (-1: for ever). A final error, the end of
 * the connection and a time-out end the context. `wanted` says what, for the message. */
enum adtopk_status client_receive(
    adtopk_context *context, int timeout_ms, const char *wanted, struct client_reply *reply);

/** Frees a reply and closes the descriptors that it still has. */
void client_reply_drop(struct client_reply *reply);

/** Reads what lies in the socket: wake-ups, and errors, which end the context. */
enum adtopk_status client_drain(adtopk_context *context);

/* ---- wait.c ---- */

/** Waits until done(context, argument). Errors end the context. */
enum adtopk_status client_wait(adtopk_context *context,
    bool (*done)(const adtopk_context *context, uint64_t argument), uint64_t argument);

/** Submits an entry, waiting for room in the ring. */
enum adtopk_status client_submit(adtopk_context *context, const struct local_entry *entry);

/** The failure that the daemon wrote into the page, if any, ends the context. */
enum adtopk_status client_check_page(adtopk_context *context);

/* ---- tensor.c ---- */

/** Sends what was registered and not sent yet. */
enum adtopk_status client_send_tensors(adtopk_context *context);

#endif

/*
 * A context, and the declarations that the files of the library share.
 *
 *   options.c  defaults from the environment       message.c  errors, versions
 *   session.c  open, commit, close                 tensor.c   registering
 *   step.c     push, step_end, wait, step_wait     update.c   reading updates
 *   registry.c the open contexts of a process      residual.c reading a residual
 *   lookahead.c shifting parameters                pending.c  the residuals for that
 *   ops.c      broadcast, barrier, all-reduce      sized.c    structures of other versions
 *   patience.c the lock, and how long to wait      arm.c      sleeping outside of the library
 *   question.c asking for residuals                checkpoint.c  saving them; checkpoint_load.c,
 *              between two steps                              checkpoint_together.c
 *
 * transport.h has the operations by which these files reach the daemon:
 *
 *   local.c    a daemon on this node: memory       connect.c  its socket
 *   ring.c     submitting to it                    wait.c     waiting: spinning, then sleeping
 *   comeback.c returning to a run                  away.c     what a rank notes for that
 *   comeback_local.c  the same, on this node
 *   device.c   gradients in a GPU's memory         stream.c   streams that wait for updates
 *   beside.c   the same, after a return            watch.c    the thread for a daemon that is gone
 *   tend.c     what that thread does for a rank that returns
 *   remote.c   a daemon elsewhere: sending         remote_gate.c    its sockets
 *   remote_intake.c  receiving from it             libzmq.c   the ZeroMQ library
 *
 * Internal functions begin with client_; the library exports adtopk_* only.
 */
#ifndef ADTOPK_CLIENT_CONTEXT_H
#define ADTOPK_CLIENT_CONTEXT_H

#include <pthread.h>
#include <stdbool.h>
#include <sys/un.h>

#include <adtopk/adtopk.h>

#include "client/src/ring.h"
#include "client/src/watch.h"
#include "proto/error.h"
#include "proto/local.h"
#include "proto/local.pb-c.h"

#define CLIENT_NAME_MAX 127
#define CLIENT_KEY_MAX 63
#define CLIENT_ADDRESS_SIZE 280
/* Bytes of the operation area; longer operations are sent in pieces. */
#define CLIENT_OP_SIZE (1u << 20)
#define CLIENT_MAX_TENSORS 65536u
#define CLIENT_MAX_BATCHES 8u /* how often a program may commit tensors */

/* Options with all defaults filled in. */
struct client_options {
    char address[CLIENT_ADDRESS_SIZE];
    /* Path of a local daemon's socket, or "". */
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *key_file;   /* the caller's string; NULL: no keys */
    const char *server_key; /* the caller's string; NULL: no keys */
    char job[CLIENT_KEY_MAX + 1];
    char run_id[CLIENT_KEY_MAX + 1];
    int rank;
    int world_size;
    const char *policy; /* the caller's string; "": the daemon's policy */
    int connect_timeout_ms;
    int return_timeout_ms;
    int answer_timeout_ms; /* 0: the default */
    bool interruptible;
    bool comes_back;
    uint64_t first_step;
};

struct client_tensor {
    char name[CLIENT_NAME_MAX + 1];
    enum adtopk_dtype dtype;
    unsigned forms;
    int dims;
    uint64_t shape[ADTOPK_MAX_DIMS];
    uint64_t numel;
    uint64_t bytes; /* size of its gradient */
    bool on_device; /* the gradient is in a GPU's memory */
    void *gradient;
    bool lists;    /* the daemon is asked for lists in that memory */
    void *shown;   /* the update in that memory; NULL: the rank sees it in host memory only */
    void *list;    /* its list there, which begins with its count (proto/local.h); NULL: none */
    void *pending; /* what updates lack, there; NULL: the rank or the daemon has no such place */
    const struct local_update *update;
    unsigned batch;  /* the batch that commits it */
    uint64_t since;  /* the first step in which this rank could push it */
    uint64_t pushed; /* step + 1 of the last push; 0: none */
    uint64_t begun;  /* step + 1 of a push that goes on when it is made again (remote.c); 0: none */
    uint64_t sent;   /* bytes of it that were sent */
    float scale;     /* its loss scale */
    uint64_t waited; /* step + 1 of the last adtopk_wait() that returned OK */
    uint64_t posted; /* step + 1 of the last LOCAL_WAIT */
    uint64_t moved;  /* step + 1 of the last gradient that was copied to the next daemon's arena */
    uint64_t told;   /* step + 1 of the last update that was brought from there (beside.c) */
    uint64_t filled; /* step + 1 of the last update that is on the GPU, whatever the daemon says */
    uint64_t listed; /* step + 1 of the last one of these whose list is there, too */
    float ahead;     /* the share by which the rank last looked ahead; 0: it did not */
    float guard;     /* the share of the policy's look-ahead that the guard leaves, 0 to 1 */
};

/* A collective operation. It is sent in pieces, one at a time. */
enum client_operation_kind {
    CLIENT_BARRIER,
    CLIENT_BROADCAST,
    CLIENT_ALLREDUCE
}; /* enum op_kind */
struct client_operation {
    enum client_operation_kind kind;
    uint8_t *bytes;
    size_t size;
    int root;
};

/* Calls that returned ADTOPK_PENDING or ADTOPK_INTERRUPTED. The next call with the same arguments
 * goes on. */
struct client_unfinished {
    uint64_t number; /* number of the operation that is under way, or comes next */
    bool operates;   /* `operation` is under way */
    struct client_operation operation;
    size_t done; /* bytes of the operation that are done */
    bool posted; /* the daemon has the piece that follows `done` */

    float *residual;        /* the caller's array for the residual that is being read; NULL: none */
    uint32_t tensor;        /* the tensor of that residual */
    uint64_t residual_step; /* the step before which it is read */
    uint64_t read;          /* elements read so far */
    uint64_t asked;         /* number of the last question for a part of the residual */
    bool answers;           /* the answer to that question has not come yet */
};

struct client_mapping {
    void *bytes; /* NULL: none */
    uint64_t size;
};

/* The residuals that the daemon shows (pending.h). */
struct client_pending {
    uint32_t index;          /* this rank's place among the ranks of its node */
    uint32_t since;          /* the mappings match records with this `since`; 0: there are none */
    uint64_t read;           /* step + 1 for which the trainer last got a pointer into a mapping */
    bool asked[LOCAL_PARTS]; /* a part that was asked for, and has no mapping, is not shown */
    struct client_mapping part[LOCAL_PARTS];
};

/* Batches of committed tensors, and their arenas. */
struct client_batches {
    uint32_t ready; /* tensors in all batches */
    unsigned count;
    uint32_t
        end[CLIENT_MAX_BATCHES]; /* tensors up to the end of each, and of the one that commits */
    struct client_mapping gradients[CLIENT_MAX_BATCHES], results[CLIENT_MAX_BATCHES];
    struct client_device *device; /* has the gradients (device.c); NULL: no tensor is on a GPU */
    struct client_watch watch;    /* lets go of streams that wait for updates there */
};

enum client_step_state {
    CLIENT_STEP_NEW,  /* this rank has pushed nothing; it may read the last step's updates */
    CLIENT_STEP_OPEN, /* this rank has pushed something */
    CLIENT_STEP_ENDED /* this rank has ended the step, and has not waited for it */
};

/* The rank, run and daemon of a context. */
struct client_place {
    char address[CLIENT_ADDRESS_SIZE];
    char job[CLIENT_KEY_MAX + 1];
    char run_id[CLIENT_KEY_MAX + 1];
    int rank, world_size;
    uint32_t memory;     /* in which the daemon takes gradients: enum local_memory */
    bool comes_back;     /* it takes the place of a process that ended */
    uint64_t first_step; /* comes_back: the step that it pushes first */
};

enum client_commit {
    CLIENT_COMMIT_NOT,
    CLIENT_COMMIT_ASKED,  /* the daemon has the tensors, and makes the gradient arena */
    CLIENT_COMMIT_ARENA,  /* the arena is mapped, and the daemon has not been told */
    CLIENT_COMMIT_MAPPED, /* the arena is mapped; other ranks may be missing */
    CLIENT_COMMIT_DONE
};

/* Whether a thread waits without the lock, and for what. */
enum client_waits {
    CLIENT_WAITS_NOT,
    CLIENT_WAITS,        /* for other ranks */
    CLIENT_WAITS_SHORTLY /* for room in the ring, or the thread of watch.c brings the rank back */
};

/* Which threads use a context, and how long a call waits (patience.h). */
struct client_sharing {
    pthread_mutex_t lock; /* every call holds it, except while it waits */
    /* Signalled when `waits` becomes CLIENT_WAITS_NOT, or `submits` false; during adtopk_close()
     * whenever a call takes the lock back. */
    pthread_cond_t left;
    enum client_waits waits;
    unsigned away;      /* calls that have let go of the lock for a while, or take it often */
    bool submits;       /* a thread submits an entry, and may wait for room in the meantime */
    int wake;           /* an eventfd that ends a thread's sleep */
    bool closing;       /* adtopk_close() was called */
    bool interruptible; /* signals end a wait */
    int answer_ms;      /* how long to wait for the answers to open and close; 0: the defaults */
    bool armed;         /* the daemon was asked to wake a thread that polls the descriptor */
    uint64_t armed_ns;  /* when it was */
    bool called;        /* the alarm asks that thread to look: somebody else has come back for it */
    int descriptor;     /* for programs that poll: an epoll instance; -1: none has asked */
    int alarm;          /* in it, beside the socket: a timerfd for attempts to connect */
    uint64_t seen;      /* the page's progress when the last call looked; UINT64_MAX: none has */
    uint64_t crowded_until_ns; /* another process needs the core until then: do not spin */
};

/* How far a rank is on its way back to its run (comeback.h). */
enum client_stage {
    CLIENT_HERE,      /* it is not away */
    CLIENT_AWAY,      /* there is no connection */
    CLIENT_OPENS,     /* connected */
    CLIENT_OPENED,    /* it has said which run it returns to */
    CLIENT_COMMITS,   /* the ring and the page are mapped */
    CLIENT_COMMITTED, /* the daemon makes the gradient arena */
    CLIENT_MAPS,      /* the arena is mapped */
    CLIENT_MAPPED,    /* the daemon knows that; other ranks may be missing */
    CLIENT_SUBMITS    /* the job is ready */
};

struct client_comeback {
    uint64_t run; /* to which the rank can return; 0: it cannot */
    enum client_stage stage;
    bool missed;           /* a call has waited for the daemon since it went away, or looked */
    uint64_t deadline_ns;  /* AWAY: when the rank gives up */
    uint64_t connected_ns; /* later: when it connected to another daemon */
    uint64_t again_ns;     /* AWAY: not before then it connects again */
    uint64_t pause_ns;     /* before it, if the last connection broke at once; 0: it did not */
    int connect_ms;
    char *policy;              /* with which the rank opened the job */
    uint64_t step;             /* of the noted entries */
    struct local_entry *entry; /* the rank submitted them in that step */
    uint32_t entries, room;
    uint32_t submitted;           /* SUBMITS: so many of them were submitted again */
    struct local_entry operation; /* the last one that was submitted */
    bool operates;                /* `operation` may have to be submitted again */
    unsigned
        brings;  /* how often it commits: the batches that are ready, and one that is under way */
    unsigned at; /* the batch that it commits, or that is to be ready, next */
    /* The new gradient arenas, until the old ones can be replaced. */
    struct client_mapping arena[CLIENT_MAX_BATCHES];
    unsigned touches;           /* MAPPED: the batch whose new arena gets its pages */
    uint64_t touched;           /* the bytes of it that have them */
    struct client_mapping page; /* the new one, until the run is known to go on */
};

struct adtopk_context {
    uint32_t *here; /* a page whose content a forked child finds wiped */
    uint64_t id;    /* unique among the contexts of this process; never 0 */
    struct client_sharing sharing;
    const struct client_transport *transport;
    struct client_remote *remote; /* the state of remote.c */
    int socket;
    struct client_place place;
    adtopk_context *next; /* the next context in the registry */
    enum client_commit commit;
    struct error error;   /* the last call's error */
    struct error failure; /* the error that ended the context; code OK: none */

    struct client_tensor *tensor;
    uint32_t tensors, capacity;
    uint32_t sent;  /* tensors that the daemon has been told of */
    uint32_t *slot; /* hash table of names: tensor + 1, or 0 */
    uint32_t slots; /* size of the hash table, a power of two */

    struct client_mapping ring_map, page_map;
    struct client_batches batch;
    struct client_pending pending;
    struct ring_writer ring;
    struct client_comeback comeback;

    uint64_t step;
    enum client_step_state step_state;
    uint64_t accepted; /* step + 1 of the step whose updates may be read; 0: none */
    bool withdrawn;    /* the last step for which this rank waited was not finite */
    struct client_unfinished unfinished;
    uint8_t *op_in;        /* operation area of the gradient arena */
    const uint8_t *op_out; /* operation area of the result arena */
};

struct client_patience;

/* The condition for which a call waits. */
typedef bool client_done(const adtopk_context *context, uint64_t argument);

/* ---- message.c ---- */

/** Refuses the call: fills the context's message. */
enum adtopk_status client_refuse(adtopk_context *context, enum adtopk_status status,
    const char *format, ...) __attribute__((format(printf, 3, 4)));

/** Ends the context: every later call returns this error. Only the first failure counts. */
enum adtopk_status client_fail(adtopk_context *context, enum adtopk_status status,
    const char *format, ...) __attribute__((format(printf, 3, 4)));

/** The error that adtopk_message(NULL) returns in this thread. */
struct error *client_open_error(void);

/** A number for a new context. */
uint64_t client_new_id(void);

/** Takes an error that the daemon sent: a code (PROTOCOL if the code is unknown) and a sentence. A
 * MISMATCH gets the run and the job added to it. `final` ends the context. */
enum adtopk_status client_told(
    adtopk_context *context, uint32_t code, const char *sentence, bool final);

/** Makes the checks that every call begins with: the context is this process's and has not failed.
 */
enum adtopk_status client_enter(adtopk_context *context);

/** Fails if streams were let go because the daemon is gone: they have gone on without updates. */
enum adtopk_status client_check_cut(adtopk_context *context);

/** Checks as client_enter() does, but results from before the session's end can still be read. */
enum adtopk_status client_enter_to_read(adtopk_context *context);

/** Checks as client_enter() does, and that the tensors are committed and this tensor exists. */
enum adtopk_status client_enter_tensor(
    adtopk_context *context, const char *call, uint32_t tensor, bool reads);

/** client_sized_take() for a structure that a program passed to a call. */
enum adtopk_status client_take(
    adtopk_context *context, const char *name, const void *given, void *known, size_t size);

/** True in a forked child of the process that opened the context. */
bool client_is_elsewhere(const adtopk_context *context);

/* ---- options.c ---- */

/** Fills in all defaults. `options` may be NULL. Errors: ARGUMENT, naming the field or variable. */
enum adtopk_status client_options_resolve(
    const struct adtopk_options *options, struct client_options *resolved, struct error *err);

/* ---- connect.c ---- */

/** Connects, waiting for the socket to appear. Returns the descriptor, or -1 and err. */
int client_connect(const char *path, int timeout_ms, bool interruptible, struct error *err);

/** Sends a request. Waits as long as `patience` says until the daemon has read earlier ones.
 * Errors: what ends the context; UNREACHABLE if the daemon went away and the rank can return.
 * ADTOPK_PENDING, ADTOPK_INTERRUPTED: nothing was sent. */
enum adtopk_status client_send(adtopk_context *context, const Adtopk__LocalRequest *request,
    const struct client_patience *patience);

/** Sends a wake-up if the daemon sleeps. */
void client_wake(adtopk_context *context);

/* A reply of the daemon with its descriptors. */
struct client_reply {
    Adtopk__LocalReply *message;
    int descriptor[2];
    unsigned descriptors;
};

/** Takes the next reply. Waits for it as long as `patience` says. A final error and the end of the
 * connection end the context, unless the rank can return to its run: then UNREACHABLE;
 * ADTOPK_PENDING and ADTOPK_INTERRUPTED change nothing. */
enum adtopk_status client_receive(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply);

/** client_transport.receive of the session socket. */
enum adtopk_status client_receive_local(
    adtopk_context *context, const struct client_patience *patience, struct client_reply *reply);

/** Maps a descriptor of a reply. The memory must have at least `least` bytes. */
enum adtopk_status client_map(adtopk_context *context, const struct client_reply *reply,
    unsigned index, int protection, uint64_t least, struct client_mapping *mapping);

/** Unmaps a mapping, if there is one. */
void client_unmap(struct client_mapping *mapping);

/** Whether a reply answers a question (question.h) whose call has given up. */
bool client_reply_is_stale(const adtopk_context *context, const Adtopk__LocalReply *reply);

/** Frees a reply and closes the descriptors that it still has. */
void client_reply_drop(struct client_reply *reply);

/** Reads all messages in the socket: wake-ups, and errors, which end the context. If the connection
 * has ended the rank may be away afterwards (comeback.h). */
enum adtopk_status client_drain(adtopk_context *context);

/** Ends the context with the daemon's last words, if they are in the socket. False: they are not.
 */
bool client_read_end(adtopk_context *context);

/* ---- wait.c ---- */

/** Waits, as long as `patience` says, until done(context, argument) is true. Another thread may
 * make it true. `done` runs without the lock. Errors: what ends the context, PENDING, INTERRUPTED,
 * STATE (another thread waits; adtopk_close() was called). */
enum adtopk_status client_wait(adtopk_context *context, client_done *done, uint64_t argument,
    const struct client_patience *patience);

/** Withdraws the request of adtopk_arm(). */
void client_withdraw(adtopk_context *context);

/** Withdraws the request of adtopk_arm(), and reads the wake-ups that came. Drops answers. */
enum adtopk_status client_disarm(adtopk_context *context);

/** Submits an entry, waiting for room in the ring. Errors: INTERRUPTED (nothing was submitted), and
 * what ends the context. */
enum adtopk_status client_submit(adtopk_context *context, const struct local_entry *entry);

/** Ends the context with the failure that the daemon wrote into the page, if there is one. */
enum adtopk_status client_check_page(adtopk_context *context);

/* ---- arm.c ---- */

/** The socket is going to be another one, or shows nothing but its end: takes it out of the
 * descriptor, if a program has that. */
void client_descriptor_hide(const adtopk_context *context);

/** Puts the socket into the descriptor again. Errors: what ends the context. */
enum adtopk_status client_descriptor_show(adtopk_context *context);

/** Makes the descriptor readable, if a program has that, until the next adtopk_arm(). */
void client_descriptor_call(adtopk_context *context);

void client_descriptor_close(adtopk_context *context);

/* ---- step.c ---- */

/** Refuses a wait for a tensor that this rank has not pushed in this step. */
enum adtopk_status client_step_check_pushed(
    adtopk_context *context, const char *call, uint32_t tensor);

/** Tells the daemon, once per step, that this rank waits for the tensor: the daemon then need not
 * wait for the whole bucket. */
enum adtopk_status client_step_post_wait(adtopk_context *context, uint32_t tensor);

/** Ends the step. */
enum adtopk_status client_step_end(adtopk_context *context);

/* ---- tensor.c ---- */

/** Sends the first `end` tensors, as far as they were not sent yet. After ADTOPK_PENDING or
 * ADTOPK_INTERRUPTED the next call sends the rest. */
enum adtopk_status client_send_tensors(
    adtopk_context *context, uint32_t end, const struct client_patience *patience);

/** Asks the daemon to open the session, or to return to the run. */
enum adtopk_status client_say_hello(
    adtopk_context *context, const struct client_patience *patience);

/** Sends a request without content: commit, mapped or leave. */
enum adtopk_status client_send_plain(adtopk_context *context, Adtopk__LocalRequest__KindCase kind,
    const struct client_patience *patience);

#endif

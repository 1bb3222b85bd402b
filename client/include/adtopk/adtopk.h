/*
 * libadtopk-client: the interface of a trainer to the adtopkd daemon on its node.
 *
 * ## The life of a rank
 *
 *     adtopk_open()                    join a job as one of its ranks
 *     adtopk_register() ...            describe every tensor, the same on all ranks
 *     adtopk_commit()                  wait until all ranks are there; get the memory
 *     adtopk_broadcast() ...           equal parameters everywhere
 *     for each training step:
 *         write gradients, adtopk_push() each as soon as it is complete
 *         adtopk_step_wait()           ADTOPK_OK: every update is there; ADTOPK_NONFINITE: skip
 *         adtopk_update() ...          apply
 *     adtopk_close()
 *
 * ## Words
 *
 * A *job* is one training run (owner, name, run id, world size); a *rank* is one of its processes;
 * a *step* is one training iteration, numbered by the library from adtopk_step(); a *tensor* is
 * registered once; an *update* is what comes back: the sum, or the mean, over all ranks of what
 * was sent of the tensor in this step. Every rank of a job gets the same bits. A *policy* says what
 * is sent, and how (deploy/policy.md).
 *
 * ## Threads
 *
 * A context may be used by one thread at a time. Different contexts are independent. A forked
 * child may not use its parent's context: calls return ADTOPK_ERR_STATE, and adtopk_close() frees
 * the child's copy only. Signals interrupt no call; the library installs no signal handlers.
 *
 * ## Errors
 *
 * Functions return ADTOPK_OK (0) or a status from <adtopk/status.h>; adtopk_message() then has one
 * sentence that names the tensor, rank, peer or argument. An error that concerns the job (a rank
 * died, ranks disagree) is final: every later call returns it again, and only adtopk_close() is
 * left to do. A wrong argument changes nothing. Every function that takes a context and returns a
 * status returns ADTOPK_ERR_ARGUMENT if it is NULL, ADTOPK_ERR_STATE in a forked child, and
 * ADTOPK_ERR_UNREACHABLE if the daemon is gone, which no session survives. "Errors:" below lists
 * the others, without ADTOPK_ERR_. *What ends the job* is one of MISMATCH, TIMEOUT, PEER, PROTOCOL,
 * LOST, MEMORY and SYSTEM. client/README.md says what to do about each.
 *
 * ## Waiting
 *
 * adtopk_commit(), adtopk_wait(), adtopk_step_wait() and the collective operations wait for other
 * ranks, as long as the policy says (join_timeout, push_timeout, wait_limit); the error then names
 * who was missing. adtopk_open() waits for the daemon, adtopk_close() for its goodbye.
 *
 * ## A daemon on another machine
 *
 * With a tcp:// address everything is as described here, but memory that is "shared" is this
 * process's own, and adtopk_push() sends the gradient, which takes as long as the network needs.
 * Beyond one machine it takes keys: adtopk_options.key_file says who this trainer is, and
 * adtopk_options.server_key who the daemon is.
 */
#ifndef ADTOPK_H
#define ADTOPK_H

#include <stddef.h>
#include <stdint.h>

#include <adtopk/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ADTOPK_MAX_DIMS 8

/** A rank's connection to its daemon. Opaque. */
typedef struct adtopk_context adtopk_context;

/** Element types of gradients. Updates are always f32. */
enum adtopk_dtype { ADTOPK_F32 = 0, ADTOPK_F16 = 1, ADTOPK_BF16 = 2 };

/** Forms of an update that a rank can ask for; combine with |. */
enum adtopk_form {
    /** (index, value) pairs, for plain SGD: see adtopk_apply_sgd(). What is not in the list is 0. A
     * tensor that travels dense comes in the dense form instead, so be ready for both. */
    ADTOPK_FORM_LIST = 1,
    /** All elements. What momentum, Adam and weight decay need. */
    ADTOPK_FORM_DENSE = 2
};

/**
 * How to join. Zero-initialise, then set what differs; a field left 0 or NULL takes its default:
 * the first environment variable of those it names that is set, else a fixed value. Each field does
 * so on its own: a program may set some and leave others to its environment.
 *
 * The environment variables are those of torchrun, MPI launchers and Slurm, tried in this order
 * (MPI before Slurm, because inside an allocation mpirun's ranks inherit the Slurm variables of the
 * process that started them). An empty variable counts as not set; a number must be plain digits.
 */
struct adtopk_options {
    /** Address of the daemon: "unix:/path", or "tcp://host:port" of one on another machine, which
     * is the slower path. Default: $ADTOPK_ADDRESS, else "unix:/run/adtopk/adtopkd.sock". */
    const char *address;
    /** Name of the job, like run_id 1 to 63 bytes of UTF-8 without control or format characters.
     * Default: $ADTOPK_JOB, else "default". */
    const char *job;
    /** Tells runs of the same job apart. Default: $ADTOPK_RUN_ID; torchrun's
     * TORCHELASTIC_RUN_ID and restart count; SLURM_JOB_ID and step; PMIX_NAMESPACE or Open MPI's
     * job id; else "0". */
    const char *run_id;
    /** This process, 0..world_size-1. Used only if has_rank is set; default: $RANK,
     * $OMPI_COMM_WORLD_RANK, $PMI_RANK, $SLURM_PROCID, and 0 in a job of one rank. */
    int rank;
    int has_rank;
    /** Ranks of the job, 1..65536. Default: $WORLD_SIZE, $OMPI_COMM_WORLD_SIZE, $PMI_SIZE,
     * $SLURM_NTASKS, else 1. */
    int world_size;
    /** Policy document (JSON, deploy/policy.md), the same on all ranks. Default: the daemon's. */
    const char *policy;
    /** Milliseconds to wait for the daemon to appear. 0: the default, 10,000; -1: do not wait. */
    int connect_timeout_ms;
    /** For tcp://, ignored otherwise: path of the file with this trainer's own pair of keys, public
     * and secret, as `adtopkctl keygen` writes it; nobody but its owner may have access to it. The
     * daemon must know the public one (its option trainers). Read once, in adtopk_open(). Default:
     * $ADTOPK_KEY_FILE, else none.
     *
     * key_file and server_key go together, wherever each of them comes from: with both the
     * connection is encrypted and both ends are proved; with neither it is in the clear, which a
     * daemon allows on its own machine only; one without the other is ADTOPK_ERR_ARGUMENT. */
    const char *key_file;
    /** For tcp://, ignored otherwise: the public key of the daemon at `address`, itself and not a
     * path: 40 characters (Z85), the `public` of the daemon's key file. A daemon without the secret
     * key to it is not talked to. Default: $ADTOPK_SERVER_KEY, else none. */
    const char *server_key;
};

/**
 * Joins a job as one rank.
 *
 * options: may be NULL for all defaults; not kept.
 * context: set on success, and only then; free it with adtopk_close().
 * Errors: ARGUMENT (a field, variable or key is wrong), UNREACHABLE (no daemon), DENIED (no
 * permission to connect; a key that the daemon does not know, or that others can read; or the
 * daemon or this user has all the sessions that it may have), MISMATCH (world size or policy differ
 * from the job's, the rank is taken), POLICY, STATE (the daemon is draining or stopping), PROTOCOL
 * (a daemon of another version, or something else at that address), MEMORY, SYSTEM. A job of the
 * same name and run id of another user is another job. The message of a failed open is
 * adtopk_message(NULL), per thread.
 */
enum adtopk_status adtopk_open(const struct adtopk_options *options, adtopk_context **context);

/**
 * Leaves the job and frees the context with all memory that it handed out. NULL is allowed.
 * A rank that leaves after adtopk_step_wait() leaves cleanly; in mid-step it ends the job for all.
 * Waits for the daemon to take note, at most 10 s, and cannot fail.
 */
void adtopk_close(adtopk_context *context);

/** This process's rank and the job's world size; -1 if the context is NULL. */
int adtopk_rank(const adtopk_context *context);
int adtopk_world_size(const adtopk_context *context);

/** The sentence that belongs to the last error of this context (of this thread's last failed
 * adtopk_open() if NULL), "" before the first. Never NULL, the library's own, valid until the next
 * call. */
const char *adtopk_message(const adtopk_context *context);

/** The library's version, "major.minor.patch", a constant. */
const char *adtopk_version(void);

/** What a rank says of a tensor. Zero-initialise. With a single dimension it always travels dense.
 */
struct adtopk_tensor_spec {
    /** 1 to 127 bytes of UTF-8 without control or format characters, unique in the job. */
    const char *name;
    enum adtopk_dtype dtype;
    /** 1..ADTOPK_MAX_DIMS sizes in native (row-major) layout, each at least 1; the product is at
     * most 2^32-1 elements. */
    int dims;
    uint64_t shape[ADTOPK_MAX_DIMS];
    /** enum adtopk_form, combined; 0 means ADTOPK_FORM_DENSE. */
    unsigned forms;
};

/**
 * Describes a tensor. All ranks register the same tensors in the same order, best that of the
 * forward pass: what is registered first goes first (see `priority` in policy.md). Only before
 * commit.
 *
 * spec: copied. tensor: receives the tensor's number, 0, 1, ... in order of registration; may be
 * NULL.
 * Errors: ARGUMENT (names the tensor and the field; the name is taken), MEMORY, STATE (after
 * commit).
 */
enum adtopk_status adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor);

/**
 * Ends registration: waits until every rank of the job has committed the same tensors, reserves
 * the memory, and makes the job ready for its first step. After ADTOPK_ERR_MEMORY it may be called
 * again, when memory has become free.
 *
 * Errors: MISMATCH (names the tensor and the ranks), MEMORY (with the numbers), POLICY (it does not
 * fit a tensor), STATE (called before), TIMEOUT (names the ranks that are missing), and what ends
 * the job.
 */
enum adtopk_status adtopk_commit(adtopk_context *context);

/** The number of the step that is open or comes next, 0 in a new job. After commit; 0 before, and
 * if the context is NULL. */
uint64_t adtopk_step(const adtopk_context *context);

/**
 * Where the tensor's gradient lies: numel elements of its dtype, in native layout, 64-byte
 * aligned, shared with the daemon. Valid from commit to close. Write the gradient here and pass
 * NULL to adtopk_push(). Do not write between a tensor's push and adtopk_step_wait(). NULL for an
 * unknown tensor or before commit.
 */
void *adtopk_gradient(adtopk_context *context, uint32_t tensor);

/**
 * Hands over the tensor's gradient of this step. Does not wait for the exchange.
 *
 * gradient: numel elements to copy into shared memory, or NULL if they are already there.
 * The first push of a step, or its end without one, releases the previous step's updates: what
 * adtopk_update() returned must not be read any more.
 * Errors: ARGUMENT (unknown tensor), STATE (before commit; pushed twice in this step; the previous
 * step was ended but not waited for), and what ends the job.
 */
enum adtopk_status adtopk_push(adtopk_context *context, uint32_t tensor, const void *gradient);

/**
 * Closes the step: what was not pushed counts as zero from this rank. Does not wait. Implied by
 * adtopk_step_wait().
 * Errors: STATE (before commit; ended already), and what ends the job.
 */
enum adtopk_status adtopk_step_end(adtopk_context *context);

/**
 * Waits until one tensor's update of this step is there. Tensors are exchanged in buckets;
 * waiting before all tensors of a bucket were pushed splits that bucket from now on.
 *
 * Returns ADTOPK_OK, or ADTOPK_NONFINITE if the tensor's round had a non-finite gradient (the step
 * will be withdrawn). Until adtopk_step_wait() returns OK the update may be read but must not be
 * applied for good.
 * Errors: ARGUMENT (unknown tensor), STATE (this rank has not pushed the tensor in this step), and
 * what ends the job.
 */
enum adtopk_status adtopk_wait(adtopk_context *context, uint32_t tensor);

/**
 * Ends the step if adtopk_step_end() was not called, and waits until it is accepted on this node.
 * A rank that has nothing to push may call it alone.
 *
 * ADTOPK_OK: every update is there; apply them all. ADTOPK_NONFINITE: a gradient somewhere held
 * NaN or Inf; the step is withdrawn on every rank, residuals are as before it, to rounding of the
 * withdrawn gradients; apply nothing, and go on with the next step.
 * Errors: STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_step_wait(adtopk_context *context);

/** An update. All pointers are read-only shared memory, valid until the next step begins with this
 * rank's first adtopk_push(), adtopk_step_end() or adtopk_step_wait() of it, or adtopk_close(). An
 * update of the open step, read after adtopk_wait(), outlives further pushes of that step. */
struct adtopk_update {
    /** numel elements; NULL if the dense form was not asked for and the tensor travelled sparse. */
    const float *dense;
    /** count entries (index into the flat tensor, value), each index once, in no promised order;
     * NULL if the list was not asked for or the tensor travelled dense. */
    const uint32_t *index;
    const float *value;
    uint64_t count;
    uint64_t numel;
};

/**
 * The tensor's update: of the last step, after adtopk_step_wait() returned ADTOPK_OK, for every
 * tensor; or of the open step, after adtopk_wait() for this tensor returned ADTOPK_OK.
 * update: filled on success; its pointers are borrowed.
 * Errors: ARGUMENT (unknown tensor, update is NULL), STATE (nothing was waited for yet; it was
 * released, or withdrawn with its step).
 */
enum adtopk_status adtopk_update(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update);

/**
 * Plain SGD: parameters[i] -= learning_rate * update[i]. Where the update has a list, only the
 * parameters in it are touched; where it has none (the tensor travelled dense, or was registered
 * without ADTOPK_FORM_LIST), all of them. Both ways lead to the same parameters. For SGD alone
 * ADTOPK_FORM_LIST is thus all that need be registered: nobody then makes a pass over the whole
 * tensor. With momentum, Adam or weight decay every parameter moves in every step, also those the
 * list leaves out: use the dense form.
 *
 * parameters: update->numel of them, f32, laid out as the gradient. update: as adtopk_update() gave
 * it, while it is valid. Cannot fail; needs no context; any thread.
 */
void adtopk_apply_sgd(float *parameters, const struct adtopk_update *update, float learning_rate);

/**
 * Copies `size` bytes from rank `root`'s memory into every other rank's. All ranks call it with
 * the same root and size, outside or inside a step, in the same order as other collective calls.
 * A size of 0 does nothing.
 * Errors: ARGUMENT (bytes is NULL, the root, a size beyond PTRDIFF_MAX), MISMATCH (ranks called
 * different operations), STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_broadcast(adtopk_context *context, void *bytes, size_t size, int root);

/** Waits until every rank has called it. Errors: as adtopk_broadcast(). */
enum adtopk_status adtopk_barrier(adtopk_context *context);

/**
 * values[i] = the sum over all ranks of values[i], in f32, the same bits on every rank. For
 * metrics: uncompressed, and no residual is involved. `count` is the same on all ranks; 0 does
 * nothing. After an error that ends the job some values may be sums already.
 * Errors: as adtopk_broadcast().
 */
enum adtopk_status adtopk_allreduce(adtopk_context *context, float *values, size_t count);

#ifdef __cplusplus
}
#endif
#endif

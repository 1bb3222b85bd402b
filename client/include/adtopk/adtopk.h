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
 *         write gradients, adtopk_push_tensor() each as soon as it is complete
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
 * ## Structures
 *
 * A structure begins with its size. Set it, and leave the fields that you do not need 0:
 *
 *     struct adtopk_tensor_spec spec = {.size = sizeof spec, .name = "w", .dims = 1, .shape = {8}};
 *
 * Later versions of the library add fields at the end, whose default is 0. A program and a library
 * of different versions therefore work together: to a field that the program lacks the library
 * gives its default; where the program uses a field that the library lacks, the call returns
 * ADTOPK_ERR_ARGUMENT and says so. No structure ends in padding, whose bytes a program may leave
 * undefined.
 *
 * ## Threads
 *
 * Different contexts are independent. In one context, one thread may wait (adtopk_wait(),
 * adtopk_step_wait() and their forms with a time-out) while another pushes (adtopk_push(),
 * adtopk_push_tensor(), adtopk_gradient(), adtopk_step(), adtopk_step_end()); a second thread that
 * would wait gets ADTOPK_ERR_STATE. adtopk_close() ends the wait of another thread, which then
 * returns ADTOPK_ERR_STATE and must not use the context any more. All other calls need the context
 * for themselves.
 *
 * A forked child may not use its parent's context: calls return ADTOPK_ERR_STATE, and
 * adtopk_close() frees the child's copy only. The library installs no signal handlers, calls no
 * functions of yours, and starts no threads but libzmq's for a tcp:// address.
 *
 * ## Errors
 *
 * Functions return ADTOPK_OK (0) or a status from <adtopk/status.h>; after an error
 * adtopk_message() has one sentence that names the tensor, rank, peer or argument. An error that
 * concerns the job (a rank died, ranks disagree) is final: every later call returns it again, and
 * only adtopk_close() is left to do. A wrong argument changes nothing. Every function that takes a
 * context and returns a status returns ADTOPK_ERR_ARGUMENT if it is NULL, ADTOPK_ERR_STATE in a
 * forked child, and ADTOPK_ERR_UNREACHABLE if the daemon is gone, which no session survives.
 * "Errors:" below lists the others, without ADTOPK_ERR_. *What ends the job* is one of MISMATCH,
 * TIMEOUT, PEER, PROTOCOL, LOST, MEMORY and SYSTEM. client/README.md says what to do about each.
 *
 * ## Waiting
 *
 * adtopk_commit(), adtopk_wait(), adtopk_step_wait() and the collective operations wait for other
 * ranks, as long as the policy says (join_timeout, push_timeout, wait_limit); the error then names
 * who was missing. adtopk_open() waits for the daemon, adtopk_close() for its goodbye.
 *
 * Each call that waits for other ranks, and adtopk_residual(), has a form with a time-out in
 * milliseconds, which returns ADTOPK_PENDING when it is over: call again to go on waiting. 0 looks
 * and does not wait; a negative time-out is none. A push, and a call that begins something, may
 * still wait a moment for the daemon to read what this rank told it before. A program that sleeps
 * in a loop of its own, beside other descriptors, uses adtopk_descriptor().
 *
 * Signals interrupt no call, unless options.interruptible is set: then these calls and
 * adtopk_open() return ADTOPK_INTERRUPTED when a signal handler has run while they slept. A call
 * goes on when it is made again, as after ADTOPK_PENDING; adtopk_open() begins anew. A signal that
 * comes just before they sleep does not end them: where that matters, use a time-out too.
 *
 * ## A daemon on another machine
 *
 * With a tcp:// address everything is as described here, but memory that is "shared" is this
 * process's own, and a push sends the gradient, which takes as long as the network needs.
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

/** Element types of gradients. Updates are f32, but for ADTOPK_FORM_DENSE16. */
enum adtopk_dtype { ADTOPK_F32 = 0, ADTOPK_F16 = 1, ADTOPK_BF16 = 2 };

/** Kinds of memory that a gradient can lie in. This version refuses all but ADTOPK_HOST. */
enum adtopk_memory { ADTOPK_HOST = 0, ADTOPK_CUDA = 1 };

/** Forms of an update that a rank can ask for; combine with |. */
enum adtopk_form {
    /** (index, value) pairs, for plain SGD: see adtopk_apply_sgd(). What is not in the list is 0. A
     * tensor that travels dense comes in the dense form instead, so be ready for both. */
    ADTOPK_FORM_LIST = 1,
    /** All elements. What momentum, Adam and weight decay need. */
    ADTOPK_FORM_DENSE = 2,
    /** All elements in the tensor's own type, f16 or bf16, and not in f32. Values are rounded to
     * the nearest, ties to even; a magnitude beyond the type's largest finite number becomes that
     * number. Nothing is lost: what rounding cut off stays in the residuals, for later steps. With
     * ADTOPK_FORM_LIST the list has the rounded values too. A tensor of f32, and
     * ADTOPK_FORM_DENSE beside it, are refused. */
    ADTOPK_FORM_DENSE16 = 4
};

/**
 * How to join. Set the size and what differs; a field left 0 or NULL takes its default: the first
 * environment variable of those it names that is set, else a fixed value. Each field does so on its
 * own: a program may set some and leave others to its environment.
 *
 * The environment variables are those of torchrun, MPI launchers and Slurm, tried in this order
 * (MPI before Slurm, because inside an allocation mpirun's ranks inherit the Slurm variables of the
 * process that started them). An empty variable counts as not set; a number must be plain digits.
 */
struct adtopk_options {
    /** sizeof(struct adtopk_options). */
    size_t size;
    /** Address of the daemon: "unix:/path", or "tcp://host:port" of one on another machine, which
     * is the slower path. Default: $ADTOPK_ADDRESS, else "unix:/run/adtopk/trainers/adtopkd.sock".
     */
    const char *address;
    /** Name of the job, like run_id 1 to 63 bytes of UTF-8 without control or format characters.
     * Default: $ADTOPK_JOB, else "default". A process that opens a second context with the job, run
     * id and rank of one that it has open opens the job "JOB#2" instead, then "JOB#3": all ranks
     * must open such contexts in the same order. */
    const char *job;
    /** Tells runs of the same job apart. Default: $ADTOPK_RUN_ID; torchrun's
     * TORCHELASTIC_RUN_ID (MASTER_ADDR:MASTER_PORT where that is torchrun's own default, "none")
     * and restart count; SLURM_JOB_ID and step; PMIX_NAMESPACE or Open MPI's
     * job id; else "0". */
    const char *run_id;
    /** Name of the group of ranks that exchange with each other, where a model is cut into parts of
     * which each has a group: the replicas of a pipeline stage, for example. A group is a job of
     * its own, named "JOB@GROUP" in messages and reports; rank and world_size count within it. JOB
     * and GROUP have 1 to 63 bytes with the @ between them. Default: NULL, all ranks of the job. */
    const char *group;
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
    /** Not 0: signals end a wait, see Waiting above. Default: 0. */
    int interruptible;
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
    /** Milliseconds to wait for the daemon's answer to adtopk_open() once it is reached. 0: the
     * default, 30,000. */
    int answer_timeout_ms;
    /** 0. */
    int reserved;
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

/** The name of the job and the run id in force, as the daemon has them: with the "#2" of a second
 * context (options.job), the "@GROUP" of a group, and what came from the environment. "" if the
 * context is NULL; else the context's own, valid until adtopk_close(). */
const char *adtopk_job(const adtopk_context *context);
const char *adtopk_run_id(const adtopk_context *context);

/** The sentence that belongs to the last error that this thread got from the context (from
 * adtopk_open() if NULL); in a thread that got none, to the context's last; "" before the first.
 * Never NULL, the library's own, valid until this thread's next call. */
const char *adtopk_message(const adtopk_context *context);

/** The library's version, "major.minor.patch", a constant. */
const char *adtopk_version(void);

/** A tensor. With a single dimension it is always sent dense. */
struct adtopk_tensor_spec {
    /** sizeof(struct adtopk_tensor_spec). */
    size_t size;
    /** 1 to 127 bytes of UTF-8 without control or format characters, unique in the job. */
    const char *name;
    enum adtopk_dtype dtype;
    /** 1..ADTOPK_MAX_DIMS sizes in native (row-major) layout, each at least 1; the product is at
     * most 2^32-1 elements. */
    int dims;
    uint64_t shape[ADTOPK_MAX_DIMS];
    /** enum adtopk_form, combined; 0 means ADTOPK_FORM_DENSE. */
    unsigned forms;
    /** Where its gradients lie. This version refuses all but ADTOPK_HOST. */
    enum adtopk_memory memory;
    /** Where the tensor is a shard, the shape of the whole, and the index in it at which the shard
     * begins, `dims` numbers each. All 0 where the tensor is whole, or the whole's own shape and
     * offset 0. This version refuses shards: register a shard as a tensor of its own, in the group
     * of the ranks that have the same one. */
    uint64_t global_shape[ADTOPK_MAX_DIMS];
    uint64_t global_offset[ADTOPK_MAX_DIMS];
};

/**
 * Describes a tensor. All ranks register the same tensors in the same order, best that of the
 * forward pass: what is registered first goes first (see `priority` in policy.md).
 *
 * After a commit this begins another batch of tensors, which another adtopk_commit() puts in force
 * while training goes on. Until then they may not be pushed.
 *
 * spec: copied. tensor: receives the tensor's number, 0, 1, ... in order of registration; may be
 * NULL.
 * Errors: ARGUMENT (names the tensor and the field; the name is taken; eight batches were
 * committed), MEMORY, STATE (a commit has begun and is not complete).
 */
enum adtopk_status adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor);

/**
 * Ends registration: waits until every rank of the job has committed the same tensors, reserves
 * the memory, and makes the job ready for its first step. After ADTOPK_ERR_MEMORY it may be called
 * again, when memory has become free.
 *
 * Between two steps it commits the tensors that were registered since the last commit, at most
 * eight batches in all. All ranks call it at the same step, after adtopk_step_wait() and before
 * the next push. What earlier tensors have stays: adtopk_gradient() and updates their addresses,
 * residuals, turns and thresholds their values. New tensors begin with empty residuals and turn 0.
 * A change of the policy that is under way is called off, unless all nodes hold for it.
 *
 * Errors: MISMATCH (names the tensor and the ranks), MEMORY (with the numbers), POLICY (it does not
 * fit a tensor), STATE (called before, and nothing was registered since; in mid-step; more tensors
 * of a job on GPUs), TIMEOUT (names the ranks that are missing), and what ends the job.
 */
enum adtopk_status adtopk_commit(adtopk_context *context);

/** adtopk_commit() that waits at most timeout_ms: then ADTOPK_PENDING, and the next call goes on.
 * In the meantime the context is neither before nor after commit: only this, adtopk_descriptor(),
 * adtopk_arm() and adtopk_close() may be called. */
enum adtopk_status adtopk_commit_for(adtopk_context *context, int timeout_ms);

/** The number of the step that is open or comes next, 0 in a new job. After commit; 0 before, and
 * if the context is NULL. */
uint64_t adtopk_step(const adtopk_context *context);

/**
 * Where the tensor's gradient lies: numel elements of its dtype, in native layout, 64-byte
 * aligned, shared with the daemon. Valid from commit to close. Write the gradient here and push
 * NULL. Do not write between a tensor's push and adtopk_step_wait(). NULL for an unknown tensor or
 * before commit.
 */
void *adtopk_gradient(adtopk_context *context, uint32_t tensor);

/** A gradient to push. */
struct adtopk_push_spec {
    /** sizeof(struct adtopk_push_spec). */
    size_t size;
    /** The tensor's number. */
    uint32_t tensor;
    /** What `gradient` points to. This version refuses all but ADTOPK_HOST. */
    enum adtopk_memory memory;
    /** numel elements of the tensor's dtype, which are copied into shared memory before the call
     * returns; NULL if they are there already (adtopk_gradient()). */
    const void *gradient;
    /** The loss scale: the factor by which the gradient is too large, because the loss was
     * multiplied by it. 0 means 1; else from 2^-126 to 2^126. All pushes of a step, of all ranks,
     * have the same one; the next step may have another. The step's updates are too large by it as
     * well. Residuals, clipping and thresholds are in units without it. A power of 2 changes no bit
     * but for overflow and underflow; another number adds rounding errors of about 2^-23. */
    float scale;
    /** 0. This version refuses other values. */
    uint32_t flags;
};

/**
 * Hands over a tensor's gradient of this step. Does not wait for the exchange.
 *
 * push: not kept.
 * The first push of a step, or its end without one, releases the previous step's updates: what
 * adtopk_update() returned must not be read any more.
 * Errors: ARGUMENT (unknown tensor; a field that is wrong or that this version refuses), STATE
 * (before commit; pushed twice in this step; the previous step was ended but not waited for), and
 * what ends the job. One of these is MISMATCH: the loss scales of a step differ. It names two ranks
 * and their scales.
 */
enum adtopk_status adtopk_push(adtopk_context *context, const struct adtopk_push_spec *push);

/** adtopk_push() of a gradient in host memory with a loss scale of 1. */
enum adtopk_status adtopk_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient);

/**
 * Closes the step: what was not pushed counts as zero from this rank. Does not wait. Implied by
 * adtopk_step_wait().
 *
 * A node contributes nothing of a tensor that none of its ranks pushed, and its residual of the
 * tensor stays as it is. If no rank of the job pushed it, its update is empty
 * (adtopk_update.unpushed).
 * Errors: STATE (before commit; ended already), and what ends the job.
 */
enum adtopk_status adtopk_step_end(adtopk_context *context);

/**
 * Waits until one tensor's update of this step is there. Tensors are exchanged in buckets;
 * waiting before all tensors of a bucket were pushed splits that bucket from now on.
 *
 * Returns ADTOPK_OK, or ADTOPK_NONFINITE if the tensor's round had a non-finite gradient (the step
 * will be withdrawn). Until adtopk_step_wait() returns OK the update may be read but must not be
 * applied for good. Where the policy's `non_finite` is "propagate" no step is withdrawn: then it
 * may be applied at once. Errors: ARGUMENT (unknown tensor), STATE (this rank has not pushed the
 * tensor in this step), and what ends the job.
 */
enum adtopk_status adtopk_wait(adtopk_context *context, uint32_t tensor);

/** adtopk_wait() that waits at most timeout_ms: then ADTOPK_PENDING. With 0 it only looks, and no
 * bucket is split. */
enum adtopk_status adtopk_wait_for(adtopk_context *context, uint32_t tensor, int timeout_ms);

/**
 * Ends the step if adtopk_step_end() was not called, and waits until it is accepted on this node.
 * A rank that has nothing to push may call it alone.
 *
 * ADTOPK_OK: every update is there; apply them all. ADTOPK_NONFINITE: a gradient somewhere held
 * NaN or Inf; the step is withdrawn on every rank, residuals are as before it, to rounding of the
 * withdrawn gradients; apply nothing, and go on with the next step. The policy's `non_finite` can
 * say otherwise. With "propagate" the step is accepted, and the updates of the tensors with such
 * gradients are NaN. With "reject" the job ends: ADTOPK_ERR_ARGUMENT, which names rank, tensor and
 * element.
 * Errors: STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_step_wait(adtopk_context *context);

/** adtopk_step_wait() that waits at most timeout_ms: then ADTOPK_PENDING, the step is ended and
 * goes on, and a later call returns how it went. */
enum adtopk_status adtopk_step_wait_for(adtopk_context *context, int timeout_ms);

/**
 * A descriptor for poll() and its like, of the library's own: wait for it to become readable
 * (POLLIN), do not read it or close it. It belongs to the context and ends with it.
 *
 *     while ((status = adtopk_step_wait_for(context, 0)) == ADTOPK_PENDING) {
 *         if (adtopk_arm(context) == ADTOPK_PENDING) {
 *             poll(descriptors, count, -1);
 *         }
 *     }
 *
 * descriptor: set on success. Errors: ARGUMENT (descriptor is NULL; the address is tcp://, which
 * has none), and what ends the job.
 */
enum adtopk_status adtopk_descriptor(adtopk_context *context, int *descriptor);

/**
 * Asks the daemon to make the descriptor readable when something progresses: the commit, a tensor,
 * the step, an operation, the end of the job. ADTOPK_PENDING: it will. ADTOPK_OK: something has
 * progressed since the last call that waited or looked, so look again. The next call that waits or
 * looks takes it back. The descriptor may also become readable without need.
 * Errors: ARGUMENT (the address is tcp://), STATE (another thread waits), and what ends the job.
 */
enum adtopk_status adtopk_arm(adtopk_context *context);

/** An update. All pointers are read-only shared memory, valid until the next step begins with this
 * rank's first adtopk_push(), adtopk_step_end() or adtopk_step_wait() of it, or adtopk_close(). An
 * update of the open step, read after adtopk_wait(), outlives further pushes of that step. Where
 * the policy's `non_finite` is "propagate", the update of a tensor that this rank pushed in a step
 * stays valid in the next one, until the rank pushes that tensor again or ends the step. */
struct adtopk_update {
    /** sizeof(struct adtopk_update), set before adtopk_update(). */
    size_t size;
    /** numel elements; NULL if the dense form was not asked for and the tensor travelled sparse, or
     * if dense16 has them. */
    const float *dense;
    /** count entries (index into the flat tensor, value), each index once, in no promised order;
     * NULL if the list was not asked for or the tensor travelled dense. */
    const uint32_t *index;
    const float *value;
    uint64_t count;
    /** Elements of the tensor. */
    uint64_t numel;
    /** The step whose update this is. */
    uint64_t step;
    /** What this rank knows of the gradients that no update has brought yet: `numel` elements of
     * pending_dtype, f32 or bf16; times pending_scale they are in the units of an update without
     * its loss scale. For adtopk_lookahead(). Elements in bf16 lack what rounding moved to their
     * neighbours, which adtopk_residual() adds. Valid until this rank's first push of the next
     * step. NULL: the policy's `lookahead` is 0, the tensor travels dense, the step is not over,
     * the daemon is on another machine, or the policy or the tensors have changed since another
     * update of this step was read. */
    const void *pending;
    enum adtopk_dtype pending_dtype;
    float pending_scale;
    /** The share of them by which adtopk_lookahead() shifts: that of the policy, or less, where its
     * guard has reduced it. */
    float lookahead;
    /** 1: no rank of the job pushed the tensor in this step. The update is empty: no entries, or
     * all zeros. Residuals are as they were, and the tensor's turn does not count. An optimiser
     * that skips parameters without a gradient skips this one. 0 otherwise. */
    uint32_t unpushed;
    /** The type of dense16, enum adtopk_dtype; 0 if that is NULL. */
    uint32_t dtype16;
    /** numel elements, the bits of the tensor's type each; NULL if ADTOPK_FORM_DENSE16 was not
     * asked for. */
    const uint16_t *dense16;
};

/**
 * The tensor's update: of the last step, after adtopk_step_wait() returned ADTOPK_OK, for every
 * tensor; or of the open step, after adtopk_wait() for this tensor returned ADTOPK_OK.
 * update: filled on success but for its size; its pointers are borrowed.
 * Errors: ARGUMENT (unknown tensor, update is NULL or has an impossible size), STATE (nothing was
 * waited for yet; it was released, or withdrawn with its step).
 */
enum adtopk_status adtopk_update(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update);

/**
 * Reads the tensor's residual: what of the gradients so far was not sent yet, in units without loss
 * scales. It is this node's; under a policy with scope rank, this rank's own; 0 where the tensor is
 * sent dense and keeps none.
 * Only between two steps: after adtopk_commit() or adtopk_step_wait(), before the next step's first
 * push. For tests, checkpoints and curiosity: a copy by messages takes about a second for 500 MB.
 *
 * out: gets numel elements, in the layout of the gradient.
 * Errors: ARGUMENT (unknown tensor, out is NULL), STATE (before commit; in mid-step; the daemon
 * keeps the residuals busy for 10 s), and what ends the job.
 */
enum adtopk_status adtopk_residual(adtopk_context *context, uint32_t tensor, float *out);

/** adtopk_residual() that waits at most timeout_ms: then ADTOPK_PENDING, `out` has a part of it,
 * and the next call with the same arguments goes on. Another tensor or `out`, and the next step's
 * first push, give it up. */
enum adtopk_status adtopk_residual_for(
    adtopk_context *context, uint32_t tensor, float *out, int timeout_ms);

/**
 * Plain SGD: parameters[i] -= learning_rate * update[i]. Where the update has a list, only the
 * parameters in it are touched; where it has none (the tensor travelled dense, or was registered
 * without ADTOPK_FORM_LIST), all of them, from whichever dense form there is. Both ways lead to the
 * same parameters. For SGD alone ADTOPK_FORM_LIST is thus all that need be registered: nobody then
 * makes a pass over the whole tensor. With momentum, Adam or weight decay every parameter moves in
 * every step, also those the list leaves out: use the dense form.
 *
 * parameters: update->numel of them, f32, laid out as the gradient. update: as adtopk_update() gave
 * it, while it is valid. Cannot fail; needs no context; any thread.
 */
void adtopk_apply_sgd(float *parameters, const struct adtopk_update *update, float learning_rate);

/** Where the next gradient is taken. */
struct adtopk_lookahead_spec {
    /** sizeof(struct adtopk_lookahead_spec). */
    size_t size;
    /** The parameters, with the last update applied: as many as the tensor has elements, f32. */
    const float *parameters;
    /** Receives the shifted parameters, as many; another array. */
    float *shifted;
    /** Adam's second moment, not yet corrected for its bias, as many. It divides the shift as it
     * divides a step. NULL: none, as in SGD. */
    const float *second_moment;
    /** With second_moment: what corrects it, 1 - beta2^t after t steps. */
    float correction;
    /** With second_moment: what is added to its root. */
    float epsilon;
    /** What becomes of one unit of an update, without its loss scale, in the long run: the learning
     * rate, divided by 1 - momentum where the trainer has momentum. Finite, at least 0. */
    float rate;
    /** 0. This version refuses other values. */
    uint32_t reserved;
};

/**
 * Looks ahead: shifted[i] = parameters[i] - rate * update.lookahead * p[i], where p is what the
 * rank knows of the gradients that no update has brought yet (update.pending). A gradient that is
 * taken there, instead of at the parameters, fits the parameters to which it will be applied some
 * steps later (deploy/learning.md). With second_moment, p[i] is first divided by
 * sqrt(second_moment[i] / correction) + epsilon, and limited to +-10.
 *
 * Keep the parameters apart: apply updates to them, evaluate and save them. They are equal on all
 * ranks; the shifted ones differ from rank to rank. Call it between adtopk_step_wait() and the next
 * step's first push, after the update was applied. Where there is nothing to look ahead with, and
 * over tcp://, the shifted parameters are the parameters.
 *
 * A guard limits the shift to a tenth of the norm of the tensor's parameters, as far as the call
 * before can tell; update.lookahead shows the share that is left.
 *
 * spec: only read in this call. Errors: ARGUMENT (names the field; unknown tensor), STATE (before
 * commit, in mid-step). Source: step-ahead error feedback (Xu, Huo, Huang, AAAI 2021, arXiv
 * 2008.05823), by a share, because a rank knows its node's residual only.
 */
enum adtopk_status adtopk_lookahead(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *spec);

/**
 * Copies `size` bytes from rank `root`'s memory into every other rank's. All ranks call it with
 * the same root and size, outside or inside a step, in the same order as other collective calls.
 * A size of 0 does nothing.
 * Errors: ARGUMENT (bytes is NULL, the root, a size beyond PTRDIFF_MAX), MISMATCH (ranks called
 * different operations), STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_broadcast(adtopk_context *context, void *bytes, size_t size, int root);

/** adtopk_broadcast() that waits at most timeout_ms: then ADTOPK_PENDING, the operation is under
 * way, and the next call with the same arguments goes on. `bytes` belongs to the library until
 * then. No other collective operation may begin meanwhile: ADTOPK_ERR_STATE. Ranks may use
 * different forms of an operation. */
enum adtopk_status adtopk_broadcast_for(
    adtopk_context *context, void *bytes, size_t size, int root, int timeout_ms);

/** Waits until every rank has called it. Errors: as adtopk_broadcast(). */
enum adtopk_status adtopk_barrier(adtopk_context *context);

/** adtopk_barrier() that waits at most timeout_ms; see adtopk_broadcast_for(). */
enum adtopk_status adtopk_barrier_for(adtopk_context *context, int timeout_ms);

/**
 * values[i] = the sum over all ranks of values[i], in f32, the same bits on every rank. For
 * metrics: uncompressed, and no residual is involved. `count` is the same on all ranks; 0 does
 * nothing. After an error that ends the job some values may be sums already.
 * Errors: as adtopk_broadcast().
 */
enum adtopk_status adtopk_allreduce(adtopk_context *context, float *values, size_t count);

/** adtopk_allreduce() that waits at most timeout_ms; see adtopk_broadcast_for(). */
enum adtopk_status adtopk_allreduce_for(
    adtopk_context *context, float *values, size_t count, int timeout_ms);

#ifdef __cplusplus
}
#endif
#endif

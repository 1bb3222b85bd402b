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
 * Checkpoints have a header of their own (checkpoint.h), and so have ranks that come and go
 * (members.h) and gradients on GPUs (stream.h).
 *
 * ## Words
 *
 * A *job* is one training run: owner, name, run id and world size. A *rank* is one of its
 * processes. A *step* is one training iteration; the library numbers it, see adtopk_step(). A
 * *tensor* is registered once. An *update* is the result of a step for one tensor: the sum, or the
 * mean, over all ranks of the values that they sent. Every rank of a job gets the same bits. A
 * *policy* says which entries are sent, and how (deploy/policy.md).
 *
 * ## Structures
 *
 * A structure begins with its size. Set it, and leave the fields that you do not need 0:
 *
 *     struct adtopk_tensor_spec spec = {.size = sizeof spec, .name = "w", .dims = 1, .shape = {8}};
 *
 * Later versions of the library add fields at the end, whose default is 0. A program and a library
 * of different versions therefore work together. The library gives its default to a field that the
 * program lacks. If the program sets a field that the library lacks, the call returns
 * ADTOPK_ERR_ARGUMENT and says so. No structure ends in padding, because a program may leave the
 * bytes of padding undefined.
 *
 * In C++ write `struct adtopk_update u{}; u.size = sizeof u;`: a function has the same name, and
 * some compilers warn of fields that an initialiser leaves out.
 *
 * ## Threads
 *
 * Different contexts are independent. In one context, one thread may wait while another pushes. The
 * waiting thread calls adtopk_wait(), adtopk_step_wait() or their forms with a time-out. The other
 * may call adtopk_push(), adtopk_push_tensor(), adtopk_gradient(), adtopk_step() and
 * adtopk_step_end(). A second thread that would wait gets ADTOPK_ERR_STATE. adtopk_close() ends the
 * calls in which other threads sleep: they return ADTOPK_ERR_STATE, and these threads must not use
 * the context any more. No other call may run beside another one in the same context.
 *
 * A forked child may not use its parent's context: calls return ADTOPK_ERR_STATE, and
 * adtopk_close() frees the child's copy only. The library installs no signal handlers, calls no
 * functions of yours, and starts few threads: libzmq's for tcp://, one that brings a rank
 * back to its daemon (options.return_timeout_ms), and those for GPUs (stream.h).
 *
 * ## Errors
 *
 * Functions return ADTOPK_OK (0) or a status from <adtopk/status.h>. After an error
 * adtopk_message() has one sentence that names the tensor, rank, peer or argument. Where a policy
 * is wrong, two lines follow that show the place. A wrong argument changes nothing. An error that
 * concerns the job (a rank died, ranks disagree) is final: every later call returns it again. The
 * program can then only read updates of the last complete step, and call adtopk_close().
 *
 * Three errors are common to all functions that take a context and return a status:
 *
 * - ADTOPK_ERR_ARGUMENT: the context is NULL.
 * - ADTOPK_ERR_STATE: this is a forked child.
 * - ADTOPK_ERR_UNREACHABLE: the daemon is gone, and the rank cannot return to another one. It can
 *   if the daemon's stores are kept (options.return_timeout_ms): then calls go on by themselves.
 *
 * "Errors:" below lists the other errors, without ADTOPK_ERR_. *What ends the job* is one of
 * MISMATCH, TIMEOUT, PEER, PROTOCOL, LOST, MEMORY and SYSTEM. So are POLICY of a commit, and
 * ARGUMENT where the policy's `non_finite` is "reject" and a gradient is not finite.
 * client/README.md says what to do about each.
 *
 * ## Waiting
 *
 * adtopk_commit(), adtopk_wait(), adtopk_step_wait() and the collective operations wait for other
 * ranks, as long as the policy says (join_timeout, push_timeout, wait_limit). The error then names
 * the ranks that were missing. adtopk_open() waits for the daemon, adtopk_close() for its goodbye.
 *
 * adtopk_update() and adtopk_lookahead() wait for no rank. With ADTOPK_FORM_PENDING the first of
 * them after a commit, or after a change of the policy, asks the daemon for the memory of
 * residuals, and waits for the answer. If the daemon is gone for good, adtopk_lookahead() returns
 * that, and after adtopk_update() the next call. A signal ends both as it ends a wait for ranks.
 *
 * A daemon that is stopped or stuck ends no call that has joined. A call without a time-out then
 * waits until the daemon goes on or ends. The other nodes wait for it as the policy says.
 *
 * Each call that waits for other ranks, and adtopk_residual(), has a form with a time-out in
 * milliseconds. It returns ADTOPK_PENDING when the time is over: call it again to go on waiting.
 * With 0 the call looks and does not wait; with a negative number it has no time-out. A push, and a
 * call that ends a step or begins to wait for a tensor or an operation, tells the daemon so. Where
 * the daemon has not read many earlier messages of this rank, that waits until it has. No time-out
 * ends this wait. A program that sleeps in a loop of its own, beside other descriptors, uses
 * adtopk_descriptor().
 *
 * Signals interrupt no call unless options.interruptible is set. With it, these calls and
 * adtopk_open() return ADTOPK_INTERRUPTED when a signal handler has run while they slept. Made
 * again, a call goes on, as after ADTOPK_PENDING; adtopk_open() begins anew. A push, or the end of
 * a step, returns it too while it waits for a stopped daemon, or for the network: it was not made,
 * and may be made again. Over tcp:// a part of the gradient may have been sent. Then the next push
 * of the tensor in this step sends the rest, with the first call's scale. It ignores the gradient
 * and the scale that it is given. Until then do not write to the memory of adtopk_gradient(). A
 * signal that comes just before a call sleeps does not end the call: where that matters, use a
 * time-out too.
 *
 * ## A daemon on another machine
 *
 * With a tcp:// address everything is as described here, with three differences. "Shared" memory is
 * this process's own. A push sends the gradient, which takes as long as the network needs. And a
 * daemon that does not answer for 5 s counts as gone, even if it is only stopped: see
 * options.return_timeout_ms.
 * Between machines a connection needs keys: adtopk_options.key_file identifies this trainer, and
 * adtopk_options.server_key the daemon.
 */
#ifndef ADTOPK_H
#define ADTOPK_H

#include <stddef.h>
#include <stdint.h>

#include <adtopk/memory.h>
#include <adtopk/options.h>
#include <adtopk/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ADTOPK_MAX_DIMS 8

/** A rank's connection to its daemon. Opaque. */
typedef struct adtopk_context adtopk_context;

/** What a rank can ask for of a tensor: forms of its updates, and its residual; combine with |.
 * Ranks that ask for different forms end the job: ADTOPK_ERR_MISMATCH. */
enum adtopk_form {
    /** (index, value) pairs; an element that is not in the list is 0. A tensor that is sent dense
     * comes in the dense form, and so may one with a list of more than half the elements. */
    ADTOPK_FORM_LIST = 1,
    /** All elements. Momentum, Adam and weight decay need this form. */
    ADTOPK_FORM_DENSE = 2,
    /** All elements in the tensor's own type, f16 or bf16, and not in f32. Values are rounded to
     * the nearest, ties to even. A magnitude beyond the type's largest finite number becomes that
     * number. Nothing is lost: the residuals keep the rounding errors for later steps. With
     * ADTOPK_FORM_LIST the list has the rounded values too. A tensor of f32 cannot have this form,
     * nor can a tensor that also asks for ADTOPK_FORM_DENSE. */
    ADTOPK_FORM_DENSE16 = 4,
    /** The residual of this rank's node, or with scope rank its own, for adtopk_lookahead() and
     * adtopk_update.pending. Without this form adtopk_lookahead() refuses the tensor. It is no form
     * of an update: alone it implies ADTOPK_FORM_DENSE.
     *
     * Ask for it only where you look ahead, because it costs time. If one tensor of a commit has
     * it, the daemon keeps the residuals of the whole commit in memory that ranks can map. Most
     * systems have no huge pages for such memory, and adding a gradient takes about 12% longer.
     * Over tcp:// no residual is shown, and the form costs the same.
     *
     * With ADTOPK_FORM_DEVICE the rank finds it on its GPU instead (adtopk_device_pending() in
     * stream.h), where it takes 4 bytes for each element. */
    ADTOPK_FORM_PENDING = 8,
    /** All elements, on the rank's GPU (memory.h). Alone it implies ADTOPK_FORM_DENSE. */
    ADTOPK_FORM_DEVICE = 16,
    /** The list there, too (memory.h). It goes with ADTOPK_FORM_DEVICE and ADTOPK_FORM_LIST. */
    ADTOPK_FORM_DEVICE_LIST = 32
};

/**
 * Joins a job as one rank.
 *
 * options: may be NULL for all defaults; the library keeps no pointer to it.
 * context: set on success only; free it with adtopk_close().
 * A job of the same name and run id of another user is another job. After a failed open
 * adtopk_message(NULL) returns the message, per thread.
 *
 * Errors: POLICY, MEMORY, SYSTEM, and
 *
 * - ARGUMENT: a field, variable or key is wrong.
 * - UNREACHABLE: there is no daemon at the address.
 * - DENIED: no permission to connect; a key that the daemon does not know, or that others can read;
 *   or the daemon or this user has reached a limit of sessions or jobs.
 * - MISMATCH: world size or policy differ from the job's, or the rank is taken.
 * - STATE: the daemon is draining or stopping; no job waits for a rank that comes back, or one
 * does, and the process does not say that it comes back.
 * - LOST: first_step is a step that the others cannot repeat; the message names those that they
 * can.
 * - PROTOCOL: a daemon of another version, or another program, answers.
 */
enum adtopk_status adtopk_open(const struct adtopk_options *options, adtopk_context **context);

/**
 * Leaves the job and frees the context with all memory that it handed out. NULL is allowed. A rank
 * that leaves after adtopk_step_wait() leaves cleanly; a rank that leaves within a step ends the
 * job for all ranks. The call cannot fail. It waits until the daemon has noticed, so that the rank
 * may be opened again at once. It does not wait longer than options.answer_timeout_ms, by default
 * 10 s, for a daemon that is stopped or stuck. If the daemon was killed, the rank returns to the
 * next one first, within the same time (options.return_timeout_ms). It is back only when all ranks
 * of its node are. So a process with several contexts may wait that long for each that it closes.
 */
void adtopk_close(adtopk_context *context);

/** The same. It waits for the daemon at most timeout_ms, if not negative. Since interface 1.1. */
void adtopk_close_for(adtopk_context *context, int timeout_ms);

/** This process's rank and the job's world size; -1 if the context is NULL. */
int adtopk_rank(const adtopk_context *context);
int adtopk_world_size(const adtopk_context *context);

/** The name of the job and the run id, as the daemon has them. They include the "#2" of a second
 * context (options.job), the "@GROUP" of a group, and parts that came from the environment. "" if
 * the context is NULL; else the string belongs to the context and is valid until adtopk_close(). */
const char *adtopk_job(const adtopk_context *context);
const char *adtopk_run_id(const adtopk_context *context);

/** The sentence of the last error that this thread got from the context, or from adtopk_open() if
 * the context is NULL. In a thread that got none it is the context's last; "" before the first
 * error. Never NULL. The string belongs to the library and is valid until this thread's next call.
 */
const char *adtopk_message(const adtopk_context *context);

/** The version of the library's interface, "major.minor.patch", a constant. Not the release's. */
const char *adtopk_version(void);

/** A tensor. A tensor of one dimension is always sent dense. */
struct adtopk_tensor_spec {
    /** sizeof(struct adtopk_tensor_spec). */
    size_t size;
    /** Name, unique in the job: 1 to 127 bytes of UTF-8 without control or format characters. */
    const char *name;
    enum adtopk_dtype dtype;
    /** 1..ADTOPK_MAX_DIMS sizes in row-major layout, each at least 1; below 2^32 elements. */
    int dims;
    uint64_t shape[ADTOPK_MAX_DIMS];
    /** enum adtopk_form, combined; without a form of updates it implies ADTOPK_FORM_DENSE. */
    unsigned forms;
    /** The memory in which its gradients lie: see <adtopk/memory.h>. */
    enum adtopk_memory memory;
    /** For a shard: the shape of the whole tensor, and the index in it at which the shard begins,
     * `dims` numbers each. For a whole tensor: all 0, or its own shape and offset 0. This version
     * refuses shards: register a shard as a tensor of its own, in the group of the ranks that have
     * the same shard. */
    uint64_t global_shape[ADTOPK_MAX_DIMS];
    uint64_t global_offset[ADTOPK_MAX_DIMS];
    /** With ADTOPK_CUDA: the GPU's UUID, or NULL; else NULL. Copied. */
    const char *device;
};

/**
 * Describes a tensor. All ranks register the same tensors in the same order. Best is the order of
 * the forward pass, because what is registered first is sent first (see `priority` in policy.md).
 *
 * A call after a commit begins another batch of tensors. Another adtopk_commit() puts that batch in
 * force while training goes on. Until then its tensors may not be pushed.
 *
 * spec: copied. tensor: receives the tensor's number, 0, 1, ... in order of registration; may be
 * NULL.
 * Errors: ARGUMENT (names the tensor and the field; the name is taken; there are 65,536 tensors, or
 * eight batches were committed), MEMORY, STATE (a commit has begun and is not complete).
 */
enum adtopk_status adtopk_register(
    adtopk_context *context, const struct adtopk_tensor_spec *spec, uint32_t *tensor);

/**
 * Ends registration. Waits until every rank of the job has committed the same tensors, and reserves
 * the memory. Then the job is ready for its first step. After MEMORY you may call it again: it
 * succeeds when there is room, if it was this rank's gradients that had none. Each further commit
 * says the same where the job has ended, or the daemon had no memory for the registration of the
 * tensor that is named: close the context then.
 *
 * Between two steps it commits the tensors that were registered since the last commit, at most
 * eight batches in all. All ranks call it at the same step, after adtopk_step_wait() and before the
 * next push. Earlier tensors keep the addresses of their gradients and updates, and the values of
 * their residuals, turns and thresholds. New tensors begin with empty residuals and turn 0. The
 * commit calls off a change of the policy that is under way, unless all nodes hold for that change
 * already.
 *
 * Errors: what ends the job, and
 *
 * - MISMATCH: names the tensor and the ranks.
 * - MEMORY: has the numbers; user_memory may be the limit.
 * - POLICY: the policy does not fit a tensor.
 * - STATE: nothing was registered since the last commit, or the call comes in mid-step; with a
 *   daemon of an earlier release, another commit of a rank whose gradients are on a GPU.
 * - TIMEOUT: names the ranks that are missing.
 */
enum adtopk_status adtopk_commit(adtopk_context *context);

/** adtopk_commit() that waits at most timeout_ms, then returns ADTOPK_PENDING; the next call goes
 * on. Until the commit is complete only this function, adtopk_descriptor(), adtopk_arm() and
 * adtopk_close() may be called. */
enum adtopk_status adtopk_commit_for(adtopk_context *context, int timeout_ms);

/** The number of the step that is open or comes next, 0 in a new job. Returns 0 before commit, and
 * if the context is NULL. */
uint64_t adtopk_step(const adtopk_context *context);

/**
 * The memory of the tensor's gradient: numel elements of its dtype, in native layout, 64-byte
 * aligned, shared with the daemon. Valid from commit to close. Write the gradient here and push
 * NULL. Do not write between a tensor's push and adtopk_step_wait(), nor to any tensor while
 * adtopk_step_wait() runs. NULL for an unknown tensor, before commit, and in a forked child.
 */
void *adtopk_gradient(adtopk_context *context, uint32_t tensor);

/** A gradient to push. */
struct adtopk_push_spec {
    /** sizeof(struct adtopk_push_spec). */
    size_t size;
    /** The tensor's number. */
    uint32_t tensor;
    /** The kind of memory that `gradient` points to: the tensor's own. */
    enum adtopk_memory memory;
    /** numel elements of the tensor's dtype, which the call copies into shared memory before it
     * returns. NULL if they are there already (adtopk_gradient()). */
    const void *gradient;
    /** The loss scale: the factor by which the gradient is too large, because the loss was
     * multiplied by it. 0 means 1; else from 2^-126 to 2^126. All pushes of a step, of all ranks,
     * have the same one; the next step may have another. The updates of the step are too large by
     * the same factor. Residuals, clipping and thresholds are in units without it. A power of 2
     * changes no bit but by overflow and underflow; another number rounds by about 2^-23. */
    float scale;
    /** 0. This version refuses other values. */
    uint32_t flags;
    /** With ADTOPK_CUDA: the stream that writes the gradient; else NULL. */
    void *stream;
    /** With ADTOPK_CUDA: the share of adtopk_device_pending() (stream.h) by which the parameters
     * were shifted at which the gradient was taken, from 0 to 1; for `adtopkctl tensors`. Else 0:
     * adtopk_lookahead() knows it. */
    float lookahead;
    /** 0. This version refuses other values. */
    uint32_t reserved;
};

/**
 * Hands over a tensor's gradient of this step. Does not wait for the exchange.
 *
 * push: the library keeps no pointer to it.
 * The first push of a step, or its end without one, releases the previous step's updates: the
 * program must not read them any more.
 *
 * Errors: what ends the job, and
 *
 * - ARGUMENT: the tensor is unknown, or a field is wrong or one that this version refuses.
 * - STATE: before commit; a second push in this step; or nobody waited for the end of the previous
 *   step.
 * - MISMATCH, which ends the job: the loss scales of a step differ. Names two ranks and these.
 */
enum adtopk_status adtopk_push(adtopk_context *context, const struct adtopk_push_spec *push);

/** adtopk_push() with a loss scale of 1, and with no stream. */
enum adtopk_status adtopk_push_tensor(
    adtopk_context *context, uint32_t tensor, const void *gradient);

/**
 * Closes the step: a tensor that this rank did not push counts as zero from this rank. Does not
 * wait. adtopk_step_wait() implies it.
 *
 * If none of a node's ranks pushed a tensor, the node contributes nothing to it, and its residual
 * of the tensor stays as it is. If no rank of the job pushed it, its update is empty
 * (adtopk_update.unpushed).
 * Errors: STATE (before commit; ended already), and what ends the job.
 */
enum adtopk_status adtopk_step_end(adtopk_context *context);

/**
 * Waits until one tensor's update of this step is there. Tensors are exchanged in buckets. A wait
 * before all tensors of a bucket were pushed splits that bucket from now on.
 *
 * Returns ADTOPK_OK, or ADTOPK_NONFINITE if the tensor's round had a non-finite gradient (the step
 * will be withdrawn). Until adtopk_step_wait() returns OK the update may be read but must not be
 * applied for good. Where the policy's `non_finite` is "propagate" no step is withdrawn, and you
 * may apply the update at once. Errors: ARGUMENT (unknown tensor), STATE (this rank has not pushed
 * the tensor in this step), and what ends the job.
 */
enum adtopk_status adtopk_wait(adtopk_context *context, uint32_t tensor);

/** adtopk_wait() that waits at most timeout_ms, then returns ADTOPK_PENDING. With 0 it only looks,
 * and no bucket is split. While a rank with gradients on a GPU returns to another daemon (memory.h)
 * calls with a time-out take longer: as long as calls of the driver that map its memory. */
enum adtopk_status adtopk_wait_for(adtopk_context *context, uint32_t tensor, int timeout_ms);

/**
 * Ends the step if adtopk_step_end() was not called, and waits until it is accepted on this node.
 * A rank that has nothing to push may call it alone.
 *
 * ADTOPK_OK: every update is there; apply them all. ADTOPK_NONFINITE: a gradient of some rank had
 * NaN or Inf, or the sum of a node's gradients, with their loss scale, had an element of 2^120 or
 * more. Then the step is withdrawn on every rank. Residuals are as before the step, to rounding of
 * the withdrawn gradients. Apply nothing, and go on with the next step. The policy's `non_finite`
 * can change this. With "propagate" the step is accepted, and the updates of tensors with such
 * gradients have NaN: in all elements of a dense tensor, in at least one entry of a sparse one.
 * With "reject" the job ends with ADTOPK_ERR_ARGUMENT, which names rank, tensor and element.
 * Errors: STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_step_wait(adtopk_context *context);

/** adtopk_step_wait() that waits at most timeout_ms, then returns ADTOPK_PENDING: the step is ended
 * and goes on, and a later call returns its result. */
enum adtopk_status adtopk_step_wait_for(adtopk_context *context, int timeout_ms);

/**
 * A descriptor for poll(), epoll and similar calls. Wait until it becomes readable (POLLIN); do not
 * read or close it. It belongs to the context, and stays the same when the rank returns to another
 * daemon. adtopk_close() closes it: no other thread may poll it then, because the kernel wakes
 * none.
 *
 *     while ((status = adtopk_step_wait_for(context, 0)) == ADTOPK_PENDING) {
 *         if (adtopk_arm(context) == ADTOPK_PENDING) {
 *             poll(descriptors, count, -1);
 *         }
 *     }
 *
 * descriptor: set on success. Errors: ARGUMENT (descriptor is NULL; the address is tcp://, which
 * has none), SYSTEM, and what ends the job.
 */
enum adtopk_status adtopk_descriptor(adtopk_context *context, int *descriptor);

/**
 * Asks the daemon to make the descriptor readable at the next progress. That is progress of the
 * commit, a tensor, the step or an operation, the next part of a residual, or the end of the job.
 * ADTOPK_PENDING: the daemon will. ADTOPK_OK: there was progress since the last call that waited or
 * looked, so look again. The next call that waits or looks withdraws the request. The descriptor
 * may also become readable without need, and while the daemon is gone, whenever the next call would
 * try to return to another one. Errors: ARGUMENT (the address is tcp://), STATE (another
 * thread waits), and what ends the job.
 */
enum adtopk_status adtopk_arm(adtopk_context *context);

/**
 * An update. All pointers are read-only shared memory. They are valid until adtopk_close(), or
 * until this rank begins the next step: with its first adtopk_push(), adtopk_step_end() or
 * adtopk_step_wait() in that step. An update of the open step, read after adtopk_wait(), outlives
 * further pushes of that step.
 *
 * Where the policy's `non_finite` is "propagate", the update of a tensor that this rank pushed
 * stays valid longer: until the rank pushes that tensor again in the next step, or ends that.
 */
struct adtopk_update {
    /** sizeof(struct adtopk_update), set before adtopk_update(). */
    size_t size;
    /** numel elements. NULL if the program did not ask for the dense form and the tensor was sent
     * sparse, or if dense16 has the elements. */
    const float *dense;
    /** count entries (index into the flat tensor, value), each index once, in no promised order.
     * NULL if the program did not ask for the list or the tensor was sent dense. */
    const uint32_t *index;
    const float *value;
    uint64_t count;
    /** Elements of the tensor. */
    uint64_t numel;
    /** The step whose update this is. */
    uint64_t step;
    /** The gradients, as far as this rank knows, that no update has brought yet: `numel` elements
     * of pending_dtype, f32 or bf16. Multiplied by pending_scale they are in the units of an update
     * without its loss scale. For adtopk_lookahead(). Elements in bf16 lack the rounding errors
     * that were moved to their neighbours, which adtopk_residual() adds. Valid until this rank's
     * first push of the next step. NULL in any of these cases:
     *
     * - The tensor was registered without ADTOPK_FORM_PENDING, or is sent dense.
     * - The policy's `lookahead` is 0.
     * - The step is not over.
     * - The daemon is on another machine, or keeps residuals on GPUs (adtopk_device_pending()).
     * - The policy or the tensors have changed since another update of this step was read. */
    const void *pending;
    enum adtopk_dtype pending_dtype;
    float pending_scale;
    /** The share of `pending` by which adtopk_lookahead() shifts. It is the policy's share, or less
     * where the guard of that call has reduced it. Where `pending` is on the GPU it is the policy's
     * share, and 0 if the daemon shows nothing there. */
    float lookahead;
    /** 1: no rank of the job pushed the tensor in this step; 0 otherwise. With 1 the update is
     * empty: no entries, or all zeros. Residuals are as they were, and the tensor's turn does not
     * count. An optimiser that skips parameters without a gradient skips this one. */
    uint32_t unpushed;
    /** The type of dense16 and device_dense16, enum adtopk_dtype; 0 if both are NULL. */
    uint32_t dtype16;
    /** numel elements with the bits of the tensor's type. NULL without ADTOPK_FORM_DENSE16. */
    const uint16_t *dense16;
    /** ADTOPK_FORM_DEVICE: numel elements, at an address of the GPU. Both may be NULL: memory.h. */
    const float *device_dense;
    const uint16_t *device_dense16;
    /** ADTOPK_FORM_DEVICE_LIST: index and value on the GPU. Both may be NULL: memory.h. */
    const uint32_t *device_index;
    const float *device_value;
};

/**
 * The tensor's update. After adtopk_step_wait() returned ADTOPK_OK it is that of the last step, for
 * every tensor. After adtopk_wait() for this tensor returned ADTOPK_OK it is that of the open step.
 * update: the call fills it on success, except its size. The program does not own its pointers.
 * Errors: ARGUMENT (unknown tensor, update is NULL or has an impossible size), STATE (nothing was
 * waited for yet; it was released, or withdrawn with its step).
 */
enum adtopk_status adtopk_update(
    adtopk_context *context, uint32_t tensor, struct adtopk_update *update);

/**
 * Reads the tensor's residual: the part of the gradients so far that was not sent yet, in units
 * without loss scales. It is this node's residual; under a policy with scope rank it is this rank's
 * own. It is 0 where the tensor is sent dense and keeps none. Call it between two steps only: after
 * adtopk_commit() or adtopk_step_wait(), before the next step's first push. For tests, checkpoints
 * and curiosity: a copy by messages takes about a second for 500 MB.
 *
 * out: gets numel elements, in the layout of the gradient.
 * Errors: what ends the job, ARGUMENT (unknown tensor, out is NULL) and STATE (before commit; in
 * mid-step).
 */
enum adtopk_status adtopk_residual(adtopk_context *context, uint32_t tensor, float *out);

/** adtopk_residual() that waits at most timeout_ms, then returns ADTOPK_PENDING: `out` has a part
 * of the residual, and the next call with the same arguments goes on. A call with another tensor or
 * `out`, or the next step's first push, abandons the reading. */
enum adtopk_status adtopk_residual_for(
    adtopk_context *context, uint32_t tensor, float *out, int timeout_ms);

/**
 * Plain SGD: parameters[i] -= learning_rate * update[i]. If the update has a list, only the
 * parameters in the list change. If it has none, all parameters change, from whichever dense form
 * there is: the tensor was sent dense, or was registered without ADTOPK_FORM_LIST. Both ways lead
 * to the same parameters. A trainer that uses SGD alone therefore registers ADTOPK_FORM_LIST only:
 * this saves a pass over the whole tensor. With momentum, Adam or weight decay every parameter
 * changes in every step, also parameters that are not in the list: use the dense form.
 *
 * parameters: update->numel of them, f32, laid out as the gradient. update: as adtopk_update()
 * returned it, while it is valid. Cannot fail; needs no context; any thread.
 */
void adtopk_apply_sgd(float *parameters, const struct adtopk_update *update, float learning_rate);

/**
 * Copies all elements of an update: in 16 bits if it has dense16, else in f32. An update that has a
 * list only is 0 elsewhere. Large updates are copied past the caches.
 * to: update->numel of them. update: as for adtopk_apply_sgd(), whose other sentences hold, too.
 */
void adtopk_copy_update(void *to, const struct adtopk_update *update);

/** The point at which the next gradient is taken. */
struct adtopk_lookahead_spec {
    /** sizeof(struct adtopk_lookahead_spec). */
    size_t size;
    /** The parameters, with the last update applied: f32, one per element of the tensor. */
    const float *parameters;
    /** Receives the shifted parameters, as many; must not overlap the other arrays. */
    float *shifted;
    /** Adam's second moment, without the correction of its bias, as many. It divides the shift as
     * it divides a step. NULL: none, as in SGD. */
    const float *second_moment;
    /** With second_moment: the correction of its bias, 1 - beta2^t after t steps; at most 1. */
    float correction;
    /** With second_moment: the number added to its root, from 0 to 1. */
    float epsilon;
    /** How far one unit of an update, without its loss scale, moves a parameter in the long run.
     * That is the learning rate, divided by 1 - momentum where the trainer has it; 0 to 1e30. */
    float rate;
    /** 0. This version refuses other values. */
    uint32_t reserved;
};

/**
 * Looks ahead: shifted[i] = parameters[i] - rate * update.lookahead * p[i], where p is
 * update.pending: the gradients, as far as this rank knows, that no update has brought yet. A
 * gradient taken at the shifted parameters fits the parameters to which it will be applied some
 * steps later (deploy/learning.md). With second_moment, p[i] is first divided by
 * sqrt(second_moment[i] / correction) + epsilon, and limited to +-10.
 *
 * The tensor must have been registered with ADTOPK_FORM_PENDING, over tcp:// too.
 *
 * Keep the parameters apart: apply updates to them, evaluate and save them. They are equal on all
 * ranks; the shifted ones differ from rank to rank. Call it between adtopk_step_wait() and the next
 * step's first push, after the update was applied. Without pending gradients, and over tcp://, the
 * shifted parameters are the parameters. For parameters on a GPU there is adtopk_device_pending()
 * in stream.h.
 *
 * A guard limits the shift to a tenth of the norm of the tensor's parameters, as far as the
 * previous call can tell. Then update.lookahead shows the share that is left.
 *
 * The method is step-ahead error feedback (Xu, Huo, Huang, AAAI 2021, arXiv 2008.05823), by a
 * share, because a rank knows its node's residual only.
 *
 * spec: only read in this call.
 * Errors: ARGUMENT (names the field; unknown tensor; registered without ADTOPK_FORM_PENDING) and
 * STATE (before commit, in mid-step), POLICY (with second_moment: the policy has "momentum" for the
 * tensor). Final ones are UNREACHABLE, PROTOCOL and MEMORY (no addresses
 * for the residuals).
 */
enum adtopk_status adtopk_lookahead(
    adtopk_context *context, uint32_t tensor, const struct adtopk_lookahead_spec *spec);

/**
 * Copies `size` bytes from rank `root`'s memory into every other rank's. All ranks call it with
 * the same root and size, outside or inside a step, in the same order as other collective calls.
 * A size of 0 does nothing. Sizes are compared in pieces of 1 MiB: a call with 2 MiB and two with 1
 * MiB each are not told apart.
 * Errors: ARGUMENT (bytes is NULL, the root, a size beyond PTRDIFF_MAX), MISMATCH (ranks called
 * different operations), STATE (before commit), and what ends the job.
 */
enum adtopk_status adtopk_broadcast(adtopk_context *context, void *bytes, size_t size, int root);

/** adtopk_broadcast() that waits at most timeout_ms, then returns ADTOPK_PENDING: the operation is
 * under way, and the next call with the same arguments goes on. Until then the library owns
 * `bytes`, and another collective operation returns ADTOPK_ERR_STATE. Ranks may use different forms
 * of an operation. */
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

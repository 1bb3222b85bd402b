/*
 * CUDA streams that wait for updates, so that the host need not; and whether a GPU can have
 * gradients at all, adtopk_check_device(). A program includes this header beside <adtopk/adtopk.h>.
 * memory.h has what gradients and updates on a GPU are.
 *
 * adtopk_wait() and adtopk_step_wait() stop the calling thread. The calls here put the wait into a
 * stream instead, and return at once. So kernels that apply updates, and the next forward pass, are
 * in the stream before the updates are there:
 *
 *     for each training step:
 *         adtopk_push() ...                       each gradient, in `stream`
 *         adtopk_step_wait_stream(context, stream, &verdict);
 *         apply<<<..., stream>>>(parameters, update, verdict.word, verdict.right);
 *         forward<<<..., stream>>>(parameters);
 *         status = adtopk_step_wait(context);     before the next step's first push
 *
 * `update` is adtopk_device_update(): the same address in every step.
 *
 * ## What a kernel checks
 *
 * A stream never waits for ever. When the job fails, or the daemon is gone, or adtopk_close() is
 * called, streams go on without an update. If the rank can return to another daemon, they wait for
 * its update instead, unless none is started in time (options.return_timeout_ms). They also go on
 * when the step is withdrawn, because a gradient had NaN or Inf. So a kernel that applies an update
 * reads a word first, and does nothing where that is not the right number:
 *
 *     if (*(const volatile uint32_t *)word != right) return;
 *
 * The word stays as it is until the update may change: until the next push of the tensor, or of the
 * step, takes place in its stream.
 *
 * ## What the host learns
 *
 * After streams were let go without an update the next call returns the error. It is one that ends
 * the job, and parameters are as the last applied update left them. Kernels that cannot check the
 * word have changed them with an old update: then drop the parameters, and load a checkpoint. Save
 * parameters only after adtopk_step_wait() has returned ADTOPK_OK and the stream is done.
 *
 * When adtopk_step_wait() returns ADTOPK_OK, the step's word was right, and with ADTOPK_NONFINITE
 * it was not. There is one exception. After members of the job have changed, and in the first step
 * of a process that comes back, an update may be in host memory only (memory.h). Then the word is
 * not right, and adtopk_update() has no device_dense. The program applies all updates of that step
 * from host memory.
 *
 * ## Threads and streams
 *
 * Two threads of one context may call these functions as they may call adtopk_push(). The stream is
 * one of the device's primary context, and is not being captured into a graph. The library has one
 * thread of its own for each context with gradients on a GPU. It sleeps until the daemon is gone,
 * and blocks all signals. While the rank returns to another daemon there is a second one, which
 * makes calls of the driver.
 */
#ifndef ADTOPK_STREAM_H
#define ADTOPK_STREAM_H

#include <adtopk/adtopk.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Whether the gradients of this rank can lie on a GPU (memory.h): this process sees it, and the
 * daemon keeps residuals on GPUs. For programs that choose the memory of their tensors before they
 * register the first one. That the daemon sees the same GPU shows at adtopk_commit(), and so does
 * everything with a daemon of an earlier version.
 *
 * device: as adtopk_tensor_spec.device.
 * Errors: as those of adtopk_register() with ADTOPK_CUDA. The sentence speaks of tensor "*".
 */
enum adtopk_status adtopk_check_device(adtopk_context *context, const char *device);

/** How a kernel behind a wait finds out whether the update may be applied. */
struct adtopk_verdict {
    /** sizeof(struct adtopk_verdict), set before the call. */
    size_t size;
    /** The address of a word, for kernels of the device. Valid until adtopk_close(). */
    const uint32_t *word;
    /** The number that the word has behind the wait if the update is right, and only then. */
    uint32_t right;
    /** 0. */
    uint32_t reserved;
};

/**
 * Has a stream wait until a tensor's update of this step is there. Does not wait itself, unless the
 * ring is full (adtopk_push()).
 *
 * The rank has pushed the tensor in this step. If it has not pushed all of the tensor's bucket, the
 * bucket is split from now on, as by adtopk_wait(): first push all, then wait. The update may be
 * read behind the wait. Where the policy's `non_finite` is "propagate" it may be applied at once.
 * Otherwise the step may still be withdrawn: apply it behind adtopk_step_wait_stream().
 *
 * stream: a cudaStream_t or CUstream; NULL: the default stream. verdict: may be NULL.
 * Errors: what ends the job, and
 *
 * - ARGUMENT: the tensor is unknown, or was registered without ADTOPK_FORM_DEVICE; an impossible
 *   size of *verdict.
 * - STATE: before commit; this rank has not pushed the tensor in this step; the daemon is of a
 *   version that has no words for streams.
 * - SYSTEM, final: the driver refused the call, as the sentence says.
 */
enum adtopk_status adtopk_wait_stream(
    adtopk_context *context, uint32_t tensor, void *stream, struct adtopk_verdict *verdict);

/**
 * Has a stream wait until the step is accepted on this node, or withdrawn. Ends the step if
 * adtopk_step_end() was not called. Does not wait itself. Behind the wait all updates may be
 * applied, if the word is right. The host still calls adtopk_step_wait() before it pushes again.
 *
 * stream, verdict, errors: as of adtopk_wait_stream(); the tensors were registered with
 * ADTOPK_FORM_DEVICE.
 */
enum adtopk_status adtopk_step_wait_stream(
    adtopk_context *context, void *stream, struct adtopk_verdict *verdict);

/**
 * The address on the GPU at which a tensor's updates appear: numel elements, f32, or of the
 * tensor's type with ADTOPK_FORM_DENSE16. It is the same in every step, from adtopk_commit() to
 * adtopk_close(). NULL for an unknown tensor, before commit, without ADTOPK_FORM_DEVICE, and in a
 * forked child.
 */
const void *adtopk_device_update(adtopk_context *context, uint32_t tensor);

/**
 * The address on the GPU of what the tensor's updates lack, for looking ahead (adtopk_lookahead()):
 * numel elements in f32, in the units of an update without its loss scale. It is the residual of
 * this rank's node, or with scope rank its own, as far as the policy's `lookahead` is above 0 and
 * the tensor is sent sparse; else zeros. A kernel shifts the parameters, kept elsewhere, before the
 * next forward pass:
 *
 *     shifted[i] = parameters[i] - rate * share * pending[i];
 *
 * `rate` is as in struct adtopk_lookahead_spec, which also says what a second moment does, and
 * `share` is at most adtopk_update.lookahead. The program limits the shift, as a tenth of the norm
 * of the parameters, and says in adtopk_push_spec.lookahead which share was left.
 *
 * The daemon writes it before a step is over. Read it behind a wait for that, on the host or in a
 * stream, and before the next step's first push in that stream. It is 0 before the first step of a
 * process is over, and after a change of the policy it follows one step later.
 *
 * The same in every step, from adtopk_commit() to adtopk_close(). NULL for an unknown tensor,
 * before commit, in a forked child, without ADTOPK_FORM_PENDING and ADTOPK_FORM_DEVICE, and with a
 * daemon of an earlier version.
 */
const float *adtopk_device_pending(adtopk_context *context, uint32_t tensor);

/* Instead of the count of a list that is not there. */
#define ADTOPK_NO_LIST UINT32_MAX

/** Where a tensor's lists appear on the GPU: the same addresses in every step. */
struct adtopk_device_list {
    /** sizeof(struct adtopk_device_list), set before the call. */
    size_t size;
    /** The address of a word: how many entries the update has, or ADTOPK_NO_LIST. */
    const uint32_t *count;
    /** The addresses of the entries, in the order of adtopk_update.index and value. */
    const uint32_t *index;
    const float *value;
    /** Most entries that have room; a longer update has no list. */
    uint64_t room;
};

/**
 * Says where the lists of a tensor with ADTOPK_FORM_DEVICE_LIST appear, for kernels behind a wait:
 *
 *     if (*(const volatile uint32_t *)word != right) return;
 *     if (*count == ADTOPK_NO_LIST) each element: parameter[i] -= rate * update[i];
 *     else each i below *count: parameter[index[i]] -= rate * value[i];
 *
 * list: filled on success, except its size. Its addresses are valid until adtopk_close().
 * Errors: what ended the job, and:
 *
 * - ARGUMENT: the tensor is unknown, or was registered without the form; list is NULL or has an
 *   impossible size.
 * - STATE: before commit; in a child of fork(); the daemon is of a version without such lists.
 */
enum adtopk_status adtopk_device_list(
    adtopk_context *context, uint32_t tensor, struct adtopk_device_list *list);

#ifdef __cplusplus
}
#endif
#endif

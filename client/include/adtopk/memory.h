/*
 * How gradients lie in memory: their element types, and kinds of memory. <adtopk/adtopk.h> includes
 * this header.
 *
 * ## Gradients on a GPU
 *
 * A tensor registered with ADTOPK_CUDA has its gradient in the memory of a GPU. adtopk_gradient()
 * is then an address on that device, in memory that the daemon made and its device workers read.
 * Kernels write there, and adtopk_push() says by which stream:
 *
 *     struct adtopk_tensor_spec spec = {.size = sizeof spec, .name = "w", .dims = 1, .shape = {8},
 *         .memory = ADTOPK_CUDA};
 *     struct adtopk_push_spec push = {.size = sizeof push, .memory = ADTOPK_CUDA,
 *         .stream = stream};
 *
 * adtopk_tensor_spec.device: UUID of the GPU, as nvidia-smi prints it ("GPU-..."). NULL: the device
 * of the calling thread's current CUDA context. All tensors of a rank lie in one kind of memory, on
 * one device. Ranks of a job may differ.
 *
 * adtopk_push_spec.stream: a cudaStream_t or CUstream of the device's primary context, which CUDA's
 * runtime and PyTorch use; NULL is the default stream, as in adtopk_push_tensor(). The call does
 * not wait for the stream. The daemon takes the push when everything has happened that the stream
 * was given before.
 *
 * A gradient elsewhere in the device's memory can be pushed, too (adtopk_push_spec.gradient). The
 * stream copies it. Until then it must stay as it is.
 *
 * ## Updates on the GPU
 *
 * With ADTOPK_FORM_DEVICE updates are in the GPU's memory, too. All their elements are: in the
 * tensor's own type with ADTOPK_FORM_DENSE16 (adtopk_update.device_dense16), else in f32
 * (device_dense). The other one of both is NULL. A rank asks for the form for all its tensors, or
 * for none; ranks of a job may differ in it. Of the forms in host memory ADTOPK_FORM_LIST costs
 * least beside it.
 *
 * Both are NULL where the daemon has got this update from another node, after members of the job
 * have changed. They are also NULL if the update is older than this process, which took the place
 * of another one (options.comes_back). A program then copies the update from host memory.
 *
 * The update is complete when adtopk_wait() or adtopk_step_wait() has returned ADTOPK_OK. Any
 * stream of the device may read it then. A stream can also wait for it itself, while the host goes
 * on: <adtopk/stream.h>. Only adtopk writes it. It stays as it is until the
 * tensor's next push takes place in the push's stream. So kernels that read it and are earlier in
 * that stream are done in time. Before the rank ends a step without pushing the tensor,
 * kernels that read its update must be done. The address is the same in every step, until
 * adtopk_close().
 *
 * With ADTOPK_FORM_DEVICE_LIST the entries of the list are there, too: adtopk_update.device_index
 * and device_value, `count` of them. Then a kernel for plain SGD reads and writes the parameters of
 * these entries only. All elements are there as well, as above, and are to be taken where both are
 * NULL:
 *
 * - The tensor was sent dense, or a policy that was changed has it sent so.
 * - The list has more entries than its room on the GPU: an eighth of the elements, and some. No
 *   policy changes that room. Applying more entries would take about as long as all elements.
 * - The update is not on the GPU at all.
 * - The rank returned to another daemon in this step, or the daemon is of an earlier version.
 *
 * A process that takes the place of one that ended needs a daemon like that with which the other
 * began: one that knows such lists, or one that does not.
 *
 * adtopk_device_list() in stream.h has their addresses for kernels behind a wait. They find the
 * count in the GPU's memory.
 *
 * ## What else is different
 *
 * - Without that form updates are in host memory only.
 * - The daemon takes pushes, and the ends of steps, in the order of the calls. So a stream must not
 *   wait for the update of a tensor that is pushed later.
 * - adtopk_commit() and adtopk_close() wait for the device: the latter for the work of its streams.
 *   Close a context before you reset its device.
 * - The daemon must see the same GPU, and its setting `engine` must be "cuda". It must be on the
 *   same machine.
 * - If the rank returns to another daemon (options.return_timeout_ms), addresses stay, and the
 *   device holds both daemons' memory until the step is over. Then adtopk_step_wait() waits for the
 *   device, and so for streams that wait for another context of adtopk there: open one context per
 *   device and process. Meanwhile no other thread may launch work that uses these addresses, and no
 *   stream captures. Unlike with host memory the library returns at once, in a thread of its own.
 * - A program may capture other work into graphs, in any thread and mode: no thread of the library
 *   spoils that, and of its calls only these may. adtopk_register() and adtopk_check_device() open
 *   the driver and the device's primary context. A push or a wait with stream NULL uses CUDA's
 *   legacy stream. adtopk_close() waits for the device, and so does adtopk_step_wait() after such a
 *   return.
 * - adtopk_register() and adtopk_check_device() (stream.h) open NVIDIA's driver: libcuda.so.1, or
 *   $ADTOPK_CUDA_LIBRARY. Nothing of CUDA is linked.
 *
 * Errors beside those of each call: adtopk_register(): ARGUMENT: this process does not see the
 * device, or there is no current one; SYSTEM: there is no driver, or a call of it failed.
 * adtopk_commit(): ARGUMENT: the daemon cannot use the device; MEMORY: with the numbers.
 * adtopk_commit(), adtopk_push(), and each call after another daemon was started, final: SYSTEM,
 * MEMORY: a call of the driver failed, which the sentence names with the device.
 */
#ifndef ADTOPK_MEMORY_H
#define ADTOPK_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

/** Element types of gradients. Updates are f32, except those of ADTOPK_FORM_DENSE16. */
enum adtopk_dtype { ADTOPK_F32 = 0, ADTOPK_F16 = 1, ADTOPK_BF16 = 2 };

/** Where a gradient lies. */
enum adtopk_memory { ADTOPK_HOST = 0, ADTOPK_CUDA = 1 };

#ifdef __cplusplus
}
#endif
#endif

/*
 * All device code, as one source: the build makes one fatbin of it, and tests/cuda one library for
 * the host.
 */
#include "kernels/cuda/add.cu"
#include "kernels/cuda/add_plain.cu"
#include "kernels/cuda/add_stream.cu"
#include "kernels/cuda/bench.cu"
#include "kernels/cuda/clip.cu"
#include "kernels/cuda/entries.cu"
#include "kernels/cuda/finish.cu"
#include "kernels/cuda/slots.cu"
#include "kernels/cuda/survey.cu"
#include "kernels/cuda/take.cu"
#include "kernels/cuda/update.cu"
#include "kernels/cuda/whole.cu"

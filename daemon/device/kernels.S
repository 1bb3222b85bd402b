/* The device kernels of all architectures, one fatbin (kernels/cuda): nothing without the toolkit. */
    .section .nv_fatbin, "a", %progbits /* where cuobjdump looks for it */
    .balign 64
    .global device_kernels
    .global device_kernels_end
    .type device_kernels, @object
    .type device_kernels_end, @object
device_kernels:
#ifdef ADTOPK_FATBIN
#include "device_fatbin.inc"
#else
    .zero 64
#endif
device_kernels_end:
    .section .note.GNU-stack, "", %progbits

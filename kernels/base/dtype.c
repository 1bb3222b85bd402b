#include "kernels/base/dtype.h"

size_t dtype_size(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F32: return 4;
    case DTYPE_F16: return 2;
    case DTYPE_BF16: return 2;
    default: return 0;
    }
}

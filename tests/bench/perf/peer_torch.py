#!/usr/bin/env python3
"""How PyTorch users do the pass: add_, topk of the magnitudes, gather, zero. See peers.h for the
command line; without torch it prints nothing."""
import os
import sys
import time

DEBIAN = "/usr/bin/python3"  # where python3-torch is

try:
    import torch
except ImportError:
    if sys.executable != DEBIAN and os.access(DEBIAN, os.X_OK):
        os.execv(DEBIAN, [DEBIAN, *sys.argv])
    sys.exit(0)


def turn(residual, gradient, view, k):
    """One turn; the microseconds it took. view: [outer, length, stride]."""
    begin = time.perf_counter()
    residual.add_(gradient)
    tensor = residual.view(view)
    _, index = torch.topk(tensor.abs(), k, dim=1, sorted=False)
    tensor.gather(1, index)
    tensor.scatter_(1, index, 0)
    return (time.perf_counter() - begin) * 1e6


def main():
    files, dtype = sys.argv[1:3], sys.argv[3]
    count, fibres, length, stride, k, turns, threads = map(int, sys.argv[4:])
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    torch.set_num_threads(threads)
    residual, gradient = (
        torch.from_file(f"/proc/self/fd/{file}", size=count, dtype=kind).clone()
        for file, kind in zip(files, (torch.float32, types[dtype])))
    view = (fibres // stride, length, stride)
    for number in range(turns + 1):
        took = turn(residual, gradient.roll(number * 1021), view, k)
        if number > 0:
            print(took, flush=True)


main()

#!/usr/bin/env python3
"""The mean of gradients over all ranks by torch.distributed with gloo, for a trainer that is no
PyTorch: an all_reduce of each tensor in f32, begun as soon as the trainer says that its gradient is
ready, several in flight at a time, as DistributedDataParallel does with its buckets.

usage: gloo_bridge.py STORE RANK WORLD PATH, with $GLOO_SOCKET_IFNAME
See training_exchange.c for the files beside PATH."""
import struct
import sys

import torch
import torch.distributed as dist


def take(fifo, count):
    data = fifo.read(count)
    if len(data) < count:
        sys.exit(0)  # the trainer has ended
    return data


def tensors_of(path, ready):
    """Views of the trainer's gradients."""
    count, = struct.unpack("=Q", take(ready, 8))
    sizes = struct.unpack(f"={count}Q", take(ready, 8 * count))
    memory = torch.from_file(f"{path}.memory", shared=True, size=sum(sizes), dtype=torch.float32)
    return torch.split(memory, sizes)


def main():
    store, rank, world, path = sys.argv[1:]
    torch.set_num_threads(1)
    with open(f"{path}.ready", "rb", buffering=0) as ready, open(f"{path}.done", "wb",
                                                                 buffering=0) as done:
        tensors = tensors_of(path, ready)
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank),
                                world_size=int(world))
        while True:
            works = []
            for _ in tensors:
                tensor = tensors[take(ready, 1)[0]]
                works.append(dist.all_reduce(tensor.div_(int(world)), async_op=True))
            for work in works:
                work.wait()
            done.write(b"!")


main()

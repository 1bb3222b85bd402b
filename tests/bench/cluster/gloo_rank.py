#!/usr/bin/env python3
"""What a user of PyTorch would do without adtopk: torch.distributed with gloo. all_reduce of the whole
gradient in f32 (gloo-f32) or f16 (gloo-f16), all_gather of each rank's list (gloo-gather).

usage: gloo_rank.py CONDUCTOR STORE RANK WORLD ELEMENTS LIST_BYTES, with $GLOO_SOCKET_IFNAME
       gloo_rank.py --check: does torch have gloo?
See turns.h for what is said to the conductor."""
import os
import socket
import sys
import time

import torch
import torch.distributed as dist


class Rank:
    def __init__(self, number, world, elements, list_bytes):
        self.number = number
        self.world = world
        self.full = torch.empty(elements, dtype=torch.float32)
        self.half = torch.empty(elements, dtype=torch.float16)
        self.list = torch.empty(list_bytes, dtype=torch.uint8)
        self.lists = [torch.empty_like(self.list) for _ in range(world)]

    def gradient(self, what):
        return self.half if what == "gloo-f16" else self.full

    def prepare(self, what):
        """Ones, whose sum is easily checked."""
        self.gradient(what).fill_(1)
        self.list.fill_(self.number + 1)

    def step(self, what):
        if what == "gloo-gather":
            dist.all_gather(self.lists, self.list)
            right = self.lists[-1][-1].item() == self.world
        else:
            dist.all_reduce(self.gradient(what))
            right = self.gradient(what)[-1].item() == self.world
        if not right:
            sys.exit(f"gloo rank {self.number}: {what}: a wrong result")


def serve(conductor, rank):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(conductor)
        lines = link.makefile("r")
        link.sendall(f"gloo {rank.number} {os.getpid()}\n".encode())
        for line in lines:
            command, what = line.split()
            if command == "prepare":
                rank.prepare(what)
                link.sendall(b"ready\n")
            else:
                begin = time.monotonic_ns()
                rank.step(what)
                link.sendall(f"{begin} {time.monotonic_ns()}\n".encode())


def main():
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if dist.is_available() and dist.is_gloo_available() else
                 "this torch was built without gloo")
    conductor, store = sys.argv[1:3]
    number, world, elements, list_bytes = map(int, sys.argv[3:])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=number, world_size=world)
    serve(conductor, Rank(number, world, elements, list_bytes))


main()

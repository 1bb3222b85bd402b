#!/usr/bin/env python3
"""Trains with PyTorch, one rank a process: DistributedDataParallel over gloo with torch's own hooks, and
adtopk's hook and optimiser. Each contender has a model of its own, all from the same beginning.

usage: torch_rank.py CONDUCTOR STORE RANK WORLD SCRATCH SETTINGS, with $GLOO_SOCKET_IFNAME and
       $ADTOPK_ADDRESS; SETTINGS is JSON: {"contenders": {NAME: [KIND, POLICY]}, "width", "layers", "batch",
       "view"}

See turns.h for what is said to the conductor: `prepare NAME COUNT` makes the model if it is new, and
writes a digest of its parameters to SCRATCH/NAME.RANK; `step NAME COUNT` makes COUNT steps."""
import hashlib
import json
import os
import socket
import sys
import time

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RATE, MOMENTUM = 0.001, 0.9


class Alone:
    """No exchange: what all other contenders compute as well. view: DDP's gradient_as_bucket_view."""

    def __init__(self, model, policy, view):
        self.model, self.view = model, view
        self.optimiser = self.distribute(torch.optim.SGD(model.parameters(), RATE, MOMENTUM), policy)
        self.forward = self.exchange(policy)

    def distribute(self, optimiser, _policy):
        return optimiser

    def exchange(self, _policy):
        """What is called with a batch."""
        return self.model

    def step(self, batch):
        self.optimiser.zero_grad()
        self.forward(batch).square().mean().backward()
        self.optimiser.step()

    def end(self):
        """What a turn leaves to do."""


class Gloo(Alone):
    """DistributedDataParallel as it is."""

    def exchange(self, policy):
        ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=self.view)
        self.hook(ddp, policy)
        return ddp

    def hook(self, ddp, policy):
        """Registers a hook."""


def nothing(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Reducer(Gloo):
    """What DistributedDataParallel does besides the exchange."""

    def hook(self, ddp, policy):
        ddp.register_comm_hook(None, nothing)


class Half(Gloo):
    def hook(self, ddp, policy):
        ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)


class PowerSgd(Gloo):
    """Of rank 1, with one bucket: with two it hangs on gloo, because its callbacks wait in gloo's threads
    (pytorch issue 48478)."""

    def exchange(self, policy):
        usual = dist._DEFAULT_FIRST_BUCKET_BYTES
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40
        try:
            ddp = DistributedDataParallel(self.model, bucket_cap_mb=1 << 20, gradient_as_bucket_view=self.view)
        finally:
            dist._DEFAULT_FIRST_BUCKET_BYTES = usual
        self.hook(ddp, policy)
        return ddp

    def hook(self, ddp, policy):
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
        ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2),
                               powerSGD_hook.powerSGD_hook)


class Hook(Gloo):
    """adtopk's hook."""

    def hook(self, ddp, policy):
        import adtopk.torch as adt
        ddp.register_comm_hook(adt.ADTopkState(ddp, policy=policy), adt.adtopk_hook)


class Optimiser(Alone):
    """adtopk's DistributedOptimizer, without DistributedDataParallel."""
    overlap = None

    def distribute(self, optimiser, policy):
        import adtopk.torch as adt
        return adt.DistributedOptimizer(optimiser, self.model, policy=policy, lookahead=False,
                                        overlap=self.overlap)


class Forward(Optimiser):
    """The same, with the exchange going on in the next forward pass."""
    overlap = "forward"

    def end(self):
        self.optimiser.finish()


class Exchange(Alone):
    """No training: the exchange as a program in C makes it, which copies neither gradients nor updates."""

    def exchange(self, policy):
        import adtopk
        self.context = adtopk.open(job="exchange", rank=dist.get_rank(), world_size=dist.get_world_size(),
                                   policy=policy)
        named = [(name, tuple(one.shape)) for name, one in self.model.named_parameters()]
        self.tensors = [self.context.register(*one) for one in named]
        self.context.commit()
        generator = numpy.random.default_rng(dist.get_rank())
        for tensor in self.tensors:
            tensor.gradient[...] = generator.standard_normal(tensor.shape, numpy.float32)
        return None

    def step(self, batch):
        for tensor in reversed(self.tensors):
            tensor.push()
        self.context.step_wait()
        for tensor in self.tensors:
            tensor.update()


KINDS = {"compute": Alone, "ddp": Reducer, "exchange": Exchange, "gloo-f32": Gloo, "fp16": Half,
         "powersgd": PowerSgd, "hook": Hook, "optimiser": Optimiser, "forward": Forward}


class Rank:
    def __init__(self, number, scratch, settings):
        self.number, self.scratch, self.settings = number, scratch, settings
        self.made = {}
        self.batch = torch.randn(settings["batch"], settings["width"],
                                 generator=torch.Generator().manual_seed(number))

    def make(self, name):
        kind, policy = self.settings["contenders"][name]
        torch.manual_seed(1)
        width = self.settings["width"]
        layers = [layer for _ in range(self.settings["layers"])
                  for layer in (nn.Linear(width, width), nn.Tanh())]
        return KINDS[kind](nn.Sequential(*layers), policy, self.settings["view"])

    def prepare(self, name):
        if name not in self.made:
            self.made[name] = self.make(name)
        digest = hashlib.sha256()
        for parameter in self.made[name].model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
        path = os.path.join(self.scratch, f"{name}.{self.number}")
        with open(path, "w", encoding="ascii") as file:
            file.write(digest.hexdigest())

    def steps(self, name, count):
        """When the first step began, and when each ended."""
        contender = self.made[name]
        times = [time.monotonic_ns()]
        for at in range(count):
            contender.step(self.batch)
            if at == count - 1:
                contender.end()
            times.append(time.monotonic_ns())
        return times


def serve(conductor, rank):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(conductor)
        lines = link.makefile("r")
        link.sendall(f"torch {rank.number} {os.getpid()}\n".encode())
        for line in lines:
            command, name, count = line.split()
            if command == "prepare":
                rank.prepare(name)
                link.sendall(b"ready\n")
            else:
                link.sendall(" ".join(map(str, rank.steps(name, int(count)))).encode() + b"\n")


def main():
    conductor, store, number, world, scratch, settings = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(number), world_size=int(world))
    serve(conductor, Rank(int(number), scratch, json.loads(settings)))
    os._exit(0)  # torch's threads of contenders may be in the middle of something


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A training step of GPT-2 small on a GPU: alone, then in DDP with adtopk's hook, which exchanges the
gradients with a second node. That node has the same GPU and computes nothing: it is always ready, with the
same gradients. Prints a line of JSON with the medians, and their ratio. Ends with 77 without PyTorch or
without a GPU.

usage: gpt2.py BUILD [--brief] [--trace FILE] [--ahead]
--trace: of the last steps, for Perfetto. --ahead: an optimiser of adtopk in place of DDP, which takes
gradients ahead; it is compared with one that does not.
"""
import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "python"))

import interpreter  # noqa: E402

interpreter.use("numpy", "torch")

try:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional
except ImportError:
    print("there is no PyTorch")
    sys.exit(77)

import adtopk.torch as adt  # noqa: E402
from cluster import Cluster  # noqa: E402
from interpreter import BUILD  # noqa: E402
from torchranks import Ranks  # noqa: E402

WORDS, LENGTH, WIDTH, HEADS, LAYERS, BATCH = 50257, 1024, 768, 12, 12, 8
STEPS, WARMUP = 31, 8
MPS = int("CUDA_MPS_PIPE_DIRECTORY" in os.environ)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = (one.unflatten(2, (HEADS, WIDTH // HEADS)).transpose(1, 2)
                 for one in self.attend(self.before(x)).chunk(3, 2))
        seen = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.between(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
        self.last = nn.LayerNorm(WIDTH)

    def forward(self, words):
        """The loss: each word is to be guessed from those before it."""
        x = self.blocks(self.words(words) + self.places.weight)
        guessed = functional.linear(self.last(x), self.words.weight)
        return functional.cross_entropy(guessed[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def steps(model, count, optimiser=None):
    """Milliseconds of each step, from its beginning to that of the next one."""
    optimiser = optimiser or adamw(model)
    words = torch.randint(WORDS, (BATCH, LENGTH), device="cuda")
    begins = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    for begin in begins[:-1]:
        begin.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(words)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    begins[-1].record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in zip(begins, begins[1:])][WARMUP:]


def trains(model, count):
    """The rank that trains. DDP's own group has this rank alone: it exchanges nothing."""
    lone = dist.new_group([0])
    alone = statistics.median(steps(model, count))
    ddp = nn.parallel.DistributedDataParallel(model, process_group=lone, gradient_as_bucket_view=True)
    state = adt.ADTopkState(ddp, process_group=dist.group.WORLD, job="gpt2")
    ddp.register_comm_hook(state, adt.adtopk_hook)
    times = steps(ddp, count)
    report(model, "alone_ms", alone, times)
    sys.stdin.readline()  # the trace is written
    state.close()


def report(model, beside, other, times):
    """The median of steps, and what it is compared with."""
    low, median, high = statistics.quantiles(times, n=4)
    print(json.dumps({
        "device": torch.cuda.get_device_name(), "torch": torch.__version__,
        "parameters": sum(one.numel() for one in model.parameters()), "words": BATCH * LENGTH, "mps": MPS,
        "median_ms": round(median, 2), beside: round(other, 2), "ratio": round(median / other, 3),
        "spread": round((high - low) / median, 4), "samples": len(times)}), flush=True)


def answers(model, count):
    """The rank that computes nothing."""
    dist.new_group([0])
    state = adt.ADTopkState(model)
    state.open()
    push_all(state, model, count)
    sys.stdin.readline()
    state.close()


def push_all(job, model, count):
    rows = [(job.tensor(one), torch.randn_like(one)) for one in model.parameters()]
    for _ in range(count):
        job.push(rows, 1.0)
        job.wait()


def looks_ahead(model, count):
    """Both ranks: one trains, the other one computes nothing."""
    times = []
    for lookahead in (False, None):
        optimiser = adt.DistributedOptimizer(adamw(model), model, lookahead=lookahead)
        if dist.get_rank():
            optimiser._begin()
            push_all(optimiser.job, model, count)
        else:
            times.append(steps(model, count, optimiser))
            if lookahead is None:
                report(model, "here_ms", statistics.median(times[0]), times[1])
        dist.barrier()
        optimiser.close()
    sys.stdin.readline()


def rank(options):
    torch.manual_seed(1)
    dist.init_process_group("gloo")
    with torch.device("cuda"):
        model = GPT2(1 if options.brief else LAYERS)
    run = looks_ahead if options.ahead else answers if dist.get_rank() else trains
    run(model, WARMUP + (3 if options.brief else STEPS))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--trace")
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # ranks are forks, which must be the first to begin CUDA
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        sys.exit(77)
    if "RANK" in os.environ:
        return rank(options)
    cluster = Cluster(BUILD, nodes=2, settings={"engine": "cuda"})
    for daemon in cluster.daemons:
        daemon.variables = {"ADTOPK_DEVICE_PROGRAM": os.path.join(BUILD, "daemon/device/adtopk-device")}
    with cluster:
        with Ranks(cluster, os.path.abspath(__file__), BUILD, *["--brief"] * options.brief,
                   *["--ahead"] * options.ahead) as ranks:
            print(ranks[0].stdout.readline(), end="", flush=True)
            if options.trace:
                print(*cluster.daemons[0].ask("trace", "gpt2", "--out", options.trace, timeout=30)[1:], end="")
            for process in ranks:
                errors = process.communicate("\n", timeout=60)[1]
                if process.returncode:
                    print(errors, file=sys.stderr)
                    return 1
    return 0


sys.exit(main())

#!/usr/bin/env python3
"""A rank that trains a model of PyTorch for `compare`, with the options of the example trainers in C.

usage: torch_trainer.py --model cnn|lstm|transformer --data FILE --store FILE ... (--help)

--exchange says what carries the gradients: adtopk, by DistributedOptimizer or, with --local-steps, by
LocalSteps; DistributedDataParallel over gloo with torch's hook fp16 or powersgd; or an optimiser of
peers.py in place of --optimiser adamw. The last line of the log has test_loss, test_accuracy, and without
adtopk `bits`: what a rank hands to an exchange, per element and step."""
import argparse
import json
import math
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
sys.path.insert(0, os.path.join(ROOT, "client/examples/torch"))
import digits  # pylint: disable=wrong-import-position
import gpt  # pylint: disable=wrong-import-position
from peers import PEERS  # pylint: disable=wrong-import-position

DIVERGED = "the gradients are not finite any more"  # compare looks for these words
CONTEXT = 32


class Lstm(nn.Module):
    """A language model of characters: an embedding, one layer of LSTM, and the next character."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(256, 32), nn.LSTM(32, 128, batch_first=True), \
            nn.Linear(128, 256)

    def forward(self, text):
        return self.head(self.lstm(self.embed(text))[0])


class Images:
    """The digits, by the network of the example."""

    def __init__(self, path):
        (self.images, self.digits), self.test = digits.read(path)
        self.model = digits.network()

    def loss(self, model, generator, count):
        chosen = torch.randint(len(self.images), (count,), generator=generator)
        return functional.cross_entropy(model(self.images[chosen]), self.digits[chosen])

    def results(self):
        output = self.model(self.test[0])
        right = output.argmax(1) == self.test[1]
        return {"test_loss": functional.cross_entropy(output, self.test[1]).item(),
                "test_accuracy": right.float().mean().item()}


class Text:
    """Characters of a text, every tenth part of which is held out."""

    def __init__(self, path, model):
        with open(path, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
        self.training, self.held = text.tensor_split([len(text) - len(text) // 10])
        self.model = model

    def loss(self, model, generator, count):
        starts = torch.randint(len(self.training) - CONTEXT, (count,), generator=generator)
        return gpt.loss_of(model, torch.stack([self.training[at:at + CONTEXT + 1] for at in starts]))

    def results(self):
        count = min(1024, (len(self.held) - 1) // CONTEXT)
        windows = torch.stack([self.held[at * CONTEXT:(at + 1) * CONTEXT + 1] for at in range(count)])
        losses = [gpt.loss_of(self.model, part).item() * len(part) for part in windows.split(64)]
        return {"test_loss": sum(losses) / count}


def task_of(given):
    if given.model == "cnn":
        return Images(given.data)
    return Text(given.data, Lstm() if given.model == "lstm" else gpt.Model(2, 64, 4, CONTEXT))


def optimiser_of(given, model):
    if given.optimiser == "sgd":  # with --corrected the momentum is the policy's
        return torch.optim.SGD(model.parameters(), given.lr, momentum=0.0 if given.corrected else 0.9)
    return torch.optim.AdamW(model.parameters(), given.lr)


class Counted:
    """A hook of torch that counts the bits of what it exchanges, per element."""

    def __init__(self, given):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        self.state = None
        self.inner = default_hooks.fp16_compress_hook
        if given.exchange == "powersgd":
            self.state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2)
            self.inner = powerSGD_hook.powerSGD_hook

    def attach(self, model):
        usual = dist._DEFAULT_FIRST_BUCKET_BYTES
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 40  # PowerSGD hangs on gloo with two buckets
        try:
            ddp = DistributedDataParallel(model, bucket_cap_mb=1 << 20)
        finally:
            dist._DEFAULT_FIRST_BUCKET_BYTES = usual
        ddp.register_comm_hook(self.state, self.inner)
        return ddp

    def bits(self):
        if self.state is None:
            return 16.0
        _, before, after = self.state.compression_stats()
        return 32.0 * after / before


class Exchange:
    """How the ranks' models stay together."""

    def __init__(self, given, model):
        self.model, self.counted = model, None
        if given.exchange in PEERS:
            self.counted = PEERS[given.exchange](model.parameters(), given.lr, given.steps)
            self.own = self.optimiser = self.counted
            return
        self.own = self.optimiser = optimiser_of(given, model)
        if given.exchange != "adtopk":
            self.counted = Counted(given)
            self.model = self.counted.attach(model)
            return
        import adtopk.torch as adt
        with open(given.policy, encoding="utf-8") as file:
            policy = json.load(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", adt.LearningWarning)  # what loses is to be measured
            if given.local_steps:
                self.optimiser = adt.LocalSteps(self.own, model, given.local_steps, given.outer_lr,
                                                given.outer_momentum, policy, job=given.job)
            else:
                self.optimiser = adt.DistributedOptimizer(self.own, model, method="gradient", policy=policy,
                                                          job=given.job)

    def end(self):
        """Brings what was not exchanged yet; then the parameters are those of all ranks."""
        if hasattr(self.optimiser, "exchange"):
            self.optimiser.exchange()

    def results(self):
        return {"bits": self.counted.bits()} if self.counted is not None else {}

    def close(self):
        if self.counted is None:
            self.optimiser.close()


def rate_at(step, given):
    """Up during the warm-up, then down to 0."""
    if step < given.warmup:
        return given.lr * (step + 1) / given.warmup
    return given.lr * (given.steps - step) / max(1, given.steps - given.warmup)


def train(given, task, exchange, log):
    for step in range(given.steps):
        for group in exchange.own.param_groups:
            group["lr"] = rate_at(step, given)
        generator = torch.Generator().manual_seed((given.seed * given.steps + step) * given.world + given.rank)
        exchange.optimiser.zero_grad()
        loss = task.loss(exchange.model, generator, given.batch)
        if not math.isfinite(loss.item()):
            sys.exit(f"rank {given.rank}, step {step}: {DIVERGED}")
        loss.backward()
        exchange.optimiser.step()
        if log:
            print(json.dumps({"step": step, "loss": loss.item()}), file=log)


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    add = parser.add_argument
    add("--model", choices=("cnn", "lstm", "transformer"), required=True)
    for name, words in (("data", "what is learned"), ("store", "file by which ranks find each other"),
                        ("job", "adtopk's name of the run"), ("policy", "file with a policy"),
                        ("address", "of the daemon"), ("log", "lines of JSON, by rank 0")):
        add(f"--{name}", required=True, help=words)
    for name in ("rank", "world", "seed", "steps", "warmup"):
        add(f"--{name}", type=int, required=True)
    add("--optimiser", choices=("sgd", "adamw"), required=True)
    add("--lr", type=float, required=True)
    add("--batch", type=int, default=16, help="samples per rank and step (16)")
    add("--exchange", choices=("adtopk", "fp16", "powersgd", *PEERS), default="adtopk")
    add("--local-steps", type=int, default=0, help="steps of each rank between exchanges; 0: none")
    add("--outer-lr", type=float, default=1.0)
    add("--outer-momentum", type=float, default=0.0)
    add("--corrected", action="store_true", help="leave the momentum to the policy")
    given = parser.parse_args()
    if given.exchange in PEERS and given.optimiser != "adamw":
        parser.error(f"--exchange {given.exchange} takes the place of --optimiser adamw")
    return given


def main():
    given = options()
    os.environ["ADTOPK_ADDRESS"] = given.address
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{given.store}", rank=given.rank,
                            world_size=given.world)
    torch.manual_seed(given.seed)
    task = task_of(given)
    exchange = Exchange(given, task.model)
    log = open(given.log, "w", encoding="utf-8") if given.rank == 0 else None
    train(given, task, exchange, log)
    exchange.end()
    task.model.eval()
    with torch.no_grad():
        results = {**task.results(), **exchange.results()}
    if not math.isfinite(results["test_loss"]):
        sys.exit(f"rank {given.rank}: {DIVERGED}")
    if log:
        print(json.dumps({"final": True, "steps": given.steps, **results}), file=log)
        log.close()
    exchange.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""A stock script of DistributedDataParallel, and the three lines that let adtopk exchange its gradients.

usage: torchrun --nproc_per_node=2 client/examples/torch/digits.py --data digits.csv
       digits.py --help

A small convolutional network learns the 8x8 digits of tests/data/digits.csv.gz. `deploy/quickstart
--torch` runs it. With --exchange gloo the three lines are left out.
"""
import argparse
import hashlib
import json
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import adtopk.torch as adt


def read(path):
    """Training and test set: images of 1 x 8 x 8, and their digits. Every fifth row is for testing."""
    try:
        with open(path, encoding="ascii") as file:
            rows = torch.tensor([[float(field) for field in line.split(",")] for line in file])
    except (OSError, ValueError) as problem:
        raise SystemExit(f"--data {path}: {problem}") from None
    if rows.dim() != 2 or rows.shape[1] != 65 or len(rows) < 5:
        raise SystemExit(f"--data {path} has not 64 pixels and a digit in each of at least five lines")
    images, digits = rows[:, :64].reshape(-1, 1, 8, 8) / 16, rows[:, 64].long()
    test = torch.arange(len(rows)) % 5 == 4
    return (images[~test], digits[~test]), (images[test], digits[test])


def network():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1),
                         nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(),
                         nn.Linear(128, 10))


def options():
    parser = argparse.ArgumentParser(description="trains a small network on hand-written digits")
    parser.add_argument("--data", required=True, help="CSV, 64 pixels and the digit in a line")
    parser.add_argument("--steps", type=int, default=440)
    parser.add_argument("--batch", type=int, default=128, help="examples in a step, of all ranks together")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exchange", choices=("adtopk", "gloo"), default="adtopk")
    parser.add_argument("--policy", help="file with a policy; default: the daemon's")
    parser.add_argument("--log", help="file for a line of JSON for each step, written by rank 0")
    given = parser.parse_args()
    if given.steps < 1 or given.batch < 1 or not given.lr > 0:
        parser.error("--steps, --batch and --lr must be above 0")
    if "RANK" not in os.environ:
        parser.error("start it with a launcher, which sets RANK: torchrun --nproc_per_node=2 digits.py ...")
    if given.policy:
        try:
            with open(given.policy, encoding="utf-8") as file:
                given.policy = file.read()
        except (OSError, ValueError) as problem:
            parser.error(f"--policy {given.policy}: {problem}")
    return given


def train(ddp, state, training, given):
    """Yields a record of each step."""
    optimiser = torch.optim.SGD(ddp.parameters(), given.lr, momentum=0.9)
    images, digits = training
    rank, world = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(given.seed)
    for step in range(given.steps):
        for group in optimiser.param_groups:
            group["lr"] = given.lr * (1 - step / given.steps)
        batch = torch.randperm(len(images), generator=generator)[:given.batch][rank::world]
        began = time.perf_counter()
        waited = state.stats()["wait_ms"] * step if state else 0
        optimiser.zero_grad()
        loss = functional.cross_entropy(ddp(images[batch]), digits[batch])
        loss.backward()
        computed = time.perf_counter()
        wait = (state.stats()["wait_ms"] * (step + 1) - waited) / 1000 if state else 0
        optimiser.step()
        yield {"step": step, "loss": loss.item(), "lr": optimiser.param_groups[0]["lr"],
               "seconds": {"compute": max(0, computed - began - wait), "wait": max(0, wait),
                           "apply": time.perf_counter() - computed}}


def main():
    given = options()
    dist.init_process_group("gloo")
    if given.batch < dist.get_world_size():
        raise SystemExit(f"--batch {given.batch} is less than one example for each of {dist.get_world_size()} ranks")
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    training, test = read(given.data)
    model = network()
    ddp, state = DistributedDataParallel(model), None
    if given.exchange == "adtopk":
        state = adt.ADTopkState(ddp, policy=given.policy)
        ddp.register_comm_hook(state, adt.adtopk_hook)
    log = open(given.log, "w", encoding="utf-8") if given.log and dist.get_rank() == 0 else None
    began = time.perf_counter()
    for record in train(ddp, state, training, given):
        if log:
            print(json.dumps(record), file=log)
    seconds = time.perf_counter() - began
    with torch.no_grad():
        output = model(test[0])
    accuracy = (output.argmax(1) == test[1]).float().mean().item()
    values = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    if log:
        print(json.dumps({"final": True, "world": dist.get_world_size(), "test_accuracy": accuracy,
                          "test_loss": functional.cross_entropy(output, test[1]).item(),
                          "training_seconds": seconds}), file=log)
        log.close()
    print(f"rank {dist.get_rank()}: test accuracy {100 * accuracy:.2f}%, {1000 * seconds / given.steps:.1f}"
          f" ms per step, parameters {hashlib.sha256(values).hexdigest()[:16]}", flush=True)
    if state:
        state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

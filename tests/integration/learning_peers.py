#!/usr/bin/python3
"""Identities of the optimisers of tests/bench/learning/peers.py, as their papers have them. It runs with
Debian's Python, which has PyTorch, and prints `done` if all hold.

usage: learning_peers.py
"""
import os
import sys
import tempfile

import torch
from torch import distributed as dist

sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "../bench/learning"))
import peers  # pylint: disable=wrong-import-position


def trained(make, steps, shape=(128, 96)):
    """A parameter after some steps, and its optimiser."""
    one = torch.nn.Parameter(torch.linspace(-1, 1, shape[0] * shape[1]).view(shape))
    optimiser, generator = make([one]), torch.Generator().manual_seed(2)
    for _ in range(steps):
        one.grad = torch.randn(shape, generator=generator) + 0.3
        optimiser.step()
    return one.detach(), optimiser


def one_bit_adam():
    """It is Adam until it freezes. Then it exchanges signs, with one magnitude."""
    adam, _ = trained(lambda own: torch.optim.AdamW(own, 0.01), 20)
    same, optimiser = trained(lambda own: peers.OneBitAdam(own, 0.01, 20), 20)
    torch.testing.assert_close(same, adam, rtol=0, atol=2e-6)
    assert optimiser.bits() == 32
    frozen, optimiser = trained(lambda own: peers.OneBitAdam(own, 0.01, 10), 20)
    momentum = next(iter(optimiser.state.values()))["momentum"]
    assert len(momentum.abs().unique()) == 1 and 16 < optimiser.bits() < 17
    assert 0 < (frozen - adam).abs().mean() < 0.1


def chunks_of_tensors():
    """The transform keeps the norm and can be undone. A flat chunk has one coefficient."""
    values = torch.randn(128, 96)
    chunks = peers.Chunks(values.shape)
    coefficients = chunks.coefficients(values)
    assert chunks.sides == (64, 48) and coefficients.shape == (2, 2, 64 * 48)
    torch.testing.assert_close(coefficients.norm(), values.norm())
    torch.testing.assert_close(chunks.values(coefficients), values, rtol=0, atol=1e-5)
    flat = torch.full((64, 48), 2.0)
    torch.testing.assert_close(peers.Chunks(flat.shape).coefficients(flat)[0, 0, 0], flat.norm())
    assert peers.Chunks((7, 3, 5)).sides == (7, 15) and peers.Chunks((130,)).sides == (1, 26)


def signum():
    """It moves by the signs of the mean of the gradients, to which older ones count less."""
    start = torch.linspace(-1, 1, 128 * 96).view(128, 96)
    moved, _ = trained(lambda own: peers.Signum(own, 0.01, weight_decay=0), 2)
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randn((128, 96), generator=generator) + 0.3 for _ in range(2))
    wanted = start - 0.01 * first.sign() - 0.01 * (0.9 * first + second).sign()
    torch.testing.assert_close(moved, wanted, rtol=0, atol=1e-6)


def demo():
    """With all coefficients it moves by the signs of the gradient. With one of each chunk it keeps the rest."""
    chunks = peers.Chunks((128, 96))
    start = torch.linspace(-1, 1, 128 * 96).view(128, 96)
    moved, optimiser = trained(lambda own: peers.DeMo(own, 0.01, 1.0, weight_decay=0), 1)
    gradient = torch.randn((128, 96), generator=torch.Generator().manual_seed(2)) + 0.3
    sure = gradient.abs() > 1e-3
    assert torch.equal((start - moved).sign()[sure], gradient.sign()[sure])
    dense, _ = trained(lambda own: peers.Signum(own, 0.01, 0, weight_decay=0), 1)
    assert torch.equal(dense[sure], moved[sure])
    assert next(iter(optimiser.state.values()))["momentum"].abs().max() < 1e-6
    _, optimiser = trained(lambda own: peers.DeMo(own, 0.01, 1 / 3072, weight_decay=0), 1)
    left = chunks.coefficients(next(iter(optimiser.state.values()))["momentum"])
    found = chunks.coefficients(0.01 * gradient).abs().sort(dim=2, descending=True).values
    left = left.abs().sort(dim=2, descending=True).values
    torch.testing.assert_close(left[:, :, :-1], found[:, :, 1:], rtol=0, atol=1e-6)
    assert abs(optimiser.bits() - 4 * (16 + 11.585) / start.numel()) < 1e-4


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    torch.manual_seed(1)
    one_bit_adam()
    chunks_of_tensors()
    signum()
    demo()
    dist.destroy_process_group()
print("done")

"""One rank of the tests of adtopk.torch with models that are not like others: runs cases and prints a line
of JSON for each.

usage: model_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk.torch as adt
from ddp_cases import TOPK, batches, both, main, mlp, plain_steps

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


class Twins(nn.Module):
    """A part of it has the name of a wrapper."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.module = nn.Module()
        self.module.a, self.a = nn.Linear(20, 20), nn.Linear(20, 5)

    def forward(self, batch):
        return self.a(self.module.a(batch))


@case
def names_of_wrappers():
    return both(Twins, plain_steps, batches())


class WithIgnored(nn.Module):
    """DistributedDataParallel leaves some parameters to the ranks, of types that nobody exchanges."""

    def __init__(self):
        super().__init__()
        self.layers = mlp()
        self.wide = nn.Linear(2, 2).double()
        self.words = nn.Embedding(4, 2, sparse=True)
        DDP._set_params_and_buffers_to_ignore_for_model(self, ["wide.weight", "wide.bias", "words.weight"])

    def forward(self, batch):
        return self.layers(batch)


@case
def ignored_parameters():
    return both(WithIgnored, plain_steps, batches())


@case
def state_under_another_default():
    """Residuals are of float32, whatever type torch makes."""
    torch.set_default_dtype(torch.float64)
    try:
        saved = adt.ADTopkState(DDP(mlp(torch.float32)), policy=TOPK).state_dict(full=True)
    finally:
        torch.set_default_dtype(torch.float32)
    return float(any(one.dtype != torch.float32 for one in saved["residuals"].values()))


if __name__ == "__main__":
    main(CASES)

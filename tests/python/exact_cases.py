"""One rank of the test of adtopk.torch with real gradients: every element of every step must be the one
that numpy computes from the gradients of both ranks.

usage: exact_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import os

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk.torch as adt
from ddp_cases import RANK, batches, loss_of, main, sgd
from reference import F32, Reference

CASES = {}
STEPS = 200 if os.environ.get("ADTOPK_TEST_LONG") else 12
POLICIES = [{"sparsifier": sparsifier, "density": 0.05, "values": values, "dense_values": "f32",
             "lookahead": 0, **({"interleave": False} if sparsifier == "adtopk" else {})}
            for sparsifier, values in (("topk", "f32"), ("adtopk", "bf16"))]


def case(function):
    CASES[function.__name__] = function
    return function


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.lstm, self.out = nn.Embedding(32, 16), nn.LSTM(16, 24, 2), nn.Linear(24, 32)

    def forward(self, batch):
        return self.out(self.lstm(self.embed((batch * 8).long() % 32))[0])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(32, 16), nn.Linear(16, 32)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0) for _ in range(2)])

    def forward(self, batch):
        hidden = self.embed((batch * 8).long() % 32)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.out(hidden)


def convolutions():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 7, (3, 1)), nn.Flatten(), nn.Linear(168, 5))


def other_rank(value):
    """Both ranks' values, in their order."""
    both = [torch.empty_like(value) for _ in range(2)]
    dist.all_gather(both, value.contiguous())
    return [one.numpy() for one in both]


def train(make, shape, policy):
    """Elements that differ, and at the end residuals of this rank that do."""
    torch.manual_seed(1)
    model = make()
    ddp = DDP(model, bucket_cap_mb=0.01)
    state = adt.ADTopkState(ddp, policy=policy)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    own = {}
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: own.update({name: gradient.clone()}))
    references = {name: [Reference(tuple(parameter.shape), policy) for _ in range(2)]
                  for name, parameter in model.named_parameters()}
    optimiser, wrong = sgd(model), 0
    for batch in batches(STEPS, shape=shape):
        optimiser.zero_grad()
        loss_of(ddp(batch)).backward()
        for name, parameter in model.named_parameters():
            sent = [node.send(gradient) for node, gradient in zip(references[name], other_rank(own[name]))]
            wanted = (sent[0] + sent[1]) * F32(0.5)
            wrong += int((parameter.grad.numpy() != wanted).sum())
        optimiser.step()
    for tensor in state.context.tensors:
        wrong += int((tensor.residual() != references[tensor.name][RANK].residual).sum())
    assert any(numpy.abs(nodes[RANK].residual).max() > 0 for nodes in references.values())
    state.close()
    return float(wrong)


@case
def lstm():
    return sum(train(Lstm, (12,), policy) for policy in POLICIES)


@case
def transformer():
    return sum(train(Transformer, (12,), policy) for policy in POLICIES)


@case
def cnn():
    return sum(train(convolutions, (3, 8, 8), policy) for policy in POLICIES)


if __name__ == "__main__":
    main(CASES)

"""One rank of the tests of fully_shard_hook: four processes, two replicas of two shards.

usage: sharded_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import torch
import torch.distributed as dist
from torch import nn

import adtopk
import adtopk.torch as adt
from ddp_cases import DENSE, RANK, TOPK, Skipped, batches, loss_of, main, mlp, refused, sgd

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
except ImportError:
    fully_shard = None

CASES = {}


def case(function):
    def checked():
        if fully_shard is None:
            raise Skipped(f"torch {torch.__version__} has no FSDP2")
        return function()
    CASES[function.__name__] = checked
    return function


def meshes():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards"))


def sharded(mesh, policy, make=mlp, **options):
    model = make()
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh["shards"])
    fully_shard(model, mesh=mesh["shards"])
    return model, adt.fully_shard_hook(model, mesh["replicas"], policy=policy, **options)


def train(model, data, by_hand=False):
    optimiser = sgd(model)
    for batch in data:
        optimiser.zero_grad()
        loss_of(model(batch)).backward()
        if by_hand:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimiser.step()


def whole(model):
    return [parameter.full_tensor().detach() for parameter in model.parameters()]


def furthest(ones, others):
    return max((one - other).abs().max().item() for one, other in zip(ones, others))


@case
def as_without_shards():
    """An odd number of rows, so that the last shard is smaller, or empty."""
    def make():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(20, 33), nn.ReLU(), nn.Linear(33, 1))
    model, state = sharded(meshes(), DENSE, make)
    train(model, batches())
    reference = make()
    train(reference, batches(), by_hand=True)
    assert state.stats()["steps"] == 6
    state.close()
    return furthest(whole(model), list(reference.parameters()))


@case
def used_on_one_replica():
    """The first replica alone uses a part of the model; the optimiser steps it on both."""
    class Branches(nn.Sequential):
        def forward(self, inputs, both=True):
            return self[0](inputs) + (self[1](inputs) if both else 0)

    def make():
        torch.manual_seed(1)
        return Branches(nn.Linear(20, 33), nn.Linear(20, 33))
    model, state = sharded(meshes(), DENSE, make)
    reference = make()
    ours, theirs = sgd(model), sgd(reference)
    for step, batch in enumerate(batches()):
        uses = [step != 2 and rank < 2 for rank in range(4)]
        ours.zero_grad()
        loss_of(model(batch, uses[RANK])).backward()
        ours.step()
        theirs.zero_grad()
        loss_of(reference(batch, uses[RANK])).backward()
        for parameter in list(reference.parameters())[:4 if any(uses) else 2]:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        theirs.step()
    state.close()
    return furthest(whole(model), list(reference.parameters()))


@case
def accumulation():
    """Two passes in a step: gradients that are there already are exchanged with the new ones."""
    model, state = sharded(meshes(), DENSE)
    reference = mlp()
    data = batches(4)
    for one, other in ((model, None), (reference, None)):
        optimiser = sgd(one)
        for at in (0, 2):
            optimiser.zero_grad()
            for batch in data[at:at + 2]:
                loss_of(one(batch)).backward()
            if one is reference:
                for parameter in one.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= dist.get_world_size()
            optimiser.step()
    state.close()
    return furthest(whole(model), list(reference.parameters()))


@case
def sparse_and_equal():
    """Replicas stay equal under top-k, and what was pushed is applied or in residuals."""
    mesh = meshes()
    model, state = sharded(mesh, TOPK)
    applied = None
    pushed = torch.zeros(1)
    weight = model[2].weight
    handle = weight.register_post_accumulate_grad_hook(
        lambda parameter: pushed.set_(pushed + parameter.grad.to_local()))
    for batch in batches(8):
        model.zero_grad()
        loss_of(model(batch)).backward()
        gradient = weight.grad.to_local()
        applied = gradient.clone() if applied is None else applied + gradient
    handle.remove()
    tensor = next(one for one in state.context.tensors if one.name == "2.weight")
    residual = torch.from_numpy(tensor.residual())
    assert residual.abs().max() > 0 and tensor.shape == (32, 64)
    for part in (pushed, residual):
        dist.all_reduce(part, group=mesh["replicas"].get_group())
    other = applied.clone()
    dist.broadcast(other, RANK % 2, group=mesh["replicas"].get_group())
    saved = state.state_dict()
    assert saved["world_size"] == 2 and "2.weight" in saved["residuals"]
    state.close()
    return (((pushed - residual) / 2 - applied).abs().max() / pushed.abs().max() +
            (applied - other).abs().max()).item()


@case
def not_a_number():
    """NaN on one replica makes all gradients of the shard NaN on both."""
    model, state = sharded(meshes(), TOPK)
    data = batches(3)
    train(model, data[:1])
    model.zero_grad()
    (loss_of(model(data[1])) * (float("nan") if RANK == 3 else 1.0)).backward()
    bad = all(parameter.grad.to_local().isnan().all() for parameter in model.parameters())
    train(model, data[2:])
    good = all(part.isfinite().all() for part in whole(model))
    assert state.stats()["withdrawn"] == 1
    state.close()
    return float(not (bad and good))


@case
def refusals():
    mesh = meshes()
    across = nn.Sequential(nn.Linear(20, 64))
    fully_shard(across, mesh=mesh["shards"], shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))
    both = nn.Sequential(nn.Linear(20, 64))
    fully_shard(both, mesh=mesh)
    argument = adtopk.ArgumentError
    return sum([
        refused(argument, ["'0.weight'", "axis 0"], lambda: adt.fully_shard_hook(across, mesh["replicas"])),
        refused(argument, ["'0.weight'", "shards alone"], lambda: adt.fully_shard_hook(both, mesh["replicas"])),
        refused(argument, ["'0.weight'", "fully_shard"], lambda: adt.fully_shard_hook(mlp(), mesh["replicas"])),
        refused(argument, ["2 dimensions"], lambda: adt.fully_shard_hook(mlp(), mesh))])


if __name__ == "__main__":
    main(CASES)

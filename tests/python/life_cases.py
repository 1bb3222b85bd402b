"""One rank of the tests of what happens in the life of adtopk.torch's optimisers: runs cases and prints a
line of JSON for each.

usage: life_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import contextlib
import inspect

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from ddp_cases import (DENSE, RANK, TOPK, Branches, Skipped, batches, loss_of, main, mlp, ranks_differ, refused,
                       sgd)
from optimiser_cases import both, clipped, plain, steps

CASES = {}
PROPAGATE = {**DENSE, "non_finite": "propagate"}


def case(function):
    CASES[function.__name__] = function
    return function


@case
def frozen_midway():
    """The others' means are there when the backward pass returns."""
    def train(model, optimiser, data):
        for step, batch in enumerate(data):
            if step == len(data) // 2:
                model.get_parameter("module.0.weight" if isinstance(model, DDP) else "0.weight").requires_grad = False
            clipped(model, optimiser, [batch])
    return both(mlp, sgd, batches(), train, train, ddp={"find_unused_parameters": True})


@case
def changed_after_the_push():
    """A parameter has no gradient on one rank, which clips what it has pushed already."""
    model = Branches()
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=DENSE)
    worst = 0.0
    for batch in batches(2):
        optimiser.zero_grad()
        loss_of(model(batch, (0, 1) if RANK == 0 else (0,))).backward()
        if RANK == 1:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            worst = refused(adtopk.StateError, ["call synchronize() after the backward pass"], optimiser.step)
            optimiser.synchronize()
        optimiser.step()
    optimiser.close()
    return worst + ranks_differ(model)


@case
def made_twice():
    """Of two optimisers over the same parameters the second is refused, while the first lives."""
    model = mlp()
    first = adt.DistributedOptimizer(sgd(model), model, policy=TOPK)
    steps(model, first, batches(2))
    worst = refused(adtopk.ArgumentError, ["another distributed optimiser", "'0.weight'", "close()"],
                    lambda: adt.DistributedOptimizer(sgd(model), model, policy=TOPK))
    first.close()
    second = adt.DistributedOptimizer(sgd(model), model, policy=TOPK)
    steps(model, second, batches(2))
    del second
    third = adt.LocalSteps(sgd(model), model, every=2, policy=TOPK)
    steps(model, third, batches(2))
    third.close()
    return worst + ranks_differ(model)


@case
def dropped():
    """What refuses DistributedDataParallel goes with the optimiser."""
    model = mlp()
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=DENSE)
    worst = refused(adtopk.ArgumentError, ["DistributedDataParallel calls"],
                    lambda: DDP(model)(batches(1)[0]))
    del optimiser
    DDP(model)(batches(1)[0])
    return worst


@case
def converted():
    """Torch before 2.1 forgets hooks of a parameter that gets another type."""
    if hasattr(nn.Parameter, "register_post_accumulate_grad_hook"):
        raise Skipped("this torch keeps hooks")
    model = mlp()
    with torch.no_grad():
        optimiser = adt.DistributedOptimizer(plain(model), model, policy=DENSE)
    model.double()
    loss_of(model(batches(1)[0].double())).backward()
    worst = refused(adtopk.StateError, ["'0.weight'", "converted or moved"], optimiser.step)
    optimiser.close()
    return worst


class Taken:
    """Takes an optimiser as Lightning and its Fabric do: with its class, and without its attributes."""

    def __init__(self, optimiser):
        self._optimizer = optimiser
        self._strategy = None
        self.__class__ = type("Taken" + type(optimiser).__name__, (Taken, type(optimiser)), {})

    def step(self, closure=None):
        return self._optimizer.step(closure)

    def __getattr__(self, name):
        return getattr(self._optimizer, name)


@case
def taken_local_steps():
    """Calls through another library's optimiser do what they do otherwise."""
    model = mlp()
    optimiser = Taken(adt.LocalSteps(sgd(model), model, every=10, policy=DENSE))
    worst = 0.0
    for _ in range(3):
        steps(model, optimiser, batches(3))
        assert ranks_differ(model) > 0 and optimiser.exchange()
        worst += ranks_differ(model)
    optimiser.close()
    adt.LocalSteps(sgd(model), model, policy=DENSE).close()
    return worst


@case
def taken_gradients():
    """Lightning sets `_strategy` later, and Accelerate looks for `set_to_none`."""
    model = mlp()
    inner = adt.DistributedOptimizer(sgd(model), model, policy=DENSE)
    optimiser = Taken(inner)
    optimiser._strategy = 1
    assert optimiser._strategy == 1 and not hasattr(inner, "_strategy")
    for one in (inner, optimiser, adt.LocalSteps(sgd(mlp()), policy=DENSE)):
        assert "set_to_none" in inspect.signature(one.zero_grad).parameters
    for keep in (True, False):
        steps(model, optimiser, batches(2))
        loss_of(model(batches()[0])).backward()
        optimiser.zero_grad(set_to_none=not keep)  # drops the means
        assert all((parameter.grad is None) != keep for parameter in model.parameters())
    steps(model, optimiser, batches(2))
    optimiser.close()
    return ranks_differ(model)


@case
def named_twice():
    """Tied weights that are given under both names."""
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
    model[2].weight = model[0].weight
    pairs = [*model.named_parameters(), ("2.weight", model[2].weight)]
    optimiser = adt.DistributedOptimizer(sgd(model), pairs, policy=DENSE)
    steps(model, optimiser, batches())
    assert [name for name, _ in optimiser.job.named()] == ["0.weight", "0.bias", "2.bias"], optimiser.job.named()
    optimiser.close()
    return ranks_differ(model)


@case
def compiled_steps():
    """A whole training step in torch.compile(), whose graphs have nothing of the exchange."""
    if not hasattr(torch, "compile"):
        raise Skipped("this torch does not compile")
    worst = 0.0
    for make in (lambda model: adt.DistributedOptimizer(sgd(model), model, policy=PROPAGATE),
                 lambda model: adt.DistributedOptimizer(sgd(model), model, policy=PROPAGATE, overlap="forward"),
                 lambda model: adt.LocalSteps(sgd(model), model, every=2, policy=DENSE)):
        model = mlp()
        optimiser = make(model)
        step = torch.compile(lambda batch: steps(model, optimiser, [batch]), backend="eager")
        for batch in batches():
            step(batch)
        optimiser.finish()
        assert optimiser.job.step == len(batches()) // (2 if isinstance(optimiser, adt.LocalSteps) else 1)
        worst += ranks_differ(model)
        optimiser.close()
    model = mlp()
    ddp, inner = DDP(model), sgd(model)
    with contextlib.closing(adt.ADTopkState(ddp, policy=DENSE)) as state:
        ddp.register_comm_hook(state, adt.adtopk_hook)
        step = torch.compile(lambda batch: steps(ddp, inner, [batch]), backend="eager")
        for batch in batches():
            step(batch)
        assert state.step == len(batches())
    return worst + ranks_differ(model)


@case
def group_is_removed():
    """Its parameters are not taken ahead, since no update follows."""
    worst = 0.0
    for trained in (0, 2):
        model, seen = mlp(), []
        groups = [{"params": part.parameters()} for part in model[::2]]
        optimiser = adt.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), model, policy=TOPK)
        steps(model, optimiser, batches(5)[:trained])
        del optimiser.param_groups[0]
        before = model[0].weight.detach().clone()
        model[0].register_forward_hook(lambda module, *_, seen=seen: seen.append(module.weight.detach().clone()))
        steps(model, optimiser, batches(5)[trained:])
        assert len(seen) == 5 - trained and all(torch.equal(one, before) for one in seen), trained
        optimiser.close()
        worst += ranks_differ(model)
    return worst


@case
def resumed_by_another_method():
    """A residual of steps is no gradient: it has another scale."""
    worst = 0.0
    made = (lambda model: adt.ADTopkState(model, policy=TOPK),
            lambda model: adt.DistributedOptimizer(sgd(model), model, policy=TOPK),
            lambda model: adt.LocalSteps(sgd(model), model, policy=TOPK))
    saved = []
    for make in made:
        one = make(mlp())
        saved.append(getattr(one, "job", one).state_dict())
        one.close()
    for own, make in enumerate(made):
        for other, state in enumerate(saved):
            one = make(mlp())
            def load():
                getattr(one, "job", one).load_state_dict(state)  # pylint: disable=cell-var-from-loop
            if (own == 2) == (other == 2):
                load()
            else:
                method = "step" if other == 2 else "gradient"
                worst += refused(adtopk.ArgumentError, [f'residuals of the method "{method}"'], load)
            one.close()
    return worst


if __name__ == "__main__":
    main(CASES)

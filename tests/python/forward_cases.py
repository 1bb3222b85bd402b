"""One rank of the tests of overlap="forward": runs cases and prints a line of JSON for each.

usage: forward_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import contextlib
import copy
import gc
import io
import sys
import time
import unittest.mock
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import adtopk
import adtopk.torch as adt
from ddp_cases import (RANK, Branches, Odd, Skipped, batches, convolution, difference, loss_of, main, mlp,
                       ranks_differ, refused, sgd)

CASES = {}
TOPK = {"sparsifier": "topk", "density": 0.05, "values": "f32", "non_finite": "propagate"}


def case(function):
    CASES[function.__name__] = function
    return function


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def distribute(model, inner, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", adt.LearningWarning)
        return adt.DistributedOptimizer(inner(model), model, policy=options.pop("policy", TOPK),
                                        method="gradient", **options)


def steps(model, optimiser, data, call=lambda model, batch: model(batch)):
    for at, batch in enumerate(data):
        optimiser.zero_grad(set_to_none=bool(at % 2))
        loss_of(call(model, batch)).backward()
        optimiser.step()


def both(make, inner=sgd, data=None, train=steps, **options):
    """The largest difference that overlap makes."""
    trained = []
    for overlap in (None, "forward"):
        model = make()
        optimiser = distribute(model, inner, overlap=overlap, **({} if overlap else {"lookahead": False}),
                               **options)
        start = [one.detach().clone() for one in model.parameters()]
        train(model, optimiser, data or batches())
        optimiser.close()
        assert not all(map(torch.equal, start, model.parameters()))
        trained.append(model)
    return difference(*trained) + ranks_differ(trained[1])


@case
def momentum():
    return both(mlp)


@contextlib.contextmanager
def counted(calls):
    """Adds to a list how many dimensions the parameter has in each call of SGD's step()."""
    step = torch.optim.SGD.step

    def counting(self, *arguments):
        calls.append(self.param_groups[0]["params"][0].dim())
        return step(self, *arguments)
    torch.optim.SGD.step = counting
    try:
        yield
    finally:
        torch.optim.SGD.step = step


def plain(model, **options):
    return torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.01, **options)


@case
def one_rank_watches():
    """Only the first rank has the steps of plain SGD watched. It gets the bits of the others, all the same. Those
    have lists of several blocks."""
    def watched(model):
        inner = plain(model)
        if RANK == 0:
            step = inner.step
            inner.step = lambda *arguments: step(*arguments)
        return inner

    with unittest.mock.patch("adtopk.torch._placement.LIST_BLOCK", 20):
        return both(mlp, watched)


@case
def plain_sgd():
    """Lists are applied, also with a schedule of the distributed optimiser; one of the wrapped optimiser
    counts its steps. Where there is no list, as of biases, or more than plain SGD, it steps."""
    def scheduled(inner):
        def train(model, optimiser, data):
            schedule = torch.optim.lr_scheduler.StepLR(optimiser.optimiser if inner else optimiser, 2, 0.5)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # as if the schedule stepped before the optimiser
                for batch in data:
                    steps(model, optimiser, [batch])
                    schedule.step()
        return train

    def stepped(*arguments, **options):
        model, calls = mlp(), []
        optimiser = distribute(model, *arguments, overlap="forward", **options)
        versions = [one._version for one in model.parameters()]
        with counted(calls):
            steps(model, optimiser, batches())
            optimiser.finish()
        assert all(one._version > before for one, before in zip(model.parameters(), versions))
        optimiser.close()
        return 2 in calls

    dense = {"sparsifier": "dense", "non_finite": "propagate"}
    assert not stepped(plain)
    assert stepped(sgd) and stepped(plain, policy=dense)
    assert stepped(lambda model: plain(model, weight_decay=0.1))
    with unittest.mock.patch.object(sys.modules["torch.optim.optimizer"], "_global_optimizer_post_hooks",
                                    {0: lambda *unused: None}, create=True):
        assert stepped(plain)  # a hook of all optimisers, which torch 2 has
    images = [batch.to(memory_format=torch.channels_last) for batch in batches(shape=(3, 8, 8))]
    return max(both(mlp, plain), both(Odd, plain), both(mlp, plain, train=scheduled(False)),
               both(mlp, plain, train=scheduled(True)),
               both(convolution, lambda model: plain(model, maximize=True), images))


@case
def adam():
    return both(mlp, adamw) + both(mlp, lambda model: torch.optim.NAdam(model.parameters()))


@case
def default_policy():
    return both(mlp, policy={"non_finite": "propagate"}) + \
        both(mlp, policy='{"sparsifier": "dense", "non_finite": "propagate"}')


@case
def groups():
    """Two groups, one with decay, and a schedule that changes the rate between step() and its use."""
    def inner(model):
        return torch.optim.AdamW([{"params": list(model[0].parameters()), "weight_decay": 0.3},
                                  {"params": list(model[4].parameters()) + list(model[2].parameters()),
                                   "lr": 0.03}], lr=0.01)

    def train(model, optimiser, data):
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.3)
        for batch in data:
            steps(model, optimiser, [batch])
            schedule.step()
    return both(mlp, inner, train=train)


@case
def accumulation():
    def train(model, optimiser, data):
        for start in range(0, len(data), 3):
            optimiser.zero_grad()
            for batch in data[start:start + 3]:
                loss_of(model(batch)).backward()
            optimiser.step()
    return both(mlp, data=batches(11), train=train, backward_passes_per_step=3)


class Tied(nn.Module):
    """The first and the last layer share their weight, and the one in the middle is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.first, self.middle, self.last = nn.Linear(20, 20), nn.Linear(20, 20), nn.Linear(20, 20)
        self.last.weight = self.first.weight

    def forward(self, batch):
        return self.last(self.middle(torch.tanh(self.middle(torch.tanh(self.first(batch))))))


@case
def tied_and_called_twice():
    return both(Tied) + both(Tied, adamw)


@case
def some_are_not_called():
    """A branch that no rank uses in some steps, and one rank only in others."""
    def train(model, optimiser, data):
        for step, batch in enumerate(data):
            parts = (0,) if step % 3 == 1 else (0, 1) if RANK == 0 or step % 3 else (1,)
            steps(model, optimiser, [batch], lambda model, batch, parts=parts: model(batch, parts))
    return both(Branches, data=batches(9), train=train)


class Attention(nn.Module):
    """Attention reads the weights of a module that it never calls. `scale` is the model's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layer = nn.TransformerEncoderLayer(20, 2, 30, dropout=0.0, batch_first=True)
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(20))])
        self.lstm = nn.LSTM(20, 10)

    def forward(self, batch):
        return self.lstm(self.layer(batch * self.scales[0]))[0]


@case
def modules_that_are_never_called():
    return both(Attention, adamw, batches(shape=(4, 20)))


@case
def weights_that_hooks_compute():
    def make():
        model = mlp()
        nn.utils.weight_norm(model[2])
        nn.utils.parametrizations.spectral_norm(model[4])
        return model
    return both(make, adamw)


@case
def without_calls_of_modules():
    """What is used by functions alone is applied in step()."""
    def call(model, batch):
        return model[4](functional.linear(model[0](batch), model[2].weight, model[2].bias))
    return both(mlp, train=lambda *given: steps(*given, call))


@case
def a_use_that_comes_unexpected():
    """It is refused, and finish() is the cure."""
    model = mlp()
    optimiser = distribute(model, sgd, overlap="forward")
    direct = lambda: functional.linear(batches()[0], model[0].weight, model[0].bias)  # noqa: E731
    steps(model, optimiser, batches(2))
    worst = refused((adtopk.StateError, RuntimeError), ["forward pass used '0.", "call finish()"],
                    lambda: loss_of(direct()).backward())
    optimiser.zero_grad()
    optimiser.finish()
    loss_of(direct()).backward()
    optimiser.step()
    optimiser.close()
    return worst + ranks_differ(model)


@case
def checkpointed():
    from torch.utils.checkpoint import checkpoint

    def call(model, batch):
        return model[3:](checkpoint(model[:3], batch.requires_grad_(), **recent))
    recent = {"use_reentrant": True} if torch.__version__ >= "2" else {}
    return both(mlp, train=lambda *given: steps(*given, call))


@case
def compiled():
    if not hasattr(torch, "compile"):
        raise Skipped("this torch cannot compile")

    def train(model, optimiser, data):
        steps(torch.compile(model, backend="eager"), optimiser, data)
    return both(mlp, train=train)


@case
def group_is_removed():
    """Its parameters stay where they are."""
    def train(model, optimiser, data):
        steps(model, optimiser, data[:2])
        optimiser.finish()
        del optimiser.param_groups[0]
        before = model[0].weight.detach().clone()
        steps(model, optimiser, data[2:])
        optimiser.finish()
        assert torch.equal(model[0].weight, before)
    return both(mlp, lambda model: torch.optim.SGD([{"params": part.parameters()} for part in model[::2]], lr=0.1,
                                                   momentum=0.9), train=train)


@case
def evaluation_in_inference_mode():
    """Its forward pass applies the first update, with which the optimiser makes its state."""
    def train(model, optimiser, data):
        steps(model, optimiser, data[:1])
        with torch.inference_mode():
            model(data[0])
        steps(model, optimiser, data[1:])
    return both(mlp, adamw, train=train) + both(mlp, sgd, train=train)


@case
def evaluation_and_dictionaries():
    """Whatever reads or writes parameters between step() and the next forward pass sees them all applied."""
    def train(model, optimiser, data):
        seen = train.seen
        for step, batch in enumerate(data):
            steps(model, optimiser, [batch])
            if step == 1:
                model.eval()
                with torch.no_grad():
                    seen.append(model(batch))
                model.train()
            elif step == 2:
                seen.append(torch.cat([one.reshape(-1) for one in model.state_dict().values()]).clone())
                seen.append(copy.deepcopy(optimiser.state_dict()))
                assert optimiser.job.step == 3
            elif step == 3:
                model[0].load_state_dict({name: value * 0.5 for name, value in model[0].state_dict().items()})
            elif step == 4:
                saved = optimiser.job.state_dict()
                assert saved["step"] == 5
                with optimiser.shared():
                    seen.append(model[4].weight.detach().clone())
            elif step == 5:
                optimiser.load_state_dict(optimiser.state_dict())
            elif step == 6:
                optimiser.finish()
                seen.append(copy.deepcopy(model)[0].weight.detach())
    runs = []
    worst = 0.0
    for overlap in (None, "forward"):
        train.seen = []
        model = mlp()
        optimiser = distribute(model, sgd, overlap=overlap, lookahead=False if overlap is None else None)
        train(model, optimiser, batches(8))
        optimiser.close()
        runs.append((model, train.seen))
    for one, other in zip(runs[0][1], runs[1][1]):
        if isinstance(one, torch.Tensor):
            worst += (one - other).abs().max().item()
        else:
            worst += max((a["momentum_buffer"] - b["momentum_buffer"]).abs().max().item()
                         for a, b in zip(one["state"].values(), other["state"].values()))
    assert len(runs[0][1]) == 5
    return worst + difference(runs[0][0], runs[1][0])


@case
def clipping_in_some_steps():
    """synchronize() brings the means, and that step is applied at once."""
    def train(model, optimiser, data):
        for step, batch in enumerate(data):
            optimiser.zero_grad()
            loss_of(model(batch)).backward()
            if step % 2:
                optimiser.synchronize()
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimiser.step()
    return both(mlp, train=train)


@case
def closures():
    def train(model, optimiser, data):
        for batch in data:
            def closure():
                optimiser.zero_grad()
                loss = loss_of(model(batch))
                loss.backward()
                return loss
            assert optimiser.step(closure).item() > 0
    return both(mlp, train=train)


@case
def other_types_and_layouts():
    data = [batch.to(memory_format=torch.channels_last) for batch in batches(shape=(3, 8, 8))]
    half = both(lambda: mlp(torch.bfloat16), data=batches(dtype=torch.bfloat16))
    return half + both(convolution, data=data) + both(Odd, lambda model: plain(model, momentum=0.9))


@case
def not_a_number():
    """NaN on one rank is in the parameters of all, as the policy says."""
    models = []
    for overlap in (None, "forward"):
        model = mlp()
        optimiser = distribute(model, sgd, overlap=overlap, lookahead=False if overlap is None else None)
        data = batches(3)
        data[1] = data[1] * (float("nan") if RANK else 1)
        steps(model, optimiser, data)
        optimiser.close()
        models.append([one.detach().isnan() for one in model.parameters()])
    assert any(one.any() for one in models[0])
    return float(any((one != other).any() for one, other in zip(*models)))


@case
def copies_and_files():
    """A copy of the model has hooks that do nothing."""
    model = mlp()
    optimiser = distribute(model, sgd, overlap="forward")
    steps(model, optimiser, batches(2))
    optimiser.finish()
    with io.BytesIO() as file:
        torch.save(model, file)
        assert file.tell() > 0
    twin = copy.deepcopy(model)
    steps(model, optimiser, batches(1))
    twin(batches()[0])
    twin.state_dict()
    assert optimiser._due
    optimiser.close()
    assert not any(len(part._forward_pre_hooks) + len(part._state_dict_hooks) for part in model.modules())
    return float(difference(model, twin) == 0) + ranks_differ(model)


@case
def nobody_waits():
    """step() returns before the other rank has a gradient. A forward pass waits for what it uses alone."""
    model = nn.ModuleList([nn.Linear(20, 300, bias=False), nn.Linear(20, 300, bias=False)])
    optimiser = distribute(model, sgd, overlap="forward", policy={**TOPK, "bucket_bytes": 4096})
    for batch in batches(2):  # both ranks know how tensors are exchanged
        optimiser.zero_grad()
        (loss_of(model[0](batch)) + loss_of(model[1](batch))).backward()
        optimiser.step()
    batch = batches()[3]
    optimiser.zero_grad()
    if RANK == 0:
        (loss_of(model[0](batch)) + loss_of(model[1](batch))).backward()
        optimiser.step()
        dist.barrier()  # 1: the other rank begins now
        model[0](batch)
        dist.barrier()  # 2: the other rank has pushed one of its layers
    else:
        dist.barrier()
        loss_of(model[0](batch)).backward()
        dist.barrier()
        loss_of(model[1](batch)).backward()
        optimiser.step()
    optimiser.close()
    return ranks_differ(model)


@case
def leaves_first():
    """A rank that drops its optimiser waits for the step that it has ended: others are still in it."""
    model = mlp()
    optimiser = distribute(model, sgd, overlap="forward")
    steps(model, optimiser, batches(2))
    if RANK == 0:
        time.sleep(1)
    steps(model, optimiser, batches(1))
    if RANK == 1:
        del optimiser
        gc.collect()
    else:
        optimiser.close()
    return 0


@case
def policy_is_changed():
    """A policy that withdraws steps is noticed where one is withdrawn."""
    model = mlp()
    optimiser = distribute(model, sgd, overlap="forward")
    steps(model, optimiser, batches(2))
    optimiser.job.wait_for = lambda tensor: False
    return refused(adtopk.StateError, ["withdrawn", "non_finite"], lambda: model(batches()[0]))


@case
def refusals():
    class Own(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    argument = adtopk.ArgumentError
    model = mlp()
    new = adt.DistributedOptimizer
    gradient = {"overlap": "forward", "policy": TOPK}
    scaler = object()
    worst = [
        refused(argument, ["overlap is 'backward'"], lambda: new(sgd(model), model, overlap="backward")),
        refused(argument, ["propagate"], lambda: new(sgd(model), model, overlap="forward")),
        refused(argument, ['"gradient"', "AdamW"],
                lambda: new(adamw(model), model, method="step", **gradient)),
        refused(argument, ["give the module"], lambda: new(sgd(model), **gradient)),
        refused(argument, ["scaler"],
                lambda: new(sgd(model), model, scaler=scaler, **gradient)),
        refused(argument, ["lookahead"], lambda: new(sgd(model), model, lookahead=True, **gradient)),
        refused(argument, ["Own"], lambda: new(Own(model.parameters(), lr=0.1), model, **gradient))]
    optimiser = distribute(model, sgd, overlap="forward")
    steps(model, optimiser, batches(1))
    optimiser.found_inf = torch.zeros(1)
    worst.append(refused(adtopk.StateError, ["GradScaler"], optimiser.step))
    optimiser.close()
    return sum(worst)


if __name__ == "__main__":
    main(CASES)

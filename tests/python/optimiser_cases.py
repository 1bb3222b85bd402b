"""One rank of the tests of adtopk.torch's optimisers: runs cases and prints a line of JSON for each.

usage: optimiser_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import contextlib
import copy
import json
import os
import signal
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from ddp_cases import (DENSE, RANK, TOPK, Branches, Skipped, add_to, batches, convolution, difference,
                       loss_of, main, mlp, Odd, over_ranks, ranks_differ, refused, sgd)

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def adamw(model, rate=1e-3):
    return torch.optim.AdamW(model.parameters(), lr=rate)


def plain(model, rate=0.05):
    return torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=rate)


def steps(model, optimiser, data, call=lambda model, batch: model(batch)):
    for batch in data:
        optimiser.zero_grad()
        loss_of(call(model, batch)).backward()
        optimiser.step()


def both(make, inner, data, train=steps, ddp_train=steps, distribute=adt.DistributedOptimizer, ddp=None,
         **options):
    """The largest difference between DDP over gloo and an optimiser of adtopk, under policy dense."""
    model = make()
    ddp_train(DDP(model, bucket_cap_mb=0.01, **(ddp or {})), inner(model), data)
    other = make()
    with torch.no_grad():
        for parameter in filter(lambda one: one.requires_grad, other.parameters()):
            parameter.add_(RANK)  # the first rank's are taken
    optimiser = distribute(inner(other), other, policy=DENSE, **options)
    train(other, optimiser, data)
    optimiser.close()
    return difference(model, other) + ranks_differ(other)


@case
def momentum():
    return both(mlp, sgd, batches())


@case
def without_lookahead():
    return both(mlp, sgd, batches(), lookahead=False)


@case
def adam_under_dense():
    return both(mlp, adamw, batches())


@case
def accumulation():
    def ddp_train(ddp, optimiser, data):
        for start in range(0, len(data), 3):
            optimiser.zero_grad()
            for at, batch in enumerate(data[start:start + 3]):
                with ddp.no_sync() if at < 2 else contextlib.nullcontext():
                    loss_of(ddp(batch)).backward()
            optimiser.step()

    def train(model, optimiser, data):
        for start in range(0, len(data), 3):
            optimiser.zero_grad()
            for batch in data[start:start + 3]:
                loss_of(model(batch)).backward()
            optimiser.step()
    return both(mlp, sgd, batches(12), train, ddp_train, backward_passes_per_step=3)


def clipped(model, optimiser, data):
    for batch in data:
        optimiser.zero_grad()
        loss_of(model(batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimiser.step()


@case
def clipping():
    return both(mlp, sgd, batches(), clipped, clipped)


@case
def schedules():
    def train(model, optimiser, data):
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, 2, 0.5)
        for batch in data:
            steps(model, optimiser, [batch])
            schedule.step()
        assert abs(optimiser.param_groups[0]["lr"] - 0.05 / 8) < 1e-9
    return both(mlp, sgd, batches(), train, train)


@case
def hooks():
    """Those of torch 2 are called with the mean gradients, and with the state."""
    model, seen = mlp(), []
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=DENSE)
    if not hasattr(optimiser, "register_step_pre_hook"):
        raise Skipped("this torch has no hooks of optimisers")
    handle = optimiser.register_step_pre_hook(lambda *unused: seen.append(over_ranks(model[0].bias.grad.sum())
                                                                          - model[0].bias.grad.sum()))
    optimiser.register_state_dict_post_hook(lambda wrapped, state: seen.append(float(not state["state"])))
    steps(model, optimiser, batches(2))
    handle.remove()
    steps(model, optimiser, batches(1))
    optimiser.state_dict()
    assert len(seen) == 3
    optimiser.close()
    return max(map(float, seen))


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
    return both(mlp, sgd, batches(), train, steps)


@case
def unused_on_one_rank():
    def train(model, optimiser, data):
        for step, batch in enumerate(data):
            optimiser.zero_grad()
            loss_of(model(batch, (0, 1) if RANK == 0 or step % 2 else (0,))).backward()
            if step % 3:
                optimiser.synchronize()
            optimiser.step()

    def ddp_train(ddp, optimiser, data):
        for step, batch in enumerate(data):
            optimiser.zero_grad()
            loss_of(ddp(batch, (0, 1) if RANK == 0 or step % 2 else (0,))).backward()
            optimiser.step()
    return both(Branches, sgd, batches(8), train, ddp_train, ddp={"find_unused_parameters": True})


@case
def odd_parameters():
    return both(Odd, lambda model: plain(model, 0.01), batches())


@case
def channels_last():
    data = [batch.to(memory_format=torch.channels_last) for batch in batches(shape=(3, 8, 8))]
    return both(convolution, sgd, data)


@case
def names_are_optional():
    model = mlp()
    optimiser = adt.DistributedOptimizer(sgd(model), policy=DENSE)
    steps(model, optimiser, batches(2))
    assert [tensor.name for tensor in optimiser.job.context.tensors][:2] == ["0.0", "0.1"]
    assert optimiser.job.stats()["steps"] == 2
    optimiser.close()
    return ranks_differ(model)


@case
def steps_of_sgd():
    """The mean of plain SGD's steps is the step of the mean."""
    return both(mlp, plain, batches(), method="step")


def averaged(make, inner, data, every, rate=1.0, momentum_=0.0):
    """Local steps computed with gloo: what LocalSteps promises under a dense policy."""
    model = make()
    optimiser = inner(model)
    common = [one.detach().clone() for one in model.parameters()]
    velocities = [torch.zeros_like(one) for one in common]
    for at, batch in enumerate(data):
        steps(model, optimiser, [batch])
        if (at + 1) % every and at + 1 < len(data):
            continue
        with torch.no_grad():
            for parameter, shared, velocity in zip(model.parameters(), common, velocities):
                mean = shared - parameter
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
                velocity.mul_(momentum_).add_(mean)
                shared -= rate * (mean + momentum_ * velocity)
                parameter.copy_(shared)
    return model


def local(every, rate=1.0, momentum_=0.0, make=mlp, data=None, inner=adamw):
    data = data or batches(7)
    wanted = averaged(make, inner, data, every, rate, momentum_)
    model = make()
    optimiser = adt.LocalSteps(inner(model), model, every=every, outer_lr=rate, outer_momentum=momentum_,
                               policy=DENSE)
    steps(model, optimiser, data)
    optimiser.exchange()
    assert optimiser.job.context.step == -(-len(data) // every)
    optimiser.close()
    return difference(model, wanted) + ranks_differ(model)


@case
def local_steps():
    return local(1) + local(3)


def ended_by_a_signal(step):
    """Rank 0 waits for rank 1 in step(), until a signal ends that."""
    if RANK == 0:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with contextlib.suppress(KeyboardInterrupt):
            step()
            raise AssertionError("nothing ended the step")
    dist.barrier()


@case
def local_steps_go_on():
    """An exchange that a signal ended goes on in the next step() or exchange(), and nothing is lost."""
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    data, worst = batches(8), 0.0
    wanted = averaged(mlp, adamw, data, 2, 0.7, 0.9)
    model = mlp()
    optimiser = adt.LocalSteps(adamw(model), model, every=2, outer_lr=0.7, outer_momentum=0.9, policy=DENSE)
    for at, batch in enumerate(data):
        optimiser.zero_grad()
        loss_of(model(batch)).backward()
        if at in (3, 5):
            ended_by_a_signal(optimiser.step)
            worst += RANK == 0 and refused(adtopk.StateError, ["goes on with it"], optimiser.zero_grad)
            if at == 5 and RANK == 0:
                optimiser.exchange()
                continue
        optimiser.step()
    assert optimiser.job.step == 4
    optimiser.close()
    before = copy.deepcopy(model)
    worst += refused(adtopk.StateError, ["closed"], optimiser.step)
    return worst + difference(model, before) + difference(model, wanted) + ranks_differ(model)


@case
def gradients_go_on():
    """A backward pass that ends by an exception, when it has pushed or waited, goes on in step()."""
    wanted = mlp()
    steps(DDP(wanted), sgd(wanted), batches())
    model = mlp()
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=DENSE, lookahead=False)
    job, cut = optimiser.job, []
    for name in ("push", "write"):
        def once(*arguments, name=name, call=getattr(job, name)):
            if name == "write" and name in cut:
                cut.clear()
                raise KeyboardInterrupt
            found = call(*arguments)
            if name in cut and len(optimiser._pushed) == 5:  # and this is the last one
                cut.clear()
                raise KeyboardInterrupt
            return found
        setattr(job, name, once)
    for at, batch in enumerate(batches()):
        optimiser.zero_grad()
        cut += {2: ["write"], 4: ["push"]}.get(at if RANK == 0 else 0, [])
        with contextlib.suppress(KeyboardInterrupt):
            loss_of(model(batch)).backward()
        assert not cut
        optimiser.step()
    assert job.step == 6
    optimiser.close()
    return difference(model, wanted) + ranks_differ(model)


@case
def local_steps_after_a_failure():
    """Where the job cannot be opened no rank trains on alone, and it can be opened later."""
    model = mlp()
    daemon = os.environ["ADTOPK_ADDRESS"]
    os.environ["ADTOPK_ADDRESS"] = "unix:/nowhere/adtopkd.sock"
    optimiser = adt.LocalSteps(adamw(model), model, policy=DENSE, connect_timeout=0.2)
    worst = refused(adtopk.UnreachableError, ["/nowhere"], lambda: steps(model, optimiser, batches(1)))
    drifted = copy.deepcopy(model)
    worst += refused(adtopk.UnreachableError, ["/nowhere"], optimiser.step) + difference(model, drifted)
    os.environ["ADTOPK_ADDRESS"] = daemon
    optimiser.step()
    steps(model, optimiser, batches()[1:])
    optimiser.close()
    wanted = averaged(mlp, adamw, batches(), 1)
    return worst + difference(model, wanted) + ranks_differ(model)


class Weight(nn.Module):
    """Ones of a type."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, 8, dtype=dtype))

    def forward(self):
        return self.weight


@case
def local_steps_of_16_bits():
    """What rounding takes from a parameter comes with a later exchange, after a checkpoint as well."""
    worst = 0.0
    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        model, saved = Weight(dtype), None
        for count in (21, 19):
            optimiser = adt.LocalSteps(plain(model, 1.0), model, policy=DENSE)
            if saved is not None:
                optimiser.job.load_state_dict(saved)
            for _ in range(count):  # each rank moves half of the elements by the least that its type can
                optimiser.zero_grad()
                model()[RANK::2].sum().mul(unit).backward()
                optimiser.step()
            saved = optimiser.job.state_dict()
            optimiser.close()
        worst = max(worst, (1 - 20 * unit - model.weight.double()).abs().max().item() / unit)
        nn.init.ones_(model.weight)  # and what is written to a parameter stays
        optimiser = adt.LocalSteps(plain(model, 1.0), model, policy=DENSE)
        optimiser.job.load_state_dict(saved)
        steps(model, optimiser, [0.0], lambda model, batch: model() * batch)
        optimiser.close()
        worst = max(worst, (1 - model.weight.double()).abs().max().item() / unit)
    return worst


@case
def local_steps_channels_last():
    data = [batch.to(memory_format=torch.channels_last) for batch in batches(shape=(3, 8, 8))]
    return local(2, make=convolution, data=data)


@case
def outer_momentum():
    return local(2, 0.7, 0.9)


@case
def shared_parameters():
    """Between exchanges ranks differ; within shared() they do not, and afterwards they go on."""
    model = mlp()
    optimiser = adt.LocalSteps(adamw(model), model, every=4, policy=TOPK)
    steps(model, optimiser, batches(6))
    own = copy.deepcopy(model)
    assert ranks_differ(model) > 0
    with optimiser.shared():
        worst = ranks_differ(model)
        assert difference(model, own) > 0
    assert difference(model, own) == 0
    refusal = refused(adtopk.StateError, ["2 local steps"], optimiser.job.state_dict)
    optimiser.exchange()
    optimiser.job.state_dict()
    optimiser.close()
    return worst + refusal + ranks_differ(model)


def warned(make):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make().close()
    caught = [one for one in caught if one.category is adt.LearningWarning]
    assert all(one.filename == __file__ for one in caught), [one.filename for one in caught]
    return [str(one.message) for one in caught]


@case
def methods():
    """One warning where a combination is known to lose."""
    def made(inner, **options):
        return lambda: adt.DistributedOptimizer(inner(mlp_.parameters(), lr=0.1), mlp_, **options)

    mlp_ = mlp()
    momentum_sgd = lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9)  # noqa: E731
    class Mine(torch.optim.Optimizer):
        """One that torch does not have."""

        def __init__(self, parameters, lr):
            super().__init__(parameters, {"lr": lr})

    never_forgets = lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=1.0)  # noqa: E731
    expected = [
        (made(torch.optim.AdamW), None), (made(torch.optim.SGD), None), (made(momentum_sgd), None),
        (made(torch.optim.AdamW, policy=DENSE), None),
        (made(torch.optim.AdamW, method="step"), None), (made(torch.optim.Adam, policy=json.dumps(TOPK)), None),
        (made(torch.optim.NAdam), "NAdam was never measured"), (made(torch.optim.NAdam, policy=DENSE), None),
        (made(torch.optim.Adagrad), "Adagrad was never measured"),
        (made(torch.optim.AdamW, policy={"momentum": 0.9}), "AdamW learns next to nothing"),
        (made(momentum_sgd, policy={"momentum": 0.9}), "both the policy and the optimiser"),
        (made(never_forgets), "SGD moves parameters in the long run is not known with a momentum of 1"),
        (made(never_forgets, lookahead=False), None), (made(Mine), "Mine was never measured"),
        (made(torch.optim.Adagrad), "Adagrad moves parameters in the long run is not known")]
    for make, words in expected:
        found = warned(make)
        assert len(found) == (words is not None) and all(words in one for one in found), (words, found)
    kinds = [type(make()).__name__ for make, _ in expected[:5]]
    assert kinds == ["GradientOptimizer"] * 4 + ["LocalSteps"], kinds
    return 0.0


@case
def refusals():
    model = mlp()
    argument, state = adtopk.ArgumentError, adtopk.StateError
    new = lambda inner, *more, **options: adt.DistributedOptimizer(inner, *more, **options)  # noqa: E731
    sparse = nn.Embedding(5, 3, sparse=True)
    wide = mlp().double()
    optimiser = new(sgd(model), model, policy=DENSE)
    batch = batches()[0]
    worst = [
        refused(argument, ["LBFGS", "several gradients"], lambda: new(torch.optim.LBFGS(model.parameters()))),
        refused(argument, ["lacks parameter 0.0"], lambda: new(sgd(model), model[2].named_parameters())),
        refused(argument, ["must be the module"], lambda: new(sgd(model), model.parameters())),
        refused(argument, ["method is 'none'"], lambda: new(sgd(model), method="none")),
        refused(argument, ["backward_passes_per_step is 0"], lambda: new(sgd(model), None, 0)),
        refused(argument, ["every is 0"], lambda: adt.LocalSteps(sgd(model), every=0)),
        refused(argument, ["outer_momentum is 1"], lambda: adt.LocalSteps(sgd(model), outer_momentum=1)),
        refused(argument, ["sparse=False"], lambda: new(sgd(sparse), sparse)),
        refused(argument, ["float64"], lambda: new(sgd(wide), wide)),
        refused(argument, ["give the module"], lambda: new(sgd(model[2]), lookahead=True)),
        refused(argument, ["are fixed"], lambda: optimiser.add_param_group({"params": []}))]
    steps(model, optimiser, [batch])
    loss_of(model(batch)).backward()
    worst.append(refused((state, RuntimeError), ["backward_passes_per_step"],
                         lambda: loss_of(model(batch)).backward()))
    before = copy.deepcopy(model)
    worst.append(refused(state, ["of this rank alone", "zero_grad()"], optimiser.step))
    worst.append(difference(model, before))
    optimiser.zero_grad()
    loss_of(model[2](torch.randn(8, 64))).backward()  # of two parameters of six
    worst.append(refused(state, ["pushed and not applied"], optimiser.zero_grad))
    worst.append(refused(state, ["save after step()"], optimiser.job.state_dict))
    optimiser.step()
    worst.append(refused((argument, state), ["'0.weight'"], lambda: steps(
        model[0].half(), optimiser, [batch], lambda part, batch: part.weight.sum())))
    optimiser.close()
    return sum(worst)


@case
def frozen_parameters():
    """All ranks begin with the first one's, and one that is unfrozen or added later is refused."""
    worst = 0.0
    for inner, options in ((sgd, {"policy": DENSE}), (adamw, {"method": "step"}), (sgd, {
            "policy": {**DENSE, "non_finite": "propagate"}, "overlap": "forward"})):
        model = mlp()
        model.register_parameter("odd", nn.Parameter(torch.ones(3, dtype=torch.complex64), False))
        model[0].weight.requires_grad_(False)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(RANK)
        wrapped = inner(model)
        optimiser = adt.DistributedOptimizer(wrapped, model, **options)
        worst += ranks_differ(model[0]) + abs(model.odd.sum() - 3).item()
        steps(model, optimiser, batches(2))
        model[0].weight.requires_grad_(True)
        worst += refused(adtopk.ArgumentError, ["'0.weight'", "(64, 20)", "was frozen"], optimiser.step)
        model[0].weight.requires_grad_(False)
        wrapped.add_param_group({"params": [nn.Parameter(torch.ones(2, 7))]})
        worst += refused(adtopk.ArgumentError, ["'1.0'", "(2, 7)", "not there"], optimiser.step)
        del wrapped.param_groups[1]
        steps(model, optimiser, batches(2))
        worst += optimiser.job.step != 4
        optimiser.close()
        worst += ranks_differ(model[0])
    return worst


@case
def beside_ddp():
    """Nothing is exchanged twice: DDP may have the module, and may not exchange its gradients."""
    model, batch = mlp(), batches(1)[0]
    worst = refused(adtopk.ArgumentError, ["'1'", "DistributedDataParallel"], lambda: adt.DistributedOptimizer(
        sgd(model), nn.Sequential(nn.Identity(), DDP(model))))
    for inner, options in ((sgd, {}), (sgd, {"lookahead": False}), (adamw, {"method": "step"}), (sgd, {
            "policy": {**DENSE, "non_finite": "propagate"}, "overlap": "forward"})):
        model = mlp()
        ddp = DDP(model)
        optimiser = adt.DistributedOptimizer(inner(model), model, **options)
        worst += refused(adtopk.ArgumentError, ["call the module itself"],
                         lambda: ddp(batch))  # pylint: disable=cell-var-from-loop
        with torch.no_grad():
            ddp(batch)
        with ddp.no_sync():
            steps(ddp, optimiser, [batch])
        steps(model, optimiser, batches())
        optimiser.close()
        worst += ranks_differ(model)
        ddp(batch)
    return worst


@case
def models_differ():
    """Every rank is told which parameter of which rank is another one."""
    worst = 0.0
    for words, make in ((("rank 1", "'0.weight'", "(64, 20)", "(5, 3)"), lambda: nn.Sequential(nn.Linear(3, 5))),
                        (("rank 1", "float16"), lambda: mlp().half()),
                        (("rank 1 has no more parameters", "'2.weight'"), lambda: mlp()[:2])):
        model = make() if RANK else mlp()
        worst += refused(adtopk.MismatchError, words, lambda: adt.DistributedOptimizer(plain(model), model))
    return worst


@case
def layout_changes():
    """A model is converted before its first step. Later that is refused by the parameter's name."""
    def hooked(inner, model):
        state = adt.ADTopkState(model, policy=DENSE)
        model.register_comm_hook(state, adt.adtopk_hook)
        inner.close = state.close
        return inner
    worst = 0.0
    data = batches(shape=(3, 8, 8))
    for count, make in ((2, adt.DistributedOptimizer), (2, adt.LocalSteps), (2, hooked),
                        (1, lambda inner, model: adt.LocalSteps(inner, model, every=2))):
        model = convolution()
        model.to(memory_format=torch.contiguous_format)
        module = DDP(model) if make is hooked else model
        optimiser = make(plain(model), module)
        model.to(memory_format=torch.channels_last)
        model.to(memory_format=torch.contiguous_format)
        steps(module, optimiser, data[:count])
        model.to(memory_format=torch.channels_last)
        worst += refused((adtopk.ArgumentError, RuntimeError), [".weight'", "memory format"],
                         lambda: steps(module, optimiser, data[:1]))  # pylint: disable=cell-var-from-loop
        optimiser.close()
    return worst


@case
def options_differ():
    """Every rank is told which option of which rank is another one."""
    model = mlp()
    return sum(refused(adtopk.MismatchError, ["rank 1", *words], make) for words, make in (
        (["every=3", "every=2"], lambda: adt.LocalSteps(plain(model), model, every=2 + RANK)),
        (["outer_lr=0.5"], lambda: adt.LocalSteps(plain(model), model, outer_lr=0.5 if RANK else 1)),
        (["method='step'", "method='gradient'"], lambda: adt.DistributedOptimizer(
            plain(model), model, method="step" if RANK else "gradient"))))


@case
def not_a_number():
    """NaN on one rank: no rank applies anything, and training goes on."""
    worst = 0.0
    for make in (lambda model: adt.DistributedOptimizer(sgd(model), model, policy=TOPK),
                 lambda model: adt.LocalSteps(adamw(model), model, every=2, policy=TOPK)):
        model = mlp()
        optimiser = make(model)
        data = batches(8)
        steps(model, optimiser, data[:2])
        before = copy.deepcopy(model)
        bad = [batch * (float("nan") if RANK else 1) for batch in data[2:4]]
        steps(model, optimiser, bad)
        assert difference(model, before) == 0 or "Local" not in type(optimiser).__name__
        assert "Local" not in type(optimiser).__name__ or not optimiser.state
        assert optimiser.job.stats()["withdrawn"] > 0
        worst += difference(model, before)
        steps(model, optimiser, data[4:])
        assert difference(model, before) > 0
        worst += ranks_differ(model)
        optimiser.close()
    return worst


@case
def scalers():
    """The GradScaler of torch, with an overflow on one rank, before and after unscale_()."""
    if not hasattr(torch.amp, "GradScaler"):
        raise Skipped("torch.amp has no GradScaler for processors")
    worst = 0.0
    for unscale, make in ((True, adt.DistributedOptimizer), (False, adt.DistributedOptimizer),
                          (True, adt.LocalSteps), (False, adt.LocalSteps)):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        model = mlp()
        optimiser = make(sgd(model), model, policy=DENSE, scaler=scaler)
        other = mlp()
        reference, data = DDP(other), batches(6)
        plain_optimiser = sgd(other)
        for step, batch in enumerate(data):
            bad = step == 3 and RANK == 1
            optimiser.zero_grad()
            scaler.scale(loss_of(model(batch * (float("inf") if bad else 1.0)))).backward()
            if unscale:
                scaler.unscale_(optimiser)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimiser)
            scaler.update()
            if step != 3 and make is adt.DistributedOptimizer:
                plain_optimiser.zero_grad()
                loss_of(reference(batch)).backward()
                if unscale:
                    nn.utils.clip_grad_norm_(other.parameters(), 1.0)
                plain_optimiser.step()
        if make is adt.DistributedOptimizer:
            worst += difference(model, other)
            assert scaler.get_scale() == 512.0
        worst += ranks_differ(model)
        optimiser.close()
    return worst


@case
def resumed():
    """What was pushed is applied or in residuals, through a checkpoint in the middle."""
    model = mlp()
    weight = model[2].weight
    pushed = torch.zeros_like(weight)
    first = weight.detach().clone()
    saved = None
    for part in range(3):
        optimiser = adt.LocalSteps(plain(model), model, every=2, outer_momentum=0.0, policy=TOPK)
        if saved is not None:
            optimiser.job.load_state_dict(saved)
        handle = weight.register_hook(lambda gradient: add_to(pushed, gradient * 0.05))
        steps(model, optimiser, batches(12)[4 * part:4 * part + 4])
        handle.remove()
        saved = optimiser.job.state_dict()
        optimiser.close()
    residual = saved["residuals"]["2.weight"].clone()
    for total in (pushed, residual):
        dist.all_reduce(total)
    assert residual.abs().max() > 0
    return ((pushed - residual) / 2 - (first - weight)).abs().max().item() / pushed.abs().max().item()


@case
def velocity_is_kept():
    whole = mlp()
    optimiser = adt.LocalSteps(plain(whole), whole, outer_momentum=0.9, policy=DENSE)
    steps(whole, optimiser, batches())
    optimiser.close()
    model, saved = mlp(), None
    for part in range(2):
        optimiser = adt.LocalSteps(plain(model), model, outer_momentum=0.9, policy=DENSE)
        if saved is not None:
            optimiser.job.load_state_dict(saved)
        steps(model, optimiser, batches()[3 * part:3 * part + 3])
        saved = optimiser.job.state_dict()
        optimiser.close()
    wrong = {**saved, "kept": {"other": torch.zeros(3)}}
    optimiser = adt.LocalSteps(plain(model), model)
    return difference(whole, model) + refused(adtopk.ArgumentError, ["velocity for 'other'"],
                                              lambda: optimiser.job.load_state_dict(wrong))


@case
def equal_beginnings():
    """Parameters, buffers and the state of an optimiser as on rank 1."""
    torch.manual_seed(RANK)
    model = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8))
    optimiser = adamw(model, 1e-3 * (1 + RANK))
    loss_of(model(batches()[0])).backward()
    optimiser.step()
    adt.broadcast_parameters(model, root_rank=1)
    adt.broadcast_optimizer_state(optimiser, root_rank=1)
    values = [*model.buffers(), *[one["exp_avg"] for one in optimiser.state.values()]]
    flat = torch.cat([value.double().reshape(-1) for value in values])
    other = flat.clone()
    dist.broadcast(other, 0)
    assert optimiser.param_groups[0]["lr"] == 2e-3
    odd = {"bfloat16": torch.ones(3, dtype=torch.bfloat16) * (1 + RANK), "bool": torch.tensor(RANK == 1),
           "empty": torch.empty(0, 2), "turned": (torch.eye(3)[:2] * RANK).t()}
    adt.broadcast_parameters(odd, root_rank=1)
    assert odd["bfloat16"].eq(2).all() and odd["bool"] and odd["turned"].sum() == 2
    return ranks_differ(model) + over_ranks((flat - other).abs().max()) + refused(
        adtopk.ArgumentError, ["'a' is int"], lambda: adt.broadcast_parameters({"a": 3}))


if __name__ == "__main__":
    main(CASES)

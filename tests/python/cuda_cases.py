"""One rank of the tests of adtopk.torch with parameters on a GPU: runs cases and prints a line of JSON for
each. See ddp_cases.py.

With ADTOPK_TEST_STANDIN the GPU is that of standin_cuda.py, with ADTOPK_TEST_REAL_GPU one of the machine.
With neither of them parameters are in host memory, for comparison.

usage: cuda_cases.py CASE...
"""
import contextlib
import copy
import hashlib
import os
import sys
import time
import warnings

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from adtopk.torch import _methods, _shift
import ddp_cases
from ddp_cases import (DENSE, PASSED_ON, RANK, STEPS, TOPK, Branches, Narrow, Skipped, batches, difference,
                       loss_of, main, mlp, ranks_differ, refused, sgd)

STANDIN = "ADTOPK_TEST_STANDIN" in os.environ
REAL = "ADTOPK_TEST_REAL_GPU" in os.environ
PLACEMENT = os.environ.get("ADTOPK_TEST_PLACEMENT", "HostPlacement")  # the one that is to be chosen
DEVICE = torch.device("cuda", RANK % torch.cuda.device_count()) if REAL else torch.device("cpu")
CASES = {}

if STANDIN:
    import standin_cuda


def case(function):
    CASES[function.__name__] = function
    return function


def drain():
    """Where a GPU's stream would be behind the host, and torch's own operations are not in it."""
    if STANDIN:
        standin_cuda.drain()


def moved(data):
    return [batch.to(DEVICE) for batch in data]


@contextlib.contextmanager
def hooked(model, policy, scaler=None, **options):
    """A model in DDP, whose gradients adtopk exchanges. With the stand-in gradients are parts of buckets,
    because this processor does not copy them in the order of the stream."""
    ddp = DDP(model.to(DEVICE), gradient_as_bucket_view=STANDIN, **options)
    state = adt.ADTopkState(ddp, policy=policy, scaler=scaler)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield ddp, state
        drain()
    assert type(state._place).__name__ == PLACEMENT, state._place
    told = [str(one.message) for one in caught if "copied through host memory" in str(one.message)]
    assert bool(told) == (PLACEMENT == "CopyPlacement"), told
    state.close()


def trained(ddp, optimiser, data, call=lambda ddp, step, batch: ddp(batch)):
    for step, batch in enumerate(moved(data)):
        optimiser.zero_grad()
        loss_of(call(ddp, step, batch)).backward()
        drain()
        optimiser.step()


def digest(*models):
    """A number for all bits of the parameters, the same on both ranks."""
    found = hashlib.sha256()
    for model in models:
        for parameter in model.parameters():
            found.update(parameter.detach().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    number = int(found.hexdigest()[:12], 16)
    both = [None, None]
    dist.all_gather_object(both, number)
    assert both[0] == both[1], both
    return number


@case
def same_bits():
    """Buckets, types, scopes."""
    models = []
    for make, policy, options in (
            (mlp, TOPK, {"bucket_cap_mb": 0.001}),
            (lambda: Narrow(torch.float16), TOPK, {}),
            (mlp, {**TOPK, "scope": "rank", "momentum": 0.5}, {"static_graph": True})):
        model = make()
        with hooked(model, policy, **options) as (ddp, state):
            trained(ddp, sgd(model), batches())
            assert state.step == STEPS and state.stats()["withdrawn"] == 0
        models.append(model)
    return digest(*models)


@case
def same_bits_of_branches():
    """Parameters that one rank leaves unused, or all."""
    model = Branches()
    with hooked(model, TOPK, find_unused_parameters=True, bucket_cap_mb=0.001) as (ddp, _):
        trained(ddp, sgd(model), batches(8), lambda ddp, step, batch: ddp(
            batch, (0,) if step in (3, 4) or RANK and step % 2 else (0, 1)))
    return digest(model)


def like_ddp(**options):
    """Under a dense policy the parameters are those of DDP's own exchange, on the same device."""
    plain, ours = mlp(), mlp()
    trained(DDP(plain.to(DEVICE), **options), sgd(plain), batches())
    with hooked(ours, DENSE, **options) as (ddp, _):
        trained(ddp, sgd(ours), batches())
    return difference(plain, ours)


@case
def like_gloo():
    return like_ddp(bucket_cap_mb=0.01)


@case
def like_nccl():
    """NCCL's process group also carries what ranks agree on."""
    if torch.cuda.device_count() < dist.get_world_size():
        raise Skipped("NCCL needs a GPU for each rank")
    torch.cuda.set_device(DEVICE)
    return like_ddp(process_group=dist.new_group(backend="nccl"))


@case
def overflow():
    """NaN on one rank, in the last bucket: gradients are NaN on both, and the next step is as before."""
    model = mlp()
    with hooked(model, TOPK, bucket_cap_mb=0.001) as (ddp, state):
        bad = []
        for step, batch in enumerate(moved(batches(6))):
            model.zero_grad()
            hook = None
            if step == 3 and RANK:
                hook = model[0].bias.register_hook(lambda gradient: gradient * float("nan"))
            loss_of(ddp(batch)).backward()
            drain()
            if hook is not None:
                hook.remove()
            bad.append([bool(parameter.grad.isnan().all()) for parameter in model.parameters()])
            if step != 3:
                assert all(bool(parameter.grad.isfinite().all()) for parameter in model.parameters()), step
        assert bad == [[step == 3] * 6 for step in range(6)], bad
        assert state.step == 6 and state.stats()["withdrawn"] == 1
        assert any(bool(one.any()) for one in state.state_dict()["residuals"].values())
    return 0.0


@case
def host_does_not_wait():
    """Rank 0's backward pass returns, and its step is in the stream, before rank 1 has pushed."""
    model = mlp()
    with hooked(model, TOPK) as (ddp, state):
        optimiser = sgd(model)
        trained(ddp, optimiser, batches(2))  # buckets are rebuilt over gloo
        for batch in moved(batches(3)):
            optimiser.zero_grad()
            if RANK:
                dist.barrier()
            loss_of(ddp(batch)).backward()
            if not RANK:
                assert state._undecided
                dist.barrier()
            drain()
            optimiser.step()
        dist.barrier()
        assert state.accepted()
        waits = []
        state._place._gpu.synchronize = lambda: waits.append(1)
        assert state.wait()  # kernels may still read updates when a step ends in which nothing was pushed
        assert waits == [1] and state.step == 6
    return digest(model) * 0.0


@case
def backward_goes_on():
    """A push returns while the stream has not copied the gradient, and is made when it has."""
    model = mlp()
    with hooked(model, TOPK) as (_, state):
        state.open()
        rows = [(state.tensor(one), torch.full_like(one, 1 + RANK)) for one in model.parameters()]
        with standin_cuda.stopped():
            state.push(rows, 1.0)
            time.sleep(0.05)
            assert not any(tensor.is_pushed for tensor, _ in rows)
        assert state.wait()
        assert all(state.write(rows))
        drain()
        assert all(row.max() == 1.5 for _, row in rows if row.dim() < 2)
    return 0.0


class Optimisers:
    """The optimisers without DDP, which a GPU's parameters leave as they are in host memory."""

    @staticmethod
    def all():
        yield "gradient", lambda model: adt.DistributedOptimizer(
            sgd(model), model, policy=TOPK, lookahead=False)
        yield "step", lambda model: adt.DistributedOptimizer(
            torch.optim.AdamW(model.parameters(), lr=1e-2), model, method="step", policy=TOPK,
            lookahead=False)
        yield "local", lambda model: adt.LocalSteps(
            sgd(model), model, every=2, outer_lr=0.7, outer_momentum=0.9, policy=DENSE, lookahead=False)
        yield "forward", lambda model: adt.DistributedOptimizer(
            sgd(model), model, overlap="forward", policy={**TOPK, "non_finite": "propagate"})


@case
def same_bits_of_optimisers():
    models = []
    for _, make in Optimisers.all():
        model = mlp().to(DEVICE)
        optimiser = make(model)
        trained(model, optimiser, batches())
        optimiser.finish()
        assert type(optimiser.job._place).__name__ == PLACEMENT
        optimiser.close()
        models.append(model)
    return digest(*models)


def ahead_of(inner, asked, method):
    """The training forward pass sees p - rate * share * residual, which the step takes back. Returns how far
    it is off."""
    model = mlp().to(DEVICE)
    optimiser = adt.DistributedOptimizer(inner(model), model, policy=TOPK, lookahead=asked, method=method)
    trained(model, optimiser, batches(5))
    drain()
    here = copy.deepcopy(model)
    weight, tensor = model[2].weight, optimiser.job.tensor(model[2].weight)
    pending = torch.from_numpy(tensor.residual()).to(DEVICE)
    reach = optimiser._reach(weight)
    if reach.second_moment is not None:
        pending = pending / ((reach.second_moment / reach.correction).sqrt() + reach.epsilon)
        pending.clamp_(-10, 10)
    output = model(moved(batches())[0])
    looks = asked or PLACEMENT == "ArenaPlacement"
    share = tensor.update().lookahead if looks else 0.0
    assert share == (0.25 if looks else 0.0)
    worst = (here[2].weight - reach.rate * share * pending - weight).abs().max().item()
    assert bool((weight - here[2].weight).abs().max() > 10 * worst) == looks
    loss_of(output).backward()
    with optimiser.shared():
        worst += difference(model, here)
    drain()
    optimiser.step()
    drain()
    worst += ranks_differ(model)
    if PLACEMENT == "ArenaPlacement":
        assert tensor._spec.lookahead == 0.25  # no limit is near
    optimiser.close()
    return worst


@case
def looks_ahead():
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    return sum(ahead_of(inner, asked, method) for asked in (None, True)
               for inner, method in ((sgd, "gradient"), (adamw, "gradient"), (adamw, "step")))


@case
def shift_is_limited():
    """To a tenth of the norm of the parameters; what is not finite, and what is 0, shifts nothing."""
    here, ahead = torch.full((1000,), 2.0, device=DEVICE), torch.empty(1000, device=DEVICE)
    pending = torch.linspace(-1, 1, 1000, device=DEVICE)
    worst = 0.0
    for rate, factor in ((1e-3, 1e-3), (1e3, None), (1e10, None)):
        left = float(_shift.shift(here, pending.clone(), _methods.Reach(4 * rate), 0.25, ahead))
        factor = factor or 0.2 * here.numel()**0.5 / float(pending.norm())
        worst += float((ahead - (here - factor * pending)).abs().max())
        assert abs(left * rate - factor) < 1e-5 * factor
    for pending, here in ((pending * float("inf"), here), (pending * 0, here), (pending, here * 0)):
        left = float(_shift.shift(here, pending.clone(), _methods.Reach(1.0), 0.25, ahead))
        assert left in (0, 1) and torch.equal(ahead, here), left
    moment = torch.zeros(1000, device=DEVICE)
    moment[0] = 4.0
    reach = _methods.Reach(0.01, moment, 0.25, 0.0)
    _shift.shift(here := torch.full_like(moment, 2.0), torch.ones_like(here), reach, 0.25, ahead)
    return worst + abs(float(here[0] - ahead[0]) - 0.01 * 0.25 / 4) + float((ahead - here)[1:].abs().max())


@case
def refusals():
    def with_devices(*devices):
        model = mlp()
        for parameter, device in zip(model.parameters(), devices * 6):
            parameter.standin = torch.device(device)
        return model
    argument = adtopk.ArgumentError
    ddp = DDP(mlp())
    state = adt.ADTopkState(with_devices("cpu") if RANK else ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    return sum([
        refused(argument, ["'0.bias' is on cuda:1, and '0.weight' on cuda:0"],
                lambda: adt.ADTopkState(with_devices("cuda:0", "cuda:1"))),
        refused(argument, ["'0.bias' is on cuda:0, and '0.weight' on cpu"],
                lambda: adt.DistributedOptimizer(sgd(one := with_devices("cpu", "cuda:0")), one)),
        refused(argument, ["'0.weight' is on meta"], lambda: adt.ADTopkState(with_devices("meta"))),
        refused(PASSED_ON, ["rank 1 has its parameters on a device of type cpu, and rank 0"],
                lambda: loss_of(ddp(batches()[0])).backward())])


@case
def lists():
    """Where lists appear on the GPU, and that an update has its own there."""
    forms = adtopk.LIST | adtopk.DEVICE | adtopk.DEVICE_LIST
    gpu = standin_cuda.Gpu(torch.device("cuda"))
    with adtopk.open(job="lists", rank=RANK, world_size=dist.get_world_size(), policy=TOPK) as context:
        tensor = context.register("w", (64, 100), forms=forms, memory=adtopk.Memory.CUDA,
                                  device="GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a000")
        context.commit()
        place = tensor.device_list()
        assert place.room == 816 and place.count < place.index
        assert place.value == place.index + 4 * place.room
        tensor.push_address(None, stream=gpu.stream())
        drain()
        assert context.step_wait()
        update = tensor.update()
        assert (update.device_index, update.device_value) == (place.index, place.value)
    return 0.0


@case
def daemon_is_gone():
    """The stream is let go, what it writes is NaN, and the next call says why."""
    model = mlp()
    ddp = DDP(model.to(DEVICE), gradient_as_bucket_view=STANDIN)
    state = adt.ADTopkState(ddp, policy=TOPK)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    trained(ddp, sgd(model), batches(2))
    if RANK == 1:
        print("waits", flush=True)
        sys.stdin.read()
        os._exit(0)
    model.zero_grad()
    loss_of(ddp(moved(batches())[0])).backward()
    print("waits", flush=True)
    drain()
    assert all(bool(parameter.grad.isnan().all()) for parameter in model.parameters())
    worst = refused((adtopk.UnreachableError, RuntimeError), ["went away"],
                    lambda: loss_of(ddp(moved(batches())[1])).backward())
    state.close()
    print(f"told {worst}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main({**ddp_cases.CASES, **CASES})

"""One rank of the tests of adtopk.torch: runs cases and prints a line of JSON for each.

usage: ddp_cases.py CASE...     with RANK, WORLD_SIZE, ADTOPK_ADDRESS, MASTER_ADDR and MASTER_PORT
"""
import contextlib
import copy
import json
import os
import shutil
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt

if "ADTOPK_TEST_STANDIN" in os.environ:
    import standin_cuda
    standin_cuda.install()

RANK = int(os.environ["RANK"])
ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
DENSE = {"sparsifier": "dense", "dense_values": "f32"}
TOPK = {"sparsifier": "topk", "density": 0.05, "values": "f32"}
STEPS = 6
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mlp(dtype=torch.float32):
    torch.manual_seed(1)
    layers = [nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5)]
    return nn.Sequential(*layers).to(dtype)


def batches(count=STEPS, size=8, shape=(20,), dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + RANK)
    return [torch.randn(size, *shape, generator=generator).to(dtype) for _ in range(count)]


def loss_of(output):
    return (output.float() ** 2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def plain_steps(ddp, optimiser, data):
    for batch in data:
        optimiser.zero_grad()
        loss_of(ddp(batch)).backward()
        optimiser.step()


def both(make, train, data, policy=None, optimiser=sgd, **options):
    """Trains two copies of a model, with gloo and with adtopk; returns their largest difference."""
    trained = []
    for exchange in ("gloo", "adtopk"):
        model = make()
        ddp = DDP(model, **options)
        state = None
        if exchange == "adtopk":
            state = adt.ADTopkState(ddp, policy=policy or DENSE)
            ddp.register_comm_hook(state, adt.adtopk_hook)
        train(ddp, optimiser(model), data)
        trained.append(copy.deepcopy(model))
        if state is not None:
            assert state.context.step > 0
            state.close()
    return difference(*trained)


def difference(one, other):
    worst = 0.0
    for (name, a), (_, b) in zip(one.named_parameters(), other.named_parameters()):
        assert a.isfinite().all(), name
        if a.numel():
            worst = max(worst, (a.double() - b.double()).abs().max().item())
    return worst


def over_ranks(value, operation=dist.ReduceOp.MAX):
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor, operation)
    return tensor.item()


def ranks_differ(model):
    """The largest difference between the parameters of the two ranks."""
    flat = torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])
    other = flat.clone()
    dist.broadcast(other, 0)
    return over_ranks((flat - other).abs().max())


def add_to(total, gradient):
    """For hooks of parameters, which replace the gradient by what they return."""
    total.add_(gradient)


@case
def one_bucket():
    return both(mlp, plain_steps, batches())


@case
def buckets_are_rebuilt():
    return both(mlp, plain_steps, batches(), bucket_cap_mb=0.01)


@case
def adamw():
    return both(mlp, plain_steps, batches(),
                optimiser=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3))


@case
def accumulation():
    def train(ddp, optimiser, data):
        for start in range(0, len(data), 3):
            optimiser.zero_grad()
            for at, batch in enumerate(data[start:start + 3]):
                with ddp.no_sync() if at < 2 else contextlib.nullcontext():
                    loss_of(ddp(batch)).backward()
            optimiser.step()
    return both(mlp, train, batches(12), bucket_cap_mb=0.01)


@case
def bucket_view():
    return both(mlp, plain_steps, batches(), gradient_as_bucket_view=True, bucket_cap_mb=0.01)


@case
def static_graph():
    return both(mlp, plain_steps, batches(), static_graph=True, bucket_cap_mb=0.01)


@case
def clipping():
    def train(ddp, optimiser, data):
        for batch in data:
            optimiser.zero_grad()
            loss_of(ddp(batch)).backward()
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
            optimiser.step()
    return both(mlp, train, batches())


@case
def join():
    """Rank 1 has two batches fewer."""
    def train(ddp, optimiser, data):
        with ddp.join():
            plain_steps(ddp, optimiser, data)
    return both(mlp, train, batches(STEPS - 2 * RANK), bucket_cap_mb=0.01)


class Branches(nn.Module):
    """A model of which a call uses one branch, or both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.trunk = nn.Linear(20, 30)
        self.branches = nn.ModuleList([nn.Linear(30, 8), nn.Linear(30, 8)])

    def forward(self, batch, use):
        hidden = torch.relu(self.trunk(batch))
        return sum(self.branches[at](hidden) for at in use)


def branches(use):
    def train(ddp, optimiser, data):
        for step, batch in enumerate(data):
            optimiser.zero_grad()
            loss_of(ddp(batch, use(step))).backward()
            optimiser.step()
    return both(Branches, train, batches(8), find_unused_parameters=True, bucket_cap_mb=0.001,
                optimiser=lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))


@case
def unused_nowhere():
    return branches(lambda step: (0, 1))


@case
def unused_on_one_rank():
    return branches(lambda step: (0, 1) if RANK == 0 or step % 2 else (0,))


@case
def unused_on_all_ranks():
    return branches(lambda step: (1,) if step in (3, 6) else (0,))


@case
def unused_keeps_its_mass():
    """What was pushed of a branch is applied, or in residuals, after steps that do not use it."""
    model = Branches()
    ddp = DDP(model, find_unused_parameters=True)
    state = adt.ADTopkState(ddp, policy=TOPK)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    pushed = torch.zeros(8, 30)
    applied = torch.zeros(8, 30)
    weight = model.branches[1].weight
    weight.register_hook(lambda gradient: add_to(pushed, gradient))
    for step, batch in enumerate(batches(20)):
        weight.grad = None
        loss_of(ddp(batch, (0, 1) if step < 4 else (0,))).backward()
        if weight.grad is not None:
            applied += weight.grad
    tensor = next(one for one in state.context.tensors if one.name == "branches.1.weight")
    residual = torch.from_numpy(tensor.residual())
    for part in (pushed, residual):
        dist.all_reduce(part)
    state.close()
    assert residual.abs().max() > 0
    return ((pushed - residual) / 2 - applied).abs().max().item() / pushed.abs().max().item()


class Odd(nn.Module):
    """Tied weights, a scalar, a frozen, a transposed parameter, one of 9 dimensions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(20, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Parameter(torch.ones(16), requires_grad=False)
        self.turned = nn.Parameter(torch.randn(12, 16).t())
        self.deep = nn.Parameter(torch.randn(2, 1, 3, 1, 2, 1, 1, 2, 2))

    def forward(self, batch):
        index = batch.abs().mul(7).long().clamp(0, 19)
        hidden = self.embed(index) * self.gain * self.frozen
        return self.head(hidden) + (hidden @ self.turned).mean() + self.deep.mean()


@case
def odd_parameters():
    return both(Odd, plain_steps, batches(dtype=torch.float32),
                optimiser=lambda model: torch.optim.SGD(
                    [one for one in model.parameters() if one.requires_grad], lr=0.01))


def convolution():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.Flatten())
    return model.to(memory_format=torch.channels_last)


@case
def channels_last():
    data = [batch.to(memory_format=torch.channels_last) for batch in batches(shape=(3, 8, 8))]
    return both(convolution, plain_steps, data)


@case
def channels_last_fibres():
    """Each fibre along the input channels sends one entry: what adtopk's axis 1 says."""
    model = convolution()
    ddp = DDP(model)
    state = adt.ADTopkState(ddp, policy={"sparsifier": "adtopk", "density": 0.01, "interleave": False,
                                         "values": "f32"})
    ddp.register_comm_hook(state, adt.adtopk_hook)
    batch = batches(shape=(3, 8, 8))[0].to(memory_format=torch.channels_last)
    loss_of(ddp(batch)).backward()
    sent = (model[2].weight.grad != 0).sum(dim=1)
    state.close()
    return float(not (1 <= sent.min() and sent.max() <= 2))


class Skipped(Exception):
    """A case that this torch, or its gloo, cannot run without adtopk either."""


class Narrow(nn.Module):
    """Parameters in 16 bits that compute in 32, which every version can on a processor."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Parameter(torch.randn(20, 30).to(dtype))
        self.last = nn.Parameter(torch.randn(30, 5).to(dtype))

    def forward(self, batch):
        return torch.relu(batch @ self.first.float()) @ self.last.float()


def low_precision(dtype):
    try:
        dist.all_reduce(torch.zeros(1, dtype=dtype))
    except RuntimeError as problem:
        raise Skipped(f"gloo: {problem}") from None
    worst = both(lambda: Narrow(dtype), plain_steps, batches())
    return worst / Narrow(dtype).first.abs().max().item()


@case
def bfloat16():
    return low_precision(torch.bfloat16)


@case
def float16():
    return low_precision(torch.float16)


class Scaler:
    """The part of a GradScaler that the hook reads."""

    def __init__(self, scale):
        self.scale = scale

    def get_scale(self):
        return self.scale


def resumed(full, make=mlp, limit=1.0):
    """Trains, saves, and trains on in another job: nothing that was pushed is lost."""
    model = make()
    weight = list(model.parameters())[0]
    pushed, applied = torch.zeros(weight.shape), torch.zeros(weight.shape)
    weight.register_hook(lambda gradient: add_to(pushed, torch.nan_to_num(gradient.float())))
    saved, data = None, batches(9)
    for part in range(3):
        ddp = DDP(model)
        state = adt.ADTopkState(ddp, policy=TOPK)
        if saved is not None:
            wrong = {**saved, "rank": 1 - RANK} if not full else {**saved, "world_size": 0}
            assert refused(adtopk.ArgumentError, ["the state is torn" if full else "the state is that of"],
                           lambda: state.load_state_dict(wrong)) == 0
            state.load_state_dict(saved)
        ddp.register_comm_hook(state, adt.adtopk_hook)
        for step, batch in enumerate(data[3 * part:3 * part + 3]):
            model.zero_grad()
            bad = part == 1 and step == 0  # the first step after loading is withdrawn
            before = pushed.clone()
            (loss_of(ddp(batch)) * (float("nan") if bad else 1)).backward()
            if bad:
                assert weight.grad.isnan().all()
                pushed.copy_(before)
            else:
                applied += weight.grad.float()
        saved = state.state_dict(full)
        state.close()
    residual = saved["residuals"].get(weight_name(model), torch.zeros(weight.shape)).clone()
    if full and RANK:
        residual.zero_()
    for total in (pushed, residual):
        dist.all_reduce(total)
    assert residual.abs().max() > 0
    return ((pushed - residual) / 2 - applied).abs().max().item() / pushed.abs().max().item()


def weight_name(model):
    return next(name for name, _ in model.named_parameters())


@case
def resumed_from_a_folder():
    """A run that goes on from a checkpoint of the library has the same bits as an undisturbed one."""
    data, models = batches(8), [mlp(), mlp()]
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder)
    for model, parts in zip(models, ([data], [data[:4], data[4:]])):
        optimiser = sgd(model)
        for part, some in enumerate(parts):
            ddp = DDP(model)
            state = adt.ADTopkState(ddp, policy=TOPK)
            if part:
                wrong = adt.ADTopkState(mlp(), policy=TOPK)
                assert refused(adtopk.StateError, ["of step 4, and the model of step 5"],
                               lambda: wrong.checkpoint_load(folder[0], 5)) == 0
                wrong.close()
                found = state.checkpoint_load(folder[0], step=4)
                assert (found.step, found.world_size, found.exact) == (4, 2, True), found
            ddp.register_comm_hook(state, adt.adtopk_hook)
            plain_steps(ddp, optimiser, some)
            assert state.step == len(some) + 4 * part, state.step
            if part:
                assert refused(adtopk.StateError, ["before the first"],
                               lambda: state.checkpoint_load(folder[0])) == 0
            elif len(parts) > 1:
                assert not state.checkpoint_due
                state.checkpoint_save(folder[0])
            state.close()
    if RANK == 0:
        shutil.rmtree(folder[0])
    return difference(*models)


@case
def resumed_on_each_rank():
    return resumed(False)


@case
def resumed_from_one_file():
    return resumed(True)


@case
def resumed_in_16_bits():
    return resumed(False, lambda: Narrow(torch.float16))


@case
def loss_scale_is_halved():
    """The mass that is applied is what was pushed, whatever the scale was."""
    model = mlp()
    ddp = DDP(model)
    scaler = Scaler(65536.0)
    state = adt.ADTopkState(ddp, policy=TOPK, scaler=scaler)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    weight = model[2].weight
    pushed, applied = torch.zeros_like(weight), torch.zeros_like(weight)
    weight.register_hook(lambda gradient: add_to(pushed, gradient / scaler.scale))
    for step, batch in enumerate(batches(10)):
        if step == 5:
            scaler.scale /= 2
        ddp.zero_grad()
        (loss_of(ddp(batch)) * scaler.scale).backward()
        applied += weight.grad / scaler.scale
    residual = torch.from_numpy(state.context.tensors[2].residual())
    assert state.context.tensors[2].name == "2.weight"
    for part in (pushed, residual):
        dist.all_reduce(part)
    state.close()
    return ((pushed - residual) / 2 - applied).abs().max().item() / pushed.abs().max().item()


@case
def overflow_in_the_last_bucket():
    """One rank's NaN makes the gradients of all ranks NaN, in all buckets, and nothing is lost."""
    model = mlp()
    ddp = DDP(model, bucket_cap_mb=0.001)
    state = adt.ADTopkState(ddp, policy=TOPK)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    data = batches(3)
    loss_of(ddp(data[0])).backward()
    before = [tensor.residual() for tensor in state.context.tensors]
    bad = model[0].bias.register_hook(lambda gradient: gradient * float("nan")) if RANK else None
    ddp.zero_grad()
    loss_of(ddp(data[1])).backward()
    withdrawn = all(parameter.grad.isnan().all() for parameter in model.parameters())
    after = [tensor.residual() for tensor in state.context.tensors]
    if bad is not None:
        bad.remove()
    worst = max(abs(a - b).max() for a, b in zip(before, after))
    ddp.zero_grad()
    loss_of(ddp(data[2])).backward()
    finite = all(parameter.grad.isfinite().all() for parameter in model.parameters())
    state.close()
    return float(worst) if withdrawn and finite else 1.0


@case
def scaler_skips():
    """The GradScaler of torch: an overflow on one rank skips the step on both, and the scale falls."""
    if not hasattr(torch.amp, "GradScaler"):
        raise Skipped("torch.amp has no GradScaler for processors")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    model = mlp()
    ddp = DDP(model, bucket_cap_mb=0.001)
    state = adt.ADTopkState(ddp, policy=TOPK, scaler=scaler)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    optimiser = sgd(model)
    scales = []
    for step, batch in enumerate(batches(8)):
        bad = step == 3 and RANK == 1
        before = copy.deepcopy(model)
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = ddp(batch * (float("inf") if bad else 1.0))
        scaler.scale(loss_of(output)).backward()
        scaler.unscale_(optimiser)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimiser)
        scaler.update()
        scales.append(scaler.get_scale())
        assert (difference(before, model) == 0) == (step == 3), step
    state.close()
    assert scales == [1024.0] * 3 + [512.0] * 5, scales
    return ranks_differ(model)


@case
def scales_differ():
    """Ranks whose loss scales differ are told so."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE, scaler=Scaler(2.0 + RANK))
    ddp.register_comm_hook(state, adt.adtopk_hook)
    worst = refused(PASSED_ON, ["scale"], lambda: loss_of(ddp(batches()[0])).backward())
    state.close()
    return worst


@case
def process_groups():
    """A group of both ranks, and one of each rank alone, which is a job of its own."""
    worst = both(mlp, plain_steps, batches(), process_group=dist.new_group([0, 1]))
    alone = [dist.new_group([rank]) for rank in (0, 1)][RANK]
    worst += both(mlp, plain_steps, batches(), process_group=alone)
    state = adt.ADTopkState(mlp(), process_group=alone)
    assert state.state_dict()["world_size"] == 1
    return worst


@case
def two_models():
    """As in a GAN: two states in one process, their backward passes mixed."""
    models = [mlp(), mlp()]
    ddps = [DDP(model) for model in models]
    states = [adt.ADTopkState(ddp, policy=DENSE) for ddp in ddps]
    for ddp, state in zip(ddps, states):
        ddp.register_comm_hook(state, adt.adtopk_hook)
    optimisers = [sgd(model) for model in models]
    for batch in batches():
        for ddp, optimiser in zip(ddps, optimisers):
            plain_steps(ddp, optimiser, [batch])
    assert states[0].context.run_id != states[1].context.run_id
    for state in states:
        state.close()
    return difference(*models)


@case
def ranks_are_equal():
    """Under the daemon's default policy, which sends 1%."""
    model = mlp()
    ddp = DDP(model, bucket_cap_mb=0.01)
    state = adt.ADTopkState(model)  # a plain module, as trainers that make DDP later have it
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(model), batches(10))
    state.close()
    return ranks_differ(model)


@case
def data_loader_workers():
    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 32

        def __getitem__(self, at):
            return torch.full((20,), float(at + RANK))
    model = mlp()
    ddp = DDP(model)
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    for _ in range(2):
        plain_steps(ddp, sgd(model), torch.utils.data.DataLoader(Data(), 8, num_workers=2))
    assert state.context.step == 8
    state.close()
    return ranks_differ(model)


# torch 1.13 makes a RuntimeError of what a hook raises, later versions pass it on.
PASSED_ON = (RuntimeError, adtopk.Error)


def refused(kind, words, function):
    """0 if the function raises the error with these words, else 1."""
    try:
        function()
    except kind as problem:
        return 0.0 if all(word in str(problem) for word in words) else 1.0
    return 1.0


@case
def refusals():
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    sparse = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    wide = mlp().double()
    frozen = mlp()
    for parameter in frozen.parameters():
        parameter.requires_grad = False
    ddp.mixed_precision = "bf16"
    argument = adtopk.ArgumentError
    return sum([
        refused(RuntimeError, ["register_comm_hook"], lambda: ddp.register_comm_hook(state, adt.adtopk_hook)),
        refused(argument, ["sparse=False"], lambda: adt.ADTopkState(sparse)),
        refused(argument, ["'0.weight'", "float64"], lambda: adt.ADTopkState(wide)),
        refused(argument, ["no parameter"], lambda: adt.ADTopkState(frozen)),
        refused(argument, ["mixed_precision="], lambda: adt.ADTopkState(ddp)),
        refused(argument, ["ADTopkState"], lambda: adt.adtopk_hook(None, None)),
        refused(argument, ["python_reducer"], lambda: adt.adtopk_hook(state, (None, None))),
        refused(adtopk.StateError, ["nothing was exchanged yet"], lambda: state.context)])


@case
def another_model():
    """The state was made of a model that is not DDP's."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(mlp(), policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    worst = refused(PASSED_ON, ["not one of the model"], lambda: loss_of(ddp(batches()[0])).backward())
    state.close()
    return worst


@case
def names():
    """As policies and checkpoints see them."""
    class Wrapper(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self._orig_mod = inner
    inner = nn.Sequential()
    inner.add_module("x" * 200, nn.Linear(2, 2, bias=False))
    inner.add_module("y", nn.Linear(2, 2, bias=False))
    inner.register_parameter("empty", nn.Parameter(torch.zeros(0, 4)))
    state = adt.ADTopkState(Wrapper(inner))
    assert repr(state) == "<ADTopkState of Sequential, 2 parameters>", state
    found = list(state._parameters)
    assert found[1] == "y.weight" and len(found[0]) == 127 and found[0].startswith("xxx"), found
    return 0.0


@case
def lines_of_the_readme():
    """They run as they stand there; the ranks stay equal, and the checkpoint holds the weights."""
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as document:
        lines = document.read().split("```python\n")[1].split("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        model, path = mlp(), os.path.join(folder, "checkpoint")
        names = {"torch": torch, "model": model, "path": path, "rank": RANK}
        exec(lines, names)  # pylint: disable=exec-used
        saved = torch.load(f"{path}.{RANK}")
        assert set(saved["adtopk"]), saved
        assert all(torch.equal(saved["model"][name], value) for name, value in model.state_dict().items())
        plain_steps(names["ddp"], sgd(model), batches())
        assert names["state"].context.step == STEPS
        names["state"].close()
    return ranks_differ(model)


def main(cases):
    """Runs the cases that the command line names, or all."""
    warnings.simplefilter("error", ResourceWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in sys.argv[1:] or cases:
        report = {"case": name, "torch": torch.__version__}
        try:
            report["worst"] = over_ranks(cases[name]())
        except Skipped as problem:
            report["skipped"] = str(problem)
        if RANK == 0:
            print(json.dumps(report), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(CASES)

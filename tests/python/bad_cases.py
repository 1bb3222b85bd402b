"""One rank of the tests of what adtopk.torch refuses, and what becomes of the other rank.

usage: bad_cases.py CASE...     as ddp_cases.py. In the end every case trains: nothing is left behind.
"""
import copy
import errno
import functools
import io
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from ddp_cases import DENSE, RANK, TOPK, batches, loss_of, main, mlp, plain_steps, ranks_differ, refused, sgd

CASES = {}
SOON = {**DENSE, "join_timeout": 3, "push_timeout": 3}  # also of ranks that are all there
NOWHERE = "unix:/nowhere/adtopkd.sock"


def case(function):
    CASES[function.__name__] = function
    return function


def trains(**options):
    """0 if a new job of these ranks works."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE, **options)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(2))
    steps = state.context.step
    state.close()
    return 0.0 if steps == 2 else 1.0


def refuses_to_open(kind, words, model, **options):
    """0 if opening the job of a model fails with these words."""
    state = adt.ADTopkState(model, policy=SOON, **options)
    worst = refused(kind, words, state.open)
    dist.barrier()
    return worst


@case
def no_daemon_on_one_node():
    """The rank without a daemon is told the address, and the other one hears it from that rank at once."""
    address = NOWHERE if RANK else os.environ["ADTOPK_ADDRESS"]
    words, kind = ["/nowhere"], adtopk.UnreachableError
    if RANK == 0:
        words, kind = ["rank 1 did not join", "/nowhere"], adtopk.PeerError
    worst = refuses_to_open(kind, words, mlp(), address=address, connect_timeout=0.2 if RANK else None)
    return worst + trains()


@case
def shapes_differ():
    worst = refuses_to_open(adtopk.MismatchError, ["'weight'"], nn.Linear(4, 3 + RANK))
    return worst + trains()


@case
def types_differ():
    model = nn.Linear(4, 3).to(torch.float16 if RANK else torch.float32)
    return refuses_to_open(adtopk.MismatchError, ["'weight'"], model) + trains()


@case
def names_differ():
    model = nn.Module()
    model.add_module(f"layer{RANK}", nn.Linear(4, 3))
    return refuses_to_open(adtopk.MismatchError, ["'layer", "another name"], model) + trains()


@case
def a_parameter_more():
    model = nn.Linear(4, 3, bias=RANK == 0)
    return refuses_to_open(adtopk.MismatchError, ["registered", "tensors"], model) + trains()


@case
def equal_ids():
    """A second run under the ids of one that lives is refused, and does not disturb it."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE, job="one", run_id="same")
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(2))
    code = ("import adtopk, sys\ntry:\n    adtopk.open(job='one', run_id='same', rank=int(sys.argv[1]),"
            " world_size=2)\nexcept adtopk.MismatchError as problem:\n    print(problem)")
    done = subprocess.run([sys.executable, "-c", code, str(RANK)], stdout=subprocess.PIPE, text=True,
                          check=True)
    worst = 0.0 if f"rank {RANK} of job 'one' is taken" in done.stdout else 1.0
    plain_steps(ddp, sgd(ddp), batches(2))
    assert state.context.step == 4
    state.close()
    return worst


@case
def gradients_change():
    """Between two steps a parameter becomes one of another shape or type."""
    model = mlp()
    state = adt.ADTopkState(model, policy=SOON)
    state.open()
    weight = model[0].weight
    tensor = state.tensor(weight)
    worst = 0.0
    for wrong in (torch.ones(3, 3), torch.ones(weight.shape).double(), torch.ones(weight.shape).half()):
        worst += refused(adtopk.ArgumentError, [tensor.name, "was registered"],
                         lambda: state.push([(tensor, wrong)], 1.0))  # pylint: disable=cell-var-from-loop
    other = nn.Parameter(torch.ones(2, 7))
    worst += refused(adtopk.ArgumentError, ["(2, 7)", "not one of the model"], lambda: state.tensor(other))
    state.push([(tensor, torch.ones(weight.shape))], 1.0)
    assert state.wait()
    state.close()
    return worst + trains()


@case
def odd_types():
    worst = 0.0
    for dtype in (torch.complex64, torch.float64):
        model = nn.Module()
        model.w = nn.Parameter(torch.ones(2, 2, dtype=dtype))
        worst += refused(adtopk.ArgumentError, ["'w'", str(dtype)], lambda: adt.ADTopkState(model))
    return worst


@case
def refused_by_name():
    """What cannot be exchanged, and what to use instead."""
    class FullyShardedDataParallel(nn.Linear):
        """As FSDP1 is called, which wants GPUs."""

    class ZeroRedundancyOptimizer(torch.optim.SGD):
        """As that of torch is called."""
    argument, model = adtopk.ArgumentError, mlp()
    elsewhere = nn.Linear(2, 2, device="meta")
    return sum([
        refused(argument, ["FullyShardedDataParallel", "fully_shard_hook()"],
                lambda: adt.ADTopkState(nn.Sequential(FullyShardedDataParallel(2, 2)))),
        refused(argument, ["ZeroRedundancyOptimizer", "AdamW"], lambda: adt.DistributedOptimizer(
            ZeroRedundancyOptimizer(model.parameters(), lr=0.1), model)),
        refused(argument, ["'weight' is on meta", "host memory"], lambda: adt.ADTopkState(elsewhere))])


@case
def unfrozen_later():
    """A parameter that is trained only since the state was made is refused, not left out."""
    model = mlp()
    model[0].weight.requires_grad_(False)
    state = adt.ADTopkState(model, policy=SOON)
    model[0].weight.requires_grad_(True)
    ddp = DDP(model)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    worst = refused((RuntimeError, adtopk.Error), ["(64, 20)", "was frozen then"],
                    lambda: plain_steps(ddp, sgd(ddp), batches(1)))
    worst += state.context.step  # nothing was exchanged
    state.close()
    return worst + trains()


@case
def rules_that_match_nothing():
    """A warning names the pattern, once, on the first rank."""
    rules = [{"match": match, "density": 0.5} for match in ("*", "conv*", "weigh?", "w[e]ight", "bias?")]
    model = nn.Linear(4, 3)
    state = adt.ADTopkState(model, policy=json.dumps({**TOPK, "rules": rules}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        state.open()
    state.close()
    found = [str(one.message).split('"')[1] for one in caught if "no parameter's name" in str(one.message)]
    return float(found != ([] if RANK else ["conv*", "w[e]ight", "bias?"]))


@case
def wrong_arguments():
    """What cannot be meant is refused at once, not in the first step or never."""
    model = mlp()
    argument = adtopk.ArgumentError
    new, local = adt.DistributedOptimizer, adt.LocalSteps
    sgd_, other = sgd(model), mlp()
    ddp = DDP(model)
    optimiser = new(sgd_, model)
    infinite = float("inf")
    worst = [refused(argument, [words], make) for words, make in (
        ("every is float", lambda: local(sgd_, model, every=2.5)),
        ("every is str", lambda: local(sgd_, model, every="3")),
        ("outer_lr is inf", lambda: local(sgd_, model, outer_lr=infinite)),
        ("outer_lr is '1'", lambda: local(sgd_, model, outer_lr="1")),
        ("backward_passes_per_step is float", lambda: new(sgd_, model, 1.5)),
        ("backward_passes_per_step is -7", lambda: new(torch.optim.AdamW(model.parameters()), model, -7)),
        ("connect_timeout is '5'", lambda: new(sgd(other), other, connect_timeout="5").job.open()),
        ("step is str", lambda: adt.ADTopkState(model).checkpoint_load("/nowhere", "7")),
        ("an optimiser of torch", lambda: new(model)),
        ("an optimiser of torch", lambda: new(None, model)),
        ("exchanges already", lambda: new(optimiser, model)),
        ("DistributedDataParallel", lambda: new(sgd_, ddp)),
        ("scaler", lambda: new(sgd_, model, scaler=1024.0)),
        ("scaler", lambda: adt.ADTopkState(model, scaler=1024.0)),
        ("no module", lambda: adt.ADTopkState(sgd_)),
        ("no module", lambda: adt.ADTopkState(None)),
        ("policy", lambda: new(sgd_, model, policy={"rules": {1}})),
        ("policy", lambda: adt.ADTopkState(model, policy=b"{}")),
        ("root_rank is 2", lambda: adt.broadcast_parameters(model, root_rank=2)),
        ("root_rank is -1", lambda: adt.broadcast_optimizer_state(sgd_, root_rank=-1)))]
    for make in (adt.ADTopkState, functools.partial(new, sgd_), functools.partial(local, sgd_)):
        for policy in ("{", "[]", 5, "", "[" * 200000, "1" * 5000):
            worst.append(refused(adtopk.PolicyError, ["the policy is "], functools.partial(make, model, policy=policy)))
        for policy, named in (({"densty": 1}, '"densty"; did you mean "density"?'), ('{"densty": 1}', '"densty"'),
                              ({"rules": [{"mtch": "*"}]}, '"mtch"; did you mean "match"?')):
            worst.append(refused(adtopk.PolicyError, ["unknown key " + named],
                                 functools.partial(make, model, policy=policy)))
    optimiser.close()
    return sum(worst)


@case
def broadcasts_of_different_models():
    """Nothing is copied, and all ranks are told."""
    model = mlp()
    values = model.state_dict() if RANK else {name: value for name, value in model.state_dict().items()
                                              if name != "2.bias"}
    return refused(adtopk.MismatchError, ["rank 1", "'2.bias'"], lambda: adt.broadcast_parameters(values))


@case
def extra_states():
    """What a module adds to its state_dict() is rank 1's afterwards, and ranks that have none hear of it."""
    class Counter(nn.Linear):
        seen = None

        def get_extra_state(self):
            return {"seen": self.seen}

        def set_extra_state(self, state):
            self.seen = state["seen"]
    model = nn.Sequential(Counter(4, 3), nn.BatchNorm1d(3))
    model[0].seen = f"rank {RANK}"
    adt.broadcast_parameters(model, root_rank=1)
    other = nn.Sequential(nn.Linear(4, 3) if RANK else Counter(4, 3))
    return float(model[0].seen != "rank 1") + ranks_differ(model) + refused(
        adtopk.MismatchError, ["'0' of extra state"], lambda: adt.broadcast_parameters(other))


@case
def states_are_no_data():
    """A copy of a model, or one that was saved, has nothing of the state, and a warning says what to save."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copied, empty = copy.deepcopy(ddp), pickle.loads(pickle.dumps(state))
        torch.save(ddp, io.BytesIO())
    words = [str(one.message) for one in caught if "backward hook" in str(one.message)
             or "state_dict()" in str(one.message)]
    assert len(words) in (1, 3) and all("state_dict()" in one for one in words), words
    loss_of(copied(batches(1)[0])).backward()
    worst = refused(adtopk.ArgumentError, ["needs an ADTopkState"], lambda: adt.adtopk_hook(empty, None))
    plain_steps(ddp, sgd(ddp), batches(1))
    state.close()
    model = mlp()
    optimiser = adt.DistributedOptimizer(sgd(model), model, policy=DENSE)
    return worst + sum(refused(TypeError, ["state_dict()"], lambda how=how: how(optimiser))
                       for how in (copy.deepcopy, pickle.dumps))


@case
def after_closing():
    """Counts can still be read, and everything else is refused."""
    model = mlp()
    ddp = DDP(model)
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(model), batches(3))
    state.close()
    state.close()
    assert (state.step, state.stats()["steps"]) == (3, 3)
    return refused(adtopk.ReleasedError, ["closed"], state.state_dict) + refused(
        (adtopk.ReleasedError, RuntimeError), ["closed"], lambda: plain_steps(ddp, sgd(model), batches(1)))


@case
def nan_on_one_rank():
    """Where the policy says that NaN ends the job, each rank is told which one pushed it."""
    ddp, bad = DDP(mlp()), batches(1)
    bad[0][0, 0] = float("nan") if RANK else 0
    state = adt.ADTopkState(ddp, policy={**SOON, "non_finite": "reject"})
    ddp.register_comm_hook(state, adt.adtopk_hook)
    worst = refused((RuntimeError, adtopk.Error), ["rank 1 pushed nan", "'4.bias'"],
                    lambda: plain_steps(ddp, sgd(ddp), bad))
    state.close()
    return worst + trains()


@case
def full_disk():
    """A checkpoint that does not fit is refused on all ranks with the reason, and training goes on."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=TOPK)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(2))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tempfile.TemporaryDirectory() as folder:
        if RANK:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        worst = refused(adtopk.Error, [os.strerror(errno.EFBIG) if RANK else "rank 1"],
                        lambda: state.checkpoint_save(folder))
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        worst += bool(os.listdir(folder))
        state.checkpoint_save(folder)
    plain_steps(ddp, sgd(ddp), batches(2))
    state.close()
    return float(worst)


@case
def saved_in_another_way():
    """A rank that could not save says so to all. Nothing can be said in mid-step or after closing."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=TOPK)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    state.checkpoint_saved()
    plain_steps(ddp, sgd(ddp), batches(2))
    worst = refused(adtopk.SystemCallError, ["this rank says that it could not" if RANK else "rank 1"],
                    lambda: state.checkpoint_saved(not RANK))
    state.checkpoint_saved()
    plain_steps(ddp, sgd(ddp), batches(1))
    state.close()
    worst += refused(adtopk.StateError, ["closed"], state.checkpoint_saved)
    model = mlp()
    optimiser = adt.LocalSteps(sgd(model), model, every=2, policy=TOPK)
    for at, batch in enumerate(batches(4)):
        plain_steps(model, optimiser, [batch])
        if at % 2:
            optimiser.job.checkpoint_saved()
        else:
            worst += refused(adtopk.StateError, ["exchange"], optimiser.job.checkpoint_saved)
    optimiser.job.close()
    return float(worst)


@case
def fork_after_opening():
    """A child of a rank gets an exception, and its end does not disturb the rank."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(2))
    child = os.fork()
    if child == 0:
        os._exit(int(refused(adtopk.StateError, ["fork"], state.wait)))
    worst = os.WEXITSTATUS(os.waitpid(child, 0)[1])
    plain_steps(ddp, sgd(ddp), batches(2))
    state.close()
    return worst


@case
def foreign_states():
    """What is no state, or a torn one, is refused by a sentence, and the state that was there stays."""
    model = nn.Linear(4, 3)
    state = adt.ADTopkState(model, policy=DENSE)
    good = state.state_dict()
    worst = 0.0
    for wrong in (None, {}, [], {"format": 2}, {"format": 1},
                  *({key: value for key, value in good.items() if key != left_out}
                    for left_out in ("world_size", "rank", "step", "residuals")),
                  {**good, "residuals": None}, {**good, "residuals": {"weight": "text"}},
                  {**good, "residuals": {"weight": torch.ones(3)}},
                  {**good, "residuals": {"weight": torch.ones(3, 4, dtype=torch.complex64)}},
                  {**good, "residuals": {"another": torch.ones(3, 4)}},
                  {**good, "residuals": {"weight": torch.ones(3, 4) * float("nan")}},
                  {**good, "step": "7"}, {**good, "step": 0.5}, {**good, "step": -1}, {**good, "kept": None},
                  {**good, "kept": {"weight": 1.0}}):
        worst += refused(adtopk.ArgumentError, ["state"],
                         lambda: state.load_state_dict(wrong))  # pylint: disable=cell-var-from-loop
    state.load_state_dict(good)
    return worst


@case
def torn_folders():
    """An empty folder, one that is not there, and one whose files were cut."""
    folder = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(folder)
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(2))
    worst = refused(adtopk.Error, [], lambda: state.checkpoint_save("/nowhere"))
    state.checkpoint_save(folder[0])
    state.close()
    dist.barrier()
    if RANK == 0:
        for name in os.listdir(folder[0]):
            path = os.path.join(folder[0], name)
            os.truncate(path, os.path.getsize(path) // 2)
    dist.barrier()
    for place in (folder[0], "/nowhere"):
        again = adt.ADTopkState(mlp(), policy=DENSE)
        worst += refused(adtopk.Error, ["checkpoint"],
                         lambda: again.checkpoint_load(place))  # pylint: disable=cell-var-from-loop
        again.close()
    dist.barrier()
    if RANK == 0:
        shutil.rmtree(folder[0])
    return worst + trains()


@case
def steps_differ():
    """All ranks are told which one goes on from another step."""
    good = adt.ADTopkState(mlp(), policy=DENSE).state_dict()
    worst = 0.0
    for mine, words in (({**good, "step": 4 + RANK}, ["rank 1 goes on from step 5, and rank 0 from step 4"]),
                        (good if RANK else None, ["rank 1 goes on from step 0, and rank 0 from no checkpoint"])):
        state = adt.ADTopkState(mlp(), policy=SOON)
        if mine is not None:
            state.load_state_dict(mine)
        worst += refused(adtopk.MismatchError, words, state.open)
    worst += refused(adtopk.MismatchError, ["rank 1 goes on from step 3, and rank 0 from step 2"],
                     lambda: adt.ADTopkState(mlp(), policy=SOON).checkpoint_load("/nowhere", 2 + RANK))
    full = adt.ADTopkState(mlp(), policy=DENSE)
    if RANK == 0:
        full.load_state_dict({**good, "rank": None})
    full.open()
    full.close()
    return worst + trains()


@case
def optimisers_differ():
    """Equal means would give other parameters. The ranks that take steps of their own may differ."""
    def one(model, method="gradient", **options):
        given = {"lr": 0.1, **(options if RANK else {})}
        return adt.DistributedOptimizer(torch.optim.SGD(model.parameters(), **given), model, method=method,
                                        policy=DENSE)

    def steps(make, *arguments, **options):
        model = mlp()
        optimiser = make(model, *arguments, **options)
        plain_steps(model, optimiser, batches(2))
        optimiser.close()
        return ranks_differ(model)

    def adam(model):
        kind = torch.optim.AdamW if RANK else torch.optim.Adam
        return adt.DistributedOptimizer(kind(model.parameters(), lr=0.1), model, policy=DENSE)

    def grouped(model):
        groups = [{"params": part.parameters()} for part in ((model,) if RANK else (model[:2], model[2:]))]
        return adt.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), model, policy=DENSE)

    def later(model):
        """As where the first rank loads a state, the job a checkpoint, and then the others get the state."""
        optimiser = one(model, lr=0.2)
        optimiser.job.open()
        optimiser.param_groups[0]["lr"] = 0.3
        return optimiser

    worst = sum(refused(adtopk.MismatchError, ["rank 1 has ", *words], lambda: steps(*what, **options))
                for words, what, options in (
        (["[0]['lr']=0.2, and rank 0 has param_groups[0]['lr']=0.1"], [one], {"lr": 0.2}),
        (["['momentum']=0.9"], [one], {"momentum": 0.9}), (["optimiser='AdamW'", "'Adam':"], [adam], {}),
        (["groups=1"], [grouped], {})))
    worst += steps(one, lr=0.1 + 1e-9) > 1e-6
    worst += steps(later)
    return worst + steps(one, "step", lr=0.2) + trains()


if __name__ == "__main__":
    main(CASES)

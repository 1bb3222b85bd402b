"""One rank of the tests of runs and daemons that are killed: see ddp_cases.py.

usage: restart_cases.py CASE...     $ADTOPK_TEST_FOLDER: where runs leave their checkpoints
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from ddp_cases import (DENSE, RANK, TOPK, add_to, batches, difference, loss_of, main, mlp, plain_steps,
                       refused, sgd)

FOLDER = os.environ.get("ADTOPK_TEST_FOLDER", "")
SAVED = os.path.join(FOLDER, f"model.{RANK}")
CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def start(model, policy=TOPK):
    ddp = DDP(model)
    state = adt.ADTopkState(ddp, policy=policy)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    return ddp, state


def whole():
    """The model after eight steps that nothing disturbed."""
    model = mlp()
    ddp, state = start(model)
    plain_steps(ddp, sgd(model), batches(8))
    state.close()
    return model


def wait_for_test():
    """Tells the test that it may kill, and goes on when it says so."""
    print("waits", flush=True)
    sys.stdin.readline()


@case
def until_killed():
    """Saves after step 4. Rank 0 is in the middle of step 6, and rank 1 before it."""
    model = mlp()
    ddp, state = start(model)
    optimiser, data = sgd(model), batches(8)
    plain_steps(ddp, optimiser, data[:4])
    state.checkpoint_save(FOLDER)
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "step": state.step}, SAVED)
    plain_steps(ddp, optimiser, data[4:6])
    if RANK:
        wait_for_test()
    else:
        print("waits", flush=True)
    plain_steps(ddp, optimiser, data[6:])
    return 1.0


@case
def resumed():
    """The bits are those of the run that nothing disturbed."""
    model, saved = mlp(), torch.load(SAVED)
    optimiser = sgd(model)
    model.load_state_dict(saved["model"])
    optimiser.load_state_dict(saved["optimiser"])
    ddp, state = start(model)
    state.checkpoint_load(FOLDER, saved["step"])
    plain_steps(ddp, optimiser, batches(8)[4:])
    assert state.step == 8
    state.close()
    return difference(whole(), model)


@case
def daemon_comes_back():
    """Rank 0 waits in the middle of step 4 when its daemon is killed. Another daemon takes it on."""
    expected, model = whole(), mlp()
    ddp, state = start(model)
    optimiser, data = sgd(model), batches(8)
    plain_steps(ddp, optimiser, data[:4])
    if RANK:
        wait_for_test()
    else:
        print("waits", flush=True)
    plain_steps(ddp, optimiser, data[4:])
    state.close()
    return difference(expected, model)


@case
def daemon_stays_away():
    """The daemon of rank 0 is killed for good while that rank waits. Each rank is told what is wrong."""
    model = mlp()
    ddp, state = start(model, {**DENSE, "push_timeout": 20})
    plain_steps(ddp, sgd(model), batches(2))
    if RANK:
        wait_for_test()
    else:
        print("waits", flush=True)
    try:
        for batch in batches(3):  # node 1 may have all that it needs for the first one
            loss_of(ddp(batch)).backward()
    except (RuntimeError, adtopk.Error) as problem:
        print(str(problem).splitlines()[0], flush=True)
        os._exit(3)
    return 1.0


class Balance:
    """What ranks pushed of a weight, and what updates brought of it, each in the mean of the ranks."""

    def __init__(self, weight):
        self.weight = weight
        self.pushed, self.applied = torch.zeros(weight.shape), torch.zeros(weight.shape)

    def train(self, ddp, data):
        own = torch.zeros(self.weight.shape)
        handle = self.weight.register_hook(lambda gradient: add_to(own, gradient))
        for batch in data:
            ddp.zero_grad()
            loss_of(ddp(batch)).backward()
            self.applied += self.weight.grad
        handle.remove()
        dist.all_reduce(own)
        self.pushed += own / dist.get_world_size()

    def missing(self, state):
        """The share that is neither applied nor in a residual."""
        residual = state.state_dict(full=True)["residuals"]["2.weight"] / dist.get_world_size()
        assert residual.abs().max() > 0
        return ((self.pushed - self.applied - residual).abs().max() / self.pushed.abs().max()).item()


@case
def saves():
    """Leaves checkpoints of both kinds."""
    model = mlp()
    ddp, state = start(model)
    balance = Balance(model[2].weight)
    balance.train(ddp, batches(4))
    worst = balance.missing(state)
    state.checkpoint_save(FOLDER)
    saved = {"state": state.state_dict(full=True), "pushed": balance.pushed, "applied": balance.applied}
    if RANK == 0:
        torch.save(saved, os.path.join(FOLDER, "saved"))
    own = state.state_dict()
    other = adt.ADTopkState(model)
    worst += refused(adtopk.ArgumentError, ["state_dict(full=True)", "checkpoint_save()"],
                     lambda: other.load_state_dict({**own, "world_size": 7}))
    state.close()
    return worst


def goes_on(load, policy=TOPK):
    """A run of another size, with what was saved: nothing is lost, and nothing counts twice."""
    model, saved = mlp(), torch.load(os.path.join(FOLDER, "saved"))
    ddp, state = start(model, policy)
    load(state, saved["state"])
    assert state.step == 4
    balance = Balance(model[2].weight)
    balance.pushed, balance.applied = saved["pushed"], saved["applied"]
    balance.train(ddp, batches(3))
    assert state.step == 7
    worst = balance.missing(state)
    state.close()
    return worst


@case
def goes_on_from_a_dictionary():
    return goes_on(lambda state, saved: state.load_state_dict(saved))


@case
def goes_on_from_a_folder():
    def load(state, saved):
        found = state.checkpoint_load(FOLDER, saved["step"])
        assert (found.world_size, found.exact) == (saved["world_size"], False), found
    return goes_on(load)


@case
def sums_are_not_scaled():
    """Where updates are sums, a residual is what it is in any world."""
    saved = torch.load(os.path.join(FOLDER, "saved"))["state"]
    for reduce, factor in (("sum", 1), ("mean", dist.get_world_size() / saved["world_size"])):
        state = adt.ADTopkState(mlp(), policy={"reduce": reduce})
        state.load_state_dict(saved)
        found = state._restored.parts
        assert set(found) == (set(saved["residuals"]) if RANK == 0 else set())
        assert all(torch.equal(part, saved["residuals"][name] * factor) for name, part in found.items())
    return 0.0


if __name__ == "__main__":
    main(CASES)

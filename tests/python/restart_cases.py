"""One rank of the tests of runs and daemons that are killed: see ddp_cases.py.

usage: restart_cases.py CASE...     $ADTOPK_TEST_FOLDER: where runs leave their checkpoints
"""
import os
import sys

import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk
import adtopk.torch as adt
from ddp_cases import DENSE, RANK, TOPK, batches, difference, loss_of, main, mlp, plain_steps, sgd

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


if __name__ == "__main__":
    main(CASES)

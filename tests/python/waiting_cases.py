"""One rank of the tests of waits that end: rank 1 does nothing, and rank 0 waits for it until a signal comes.

usage: waiting_cases.py CASE     as ddp_cases.py
"""
import os
import sys
import tempfile
import time

from torch.nn.parallel import DistributedDataParallel as DDP

import adtopk.torch as adt
from ddp_cases import DENSE, RANK, batches, loss_of, main, mlp, plain_steps, sgd

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def hooked(steps):
    """A model that has trained so far, and the state of its hook."""
    ddp = DDP(mlp())
    state = adt.ADTopkState(ddp, policy=DENSE)
    ddp.register_comm_hook(state, adt.adtopk_hook)
    plain_steps(ddp, sgd(ddp), batches(steps))
    return ddp, state


def waits(call):
    """Rank 0 makes the call alone, and says when it ended."""
    print("waits", flush=True)
    if RANK == 1:
        sys.stdin.read()
        os._exit(0)
    try:
        call()
    except BaseException:
        print(time.monotonic(), flush=True)
        raise
    return 1.0


@case
def backward():
    ddp, _ = hooked(2)  # the second step rebuilds the buckets, over gloo
    return waits(lambda: loss_of(ddp(batches()[0])).backward())


@case
def forward():
    """The optimiser's step() returns, and the next forward pass waits for its updates."""
    model = mlp()
    optimiser = adt.DistributedOptimizer(sgd(model), model, overlap="forward",
                                         policy={**DENSE, "non_finite": "propagate"})
    plain_steps(model, optimiser, batches(2))
    return waits(lambda: plain_steps(model, optimiser, batches(2)))


@case
def first_backward():
    ddp, _ = hooked(0)
    loss = loss_of(ddp(batches()[0]))
    return waits(loss.backward)


@case
def constructor():
    model = mlp()
    return waits(lambda: adt.DistributedOptimizer(sgd(model), model, policy=DENSE))


@case
def checkpoint():
    _, state = hooked(2)
    with tempfile.TemporaryDirectory() as folder:
        return waits(lambda: state.checkpoint_save(folder))


if __name__ == "__main__":
    main(CASES)

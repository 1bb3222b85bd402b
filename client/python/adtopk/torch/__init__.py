"""adtopk for PyTorch: a communication hook of DistributedDataParallel, and optimisers that exchange.

    import adtopk.torch as adt

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = adt.ADTopkState(ddp)
    ddp.register_comm_hook(state, adt.adtopk_hook)

From then on the daemon exchanges the gradients instead of the process group. Or without DDP:

    optimiser = adt.DistributedOptimizer(torch.optim.AdamW(model.parameters()), model)

which takes the method that fits the optimiser. client/python/README.md
says what it does in each of DDP's modes, and what it refuses.
"""
from ._hook import adtopk_hook
from ._local import LocalSteps
from ._methods import LearningWarning
from ._optimiser import DistributedOptimizer
from ._sharded import ShardedState, fully_shard_hook
from ._share import broadcast_optimizer_state, broadcast_parameters
from ._state import ADTopkState

__all__ = ["ADTopkState", "DistributedOptimizer", "LearningWarning", "LocalSteps", "ShardedState",
           "adtopk_hook", "broadcast_optimizer_state", "broadcast_parameters", "fully_shard_hook"]

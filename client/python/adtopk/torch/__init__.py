"""adtopk for PyTorch: a communication hook of DistributedDataParallel.

    import adtopk.torch as adt

    ddp = torch.nn.parallel.DistributedDataParallel(model)
    state = adt.ADTopkState(ddp)
    ddp.register_comm_hook(state, adt.adtopk_hook)

From then on the daemon exchanges the gradients instead of the process group. client/python/README.md
says what it does in each of DDP's modes, and what it refuses.
"""
from ._hook import adtopk_hook
from ._state import ADTopkState

__all__ = ["ADTopkState", "adtopk_hook"]

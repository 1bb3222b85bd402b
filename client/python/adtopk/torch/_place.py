"""Joins a job, and chooses where its gradients and updates lie.

Parameters in host memory: there. Parameters on a GPU: beside them where the daemon keeps residuals on
GPUs, else in host memory, with copies. Ranks of a job may differ in that. But they tell each other:
where no rank reads dense updates in host memory, the daemons need not make these.
"""
import warnings
from typing import Any, List, Optional, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._abi import Status
from .._context import Context
from . import _cuda
from ._arena import ArenaPlacement
from ._copies import CopyPlacement
from ._placement import HostPlacement


def join(group: Any, device: torch.device, **options: Any) -> Tuple[Context, HostPlacement]:
    """Opens a context. All ranks of the group call it. device: that of this rank's parameters."""
    if device.type == "cpu":
        context = Context(**options)
        return context, HostPlacement(context)
    gpu = _cuda.Gpu(device)
    opened: Optional[Context] = None
    failure: Optional[errors.Error] = None
    why = None
    try:
        opened = Context(**options)
        why = _why_not_beside(opened, gpu)
    except errors.Error as problem:
        failure = problem
    found: List[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, (failure and str(failure), why is None), group=group)
    if opened is None or failure is not None or any(theirs for theirs, _ in found):
        if opened is not None:
            opened.close()
        raise failure or _failure_of_another(found)
    if why is None:
        return opened, ArenaPlacement(opened, gpu, all(beside for _, beside in found))
    warnings.warn(f"gradients on {device} are copied through host memory: {why}", stacklevel=4)
    return opened, CopyPlacement(opened, gpu)


def _why_not_beside(context: Context, gpu: _cuda.Gpu) -> Optional[str]:
    """Why gradients cannot lie beside the parameters; None: they can."""
    try:
        with gpu.current():
            context.check_device()
    except (errors.ArgumentError, errors.SystemCallError) as problem:
        return str(problem)
    return None


def _failure_of_another(found: List[Any]) -> errors.Error:
    rank, (failure, _) = next((rank, theirs) for rank, theirs in enumerate(found) if theirs[0])
    return errors.make(Status.PEER, f"rank {rank} did not join: {failure}")

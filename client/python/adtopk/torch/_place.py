"""Joins a job, and chooses where its gradients and updates lie.

Parameters in host memory: there. Parameters on a GPU: beside them where the daemon keeps residuals on
GPUs, else in host memory, with copies. Ranks of a job may differ in that.
"""
from typing import Any, List, Optional, Tuple

import torch

from .. import errors
from .._abi import Status
from .._context import Context
from .._warn import warn
from . import _cuda, _group
from ._arena import ArenaPlacement
from ._copies import CopyPlacement
from ._placement import HostPlacement


def join(group: Any, device: torch.device, **options: Any) -> Tuple[Context, HostPlacement]:
    """Opens a context. All ranks of the group call it. device: that of this rank's parameters.

    Where a rank cannot open its own, all ranks raise an error at once, with that one's reason.
    """
    gpu = _cuda.Gpu(device) if device.type != "cpu" else None
    opened: Optional[Context] = None
    failure: Optional[errors.Error] = None
    why = None
    try:
        opened = Context(**options)
        why = _why_not_beside(opened, gpu) if gpu is not None else None
    except errors.Error as problem:
        failure = problem
    try:
        try:
            found = _group.gather(failure and str(failure), group)
        except RuntimeError as problem:  # of torch: another rank has ended, perhaps because of this one
            raise failure or problem
        if opened is None or failure is not None or any(found):
            raise failure or _failure_of_another(found)
    except BaseException:
        if opened is not None:
            opened.close()
        raise
    if gpu is None:
        return opened, HostPlacement(opened)
    if why is None:
        return opened, ArenaPlacement(opened, gpu)
    warn(f"gradients on {device} are copied through host memory: {why}")
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
    rank, failure = next((rank, theirs) for rank, theirs in enumerate(found) if theirs)
    return errors.make(Status.PEER, f"rank {rank} did not join: {failure}")

"""Residuals in checkpoints: which rank keeps which, and how they come back.

A residual is a part of the gradients that no update has brought yet. It comes back as a part of a
gradient: the first one that a rank pushes after loading. So applied updates and residuals together
are what was pushed, before and after.
"""
import hashlib
import socket
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._abi import Status
from .._context import checked_number
from ..errors import ArgumentError
from .._tensor import Tensor
from . import _group

FORMAT = 1


class Loaded(NamedTuple):
    """What a rank goes on from."""
    step: int
    whole: bool  # one rank's is enough


def check_steps(group: Any, loaded: Optional[Loaded], kind: str) -> None:
    """Raises MismatchError on every rank if the ranks of the group go on from different steps, or have
    their parameters on different kinds of devices."""
    told = _group.gather((loaded, kind), group)
    found = [theirs for theirs, _ in told]
    for rank, (_, theirs) in enumerate(told):
        if theirs != told[0][1]:
            raise errors.make(Status.MISMATCH, f"rank {rank} has its parameters on a device of type {theirs},"
                              f" and rank 0 on one of type {told[0][1]}: use one type on all ranks")
    given = [(rank, one) for rank, one in enumerate(found) if one is not None]
    if not all(one.whole for _, one in given):
        given = list(enumerate(found))
    for rank, one in given:
        if (one and one.step) != (given[0][1] and given[0][1].step):
            raise errors.make(Status.MISMATCH, f"rank {rank} goes on from {_words(one)}, and rank"
                              f" {given[0][0]} from {_words(given[0][1])}: load checkpoints of one step")


def _words(loaded: Optional[Loaded]) -> str:
    return "no checkpoint" if loaded is None else f"step {loaded.step}"


def own_residuals(group: Any, tensors: Sequence[Tensor], daemon: str) -> Dict[str, torch.Tensor]:
    """The residuals that this rank is to keep, by name. All ranks of the group call it.

    Ranks of a node read the same residual, and the first of them keeps it. Where each rank has its
    own (scope rank), each keeps its own.
    """
    place = (socket.gethostname(), daemon)
    residuals = {tensor.name: torch.from_numpy(tensor.residual()) for tensor in tensors}
    digests = {name: hashlib.sha256(part.numpy().tobytes()).digest() for name, part in residuals.items()}
    found = _group.gather((place, digests), group)
    earlier = [theirs for at, theirs in found[:dist.get_rank(group)] if at == place]
    return {name: part for name, part in residuals.items()
            if not any(theirs[name] == digests[name] for theirs in earlier)}


def gather(group: Any, own: Dict[str, torch.Tensor],
           shapes: Dict[str, Tuple[int, ...]], device: torch.device) -> Dict[str, torch.Tensor]:
    """The sum of the residuals of all nodes, on every rank. device: on which the group can add."""
    total = {}
    for name, shape in shapes.items():
        part = own.get(name)
        one = (torch.zeros(shape, dtype=torch.float32) if part is None else part.clone()).to(device)
        _group.add_up(one, group)
        total[name] = one.cpu()
    return total


def check(saved: Any, rank: int, world: int, shapes: Dict[str, Tuple[int, ...]],
          means: bool, method: str) -> Dict[str, torch.Tensor]:
    """The residuals that this rank takes from what was saved. Refuses what is not its own.

    means: updates are means over the ranks. Then a residual of another number of ranks is scaled, so
    that it moves parameters as far as it would have.
    """
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise ArgumentError(f"this is no state of adtopk.torch in format {FORMAT}")
    missing = [key for key in ("world_size", "rank", "step", "residuals") if key not in saved]
    if missing or not isinstance(saved["residuals"], dict):
        raise ArgumentError(f"the state is torn: it has no {(missing or ['residuals'])[0]}")
    if saved.get("method", method) != method:
        raise ArgumentError(f'the state has residuals of the method "{saved["method"]}", and here it is'
                            f' "{method}": steps and gradients differ in scale; go on without the state')
    before = saved["world_size"]
    if not isinstance(before, int) or before < 1:
        raise ArgumentError(f"the state is torn: its world_size is {before!r}")
    checked_number("the state's step", saved["step"], 0, 2**63)
    kept = saved.get("kept", {})
    if not isinstance(kept, dict) or not all(isinstance(one, torch.Tensor) for one in kept.values()):
        raise ArgumentError("the state is torn: what it has as `kept` are no tensors by name")
    if before != world and saved["rank"] is not None:
        raise ArgumentError(f"the state is that of {before} ranks, and there are {world} now: save with"
                            " state_dict(full=True), or with checkpoint_save(), to go on with others")
    if saved["rank"] is not None and saved["rank"] != rank:
        raise ArgumentError(f"the state is that of rank {saved['rank']}, and this is rank {rank}: save and"
                            " load one on each rank, or use state_dict(full=True)")
    for name, part in saved["residuals"].items():
        if not isinstance(part, torch.Tensor) or part.dtype != torch.float32:
            raise ArgumentError(f"the state has no float32 tensor as the residual of '{name}'")
        if tuple(part.shape) != shapes.get(name):
            raise ArgumentError(f"the state has a residual of shape {tuple(part.shape)} for '{name}', which"
                                f" is {shapes.get(name, 'no parameter')} in the model")
        if not part.isfinite().all():
            raise ArgumentError(f"the state has NaN or Inf in the residual of '{name}': load an earlier one")
    if saved["rank"] is None and rank != 0:
        return {}
    factor = world / before if means else 1.0
    return {name: part if factor == 1.0 else part * factor for name, part in saved["residuals"].items()}


class Restored:
    """Residuals that were loaded, until accepted steps have taken them in."""

    def __init__(self) -> None:
        self.parts: Dict[str, torch.Tensor] = {}
        self._after: Dict[str, Optional[torch.Tensor]] = {}  # what is left if the step is accepted

    def add(self, name: str, gradient: torch.Tensor, scale: float) -> torch.Tensor:
        """The gradient with what was loaded for it: what is to be pushed."""
        part = self.parts.get(name)
        if part is None:
            return gradient
        flat = gradient.reshape(-1)
        part = part.to(gradient.device)
        sent = (flat.float() + part.reshape(-1) * scale).to(gradient.dtype)
        # What 16 bits cut off comes with a later gradient. What they cannot hold waits as well.
        sent = torch.where(sent.isfinite(), sent, flat)
        left = None
        if gradient.dtype != torch.float32:
            left = part - ((sent.float() - flat.float()) / scale).reshape(part.shape)
            left = torch.where(left.isfinite(), left, part)
        self._after[name] = left.cpu() if left is not None and bool(left.any()) else None
        return sent

    def settle(self, accepted: bool) -> None:
        """At the end of a step: one that was withdrawn has taken in nothing."""
        if accepted:
            for name, left in self._after.items():
                self.parts.pop(name)
                if left is not None:
                    self.parts[name] = left
        self._after = {}

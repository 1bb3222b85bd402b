"""Equal parameters and optimiser states on all ranks."""
import itertools
from typing import Any, Iterable, Mapping, Tuple, Union

import torch
import torch.distributed as dist

from .. import errors
from .._abi import Status
from .._context import checked_number
from ..errors import ArgumentError
from . import _group, _run

Named = Iterable[Tuple[str, torch.nn.Parameter]]
Tensors = Union[torch.nn.Module, Mapping[str, Any], Iterable[Tuple[str, Any]]]


EXTRA = "_extra_state"  # the end of a key in state_dict()


def _has_extra_state(module: torch.nn.Module) -> bool:
    """Whether the module's class gives its state_dict() something besides parameters and buffers."""
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def check_same(named: Iterable[Tuple[str, Any]], process_group: Any = None) -> None:
    """Raises MismatchError on every rank if the ranks do not have the same parameters.

    The daemon would say so as well, but gloo would have mixed up their values before.
    """
    own = [(name, tuple(parameter.shape), str(parameter.dtype)) if isinstance(parameter, torch.Tensor) else
           (name, (), "extra state") for name, parameter in named]
    found = _group.gather(own, process_group)
    for rank, theirs in enumerate(found):
        for first, other in itertools.zip_longest(found[0], theirs):
            if first != other:
                raise errors.make(Status.MISMATCH, f"rank {rank} has {_words(other)}, and rank 0 has"
                                  f" {_words(first)}: give all ranks the same model")


def check_options(own: Mapping[str, Any], process_group: Any = None) -> None:
    """Raises MismatchError on every rank if the ranks do not have the same options."""
    found = _group.gather(dict(own), process_group)
    for rank, theirs in enumerate(found):
        for name in {**found[0], **theirs}:
            if theirs.get(name) != found[0].get(name):
                raise errors.make(Status.MISMATCH, f"rank {rank} has {name}={theirs.get(name)!r}, and rank 0"
                                  f" has {name}={found[0].get(name)!r}: give all ranks the same")


def _words(described: Any) -> str:
    if described is None:
        return "no more parameters"
    name, shape, dtype = described
    return f"parameter '{name}' of {dtype} and shape {shape}"


def _root(process_group: Any, root_rank: int) -> int:
    """The number of the root among all processes."""
    last = dist.get_world_size(process_group) - 1
    return _run.global_rank(process_group, checked_number("root_rank", root_rank, 0, last))


def broadcast_parameters(parameters: Tensors, root_rank: int = 0, process_group: Any = None) -> None:
    """Gives every rank the values of the rank `root_rank` of the group.

    parameters: a module, with its buffers and the extra states of its modules; a state_dict; or pairs of
    names and tensors. MismatchError on all ranks if theirs are not the same ones.
    """
    extra = {}
    if isinstance(parameters, torch.nn.Module):
        extra = {name: part for name, part in parameters.named_modules() if _has_extra_state(part)}
        parameters = {name: value for name, value in parameters.state_dict(keep_vars=True).items()
                      if name.rpartition(".")[0] not in extra or name.rpartition(".")[2] != EXTRA}
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    root = _root(process_group, root_rank)
    for name, value in pairs:
        if not isinstance(value, torch.Tensor):
            raise ArgumentError(f"'{name}' is {type(value).__name__}, not a tensor")
    check_same([*pairs, *extra.items()], process_group)
    states = {name: part.get_extra_state() for name, part in extra.items()}
    for name, state in (_group.share(states, root, process_group) if extra else {}).items():
        extra[name].set_extra_state(state)
    for _, value in pairs:
        dense = value.detach().contiguous()
        # As bytes, because not every gloo has bfloat16 or bool.
        _group.broadcast(dense.view(-1).view(torch.uint8), root, process_group)
        value.detach().copy_(dense)


def broadcast_optimizer_state(optimiser: torch.optim.Optimizer, root_rank: int = 0,
                              process_group: Any = None) -> None:
    """Gives every rank the state and the options of the optimiser of the rank `root_rank`."""
    root = _root(process_group, root_rank)
    found = _group.share(optimiser.state_dict() if dist.get_rank() == root else None, root, process_group)
    if dist.get_rank() != root:
        optimiser.load_state_dict(found)

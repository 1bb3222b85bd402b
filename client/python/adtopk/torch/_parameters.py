"""Parameters as adtopk registers them: their names, shapes and types, and which models are refused."""
import collections
import hashlib
import math
from typing import AbstractSet, Any, Dict, Iterable, Iterator, List, Mapping, Tuple

import torch

from .._abi import MAX_DIMS, DType, Form
from ..errors import ArgumentError
from . import _cuda

WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")  # parts of names that wrappers add
MAX_NAME = 127
DTYPES = {torch.float32: DType.F32, torch.float16: DType.F16, torch.bfloat16: DType.BF16}
TORCH_TYPES = {ours: theirs for theirs, ours in DTYPES.items()}


def plain_name(name: str) -> str:
    """The name without the parts that wrappers add, and short enough: policies match it."""
    return _short(".".join(part for part in name.split(".") if part not in WRAPPERS) or name)


def _short(name: str) -> str:
    if len(name.encode()) <= MAX_NAME:
        return name
    tail = "#" + hashlib.sha256(name.encode()).hexdigest()[:16]
    head = name.encode()[:MAX_NAME - len(tail)].decode("utf-8", "ignore")
    return head + tail


def memory_shape(parameter: torch.Tensor) -> Tuple[int, ...]:
    """The shape in which the elements of the gradient lie in DDP's buckets.

    A channels_last weight [O, I, h, w] lies as [O, h, w, I], and a fibre is a row along I. So it is
    registered as [O * h * w, I], where axis 1 is I again.
    """
    shape = tuple(parameter.shape) or (1,)
    if parameter.is_contiguous() or parameter.dim() < 2:
        found = shape
    elif parameter.stride(1) == 1 and _is_dense(parameter) and _by_stride(parameter)[-1] == 1:
        found = (parameter.numel() // shape[1], shape[1])
    elif _is_dense(parameter):
        found = tuple(shape[axis] for axis in _by_stride(parameter))
    else:
        found = shape  # DDP lays such gradients out anew
    if len(found) > MAX_DIMS:
        found = found[:MAX_DIMS - 1] + (math.prod(found[MAX_DIMS - 1:]),)
    return found


def _by_stride(tensor: torch.Tensor) -> List[int]:
    """The axes of more than one element, outermost in memory first."""
    axes = [axis for axis in range(tensor.dim()) if tensor.shape[axis] != 1]
    return sorted(axes, key=lambda axis: -tensor.stride(axis)) or [0]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill a stretch of memory, each once."""
    expected = 1
    for axis in reversed(_by_stride(tensor) if tensor.dim() else []):
        if tensor.shape[axis] != 1 and tensor.stride(axis) != expected:
            return False
        expected *= tensor.shape[axis]
    return True


def layout(parameter: torch.Tensor) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """What decides where each element lies in the row that flat() makes: the shape, and the strides of axes
    that have any. No strides where the row has the elements in the order of the axes."""
    shape = tuple(parameter.shape)
    if parameter.is_contiguous() or not _is_dense(parameter):
        return shape, ()
    return shape, tuple(stride for size, stride in zip(shape, parameter.stride()) if size > 1)


def forms(dtype: DType) -> Form:
    """Updates come in the parameter's own type, so that nothing is lost by rounding them. Those of f32 are
    lists: all elements are written from a list in less time than they are copied."""
    return Form.LIST if dtype == DType.F32 else Form.DENSE16


def label(model: Any) -> str:
    """The name of a model's job if none is given: that of its class, also inside torch.compile()."""
    return type(getattr(model, "_orig_mod", model)).__name__


def inside(module: torch.nn.Module) -> torch.nn.Module:
    """The module in a DistributedDataParallel."""
    return module.module if isinstance(module, torch.nn.parallel.DistributedDataParallel) else module


def refuse_model(module: torch.nn.Module, ignored: AbstractSet[str] = frozenset()) -> None:
    """Refuses models whose gradients this hook cannot exchange, and says what to use instead. ignored:
    parameters that DistributedDataParallel leaves out."""
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"the model is no module of torch, but {type(module).__name__}")
    for name, part in inside(module).named_modules():
        kind = type(part).__name__
        if kind == "FullyShardedDataParallel" or kind.startswith("FSDP"):
            raise ArgumentError(f"module '{name}' is of {kind}, which cuts parameters into shards:"
                                " use DistributedDataParallel, or fully_shard_hook() with FSDP2")
        sparse = isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) and part.sparse
        if sparse and f"{name}.weight" not in ignored:
            raise ArgumentError(f"module '{name}' has sparse gradients: make it with sparse=False, and"
                                " adtopk sends the rows that matter")
    if getattr(module, "mixed_precision", None) is not None:
        raise ArgumentError("DistributedDataParallel with mixed_precision= has a hook of its own: use"
                            " torch.autocast, or parameters in bfloat16")


def checked_device(named: Mapping[str, torch.Tensor]) -> torch.device:
    """The device of all registered parameters. Refuses those on several, or on one of another kind."""
    first = None
    for name, parameter in named.items():
        device = _cuda.device_of(parameter)
        first = first or (name, device)
        if device.type not in ("cpu", "cuda"):
            raise ArgumentError(f"parameter '{name}' is on {device}: adtopk exchanges gradients of parameters"
                                " in host memory and on CUDA's GPUs")
        if device != first[1]:
            raise ArgumentError(f"parameter '{name}' is on {device}, and '{first[0]}' on {first[1]}: the"
                                " gradients of a rank lie in one kind of memory, on one device")
    if first is None:
        raise ArgumentError("the model has no parameter to train")
    return first[1]


def registrations(named: Iterable[Tuple[str, torch.nn.Parameter]]
                  ) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """Yields the name and parameter of everything to register: trained, and not empty."""
    trained = [(name, one) for name, one in named if one.requires_grad and one.numel()]
    plain = collections.Counter(plain_name(name) for name, _ in trained)
    seen: Dict[str, str] = {}
    for name, parameter in trained:
        if parameter.dtype not in DTYPES:
            raise ArgumentError(f"parameter '{name}' is of {parameter.dtype}: adtopk exchanges float32,"
                                " float16 and bfloat16; freeze it, or keep it out of the model")
        # A part of the model may have the name of a wrapper.
        own = plain_name(name) if plain[plain_name(name)] == 1 else _short(name)
        if own in seen:
            raise ArgumentError(f"parameters '{seen[own]}' and '{name}' are both called '{own}'")
        seen[own] = name
        yield own, parameter


def flat(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The values, which have the parameter's shape, in one row as memory_shape() orders them.

    It shares the memory of the values where these lie so already, as gradients normally do.
    """
    values = values.detach()
    if not _is_dense(parameter):
        return values.contiguous().view(-1)
    if not (_is_dense(values) and values.stride() == parameter.stride()):
        ordered = torch.empty_strided(tuple(parameter.shape), parameter.stride(), dtype=values.dtype,
                                      device=values.device)
        values = ordered.copy_(values)
    return values.as_strided((values.numel(),), (1,), values.storage_offset())


def unflat(parameter: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    """The other way: the row as a tensor of the parameter's shape."""
    if not _is_dense(parameter):
        return row.view(parameter.shape)
    return row.as_strided(tuple(parameter.shape), parameter.stride())

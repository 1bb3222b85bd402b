"""Operations of a process group. Ctrl-C ends their waits, which it does not do for torch's own ones.

An operation that was left so goes on in the group without its caller. Other operations of the group would be
mixed up with it, so the program is to end then.
"""
import pickle
import time
from typing import Any, List

import torch
import torch.distributed as dist

from .._context import LONG_S
from .._warn import warn

LONGEST_PAUSE = 0.005  # seconds


def finish(work: Any) -> None:
    """Waits for an operation that was begun with async_op=True."""
    pause, began, told = 1e-5, time.monotonic(), False
    while work is not None and not work.is_completed():
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
        if not told and time.monotonic() - began >= LONG_S:
            told = True
            warn(f"this rank has waited {LONG_S} s for the others: all ranks make this call, such as"
                 " state_dict() or the first step")
    if work is not None:
        work.wait()  # raises what went wrong


def broadcast(values: torch.Tensor, root: int, group: Any) -> None:
    """root: the number among all processes."""
    finish(dist.broadcast(values, root, group=group, async_op=True))


def add_up(values: torch.Tensor, group: Any) -> None:
    """In place, over all ranks of the group."""
    finish(dist.all_reduce(values, group=group, async_op=True))


def gather(value: Any, group: Any) -> List[Any]:
    """What every rank of the group gave, by rank."""
    own = _packed(value, group)
    sizes = [torch.zeros(1, dtype=torch.int64, device=own.device) for _ in range(dist.get_world_size(group))]
    finish(dist.all_gather(sizes, torch.tensor([own.numel()], device=own.device), group=group, async_op=True))
    room = own.new_zeros(int(max(sizes)))
    room[:own.numel()] = own
    parts = [torch.empty_like(room) for _ in sizes]
    finish(dist.all_gather(parts, room, group=group, async_op=True))
    return [_unpacked(part[:int(size)]) for part, size in zip(parts, sizes)]


def share(value: Any, root: int, group: Any) -> Any:
    """What the rank gave whose number among all processes is root."""
    own = _packed(value if dist.get_rank() == root else None, group)
    size = torch.tensor([own.numel()], device=own.device)
    broadcast(size, root, group)
    room = own if dist.get_rank() == root else own.new_zeros(int(size))
    broadcast(room, root, group)
    return _unpacked(room)


def _packed(value: Any, group: Any) -> torch.Tensor:
    """The value's bytes, where the group can send them."""
    device = f"cuda:{torch.cuda.current_device()}" if dist.get_backend(group) == "nccl" else "cpu"
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


def _unpacked(room: torch.Tensor) -> Any:
    return pickle.loads(room.cpu().numpy().tobytes())

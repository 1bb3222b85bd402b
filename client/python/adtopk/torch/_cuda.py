"""The calls of torch.cuda that the package makes, and no others. Tests put a stand-in here.

A copy, an update and an event go into the stream that is current in the calling thread. Memory that
torch frees is used again in the order of its stream. So what is queued here may be freed at once.
"""
import contextlib
from typing import Any, Dict, Iterator, Optional

import torch

from .. import errors
from .._abi import Verdict

TYPES = {torch.float32: "<f4", torch.float16: "<f2", torch.bfloat16: "<i2", torch.int32: "<i4"}


def device_of(tensor: torch.Tensor) -> torch.device:
    """Where the elements of a tensor lie."""
    return tensor.device


class _Memory:
    """What torch needs to make a tensor over an address on a GPU."""

    def __init__(self, address: int, numel: int, kind: str):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (numel,), "typestr": kind,
                                         "strides": None, "version": 2}


class Gpu:
    """The GPU that has a job's parameters."""

    def __init__(self, device: torch.device):
        self.device = device
        self._words: Dict[int, torch.Tensor] = {}  # of verdicts, by their addresses
        self._one, self._nan = (torch.tensor(value, device=device) for value in (1.0, float("nan")))

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Within it the device's primary context is that of the calling thread."""
        with torch.cuda.device(self.device):
            torch.cuda.current_stream().query()  # CUDA 11 makes the context current at the first call
            yield

    def stream(self) -> int:
        """The handle of the thread's current stream."""
        return int(torch.cuda.current_stream(self.device).cuda_stream)

    def synchronize(self) -> None:
        """Waits for all streams."""
        torch.cuda.synchronize(self.device)

    def event(self) -> Any:
        """What has synchronize(), to wait for everything that the stream was given so far."""
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def future(self) -> "torch.futures.Future[Any]":
        """A future whose value is complete when the stream is that completes it."""
        return torch.futures.Future(devices=[self.device])

    # ---- memory

    def at(self, address: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor over memory that the device can reach. torch would copy memory that it takes for another
        device's, and nobody writes to the copy."""
        raw = torch.as_tensor(_Memory(address, numel, TYPES[dtype]), device=self.device)
        if numel and raw.data_ptr() != address:
            raise errors.SystemCallError(
                f"torch takes memory of {self.device} at {address:#x} for another device's")
        return raw if raw.dtype == dtype else raw.view(dtype)

    def pinned(self, size: int) -> torch.Tensor:
        """So many bytes of host memory, to and from which copies are asynchronous."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    # ---- in the stream

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> None:
        """Copies elements between the device and pinned memory, or on the device."""
        into.copy_(source, non_blocking=True)

    def factor(self, verdict: Verdict) -> torch.Tensor:
        """1 where the verdict is right when the stream gets here, else NaN."""
        right = verdict.right - (1 << 32) if verdict.right >> 31 else verdict.right
        if verdict.word not in self._words:
            self._words[verdict.word] = self.at(verdict.word, 1, torch.int32).reshape(())
        return torch.where(self._words[verdict.word] == right, self._one, self._nan)

    def take(self, into: torch.Tensor, update: torch.Tensor, factor: Optional[torch.Tensor]) -> None:
        """Writes an update, which is right, or NaN where the factor is. x * 1 has the bits of x."""
        if factor is None:
            into.copy_(update)
        else:
            torch.mul(update, factor, out=into)

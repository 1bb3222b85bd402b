"""Parameters on a GPU, where the daemon works in host memory: gradients and updates are copied.

The current stream copies gradients into pinned memory. A thread pushes them when the stream has done
that, so the backward pass goes on meanwhile. Updates are copied back in the current stream.
"""
import functools
import queue
import threading
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence

import numpy
import torch

from .._abi import DType
from .._context import Context
from .._tensor import Tensor, Update
from . import _parameters
from ._cuda import Gpu
from ._methods import Reach
from ._placement import HostPlacement, Row, memory_of
from ._shift import shift

LINE = 64  # bytes: each row begins at a multiple


class Behind:
    """A thread that makes calls in order, each behind an event of the GPU. After a call that fails it
    makes no other one, and add() and finish() raise what went wrong.
    """

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._queue: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run, name="adtopk-push", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._gpu.current():  # else CUDA would make a context on the first GPU
            for event, call in iter(self._queue.get, None):
                self._after(event, call)

    def _after(self, event: Any, call: Callable[[], None]) -> None:
        if event is None:
            call()
        elif self._failure is None:
            try:
                event.synchronize()
                call()
            except BaseException as problem:  # pylint: disable=broad-exception-caught
                self._failure = problem

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def add(self, event: Any, call: Callable[[], None]) -> None:
        """Makes the call when the event has happened."""
        self._check()
        self._queue.put((event, call))

    def finish(self) -> None:
        """Waits until all calls were made."""
        done = threading.Event()
        self._queue.put((None, done.set))
        done.wait()
        self._check()

    def close(self) -> None:
        """Ends the thread, after the calls that it has."""
        self._queue.put(None)
        self._thread.join()


class CopyPlacement(HostPlacement):
    """gpu: the parameters'. The daemon's own memory is not pinned, because another daemon, which takes its
    place after a restart, brings other memory to the same addresses.
    """

    is_far_ahead = True  # all elements of the residuals come from host memory in each step

    def __init__(self, context: Context, gpu: Gpu):
        super().__init__(context)
        self._gpu = gpu
        self._behind = Behind(gpu)
        # In pinned memory, by the number of the tensor: its gradient until the push, then its update.
        self._rows: List[torch.Tensor] = []
        self._copied: Dict[int, Any] = {}  # events: the last update was copied to the device

    def committed(self) -> None:
        tensors = self._context.tensors
        room = self._gpu.pinned(sum(_lines(tensor) for tensor in tensors))
        for tensor in tensors:
            row, room = room[:_size(tensor)], room[_lines(tensor):]
            self._rows.append(row.view(_parameters.TORCH_TYPES[tensor.dtype]))

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        return self._gpu.future()

    def push(self, gradients: Iterable[Row], scale: float) -> None:
        copied = []
        with torch.no_grad():
            for tensor, gradient in gradients:
                self._gpu.copy(self._rows[tensor.number], memory_of(gradient))
                copied.append(tensor)
        if copied:
            self._behind.add(self._gpu.event(), functools.partial(self._push, copied, scale))

    def _push(self, tensors: Iterable[Tensor], scale: float) -> None:
        for tensor in tensors:
            tensor.push_address(self._rows[tensor.number].data_ptr(), scale)

    def end(self) -> None:
        self._behind.add(self._gpu.event(), super().end)

    def wait(self) -> bool:
        self._behind.finish()
        return super().wait()

    def wait_for(self, tensor: Tensor) -> bool:
        self._behind.finish()
        return super().wait_for(tensor)

    def write(self, places: Sequence[Row]) -> List[bool]:
        for event in {self._copied[tensor.number] for tensor, _ in places if tensor.number in self._copied}:
            event.synchronize()  # at once, unless this rank pushes nothing and so waits for nothing
        pushed = self._context.copy_updates(
            [(tensor, self._rows[tensor.number].data_ptr()) for tensor, _ in places])
        with torch.no_grad():
            for (tensor, into), has in zip(places, pushed):
                if has:
                    self._gpu.copy(memory_of(into), self._rows[tensor.number])
        self._copied.update(dict.fromkeys((tensor.number for tensor, _ in places), self._gpu.event()))
        return pushed

    def look_ahead(self, row: Row, ahead: torch.Tensor, reach: Reach) -> bool:
        tensor, here = row
        update = tensor.update()
        if update.pending is None:
            return False
        if tensor.number in self._copied:
            self._copied[tensor.number].synchronize()
        _take_pending(update, self._rows[tensor.number].numpy().reshape(tensor.shape))
        pending = torch.empty_like(here)
        self._gpu.copy(pending, self._rows[tensor.number])
        self._copied[tensor.number] = self._gpu.event()
        shift(here, pending, reach, update.lookahead, ahead)
        return True

    def close(self) -> None:
        self._behind.close()
        super().close()


def _take_pending(update: Update, values: numpy.ndarray) -> None:
    """Writes what updates lack, in their units."""
    if update.pending_dtype == DType.BF16:
        numpy.left_shift(update.pending, 16, out=values.view(numpy.uint32), dtype=numpy.uint32)
        values *= numpy.float32(update.pending_scale)
    else:
        numpy.multiply(update.pending, numpy.float32(update.pending_scale), out=values)


def _size(tensor: Tensor) -> int:
    return tensor.numel * (4 if tensor.dtype == DType.F32 else 2)


def _lines(tensor: Tensor) -> int:
    return (_size(tensor) + LINE - 1) // LINE * LINE

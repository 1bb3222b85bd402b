"""Gradients and updates on the GPU that has the parameters, where the daemon keeps residuals on GPUs.

A push is a copy on the device and a word, both in the current stream. The stream waits for the updates,
too, and multiplies them by 1, or by NaN if the step was withdrawn or the job has failed. So the host
waits for nothing but the step before, when it pushes again.
"""
from typing import Dict, Iterable, List, Sequence

import torch

from .. import errors
from .._abi import DType, Form, Memory
from .._context import Context
from .._tensor import Tensor
from . import _parameters
from ._cuda import Gpu
from ._methods import Reach
from ._placement import HostPlacement, Row, memory_of
from ._shift import shift

STEP = -1  # in place of a tensor's number


class ArenaPlacement(HostPlacement):
    """gpu: the parameters'."""

    streams_wait = True

    def __init__(self, context: Context, gpu: Gpu):
        super().__init__(context)
        self._gpu = gpu
        self._updates: List[torch.Tensor] = []         # on the device, by the number of their tensors
        self._factors: Dict[int, torch.Tensor] = {}    # of updates for which a stream waits
        self._unseen: List[Tensor] = []                # whose updates no host has seen
        self._pushed = False  # in this step
        self._pending: Dict[int, torch.Tensor] = {}  # what updates lack, by the number of the tensor
        # By the number of the tensor: what the limit leaves of its shift, on the device; and what the host
        # knows of that, which is of a step before.
        self._left, self._told = torch.empty(0), torch.empty(0)

    def register(self, name: str, shape: Sequence[int], dtype: DType, forms: Form) -> Tensor:
        with self._gpu.current():
            return self._context.register(name, shape, dtype, forms | Form.DEVICE, Memory.CUDA)

    def committed(self) -> None:
        for tensor in self._context.tensors:
            narrow = tensor.forms & Form.DENSE16
            dtype = _parameters.TORCH_TYPES[tensor.dtype] if narrow else torch.float32
            self._updates.append(self._gpu.at(tensor.device_update or 0, tensor.numel, dtype))
            pending = tensor.device_pending
            if pending is not None:
                self._pending[tensor.number] = self._gpu.at(pending, tensor.numel, torch.float32)
        if self._pending:
            self._left = torch.ones(len(self._updates), device=self._updates[0].device)
            self._told = self._gpu.pinned(4 * len(self._updates)).view(torch.float32).fill_(1)

    def future(self) -> "torch.futures.Future[torch.Tensor]":
        return self._gpu.future()

    def push(self, gradients: Iterable[Row], scale: float) -> None:
        stream = self._gpu.stream()
        for tensor, gradient in gradients:
            tensor.push_address(gradient.data_ptr(), scale, stream)
            self._pushed = True

    # ---- looking ahead

    def look_ahead(self, row: Row, ahead: torch.Tensor, reach: Reach) -> bool:
        tensor, here = row
        share = tensor.update().lookahead if tensor.number in self._pending else 0.0
        tensor.tell_ahead(share * float(self._told[tensor.number]) if share else 0.0)
        if share:
            pending = torch.empty_like(here)
            self._gpu.take(pending, self._pending[tensor.number], None)
            self._left[tensor.number] = shift(here, pending, reach, share, ahead)
        return share > 0

    # ---- waiting

    def _end(self) -> None:
        """Updates of the last step may change as soon as this one ends. A push of this step comes
        behind the kernels that read them. Without one the host waits for these kernels."""
        if not self._pushed:
            self._gpu.synchronize()
        self._pushed = False
        self._ended = True

    def end(self) -> None:
        self._end()
        super().end()

    def wait(self) -> bool:
        if not self._ended:
            self._end()
        accepted = super().wait()
        if self._pending:  # pushes of the next step come behind the copy
            self._gpu.copy(self._told, self._left)
        self._factors.clear()
        unseen, self._unseen = self._unseen, []
        if accepted:
            for tensor in unseen:
                self._is_there(tensor)
        return accepted

    def wait_in_stream(self) -> None:
        self._end()
        self._factors[STEP] = self._gpu.factor(self._context.step_wait_stream(self._gpu.stream()))

    def wait_for(self, tensor: Tensor) -> bool:
        self._factors[tensor.number] = self._gpu.factor(tensor.wait_stream(self._gpu.stream()))
        return True

    # ---- updates

    def _is_there(self, tensor: Tensor) -> bool:
        """Whether some rank has pushed the tensor. StateError if its update is not on the device."""
        update = tensor.update()
        if update.unpushed:
            return False
        if update.device_dense is None and update.device_dense16 is None:
            raise errors.StateError(f"the update of '{tensor.name}' in step {update.step} came from another"
                                    " node, after members of the job had changed, and is not on the GPU: go"
                                    " on from a checkpoint")
        return True

    def write(self, places: Sequence[Row]) -> List[bool]:
        pushed = []
        with torch.no_grad():
            for tensor, into in places:
                factor = self._factors.get(tensor.number, self._factors.get(STEP))
                pushed.append(factor is not None or self._is_there(tensor))
                if factor is not None:
                    self._unseen.append(tensor)
                if pushed[-1]:
                    self._gpu.take(memory_of(into), self._updates[tensor.number], factor)
        return pushed

    def close(self) -> None:
        super().close()
        self._updates.clear()
        self._pending.clear()

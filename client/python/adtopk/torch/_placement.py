"""Where gradients and updates of a job lie: here in host memory, as the parameters do.

A placement is made for one job. What its class does not say, the rest of adtopk.torch does not know.
"""
import contextlib
from typing import Any, Iterable, List, Sequence, Tuple

import torch

from .. import errors
from .._abi import DType, Form
from .._context import GOODBYE_MS, Context
from .._tensor import Tensor
from ._methods import Reach

LEAVE_SECONDS = 10.0  # how long close() waits for the last step
LIST_SHARE = 8        # a list of more than one element in so many is applied no faster than all elements
LIST_BLOCK = 1 << 15  # entries that are computed in the caches

Row = Tuple[Tensor, torch.Tensor]


def memory_of(values: torch.Tensor) -> torch.Tensor:
    """The elements as they follow one another in memory: those of gradients, which leave no gaps."""
    return values.detach().as_strided((values.numel(),), (1,))


class HostPlacement:
    """Gradients are copied into the daemon's memory, updates out of it, by the calling thread."""

    streams_wait = False    # whether wait_in_stream() can stand for wait()
    is_far_ahead = False    # looking ahead costs so much that a program has to ask for it

    def __init__(self, context: Context):
        self._context = context
        self._ended = False  # and wait() was not called yet

    def register(self, name: str, shape: Sequence[int], dtype: DType, forms: Form) -> Tensor:
        """Registers a parameter with the forms of updates that wait() and write() need."""
        return self._context.register(name, shape, dtype, forms)

    def committed(self) -> None:
        """The tensors have their memory."""

    def future(self) -> "torch.futures.Future[Any]":
        """What DDP waits for."""
        return torch.futures.Future()

    def push(self, gradients: Iterable[Row], scale: float) -> None:
        """Hands over elements that lie in memory as each tensor was registered."""
        for tensor, gradient in gradients:
            tensor.push_address(gradient.data_ptr(), scale)

    def end(self) -> None:
        """Ends the step, without waiting for it."""
        self._ended = True
        self._context.step_end()

    def wait(self) -> bool:
        """Ends the step if end() or wait_in_stream() did not, and waits. False: it was withdrawn."""
        accepted = self._context.step_wait()
        self._ended = False
        return accepted

    def wait_in_stream(self) -> None:
        """Ends the step, and has the current stream wait. What write() then writes is NaN if the step is
        withdrawn. The host still calls wait(), before the next step's push."""
        raise NotImplementedError

    def wait_for(self, tensor: Tensor) -> bool:
        """Waits for the update of one tensor that this rank has pushed, so that write() can write it.
        False: as wait(). A stream that waits takes NaN in that case."""
        return tensor.wait()

    def write(self, places: Sequence[Row]) -> List[bool]:
        """Copies updates. False in place of one: no rank pushed it, and nothing was copied."""
        return self._context.copy_updates([(tensor, into.data_ptr()) for tensor, into in places])

    def apply_sgd(self, tensor: Tensor, row: torch.Tensor, rate: float) -> bool:
        """Plain SGD on parameters in host memory. False: the update is no short list, and nothing was
        changed."""
        update = tensor.update()
        index, value = update.index, update.value
        if update.unpushed or index is None or value is None or update.count > row.numel() // LIST_SHARE:
            return False
        elements = row.numpy()
        for begin in range(0, update.count, LIST_BLOCK):
            at = index[begin:begin + LIST_BLOCK]
            part = torch.from_numpy(value[begin:begin + LIST_BLOCK])
            # torch computes it, so that ranks whose optimiser takes the step itself get the same bits.
            elements[at] = torch.from_numpy(elements[at]).add_(part, alpha=-rate).numpy()
        row[:0].zero_()  # so that torch knows of the change
        return True

    def look_ahead(self, row: Row, ahead: torch.Tensor, reach: Reach) -> bool:
        """Writes into `ahead` where the next gradients of these parameters are taken, between two steps. The
        second moment is a row, too. False: they are taken here."""
        tensor, here = row
        arrays = [None if one is None else one.numpy().reshape(tensor.shape)
                  for one in (here, ahead, reach.second_moment)]
        tensor.lookahead(arrays[0], arrays[1], reach.rate, arrays[2], reach.correction, reach.epsilon)
        return True

    def close(self) -> None:
        """Before the context is closed. May be repeated."""
        if self._ended and not self._context.closed:  # a rank that leaves in mid-step ends the job
            with contextlib.suppress(errors.Error):
                self._context.step_wait(GOODBYE_MS / 1000 if self._context.interrupted else LEAVE_SECONDS)

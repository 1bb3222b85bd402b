"""adtopk for Python: sparse gradient exchange through the daemon of this node.

    import adtopk

    with adtopk.open(job="example") as context:
        w = context.register("w", parameters.shape)
        context.commit()
        context.broadcast(parameters)
        for batch in batches:
            w.push(gradient(parameters, batch))
            if context.step_wait():
                parameters -= rate * w.update().dense

The functions are those of adtopk.h, which explains them in full. Every failure raises the exception
of its status (adtopk.errors). Updates and gradients are views that cannot outlive their memory.
"""
from . import _library
from ._abi import DType, Form, Memory, Status
from ._context import Checkpoint, Context, Members
from ._tensor import Tensor, Update
from ._view import View
from .errors import (ArgumentError, DeniedError, Error, Interrupted, LimitError, LostError,
                     MismatchError, NonFinite, OutOfMemoryError, PeerError, Pending, PolicyError,
                     ProtocolError, ReleasedError, StateError, SystemCallError, UnreachableError)

__version__ = "0.1.0"

F32, F16, BF16 = DType.F32, DType.F16, DType.BF16
LIST, DENSE, DENSE16, PENDING = Form.LIST, Form.DENSE, Form.DENSE16, Form.PENDING
DEVICE = Form.DEVICE
DEVICE_LIST = Form.DEVICE_LIST


open = Context  # pylint: disable=redefined-builtin  # it joins a job as one rank


def version() -> str:
    """The version of the loaded library's interface."""
    return str(_library.load().adtopk_version().decode())


def status_name(status: int) -> str:
    """A short constant name of a status code, such as "mismatch"."""
    return str(_library.load().adtopk_status_name(int(status)).decode())


__all__ = ["ArgumentError", "BF16", "Checkpoint", "Context", "DENSE", "DENSE16", "DEVICE", "DEVICE_LIST",
           "DType", "DeniedError", "Error", "F16", "F32", "Form", "Interrupted", "LIST", "LimitError",
           "LostError", "Members", "Memory", "MismatchError", "NonFinite", "OutOfMemoryError", "PENDING",
           "PeerError", "Pending", "PolicyError", "ProtocolError", "ReleasedError", "StateError", "Status",
           "SystemCallError", "Tensor", "UnreachableError", "Update", "View", "open", "status_name",
           "version"]

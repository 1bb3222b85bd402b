"""Tensors, and the updates of steps."""
import ctypes
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import numpy

from ._abi import (INTERRUPTED, OK, DeviceList, DType, Form, LookaheadSpec, Memory, PushSpec, RawUpdate,
                   Verdict)
from ._view import View
from .errors import ArgumentError, ReleasedError, StateError

MaybeView = Any  # a View, or None: a program knows what it has asked for, and type checkers do not

if TYPE_CHECKING:
    from ._context import Context

# numpy has no bfloat16: such elements are given and taken as their bits.
NUMPY_TYPES: Dict[DType, "numpy.dtype[Any]"] = {
    DType.F32: numpy.dtype(numpy.float32), DType.F16: numpy.dtype(numpy.float16),
    DType.BF16: numpy.dtype(numpy.uint16)}


def checked_array(what: str, given: Any, dtype: Optional["numpy.dtype[Any]"],
                  shape: Optional[Tuple[int, ...]], writable: bool = False) -> numpy.ndarray:
    """The array that was given, whose memory a C function may use: right type and shape, contiguous.

    dtype and shape: None allows every one."""
    if not isinstance(given, numpy.ndarray):
        raise ArgumentError(f"{what} is no numpy array but {type(given).__name__}")
    if dtype is not None and (given.dtype != dtype or not given.dtype.isnative):
        raise ArgumentError(f"{what} has elements of type {given.dtype}, not {dtype}")
    if shape is not None and given.shape != shape:
        raise ArgumentError(f"{what} has the shape {given.shape}, not {shape}")
    if not given.flags.c_contiguous:
        raise ArgumentError(f"{what} is not contiguous: numpy.ascontiguousarray() makes it so")
    if writable and not given.flags.writeable:
        raise ArgumentError(f"{what} is read-only")
    return given


class Update:
    """The result of a step for one tensor: its sum, or mean, over all ranks.

    Its arrays are views of shared memory. They are dead, and raise ReleasedError, when the rank
    pushes, ends or waits for the next step, and after close(). Copy what you want to keep.
    """

    def __init__(self, tensor: "Tensor", raw: RawUpdate, late: bool):
        self._tensor = tensor
        self._raw = raw
        self._late = late  # of the last step, read while the next one is open
        self._pushes = tensor._pushes
        self._ends = tensor._context._ends

    def _check(self, write: bool) -> None:
        context = self._tensor._context
        context._check_open()
        if self._late:
            dead = (self._pushes, self._ends) != (self._tensor._pushes, context._ends)
        else:
            dead = self._raw.step < context._floor
        if dead:
            raise ReleasedError(f"the update of tensor '{self._tensor.name}' of step {self._raw.step}"
                                " was released: a later step has begun, or the step was withdrawn")

    def _view(self, address: Optional[int], shape: Tuple[int, ...], dtype: Any) -> Optional[View]:
        self._check(False)
        if address is None:
            return None
        return View(self._tensor._context._gate, self._check, address, shape, dtype)

    @property
    def tensor(self) -> "Tensor":
        """The tensor that it is an update of."""
        return self._tensor

    @property
    def step(self) -> int:
        """The step whose update this is."""
        return int(self._raw.step)

    @property
    def unpushed(self) -> bool:
        """Whether no rank of the job pushed the tensor in this step; then the update is empty."""
        return bool(self._raw.unpushed)

    @property
    def count(self) -> int:
        """Entries of the list, 0 without one."""
        return int(self._raw.count)

    @property
    def dense(self) -> MaybeView:
        """All elements in f32. None: not asked for, or dense16 has them."""
        return self._view(self._raw.dense, self._tensor.shape, numpy.float32)

    @property
    def index(self) -> MaybeView:
        """Indices into the flat tensor, each once. None: not asked for, or the tensor was sent dense."""
        return self._view(self._raw.index, (self.count,), numpy.uint32)

    @property
    def value(self) -> MaybeView:
        """The values at `index`."""
        return self._view(self._raw.value, (self.count,), numpy.float32)

    @property
    def dense16(self) -> MaybeView:
        """All elements in the tensor's own type. None: the form DENSE16 was not asked for."""
        return self._view(self._raw.dense16, self._tensor.shape, NUMPY_TYPES[self._tensor.dtype])

    @property
    def device_dense(self) -> Optional[int]:
        """Address on the tensor's GPU of all elements in f32. None: the form DEVICE was not asked for,
        device_dense16 has them, or this update is in host memory only (adtopk.h)."""
        self._check(False)
        return self._raw.device_dense

    @property
    def device_dense16(self) -> Optional[int]:
        """The same in the tensor's own type, with the form DENSE16."""
        self._check(False)
        return self._raw.device_dense16

    @property
    def device_index(self) -> Optional[int]:
        """Address on the GPU of `count` indices, with the form DEVICE_LIST. None: take all elements."""
        self._check(False)
        return self._raw.device_index

    @property
    def device_value(self) -> Optional[int]:
        """The same of the values at `device_index`."""
        self._check(False)
        return self._raw.device_value

    @property
    def pending(self) -> MaybeView:
        """What no update has brought yet, times `pending_scale`, of type `pending_dtype`. Or None."""
        return self._view(self._raw.pending, self._tensor.shape, NUMPY_TYPES[self.pending_dtype])

    @property
    def pending_dtype(self) -> DType:
        return DType(self._raw.pending_dtype)

    @property
    def pending_scale(self) -> float:
        return float(self._raw.pending_scale)

    @property
    def lookahead(self) -> float:
        """The share of `pending` by which Tensor.lookahead() shifts."""
        return float(self._raw.lookahead)

    def apply_sgd(self, parameters: numpy.ndarray, learning_rate: float) -> None:
        """Plain SGD on f32 parameters, in place: by the list if there is one, else all elements."""
        array = checked_array("parameters", parameters, NUMPY_TYPES[DType.F32], None, True)
        if array.size != self._raw.numel:
            raise ArgumentError(f"{array.size} parameters for tensor '{self._tensor.name}', which has"
                                f" {self._raw.numel} elements")
        context = self._tensor._context
        with context._gate.use():
            self._check(False)
            context._library.adtopk_apply_sgd(array.ctypes.data, ctypes.byref(self._raw),
                                              float(learning_rate))

    def __repr__(self) -> str:
        return f"<adtopk.Update of '{self._tensor.name}' in step {self.step}>"


class Tensor:
    """A registered tensor. Context.register() makes it."""

    def __init__(self, context: "Context", number: int, name: str, shape: Tuple[int, ...],
                 dtype: DType, forms: Form, memory: Memory = Memory.HOST):
        self._context = context
        self._pushes = 0
        self._pushed = -1  # the step in which it was pushed last
        self._begun = -1  # the step in which a push over tcp:// was interrupted; a part may have been sent
        self._spec = PushSpec(tensor=number, memory=memory)  # one for all pushes: making one takes long
        self.number = number
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.forms = forms
        self.memory = memory
        self.numel = int(numpy.prod(shape, dtype=object))

    def __repr__(self) -> str:
        return f"<adtopk.Tensor {self.number} '{self.name}', {self.dtype.name} {self.shape}>"

    def _check_gradient(self, write: bool) -> None:
        self._context._check_open()
        if write and self._pushed == self._context.step:
            raise StateError(f"the gradient of tensor '{self.name}' was pushed, and may not be written"
                             " until step_wait()")
        if write and self._begun == self._context.step:
            raise StateError(f"a push of tensor '{self.name}' was interrupted: push it again, or end the"
                             " step, before you write its gradient")

    @property
    def is_pushed(self) -> bool:
        """Whether this rank has pushed it in the step that is open, or waits for its end."""
        return self._pushed == self._context._number

    def _check_host(self, what: str) -> None:
        if self.memory != Memory.HOST:
            raise ArgumentError(f"the gradient of tensor '{self.name}' is on a GPU: {what} takes gradients in"
                                " host memory; use gradient_address and push_address()")

    @property
    def gradient_address(self) -> int:
        """Where the gradient lies, in this process or on the GPU, until close(). Nothing guards it."""
        return self._context._gradient_address(self)

    @property
    def gradient(self) -> View:
        """The memory of the gradient, shared with the daemon. Write it and push() without an array."""
        self._check_host("`gradient`")
        return View(self._context._gate, self._check_gradient, self.gradient_address, self.shape,
                    NUMPY_TYPES[self.dtype], True)

    def _as_pushed(self, gradient: Any) -> numpy.ndarray:
        """The array to push: of the tensor's shape and type, perhaps not contiguous."""
        array = numpy.asarray(gradient)
        if self.dtype == DType.BF16 and array.dtype.name == "bfloat16" and array.itemsize == 2:
            array = array.view(numpy.uint16)
        wanted = NUMPY_TYPES[self.dtype]
        if array.dtype != wanted or not array.dtype.isnative:
            raise ArgumentError(f"the gradient of tensor '{self.name}' has elements of type"
                                f" {array.dtype}, not {wanted}")
        if array.shape != self.shape:
            raise ArgumentError(f"the gradient of tensor '{self.name}' has the shape {array.shape},"
                                f" not {self.shape}")
        return array

    def push(self, gradient: Any = None, scale: float = 1.0) -> None:
        """Hands over this step's gradient, and does not wait for the exchange.

        gradient: an array of the tensor's shape and type; bf16 as its bits (uint16). It is copied
        before the call returns. None: it was written into `gradient` already. scale: the loss scale,
        the same in all pushes of a step on all ranks. The first push of a step releases the
        updates of the step before.
        """
        self._check_host("push()")
        if gradient is None:
            self._push(None, scale)
            return
        array = self._as_pushed(gradient)
        if not array.flags.c_contiguous:
            array = numpy.ascontiguousarray(array)
        self._push(array.ctypes.data, scale)

    def push_address(self, address: Optional[int], scale: float = 1.0, stream: int = 0) -> None:
        """push() of the elements at an address in the tensor's kind of memory. Nothing checks that they
        are there. None: they lie where the tensor's gradient does.

        stream: of the GPU, the one that writes them (memory.h).
        """
        self._spec.stream = stream
        self._push(address, scale)

    def tell_ahead(self, share: float) -> None:
        """Says of later pushes by which share of `device_pending` the parameters were shifted at which their
        gradients were taken, from 0 to 1. Operators see it."""
        self._spec.lookahead = share

    def _push(self, address: Optional[int], scale: float) -> None:
        if not hasattr(scale, "__float__") or not scale > 0:
            raise ArgumentError(f"the loss scale of tensor '{self.name}' is {scale}, and must be"
                                " from 2^-126 to 2^126")
        context, spec, before = self._context, self._spec, self._pushed
        spec.gradient, spec.scale = address, scale
        self._pushed = step = context._release()
        self._pushes += 1
        told = [INTERRUPTED]
        try:
            while told[-1] == INTERRUPTED:  # Python has handled the signal
                context._call("adtopk_push", ctypes.byref(spec), told=told)
        finally:
            if told[-1] != OK:
                self._pushed = before
            if told[-1] == INTERRUPTED and context._is_remote:
                self._begun = step

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until the tensor's update of this step is there.

        True: update() has it, but apply it for good only when step_wait() was True. False: a
        gradient had NaN or Inf. timeout in seconds: Pending is raised when it is over.
        """
        return self._context._wait("adtopk_wait_for", self.number, timeout=timeout)

    def wait_stream(self, stream: int) -> Verdict:
        """Has a stream of the GPU wait for the tensor's update of this step (stream.h). Does not wait."""
        verdict = Verdict()
        self._context._checked("adtopk_wait_stream", self.number, stream, ctypes.byref(verdict))
        return verdict

    @property
    def device_update(self) -> Optional[int]:
        """The address on the GPU at which updates appear, the same in every step. None: no form DEVICE."""
        return self._context._asked("adtopk_device_update", self.number)

    @property
    def device_pending(self) -> Optional[int]:
        """The address on the GPU of what updates lack, the same in every step (stream.h). None: the forms
        PENDING and DEVICE were not asked for, or the daemon is of an earlier version."""
        return self._context._asked("adtopk_device_pending", self.number)

    def device_list(self) -> DeviceList:
        """The addresses on the GPU at which lists appear, the same in every step (stream.h)."""
        found = DeviceList()
        self._context._checked("adtopk_device_list", self.number, ctypes.byref(found))
        return found

    def update(self) -> Update:
        """The update of the last step, or after wait() of the open one."""
        raw = RawUpdate()
        context = self._context
        with context._gate.use():
            context._checked("adtopk_update", self.number, ctypes.byref(raw))
            return Update(self, raw, raw.step < context._floor)

    def residual(self, out: Optional[numpy.ndarray] = None) -> numpy.ndarray:
        """A copy of this node's residual: what was not sent yet. Between two steps only."""
        if out is None:
            out = numpy.empty(self.shape, numpy.float32)
        array = checked_array("out", out, NUMPY_TYPES[DType.F32], self.shape, True)
        with self._context._kept(array):
            self._context._wait("adtopk_residual_for", self.number, array.ctypes.data)
        return array

    def lookahead(self, parameters: numpy.ndarray, shifted: numpy.ndarray, rate: float,
                  second_moment: Optional[numpy.ndarray] = None, correction: float = 1.0,
                  epsilon: float = 0.0) -> None:
        """Writes into `shifted` the parameters at which the next gradient is taken.

        The tensor needs the form PENDING. deploy/learning.md explains it, adtopk.h each argument.
        """
        f32 = NUMPY_TYPES[DType.F32]
        arrays = [checked_array("parameters", parameters, f32, self.shape),
                  checked_array("shifted", shifted, f32, self.shape, True)]
        if second_moment is not None:
            arrays.append(checked_array("second_moment", second_moment, f32, self.shape))
        if any(numpy.may_share_memory(shifted, other) for other in (arrays[0], *arrays[2:])):
            raise ArgumentError("`shifted` must have memory of its own")
        spec = LookaheadSpec(parameters=arrays[0].ctypes.data, shifted=arrays[1].ctypes.data,
                             rate=rate)
        if second_moment is not None:
            spec.second_moment = arrays[2].ctypes.data
            spec.correction, spec.epsilon = correction, epsilon
        self._context._checked("adtopk_lookahead", self.number, ctypes.byref(spec))

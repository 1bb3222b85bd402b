"""A rank's connection to its daemon."""
import atexit
import contextlib
import ctypes
import functools
import json
import math
import numbers
import os
import sys
import threading
import time
import warnings
import weakref
from types import TracebackType
from typing import (Any, Callable, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple,
                    Type, Union, cast)

import numpy

from . import _library, errors
from ._abi import (INTERRUPTED, MAX_DIMS, OK, DType, Form, Memory, Options, RawCheckpoint, RawMembers,
                   RawUpdate, Status, TensorSpec, Verdict)
from ._tensor import NUMPY_TYPES, Tensor, checked_array
from ._view import Gate
from ._warn import warn, warn_of_variables
from .errors import ArgumentError, ReleasedError, StateError

SLICE_MS = 100  # a wait looks for signals this often
GOODBYE_MS = 200  # how long a rank that leaves after Ctrl-C waits for its daemon
LONG_S = 60     # after which a wait is worth a warning
CONNECT_MS = 10000  # the default of connect_timeout_ms, as adtopk.h says
MAX_INT = 2**31 - 1
NO_ERRORS = frozenset(map(int, (Status.OK, Status.NONFINITE, Status.PENDING, Status.INTERRUPTED)))

_contexts: "weakref.WeakSet[Context]" = weakref.WeakSet()


class _Beside(threading.Thread):
    """A call that cannot wait in slices. It has a thread of its own, so that Ctrl-C ends the wait for it."""

    def __init__(self, key: Any, call: Callable[[], Any]):
        super().__init__(name="adtopk-call", daemon=True)
        self.key = key
        self._made = call
        self._over = threading.Event()
        self._result: Any = None
        self._problem: Optional[BaseException] = None

    def run(self) -> None:
        try:
            self._result = self._made()
        except BaseException as problem:  # pylint: disable=broad-exception-caught
            self._problem = problem
        self._over.set()

    @property
    def over(self) -> bool:
        """Whether the call has returned."""
        return self._over.is_set()

    def result(self) -> Any:
        """What the call returned, or the exception that it raised. An exception of a signal handler ends
        the wait, and the call goes on."""
        if self.ident is None:
            self.start()
        while not self._over.wait(SLICE_MS / 1000):
            pass
        if self._problem is not None:
            raise self._problem
        return self._result


def _signals_come() -> bool:
    """Whether this thread handles signals, and may wait for another one."""
    return threading.current_thread() is threading.main_thread()


def _ends_by_ctrl_c() -> bool:
    """Whether Ctrl-C ends what this thread does, or has ended the program."""
    kind = sys.exc_info()[0]
    if kind is None and not hasattr(sys, "ps1"):  # a prompt keeps the last exception, and goes on
        kind = getattr(sys, "last_type", None)
    return kind is not None and issubclass(kind, KeyboardInterrupt)


class Members(NamedTuple):
    """The ranks that take part in the next step: struct adtopk_members."""
    ranks: int   # how many
    lost: int    # how many of the world do not
    place: int   # this rank's among them
    root: int    # the lowest of them that took part in the step before
    joined: int  # the step from which those that joined last take part; 0: none joined


class Checkpoint(NamedTuple):
    """What checkpoint_load() has loaded."""
    step: int        # steps that were done when it was saved, those of runs before included
    world_size: int  # ranks that took part in the job that saved it
    exact: bool      # same ranks and nodes: every residual is as it was, bit for bit


def _after_fork() -> None:
    """In a forked child the parent's contexts and views are dead, and it has none of the parent's threads,
    which were perhaps in a call, or in the middle of using a view."""
    for context in list(_contexts):
        context._forked = True
        context._inside = set()
        context._running = None
        context._gate.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _note_ctrl_c() -> None:
    """For contexts that nobody closes: before their turn comes, Python forgets what has ended the program."""
    if _ends_by_ctrl_c():
        for context in list(_contexts):
            context._interrupted = True


def _text(name: str, value: Optional[str]) -> Optional[bytes]:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is {type(value).__name__}, not str")
    if not value or "\0" in value:
        raise ArgumentError(f"{name} is empty or has a NUL character")
    return value.encode("utf-8", "surrogateescape")


def _folder(folder: "Union[str, os.PathLike[str]]") -> bytes:
    return cast(bytes, _text("folder", os.fspath(folder)))


def checked_number(name: str, value: Any, low: int, high: int = MAX_INT) -> int:
    """The whole number that was given, if it lies between these."""
    try:
        number = value.__index__()
    except AttributeError:
        raise ArgumentError(f"{name} is {type(value).__name__}, not int") from None
    if not low <= number <= high:
        raise ArgumentError(f"{name} is {number}, and must be from {low} to {high}")
    return int(number)


def _deadline(timeout: Optional[float]) -> Optional[float]:
    """When a wait is over; None: never."""
    if timeout is None:
        return None
    if not isinstance(timeout, numbers.Real) or timeout != timeout:
        raise ArgumentError(f"timeout is {timeout!r}, and must be seconds or None")
    return time.monotonic() + float(timeout) if timeout < MAX_INT else None


def policy_text(policy: Any) -> str:
    """The policy as JSON."""
    try:
        return policy if isinstance(policy, str) else json.dumps(policy, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ArgumentError(f"the policy cannot be written as JSON: {problem}") from None


def _milliseconds(name: str, seconds: Optional[float]) -> int:
    """0 for None, which means the default."""
    if seconds is None:
        return 0
    if not isinstance(seconds, numbers.Real) or not 0 <= seconds <= MAX_INT / 1000:
        raise ArgumentError(f"{name} is {seconds!r}, and must be seconds, at least 0")
    return max(1, math.ceil(seconds * 1000))


def _dtype(given: Any) -> DType:
    """A DType of its own name, of a numpy type, or itself."""
    if isinstance(given, DType):
        return given
    if isinstance(given, str) and given.upper() in DType.__members__:
        return DType[given.upper()]
    name = getattr(given, "name", None) or getattr(given, "__name__", None) or str(given)
    known = {"float32": DType.F32, "float16": DType.F16, "bfloat16": DType.BF16}
    if name not in known:
        raise ArgumentError(f"elements of type {name}: gradients are f32, f16 or bf16")
    return known[name]


class Context:
    """One rank of a job, from joining to close(). Use it in a with statement.

    Every argument left None takes the default of adtopk.h: the launcher's variables for rank, world
    size and run id, and the daemon of this node. policy: a JSON text or what json.dumps() takes.
    connect_timeout and answer_timeout in seconds; a connect_timeout of 0 does not wait. first_step:
    only for a process that takes the place of one that ended, under the policy on_rank_loss "wait".
    It is the number of the step that this process pushes first (options.comes_back in options.h).

    Waits can be ended by Ctrl-C. A wait that was ended so goes on when it is called again.
    """

    def __init__(self, address: Optional[str] = None, job: Optional[str] = None,
                 run_id: Optional[str] = None, group: Optional[str] = None,
                 rank: Optional[int] = None, world_size: Optional[int] = None, policy: Any = None,
                 connect_timeout: Optional[float] = None, key_file: Optional[str] = None,
                 server_key: Optional[str] = None, answer_timeout: Optional[float] = None,
                 first_step: Optional[int] = None):
        self._handle: Optional[ctypes.c_void_p] = None
        self._closing = False
        self._forked = False
        self._inside: Set[int] = set()  # threads that are in a call
        self._gate = Gate()
        self._floor = 0    # updates of earlier steps are released
        self._number = 0   # of the step, as the library said after the last one
        self._ends = 0     # steps that were ended
        self._outcome: List[int] = []  # what step_wait() was told, until its caller has it
        self._together: Tuple[Any, List[int]] = ((), [])  # the last collective call, and what it was told
        self._waited_long = False
        self._interrupted = False  # a call, by Ctrl-C or sys.exit() in a handler; no wait has ended since
        self._kept_arrays: List[numpy.ndarray] = []  # an unfinished call writes into them
        self._running: Optional[_Beside] = None  # a checkpoint, whose caller perhaps does not wait
        self._tensors: List[Tensor] = []
        options = Options(address=_text("address", address), job=_text("job", job),
                          run_id=_text("run_id", run_id), group=_text("group", group),
                          key_file=_text("key_file", key_file and os.fspath(key_file)),
                          server_key=_text("server_key", server_key), interruptible=1)
        if rank is not None:
            options.rank, options.has_rank = checked_number("rank", rank, 0), 1
        if world_size is not None:
            options.world_size = checked_number("world_size", world_size, 1)
        if first_step is not None:
            options.first_step = checked_number("first_step", first_step, 0)
            options.comes_back = 1
        if policy is not None:
            options.policy = _text("policy", policy_text(policy))
        options.connect_timeout_ms = _milliseconds("connect_timeout", connect_timeout)
        if connect_timeout == 0:
            options.connect_timeout_ms = -1
        options.answer_timeout_ms = _milliseconds("answer_timeout", answer_timeout)
        self._library = _library.load()
        warn_of_variables()
        self._open(options)
        _contexts.add(self)

    def _open(self, options: Options) -> None:
        """Waits for a daemon on this machine in slices, like _wait(): a signal that comes just before
        the library sleeps would not end a longer sleep."""
        handle = ctypes.c_void_p()
        address = options.address or os.environ.get("ADTOPK_ADDRESS", "").encode()
        self._is_remote = address.startswith(b"tcp://")
        whole = options.connect_timeout_ms or CONNECT_MS
        options.return_timeout_ms = whole
        deadline = time.monotonic() + whole / 1000
        while True:
            left = math.ceil((deadline - time.monotonic()) * 1000)
            if whole > SLICE_MS and not address.startswith(b"tcp://"):
                options.connect_timeout_ms = min(SLICE_MS, left) if left > 0 else -1
            began = time.monotonic()
            status = self._library.adtopk_open(ctypes.byref(options), ctypes.byref(handle))
            waited = (time.monotonic() - began) * 1000 >= options.connect_timeout_ms > 0
            if status != Status.INTERRUPTED and not (
                    status == Status.UNREACHABLE and waited and left > SLICE_MS):
                break
        if status != Status.OK:
            raise errors.make(status, self._sentence(None))
        self._handle = handle

    # ---- calls into the library

    def _sentence(self, handle: Optional[ctypes.c_void_p]) -> str:
        return str(self._library.adtopk_message(handle).decode("utf-8", "replace"))

    def _check_open(self) -> None:
        if self._forked:
            raise ReleasedError("this process was forked from the one that opened the context")
        if self._closing or self._handle is None:
            raise ReleasedError("the context is closed")

    def _call(self, name: str, *arguments: Any, told: Optional[List[int]] = None) -> int:
        """Calls a function that returns a status. Returns it if it is no error.

        told: a list that gets the status, too. Ctrl-C raises its exception when the function has returned
        and before Python assigns what it returned. extend() and map() are not interrupted so.

        close() in another thread waits until no thread is in here.
        """
        me = threading.get_ident()
        nested = me in self._inside  # by a signal handler
        try:
            self._inside.add(me)
            self._check_open()
            if self._running is not None and _signals_come():
                self._refuse_beside(self._running)
            function = getattr(self._library, name)
            if told is None:
                status = int(function(self._handle, *arguments))
            else:
                told.extend(map(function, (self._handle,), *((one,) for one in arguments)))
                status = told[-1]
            if status in NO_ERRORS:
                return status
            self._check_open()
            raise errors.make(status, self._sentence(self._handle))
        except (KeyboardInterrupt, SystemExit):
            self._interrupted = True
            raise
        finally:
            if not nested:
                self._inside.discard(me)

    def _checked(self, name: str, *arguments: Any) -> None:
        status = self._call(name, *arguments)
        while status == INTERRUPTED:  # Python has handled the signal
            status = self._call(name, *arguments)
        if status != OK:
            raise errors.make(status, f"{name}() returned {Status(status).name}")

    def _wait(self, name: str, *arguments: Any, timeout: Optional[float] = None,
              told: Optional[List[int]] = None) -> bool:
        """Waits in slices, between which Python handles signals. False: NONFINITE."""
        deadline = _deadline(timeout)
        began = time.monotonic()
        while True:
            left = SLICE_MS
            if deadline is not None:
                left = min(left, max(0, math.ceil((deadline - time.monotonic()) * 1000)))
            status = self._call(name, *arguments, left, told=told)
            if status in (Status.OK, Status.NONFINITE):
                self._interrupted = False
                return status == Status.OK
            if deadline is not None and time.monotonic() >= deadline:
                raise errors.Pending(f"{name}() has waited {timeout} s; call again to go on")
            if time.monotonic() - began >= LONG_S and not self._waited_long:
                self._waited_long = True  # one warning is enough
                warn(f"rank {self.rank} of job '{self.job}' has waited {LONG_S} s: `adtopkctl jobs` on its"
                     " daemon's node says for what, and the policy for how long")

    def _wait_together(self, name: str, *arguments: Any, timeout: Optional[float] = None) -> None:
        """A collective call. Where an exception came when it was over, and before its caller knew, it is
        over when it is called again."""
        call, told = self._together
        if call != (name, *arguments) or told[-1:] != [Status.OK]:
            told = []
            self._together = ((name, *arguments), told)
            self._wait(name, *arguments, timeout=timeout, told=told)
        self._together = ((), [])

    @staticmethod
    def _refuse_beside(running: _Beside) -> None:
        raise StateError(f"{running.key[0]}() is under way since an exception ended the wait for it: call it"
                         " again with the same argument, or close the context")

    def _checkpoint(self, name: str, given: Union[int, bytes], *more: Any) -> Any:
        """A call about a checkpoint, which takes no timeout. Returns the last argument."""
        def call() -> Any:
            self._checked(name, given, *map(ctypes.byref, more))
            return more[-1] if more else None
        if not _signals_come():
            return call()
        if self._running is None:
            self._check_open()
            self._running = _Beside((name, given), call)
        running = self._running
        if running.key != (name, given):
            self._refuse_beside(running)
        try:
            return running.result()
        finally:
            if running.over:
                self._running = None

    @contextlib.contextmanager
    def _kept(self, array: numpy.ndarray) -> Iterator[None]:
        """Keeps an array alive that an interrupted call still writes into."""
        self._kept_arrays.append(array)
        yield
        self._kept_arrays.clear()  # this call is complete, so no other one is under way

    def _release(self) -> int:
        """The updates of earlier steps are dead from now on. Returns the number of the step."""
        if self._outcome:  # nobody calls the step_wait() again that an exception ended
            self._outcome = []
            self._number = self.step
        step = self._number
        if step > self._floor:
            with self._gate.release():
                self._floor = step
        return step

    # ---- what the context is

    def _asked(self, name: str, *arguments: Any) -> Any:
        """Calls a function that cannot fail. Inside another call, as _call() leaves it."""
        me = threading.get_ident()
        nested = me in self._inside
        try:
            self._inside.add(me)
            self._check_open()
            return getattr(self._library, name)(self._handle, *arguments)
        finally:
            if not nested:
                self._inside.discard(me)

    @property
    def rank(self) -> int:
        """This process in the job, 0 to world_size - 1."""
        return int(self._asked("adtopk_rank"))

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return int(self._asked("adtopk_world_size"))

    @property
    def job(self) -> str:
        """The job's name as the daemon has it."""
        return str(self._asked("adtopk_job").decode())

    @property
    def run_id(self) -> str:
        """The run id as the daemon has it."""
        return str(self._asked("adtopk_run_id").decode())

    @property
    def step(self) -> int:
        """The number of the step that is open or comes next."""
        return int(self._asked("adtopk_step"))

    @property
    def members(self) -> Members:
        """The ranks that take part in the next step. If `joined` is `step`, new ranks have other
        parameters: all ranks broadcast them from rank `root` before they push."""
        raw = RawMembers()
        self._checked("adtopk_members", ctypes.byref(raw))
        return Members(raw.ranks, raw.lost, raw.place, raw.root, raw.joined)

    @property
    def closed(self) -> bool:
        return self._closing

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that opened the context."""
        return self._forked

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C has ended a call, or ends the program. Then the daemon perhaps does not answer."""
        return self._interrupted or _ends_by_ctrl_c()

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All registered tensors, by number."""
        return tuple(self._tensors)

    # ---- registering

    def check_device(self, device: Optional[str] = None) -> None:
        """Raises ArgumentError or SystemCallError where gradients cannot lie on this GPU (stream.h).

        device: its UUID; None is that of the thread's current CUDA context.
        """
        self._checked("adtopk_check_device", _text("device", device))

    def register(self, name: str, shape: Union[int, Sequence[int]], dtype: Any = DType.F32,
                 forms: Form = Form.DENSE, memory: Memory = Memory.HOST,
                 device: Optional[str] = None) -> Tensor:
        """Describes a tensor, the same on all ranks in the same order. Then comes commit().

        name: what policies match. shape: a size, or 1 to 8 of them. dtype: F32, F16 or BF16, or their names,
        or numpy's types. forms: how updates come, such as adtopk.LIST | adtopk.DENSE. memory, device: with
        Memory.CUDA the gradient lies on a GPU, which check_device() explains. Raises ArgumentError.
        """
        try:
            sizes = (shape,) if hasattr(shape, "__index__") else tuple(shape)  # type: ignore
        except TypeError:
            raise ArgumentError(f"the shape of tensor '{name}' is {shape!r}, and must be sizes") from None
        if not 1 <= len(sizes) <= MAX_DIMS:
            raise ArgumentError(f"tensor '{name}' has {len(sizes)} dimensions, and must have 1 to"
                                f" {MAX_DIMS}")
        sizes = tuple(checked_number(f"a size of tensor '{name}'", size, 0, 2**63) for size in sizes)
        spec = TensorSpec(name=_text("a tensor's name", name), dtype=_dtype(dtype),
                          dims=len(sizes), forms=checked_number("forms", forms, 0, 2**32 - 1),
                          memory=checked_number("memory", memory, 0), device=_text("device", device))
        spec.shape[:len(sizes)] = sizes
        number = ctypes.c_uint32()
        self._checked("adtopk_register", ctypes.byref(spec), ctypes.byref(number))
        tensor = Tensor(self, number.value, name, sizes, DType(spec.dtype), Form(spec.forms),
                        Memory(spec.memory))
        self._tensors.append(tensor)
        return tensor

    def commit(self, timeout: Optional[float] = None) -> None:
        """Waits until every rank has committed the same tensors, and reserves the memory."""
        self._wait_together("adtopk_commit_for", timeout=timeout)
        self._number = self.step

    def _gradient_address(self, tensor: Tensor) -> int:
        address = self._asked("adtopk_gradient", tensor.number)
        if address is None:
            raise StateError(f"tensor '{tensor.name}' has no memory before commit()")
        return int(address)

    # ---- steps

    def step_end(self) -> None:
        """Closes the step: what this rank did not push counts as zero from it. Does not wait."""
        self._release()
        self._ends += 1
        self._checked("adtopk_step_end")

    def step_wait(self, timeout: Optional[float] = None) -> bool:
        """Ends the step and waits for all updates.

        True: apply them all. False: a gradient of some rank had NaN or Inf, and the step is
        withdrawn on every rank; apply nothing and go on. timeout in seconds: Pending is raised when
        it is over, and the next call goes on.
        """
        _deadline(timeout)  # a wrong one changes nothing
        told = self._outcome
        if not told or told[-1] not in (Status.OK, Status.NONFINITE):
            self._release()
            self._ends += 1
            told = self._outcome = []  # another thread that calls this, and is refused, has its own
            self._wait("adtopk_step_wait_for", timeout=timeout, told=told)
        accepted = told[-1] == Status.OK
        self._number = self.step
        self._outcome = []
        if not accepted:
            self._release()
        return accepted

    def step_wait_stream(self, stream: int) -> Verdict:
        """Ends the step, and has a stream of the GPU wait for all updates. Does not wait itself.

        stream: the handle, 0 is the default one. A kernel behind it may apply updates if the verdict's
        word is right (stream.h). Call step_wait() before the next push.
        """
        verdict = Verdict()
        self._release()
        self._ends += 1
        self._checked("adtopk_step_wait_stream", stream, ctypes.byref(verdict))
        return verdict

    def copy_updates(self, places: Iterable[Tuple[Tensor, int]]) -> List[bool]:
        """Copies the last step's updates to addresses in this process, which nothing checks: all elements,
        in the tensor's own type for the form DENSE16, else in f32. False in place of one: no rank
        pushed the tensor, and nothing was copied.
        """
        raw = RawUpdate()
        pushed = []
        with self._gate.use():
            for tensor, address in places:
                self._checked("adtopk_update", tensor.number, ctypes.byref(raw))
                pushed.append(not raw.unpushed)
                if pushed[-1]:
                    self._library.adtopk_copy_update(address, ctypes.byref(raw))
        return pushed

    # ---- collective calls

    def broadcast(self, array: numpy.ndarray, root: int = 0,
                  timeout: Optional[float] = None) -> numpy.ndarray:
        """Copies an array of rank `root` into every other rank's, in place, and returns it."""
        writable = self.rank != root
        array = checked_array("the array to broadcast", array, None, None, writable)
        if array.dtype.hasobject:
            raise ArgumentError("an array of objects cannot be broadcast")
        with self._kept(array):
            self._wait_together("adtopk_broadcast_for", array.ctypes.data, array.nbytes,
                                checked_number("root", root, 0), timeout=timeout)
        return array

    def allreduce(self, array: numpy.ndarray, timeout: Optional[float] = None) -> numpy.ndarray:
        """Adds an f32 array up over all ranks, in place and without compression, and returns it."""
        array = checked_array("the array to add up", array, NUMPY_TYPES[DType.F32], None, True)
        with self._kept(array):
            self._wait_together("adtopk_allreduce_for", array.ctypes.data, array.size, timeout=timeout)
        return array

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Waits until every rank has called it."""
        self._wait_together("adtopk_barrier_for", timeout=timeout)

    # ---- checkpoints

    @property
    def checkpoint_due(self) -> bool:
        """Whether an operator has asked for a checkpoint before the next step: the same on all ranks.

        Ask between every two steps: it is true between two steps only.
        """
        due = ctypes.c_int()
        self._checked("adtopk_checkpoint_due", ctypes.byref(due))
        return due.value != 0

    def checkpoint_save(self, folder: "Union[str, os.PathLike[str]]") -> None:
        """Saves residuals and their state to an existing folder. All ranks, between two steps.

        Parameters are the caller's to save.
        """
        self._checkpoint("adtopk_checkpoint_save", _folder(folder))

    def checkpoint_saved(self, saved: bool = True) -> None:
        """Says that the ranks have saved in a way of their own, for `adtopkctl checkpoint ask`.

        All ranks call it when their files are whole, between two steps. saved: whether this rank could
        save. Raises SystemCallError on all ranks if one could not; training may go on.
        """
        self._checkpoint("adtopk_checkpoint_saved", int(bool(saved)))

    def checkpoint_load(self, folder: "Union[str, os.PathLike[str]]") -> Checkpoint:
        """Loads what checkpoint_save() saved. All ranks, after commit() and before the first step.

        After an error close the context: daemons that have a part of it refuse pushes.
        """
        raw = self._checkpoint("adtopk_checkpoint_load", _folder(folder), RawCheckpoint())
        return Checkpoint(raw.step, raw.world_size, raw.exact != 0)

    # ---- waiting beside other descriptors

    def fileno(self) -> int:
        """A descriptor for select() and similar calls, which becomes readable after arm()."""
        descriptor = ctypes.c_int()
        self._checked("adtopk_descriptor", ctypes.byref(descriptor))
        return descriptor.value

    def arm(self) -> bool:
        """Asks for the descriptor to become readable at the next progress.

        False: there was progress since the last look, so look again with a timeout of 0.
        """
        return self._call("adtopk_arm") == Status.PENDING

    # ---- the end

    def close(self) -> None:
        """Leaves the job. Ends the waits of other threads, and kills all views. Safe to repeat.

        Where Ctrl-C ends it, as beside a daemon that does not answer, the rank is leaving nevertheless.
        After Ctrl-C it waits 0.2 s for the daemon.
        """
        self._close(_signals_come() and not self._forked)

    def _close(self, beside: bool) -> None:
        """beside: in another thread, for which this one waits."""
        if self._handle is None or self._closing:
            return
        with self._gate.release():
            self._closing = True
        leaving = _Beside("close", functools.partial(
            self._leave, threading.get_ident(), GOODBYE_MS if self.interrupted else -1))
        try:
            if self._running is not None:
                leaving.start()  # behind the checkpoint, for which nobody waits
            elif beside:
                leaving.result()
            else:
                leaving.run()
        except RuntimeError:  # no thread can be started when Python ends
            if not leaving.over:
                leaving.run()

    def _leave(self, closer: int, limit_ms: int) -> None:
        """Closes the library's context when no other thread is in a call. limit_ms: -1 is the library's."""
        while self._inside - {closer}:
            time.sleep(0.001)
        handle, self._handle = self._handle, None
        self._library.adtopk_close_for(handle, limit_ms)
        self._kept_arrays.clear()

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None and not self._closing:
            if not self._forked:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self)
            self._close(False)  # the thread may be anywhere, and starting another one takes locks

    def __repr__(self) -> str:
        if self._closing or self._forked or self._handle is None:
            return "<closed adtopk.Context>"
        return f"<adtopk.Context of job '{self.job}', rank {self.rank} of {self.world_size}>"

"""Arrays over memory that the daemon shares with this process, and may take back.

A numpy array over such memory would crash the process after close(), and show other numbers in a
later step. So no array over it ever leaves this module. A View computes on the memory while it is
valid, and hands out copies only.

An exception carries the variables of the functions that it came through, and whoever prints them reads
the arrays among them. So no variable holds an array over the memory, and numpy's functions that are
written in Python get copies. Only code in C works on the memory itself: indexing, copies and ufuncs.
"""
import contextlib
import math
import threading
from typing import Any, Callable, Iterable, Iterator, List, Optional, Tuple

import numpy
from numpy.lib.mixins import NDArrayOperatorsMixin

from .errors import ReleasedError, StateError


class Gate:
    """Held while memory is used, and by what releases it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.uses = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Nothing releases the memory meanwhile."""
        with self.lock:
            self.uses += 1
            try:
                yield
            finally:
                self.uses -= 1

    @contextlib.contextmanager
    def release(self) -> Iterator[None]:
        """Waits until other threads do not use the memory."""
        with self.lock:
            if self.uses:  # a signal handler, in the middle of a use by the same thread
                raise StateError("the memory of a view is in use: a signal handler may not release it")
            yield


class _Address:
    """What numpy needs to make an array over an address."""

    def __init__(self, address: int, shape: Tuple[int, ...], dtype: numpy.dtype, writable: bool):
        self.__array_interface__ = {"data": (address, not writable), "shape": shape,
                                    "typestr": dtype.str, "version": 3}


def _array_at(address: int, shape: Tuple[int, ...], dtype: Any, writable: bool = False) -> numpy.ndarray:
    """An array over an address, which no variable may hold."""
    dtype = numpy.dtype(dtype)
    if 0 in shape:
        return numpy.empty(shape, dtype)
    return numpy.asarray(_Address(address, shape, dtype, writable))


_PLAIN = (bool, int, float, complex, str, bytes, slice, type(None), type(Ellipsis), numpy.generic,
          numpy.dtype)

# Methods and attributes of an array that only look at it: a view has those of a copy.
_READERS = frozenset((
    "T all any argmax argmin argsort astype choose clip compress cumprod cumsum diagonal dot flatten"
    " imag item max mean min nonzero prod ptp ravel real repeat reshape round searchsorted squeeze std"
    " sum swapaxes take tobytes tolist trace transpose var").split())

# The functions that write into their first argument.
_WRITERS = {numpy.copyto, numpy.put, numpy.place, numpy.putmask, numpy.fill_diagonal}


def _keeps_nothing(value: Any) -> bool:
    """Whether numpy alone handles a value: no method of the user's can see and keep an array."""
    if isinstance(value, (tuple, list)):
        return all(map(_keeps_nothing, value))
    if isinstance(value, dict):
        return all(map(_keeps_nothing, value.values()))
    if isinstance(value, type):
        return issubclass(value, (numpy.generic, bool, int, float, complex))
    if type(value) is numpy.ndarray:
        return not value.dtype.hasobject
    return isinstance(value, (View, *_PLAIN))


def _views(value: Any) -> List["View"]:
    """The views in a value."""
    if isinstance(value, View):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [view for part in value for view in _views(part)]
    return []


def _replace(value: Any, make: Callable[["View"], numpy.ndarray]) -> Any:
    """The value with arrays in place of its views."""
    if isinstance(value, View):
        return make(value)
    if isinstance(value, dict):
        return {key: _replace(part, make) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)([_replace(part, make) for part in value])
    return value


def _own(result: Any, used: Iterable[numpy.ndarray]) -> Any:
    """The result with copies of the arrays in it that share memory with those used."""
    if isinstance(result, numpy.ndarray):
        return result.copy() if any(numpy.may_share_memory(result, one) for one in used) else result
    if isinstance(result, (tuple, list)):
        parts = [_own(part, used) for part in result]
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)
    return result


@contextlib.contextmanager
def _in_use(views: List["View"]) -> Iterator[None]:
    """Keeps the memory of all views; always in one order, so that two threads cannot block each other."""
    with contextlib.ExitStack() as stack:
        for gate in sorted({view._gate for view in views}, key=id):
            stack.enter_context(gate.use())
        yield


class View(NDArrayOperatorsMixin):
    """An array over memory that a daemon shares, dead once that is released.

    Indexing and arithmetic work as with an array, without a copy of the memory:
    `parameters -= rate * update.dense`. The functions of numpy work on a copy. All results are arrays
    of your own, and so are those of methods such as view.sum(). numpy.asarray(view) and view.copy() make
    copies. After the release every use raises ReleasedError. The views of gradients can be written,
    `tensor.gradient[...] = array`.
    """

    __slots__ = ("_gate", "_check", "_address", "shape", "dtype", "writable")

    def __init__(self, gate: Gate, check: Callable[[bool], None], address: int, shape: Tuple[int, ...],
                 dtype: Any, writable: bool = False):
        self._gate = gate
        self._check = check  # raises if the memory may not be read, or written (True)
        self._address = address
        self.shape = shape
        self.dtype: "numpy.dtype[Any]" = numpy.dtype(dtype)
        self.writable = writable

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def released(self) -> bool:
        """Whether every use raises ReleasedError by now."""
        try:
            self._check(False)
        except ReleasedError:
            return True
        return False

    def __getattr__(self, name: str) -> Any:
        if name in _READERS:
            return getattr(self.copy(), name)
        raise AttributeError(f"an adtopk.View has no attribute '{name}': numpy.array(view) is an array of"
                             " your own, which has what numpy has" if not name.startswith("__") else name)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        return bool(self.copy())

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        if self.released:
            return f"<released adtopk.View of shape {self.shape}, {self.dtype}>"
        return f"View({self.copy()!r})"

    def _memory(self, write: bool = False) -> numpy.ndarray:
        """The memory, while _in_use() or the gate keeps it. No variable may hold it."""
        self._check(write)
        if write and not self.writable:
            raise ValueError("an update is read-only")
        return _array_at(self._address, self.shape, self.dtype, write)

    def copy(self, out: Optional[numpy.ndarray] = None) -> numpy.ndarray:
        """A copy, new or in `out`."""
        with self._gate.use():
            if out is None:
                return self._memory().copy()
            if not numpy.can_cast(self.dtype, out.dtype, "same_kind"):
                raise TypeError(f"a view of {self.dtype} cannot be copied into an array of {out.dtype}")
            out[...] = self._memory() if _keeps_nothing(out) else self.copy()
            return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("an adtopk.View cannot be pickled or copied: its copy() is an array that can")

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> numpy.ndarray:
        if copy is False:
            raise ValueError("an adtopk.View cannot become an array without a copy")
        made = self.copy()
        return made if dtype is None else made.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        with self._gate.use():
            return self._memory()[key].copy()  # numpy's scalars have copy(), too

    def __setitem__(self, key: Any, value: Any) -> None:
        value = value if isinstance(value, (View, *_PLAIN)) else numpy.asarray(value)
        with _in_use([self, *_views(value)]):
            self._memory(True)[key] = _replace(value, View._memory)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        out = options.get("out", ())
        changed = _views(out) + (_views(inputs[0]) if method == "at" else [])
        make = self._way(inputs, options, changed)
        with _in_use(_views(inputs) + _views(options)):
            if not out:
                return getattr(ufunc, method)(*_replace(inputs, make), **_replace(options, make))
            getattr(ufunc, method)(*_replace(inputs, make), **_replace(options, make))
        return out[0] if len(out) == 1 else out

    @staticmethod
    def _way(inputs: Any, options: Any, changed: List["View"]) -> Callable[["View"], numpy.ndarray]:
        """How views are handed to a ufunc: as memory, or as copies where something might keep them."""
        if _keeps_nothing(inputs) and _keeps_nothing(options):
            return lambda view: view._memory(any(view is one for one in changed))
        if changed:
            raise TypeError("the result of this operation cannot be written into an adtopk.View")
        return View.copy

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        changed = _views(options.get("out"))
        if function in _WRITERS and inputs:
            changed += _views(inputs[0])
        views = _views(inputs) + _views(options)
        with _in_use(views):
            copies = {id(view): view._for_function(any(view is one for one in changed)) for view in views}
        done = function(*_replace(inputs, lambda view: copies[id(view)]),
                        **_replace(options, lambda view: copies[id(view)]))
        for view in changed:
            view[...] = copies[id(view)]
        return changed[0] if changed and done is not None else _own(done, copies.values())

    def _for_function(self, write: bool) -> numpy.ndarray:
        """A copy for a function, read-only unless the function is to write it."""
        if write:
            self._memory(True)  # or an exception
        made = self.copy()
        made.flags.writeable = write
        return made

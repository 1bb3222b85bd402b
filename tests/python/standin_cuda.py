"""In place of torch.cuda: tensors of this processor count as tensors on a GPU, whose driver is the library
of tests/cuda/driver. The C library uses that, too, so a push and a wait are in one stream with what
adtopk.torch puts there.

install() replaces the seam, adtopk/torch/_cuda.py. Torch's own operations happen at once. So a case calls
drain() where a GPU would be behind the host. With $ADTOPK_TEST_BEHIND nothing is written by a stream
before the host goes on, and no case needs to know of streams.
"""
import collections
import contextlib
import ctypes
import os
import threading
import time

import torch

from adtopk import _context
from adtopk.torch import _arena, _cuda

POLL = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
BEHIND = "ADTOPK_TEST_BEHIND" in os.environ

_lock = threading.RLock()
_local = threading.local()  # whether the context is the thread's
_primary = ctypes.c_void_p()
_held = collections.deque()  # what operations in the stream still use
_driver = None
_stream = ctypes.c_void_p()
_stopped = False  # nothing happens in the stream


def _called(name, *arguments):
    result = getattr(_driver, name)(*arguments)
    assert result == 0, f"{name} returned {result}"


def _begin():
    """Opens the driver, as torch.cuda does when it is first used."""
    global _driver
    if _driver is None:
        _driver = ctypes.CDLL(os.environ["ADTOPK_TEST_STANDIN"])
        _called("cuInit", 0)
        _called("cuDevicePrimaryCtxRetain", ctypes.byref(_primary), 0)
        _enter()
        _called("cuStreamCreate", ctypes.byref(_stream), 0)


def _enter():
    """Makes the context the thread's, as torch does."""
    if not getattr(_local, "entered", False):
        _called("cuCtxSetCurrent", _primary)
        _local.entered = True


def enqueue(call):
    """Puts a call into the stream, behind what is there."""
    def poll(unused):
        call()
        return True
    entry = POLL(poll)
    with _lock:
        _enter()
        _held.append(entry)
        _driver.standin_poll(_stream, entry, None)


def pump():
    """What can happen in the stream happens."""
    if not _stopped:
        with _lock:
            _enter()
            _driver.cuStreamQuery(_stream)


def drain():
    """Waits for the stream."""
    if _driver is None:
        return
    with _lock:
        _enter()
        _called("cuStreamSynchronize", _stream)
        _held.clear()


@contextlib.contextmanager
def stopped():
    """Nothing happens in the stream meanwhile."""
    global _stopped
    _stopped = True
    yield
    _stopped = False


class Event:
    def __init__(self):
        self.happened = threading.Event()
        enqueue(self.happened.set)

    def synchronize(self):
        while not self.happened.is_set():
            pump()
            time.sleep(0.0001)


class Gpu:
    """adtopk.torch._cuda.Gpu, over the driver."""

    def __init__(self, device):
        assert device.type == "cuda"
        _begin()

    current = staticmethod(contextlib.nullcontext)
    synchronize = staticmethod(drain)
    event = Event
    future = torch.futures.Future

    @staticmethod
    def stream():
        return _stream.value

    @staticmethod
    def at(address, numel, dtype):
        size = numel * torch.empty((), dtype=dtype).element_size()
        return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype)

    @staticmethod
    def pinned(size):
        return torch.empty(size, dtype=torch.uint8)

    @staticmethod
    def copy(into, source):
        enqueue(lambda: into.copy_(source))
        if BEHIND:
            drain()

    @staticmethod
    def factor(verdict):
        found = []
        enqueue(lambda: found.append(
            1.0 if ctypes.c_uint32.from_address(verdict.word).value == verdict.right else float("nan")))
        return found

    @staticmethod
    def take(into, update, factor):
        def run():
            torch.mul(update, torch.tensor(1.0 if factor is None else factor[0]), out=into)
        enqueue(run)
        if BEHIND:
            drain()


def install():
    """From now on all parameters are on GPU 0, but those with an attribute `standin`, which says where."""
    zero = torch.device("cuda", 0)
    push, call = _arena.ArenaPlacement.push, _context.Context._call

    def held(self, gradients, scale):
        """The caching allocator of torch gives memory to nobody whom the stream has not reached."""
        rows = list(gradients)
        _held.extend(rows)
        push(self, rows, scale)

    def pumped(self, name, *arguments, **options):
        """A GPU does not stop because its host waits."""
        if name.endswith("_for") and _driver is not None:
            pump()
        return call(self, name, *arguments, **options)
    _cuda.Gpu = Gpu
    _cuda.device_of = lambda tensor: getattr(tensor, "standin", zero)
    _arena.ArenaPlacement.push = held
    _context.Context._call = pumped

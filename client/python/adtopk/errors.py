"""One exception class for each status of the C library. client/README.md says what to do about each."""
from typing import Dict, Type

from ._abi import Status


class Error(Exception):
    """A call failed. `status` has the code, str() the library's sentence."""
    status: Status


class NonFinite(Error, ArithmeticError):
    """Not an error of the job: a gradient held NaN or Inf, and the step is withdrawn on every rank."""
    status = Status.NONFINITE


class ArgumentError(Error, ValueError):
    """An argument is out of its range; nothing has changed."""
    status = Status.ARGUMENT


class StateError(Error, RuntimeError):
    """The call is not allowed now."""
    status = Status.STATE


class OutOfMemoryError(Error, MemoryError):
    """Memory could not be reserved; the message has the numbers."""
    status = Status.MEMORY


class UnreachableError(Error, ConnectionError):
    """The daemon cannot be reached, or went away."""
    status = Status.UNREACHABLE


class DeniedError(Error, PermissionError):
    """The caller may not: no permission, a wrong or missing key, or too many sessions."""
    status = Status.DENIED


class MismatchError(Error):
    """Ranks disagree: world size, policy, a tensor, a step's loss scale, a duplicate rank."""
    status = Status.MISMATCH


class LimitError(Error, TimeoutError):
    """A time limit of the policy ran out; the message names the peer, tensor or rank."""
    status = Status.TIMEOUT


class PeerError(Error):
    """A rank of this job died or left, or its node was lost."""
    status = Status.PEER


class ProtocolError(Error):
    """The other side sent something that breaks the protocol."""
    status = Status.PROTOCOL


class LostError(Error):
    """A residual that should have survived is gone; of calls for checkpoints: a folder or a file is missing,
    or damaged."""
    status = Status.LOST


class SystemCallError(Error, OSError):
    """The operating system refused a call."""
    status = Status.SYSTEM


class PolicyError(Error, ValueError):
    """A policy document is wrong; the message names the key."""
    status = Status.POLICY


class Pending(Error, TimeoutError):
    """Not an error: the time given to a call is over. Call again to go on waiting."""
    status = Status.PENDING


class Interrupted(Error, InterruptedError):
    """Not an error: a signal ended a wait. The package handles it and waits on; no call raises it."""
    status = Status.INTERRUPTED


class ReleasedError(StateError):
    """A view was used after its memory was released or its context closed."""


CLASSES: Dict[int, Type[Error]] = {
    kind.status: kind for kind in (
        NonFinite, ArgumentError, StateError, OutOfMemoryError, UnreachableError, DeniedError,
        MismatchError, LimitError, PeerError, ProtocolError, LostError, SystemCallError, PolicyError,
        Pending, Interrupted)}


def make(status: int, sentence: str) -> Error:
    """The exception of a status."""
    return CLASSES.get(status, ProtocolError)(sentence)

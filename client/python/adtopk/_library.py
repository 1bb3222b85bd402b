"""Finds and loads libadtopk-client: $ADTOPK_LIBRARY, the one in the wheel, or the system's."""
import ctypes
import os
from typing import Optional

from . import _abi
from .errors import ProtocolError, UnreachableError

NAME = "libadtopk-client.so.1"
REMEDY = "install the same version of adtopk on both sides, or set ADTOPK_LIBRARY"
_loaded: Optional[ctypes.CDLL] = None


def path() -> str:
    """The library that this process uses, or will use."""
    given = os.environ.get("ADTOPK_LIBRARY")
    if given:
        return given
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return own if os.path.exists(own) else NAME


def check_version(text: str) -> None:
    """Refuses a library that lacks what _abi.py declares."""
    parts = text.split(".")
    if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
        raise ProtocolError(f"{path()} is of version '{text}', which is no version")
    major, minor = int(parts[0]), int(parts[1])
    if major != _abi.INTERFACE[0] or minor < _abi.INTERFACE[1]:
        wanted = ".".join(map(str, _abi.INTERFACE))
        raise ProtocolError(f"{path()} has version {text} of the interface, and this package needs"
                            f" {wanted} or a later {_abi.INTERFACE[0]}.x: {REMEDY}")


def load() -> ctypes.CDLL:
    """The library, loaded once in a process."""
    global _loaded
    if _loaded is None:
        try:
            library = _abi.declare(ctypes.CDLL(path()))
        except OSError as problem:
            raise UnreachableError(f"the library {path()} cannot be loaded: {problem}; install"
                                   " libadtopk-client, or set ADTOPK_LIBRARY") from None
        except AttributeError as problem:
            raise ProtocolError(f"{path()} is another version of adtopk: {problem}; {REMEDY}") from None
        check_version(library.adtopk_version().decode())
        _loaded = library
    return _loaded

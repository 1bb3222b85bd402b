"""Hooks of a module that call an optimiser."""
import weakref
from typing import Any, Callable, Optional

import torch


def untraced(function: Any) -> Any:
    """torch.compile() leaves such a function out of its graphs. torch's optimisers use this decorator: the
    public one loads the compiler at once."""
    return getattr(torch, "_disable_dynamo", lambda whole: whole)(function)


class ModuleHook:
    """Calls a method with the module, as long as the method's object lives. A copy of the module gets a
    hook that does nothing, as copies that average the parameters need it.
    """

    def __init__(self, method: Optional[Callable[[torch.nn.Module], None]] = None):
        self._method: Any = weakref.WeakMethod(method) if method is not None else lambda: None

    @untraced
    def __call__(self, module: torch.nn.Module, *unused: Any) -> None:
        method = self._method()
        if method is not None:
            method(module)

    def __reduce__(self) -> Any:
        return ModuleHook, ()

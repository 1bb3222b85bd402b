"""Hooks of a module that call an optimiser."""
import weakref
from typing import Any, Callable, Optional

import torch


def _untraced(function: Any) -> Any:
    """torch.compile() leaves such a function out of its graphs, where it knows of it."""
    compiler = getattr(torch, "compiler", None)
    return compiler.disable(function) if hasattr(compiler, "disable") else function


class ModuleHook:
    """Calls a method with the module, as long as the method's object lives. A copy of the module gets a
    hook that does nothing, as copies that average the parameters need it.
    """

    def __init__(self, method: Optional[Callable[[torch.nn.Module], None]] = None):
        self._method: Any = weakref.WeakMethod(method) if method is not None else lambda: None
        self._call = _untraced(self._told)

    def _told(self, module: torch.nn.Module) -> None:
        method = self._method()
        if method is not None:
            method(module)

    def __call__(self, module: torch.nn.Module, *unused: Any) -> None:
        self._call(module)

    def __reduce__(self) -> Any:
        return ModuleHook, ()

"""Warnings that name the user's line."""
import sys
import warnings
from typing import Any, Type


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("adtopk", "torch", "copy")


def warn(text: str, category: Type[Warning] = UserWarning) -> None:
    """Warns of what the nearest caller outside of adtopk and torch did."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)

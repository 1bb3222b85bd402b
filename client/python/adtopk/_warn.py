"""Warnings that name the user's line."""
import difflib
import os
import re
import sys
import warnings
from typing import Any, Iterable, Type

PREFIX = "ADTOPK_"
# As deploy/options.md has them: first those of trainers, then those of other programs.
VARIABLES = frozenset(PREFIX + name for name in """
    ADDRESS JOB RUN_ID KEY_FILE SERVER_KEY LIBRARY CUDA_LIBRARY
    CONFIG NCCL_LIBRARY DEVICE_PROGRAM OS_RELEASE NODE LISTEN ADVERTISE PEERS SEEDS DATA_PROTECTION
    BULK_LISTEN TRAINERS_LISTEN TRAINERS TRAINERS_OWNER SOCKET CONTROL_SOCKET CONTROL_GROUP SESSION_GROUP
    JOBS_VISIBLE USER STORE_FOLDER RESIDUAL_TTL_S WORKERS ENGINE GPU_MEMORY_LIMIT LOG_LEVEL LOG_FORMAT
    TRACE_FOLDER POLICY INSECURE PART_SIZE WINDOW PEER_TIMEOUT_MS HEARTBEAT_MS NETWORK_THREADS
    STOP_TIMEOUT_MS STUCK_AFTER_MS COMMIT_TIMEOUT_MS USER_SESSIONS USER_JOBS USER_MEMORY USER_REQUESTS
""".split())
TESTS = ("ADTOPK_TEST_", "ADTOPK_SIM_")
# What Kubernetes sets in pods for a Service whose name begins with "adtopk".
SERVICE = re.compile(r"_SERVICE_(HOST|PORT)|_PORT(_\d+_(TCP|UDP|SCTP)|$)")


def _is_ours(frame: Any) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("adtopk", "torch", "copy")


def warn(text: str, category: Type[Warning] = UserWarning) -> None:
    """Warns of what the nearest caller outside of adtopk and torch did."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=level)


def guess(word: str, known: Iterable[str], start: str = "") -> str:
    """The end of a sentence about an unknown word: which one was perhaps meant. start: of all words."""
    near = difflib.get_close_matches(word[len(start):], sorted(name[len(start):] for name in known), 1)
    return "".join(f'; did you mean "{start}{end}"?' for end in near)


def warn_of_variables() -> None:
    """Nobody reads a variable whose name is misspelt, and nothing else would say so."""
    for name in os.environ:
        if (name.startswith(PREFIX) and not name.startswith(TESTS) and name not in VARIABLES
                and not SERVICE.search(name)):
            warn(f"adtopk has no variable {name}{guess(name, VARIABLES, PREFIX)}")

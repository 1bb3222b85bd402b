"""What all ranks of a process group agree on before they open a job: its name and run id."""
import os
import secrets
from typing import Any, Optional, Tuple

import torch.distributed as dist

from . import _group

MAX_TEXT = 63  # bytes of a job's name and of a run id


def base_run_id() -> str:
    """What tells runs apart for a reader: the launcher's name for this run."""
    for name in ("ADTOPK_RUN_ID", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID"):
        value = os.environ.get(name)
        if value and value != "none":
            return value
    return "torch"


def cut(text: str, limit: int) -> str:
    """The text in at most so many bytes, and without characters that names may not have."""
    printable = "".join(letter if letter.isprintable() else "_" for letter in text)
    return printable.encode()[:limit].decode("utf-8", "ignore")


def global_rank(group: Any, rank: int) -> int:
    """The rank among all processes of a rank of the group; None is the default group."""
    return rank if group in (None, dist.group.WORLD) else int(dist.get_global_rank(group, rank))


def agree(group: Any, job: Optional[str], run_id: Optional[str], model: str) -> Tuple[str, str]:
    """The job and run id of the group's first rank. A nonce keeps two runs, or two models, apart."""
    nonce = secrets.token_hex(6)
    job = job or os.environ.get("ADTOPK_JOB") or cut(model, MAX_TEXT)
    run_id = run_id or f"{cut(base_run_id(), MAX_TEXT - 1 - len(nonce))}.{nonce}"
    found: Tuple[str, str] = _group.share((job, run_id), global_rank(group, 0), group)
    return found

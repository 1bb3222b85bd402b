"""How far parameters are shifted to look ahead, where they are on a GPU: as adtopk_lookahead() does it.

Everything is in the current stream, and the host waits for nothing.
"""
from typing import Tuple

import torch

from ._methods import Reach

LIMIT = 0.1   # of a shift, relative to the norm of the parameters
STEPS = 10.0  # of an element's shift, in steps of Adam


def shift(here: torch.Tensor, pending: torch.Tensor, reach: Reach, share: float,
          ahead: torch.Tensor) -> torch.Tensor:
    """Writes into `ahead` the parameters `here`, less what is pending. All are rows of float32, and `pending`
    is lost.

    Returns which part of the share the limit has left, from 0 to 1: a tensor, which the host need not read.
    """
    if reach.second_moment is not None:
        root = (reach.second_moment / reach.correction).sqrt_().add_(reach.epsilon)
        pending.div_(root).clamp_(-STEPS, STEPS).masked_fill_(~(root > 0), 0)
    pending.mul_(reach.rate * share)
    left = torch.linalg.vector_norm(here) * LIMIT / torch.linalg.vector_norm(pending)
    left.clamp_(max=1).masked_fill_(~(left > 0), 0)  # it is no number where nothing is finite
    torch.where(left > 0, here - pending.mul_(left), here, out=ahead)
    return left

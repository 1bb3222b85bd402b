"""The communication hook itself."""
from typing import Any

import torch
import torch.distributed as dist

from ..errors import ArgumentError
from ._state import ADTopkState


# DDP compares these annotations, so they are no strings.
def adtopk_hook(state: ADTopkState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """For DistributedDataParallel.register_comm_hook(): the daemon exchanges the gradients."""
    if not isinstance(state, ADTopkState):
        raise ArgumentError("adtopk_hook needs an ADTopkState: register_comm_hook(ADTopkState(model),"
                            " adtopk_hook)")
    if not isinstance(bucket, dist.GradBucket):
        raise ArgumentError("this reducer hands over no buckets: do not set"
                            ' torch._dynamo.config.optimize_ddp = "python_reducer"')
    future: Any = state.add_bucket(bucket)
    return future

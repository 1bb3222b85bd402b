"""DistributedOptimizer: chooses among the optimisers that work without DistributedDataParallel."""
from typing import Any, Dict, Optional

import torch

from .._context import checked_number
from . import _methods
from ._forward import ForwardOptimizer
from ._gradients import GradientOptimizer
from ._local import LocalSteps
from ._wrapper import Named, Wrapper


def DistributedOptimizer(optimiser: torch.optim.Optimizer,  # pylint: disable=invalid-name
                         named_parameters: Named = None, backward_passes_per_step: int = 1,
                         method: str = _methods.GRADIENT, policy: Any = None, scaler: Any = None,
                         lookahead: Optional[bool] = None, process_group: Any = None,
                         address: Optional[str] = None, job: Optional[str] = None,
                         run_id: Optional[str] = None, overlap: Optional[str] = None,
                         connect_timeout: Optional[float] = None) -> Wrapper:
    """Makes an optimiser of torch exchange with all ranks of the process group. Without DDP. Use what it
    returns in its place; `job` of that has the exchange.

    named_parameters: the module, or pairs of names and parameters; names are what policies match. With
    the module, and unless lookahead is False, gradients are taken ahead (deploy/learning.md).
    backward_passes_per_step: so many backward passes add up their gradients before an exchange.
    method: "gradient" exchanges gradients. "step" exchanges the steps of each rank's own optimiser, as
    LocalSteps(every=1) does. The other arguments are those of ADTopkState.
    overlap: with "forward", step() does not wait. The next forward pass applies the update of each
    parameter before its module uses it. The policy must have "non_finite": "propagate", because updates
    are applied before the whole step is accepted.

    All ranks begin with the parameters of the first one, those of the module that are frozen included.
    Buffers are not exchanged. step() refuses parameters that are unfrozen or added later.
    """
    options: Dict[str, Any] = {"policy": policy, "scaler": scaler, "lookahead": lookahead,
                               "process_group": process_group, "address": address, "job": job,
                               "run_id": run_id, "connect_timeout": connect_timeout}
    _methods.check_optimiser(optimiser)
    checked_number("backward_passes_per_step", backward_passes_per_step, 1)
    _methods.check_method(method)
    if overlap is not None:
        return ForwardOptimizer(optimiser, named_parameters, backward_passes_per_step, overlap, method,
                                **options)
    if method == _methods.STEP:
        return LocalSteps(optimiser, named_parameters, **options)
    return GradientOptimizer(optimiser, named_parameters, backward_passes_per_step, **options)

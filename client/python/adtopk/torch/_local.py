"""LocalSteps: each rank takes steps of its own, then the drift of its parameters is exchanged."""
import math
import numbers
from typing import Any, Dict, Optional, Set

import torch

from .._context import checked_number
from ..errors import ArgumentError, StateError
from . import _methods, _parameters
from ._module_hook import untraced
from ._wrapper import Named, Wrapper, weakly


class LocalSteps(Wrapper):
    """An optimiser that takes `every` steps on each rank alone, then exchanges.

    What is exchanged is the drift: where the parameters were when the rank began, less where they are.
    The mean of the drifts moves the parameters that all ranks share, by SGD with the rate `outer_lr`
    and `outer_momentum` of Nesterov's kind. With every=1 ranks exchange their optimisers' steps. With a
    dense policy, outer_lr=0.7 and outer_momentum=0.9 this is DiLoCo; deploy/learning.md has more.

    named_parameters, lookahead: as for DistributedOptimizer. In between exchanges the ranks'
    parameters differ, and shared() shows those that they share. Clipping, decay, schedules and scalers
    work on each rank's own optimiser. A drift with NaN or Inf is withdrawn on all ranks: they begin
    again from the shared parameters, and with new moments. Of parameters in 16 bits the job keeps what
    ranks share in float32, so that no exchange is lost by rounding.

    Where an exchange ends by an exception, as by Ctrl-C, the next step() or exchange() goes on with it,
    and that step() takes no step of its own. zero_grad() is refused until then.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, named_parameters: Named = None, every: int = 1,
                 outer_lr: float = 1.0, outer_momentum: float = 0.0, policy: Any = None, scaler: Any = None,
                 lookahead: Optional[bool] = None, process_group: Any = None,
                 address: Optional[str] = None, job: Optional[str] = None, run_id: Optional[str] = None,
                 connect_timeout: Optional[float] = None):
        every = checked_number("every", every, 1)
        numbers_ = all(isinstance(one, numbers.Real) for one in (outer_lr, outer_momentum))
        if not numbers_ or not 0 < outer_lr < math.inf or not 0 <= outer_momentum < 1:
            raise ArgumentError(f"outer_lr is {outer_lr!r}, and must be above 0; outer_momentum is"
                                f" {outer_momentum!r}, and must be at least 0 and below 1")
        super().__init__(optimiser, named_parameters, {
            "method": _methods.STEP, "every": every, "outer_lr": outer_lr, "outer_momentum": outer_momentum},
            policy, scaler, lookahead, process_group, address, job, run_id, connect_timeout)
        self._every, self._outer_lr, self._outer_momentum = every, outer_lr, outer_momentum
        self._steps = 0  # local ones since the last exchange
        self._begun: Dict[int, torch.Tensor] = {}   # where each parameter was, in a row
        self._common: Dict[int, torch.Tensor] = {}  # what all ranks share, in a row
        self._exchanging = False                # an exchange has begun, and is not over
        self._pushed: Set[int] = set()          # what it has pushed
        self._outcome: Optional[bool] = None    # of its wait
        self._velocity: Dict[str, torch.Tensor] = {}  # after it
        self._exact: Dict[str, torch.Tensor] = {}     # after it, the job's `exact`
        self.job.between = weakly(self._check_between)

    def _reach(self, parameter: torch.Tensor) -> Optional[_methods.Reach]:
        return _methods.Reach(self._outer_lr / (1 - self._outer_momentum))

    def _check_between(self) -> None:
        if self._steps:
            raise StateError(f"{self._steps} local steps were not exchanged: save after the last of"
                             f" {self._every}, or call exchange() first, on all ranks")

    def synchronize(self) -> None:
        """Does nothing: gradients are each rank's own. For programs that were written for others."""

    @untraced
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """A step of this rank's optimiser; after every `every`th one, an exchange."""
        self.job.check_open()
        if self._is_left():
            self.exchange()
            return None
        self._check_trained()
        loss = self._loss(closure)
        if not self._steps:
            self._begin()
        found = getattr(self, "found_inf", None)
        if not (found is not None and float(found) > 0):
            self._own_step()
        self._steps += 1
        if self._is_left():
            self.exchange()
        return loss

    def _is_left(self) -> bool:
        """Whether there is an exchange to go on with, before the next step."""
        return self._exchanging or self._steps >= self._every

    def zero_grad(self, set_to_none: Optional[bool] = None) -> None:
        if self._is_left():
            raise StateError("the exchange of the last step is not over: call step() or exchange() again,"
                             " which goes on with it, before zero_grad()")
        super().zero_grad(set_to_none)

    def _begin(self) -> None:
        """Notes where the parameters are, which may be ahead of what the ranks share."""
        self.job.note_layouts()
        for name, parameter in self.job.named():
            key = id(parameter)
            self._begun[key] = _parameters.flat(parameter, parameter).to(torch.float32, copy=True)
            place = self._ahead.place(parameter) if self._ahead is not None else None
            self._common[key] = self._begun[key] if place is None else place
            if parameter.dtype != torch.float32:
                self._common[key] = self._unrounded(name, parameter, self._common[key])

    def _unrounded(self, name: str, parameter: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        """What the ranks share, before it was rounded to this row; the row where it was written since."""
        exact = self.job.exact.get(name)
        if exact is None:
            return row
        exact = exact.to(row.device)
        return torch.where(exact.to(parameter.dtype) == row.to(parameter.dtype), exact, row)

    @untraced
    def exchange(self) -> bool:
        """Exchanges what this rank has drifted so far. All ranks call it after the same step, for example
        after the last one. False: the drifts are withdrawn."""
        if not self._steps:
            return True
        self.job.open()
        self._exchanging = True
        with torch.no_grad():
            if self._outcome is None:
                self._push()
                self._outcome = self.job.wait()
            accepted = self._outcome
            for name, parameter in self.job.named():
                row = self._common[id(parameter)]
                if accepted:
                    row = self._moved(name, self.job.tensor(parameter), row)
                if parameter.dtype != torch.float32:
                    self._exact[name] = row
                parameter.copy_(_parameters.unflat(parameter, row))
        if not accepted:
            self.optimiser.state.clear()
        if self._ahead is not None:
            self._ahead.forget()
            self._ahead.updated(accepted)
        self.job.velocity.update(self._velocity)
        self.job.exact.update(self._exact)
        self._steps = 0
        self._begun, self._common, self._velocity, self._exact = {}, {}, {}, {}
        self._exchanging, self._outcome = False, None
        self._pushed.clear()
        return accepted

    def _push(self) -> None:
        """Pushes the drifts that were not pushed before an exception."""
        for parameter in self.job.parameters():
            key, tensor = id(parameter), self.job.tensor(parameter)
            if key in self._pushed or tensor.is_pushed:
                continue
            drift = self._begun[key] - _parameters.flat(parameter, parameter)
            self.job.push([(tensor, drift)], 1.0)
            self._pushed.add(key)

    def _moved(self, name: str, tensor: Any, row: torch.Tensor) -> torch.Tensor:
        """The shared parameters, moved by the mean drift. Changes nothing that a second call would read."""
        mean = torch.empty_like(row)
        if not self.job.write([(tensor, mean)])[0]:
            return row
        if self._outer_momentum:
            velocity = self.job.velocity.get(name)
            velocity = mean.clone() if velocity is None else velocity.mul(self._outer_momentum).add_(mean)
            self._velocity[name] = velocity
            mean.add_(velocity, alpha=self._outer_momentum)
        return row - self._outer_lr * mean

    def _shared_row(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        if self._steps:
            return self._common[id(parameter)]
        return self._ahead.place(parameter) if self._ahead is not None else None

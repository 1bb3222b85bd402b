"""Looking ahead: gradients are taken where the parameters will be when the update arrives.

The first training forward pass after an update shifts the parameters, and the optimiser's step puts
them back first. So who evaluates or saves after the step has the parameters themselves. What somebody
writes to them in between stays.
"""
from typing import Callable, Dict, NamedTuple, Optional

import torch

from .._abi import Form
from ..errors import PolicyError
from . import _parameters
from ._job import Job
from ._methods import Reach
from ._module_hook import ModuleHook


class Shifted(NamedTuple):
    """A parameter that is shifted, in rows."""
    here: torch.Tensor   # where it was
    ahead: torch.Tensor  # where it was moved
    version: int         # of the parameter then: each write raises it


class Ahead:
    """The shifted parameters of a job. reach: says how far an update moves a parameter, if it is known."""

    def __init__(self, job: Job, module: torch.nn.Module, reach: Callable[[torch.Tensor], Optional[Reach]]):
        self._job = job
        self._reach = reach
        self._due = False     # an update has come since the last shift
        self._places: Dict[int, Shifted] = {}  # by the id of the parameter
        self._handle = module.register_forward_pre_hook(ModuleHook(self._before_forward))
        # Hooks that compute a weight, as those of weight_norm() do, come after this one.
        module._forward_pre_hooks.move_to_end(self._handle.id, last=False)

    def _before_forward(self, module: torch.nn.Module) -> None:
        if module.training and torch.is_grad_enabled() and not torch.jit.is_tracing():
            self.shift_once()

    def close(self) -> None:
        self.back()
        self._handle.remove()

    def updated(self, accepted: bool) -> None:
        """After the updates of a step were applied."""
        self._due = accepted

    def shift_once(self) -> None:
        """After an update moves the parameters to where the next gradients are taken."""
        if not self._due:
            return
        self._due = False
        with torch.no_grad():
            for parameter in self._job.parameters():
                self._shift(parameter)

    def _shift(self, parameter: torch.Tensor) -> None:
        tensor = self._job.tensor(parameter)
        reach = self._reach(parameter)
        if reach is None or not tensor.forms & Form.PENDING:
            return
        here = _parameters.flat(parameter, parameter).clone()
        ahead = torch.empty_like(here)
        moment = reach.second_moment
        if moment is not None:
            moment = _parameters.flat(parameter, moment)
        try:
            down = reach._replace(rate=abs(reach.rate), second_moment=moment)
            if not self._job.look_ahead((tensor, here), ahead, down):
                return
        except PolicyError:  # Adam under a policy that has momentum, perhaps since an operator set it
            return
        if reach.rate < 0:  # the library's shift goes down only
            ahead = 2 * here - ahead
        parameter.copy_(_parameters.unflat(parameter, ahead))
        self._places[id(parameter)] = Shifted(here, ahead, parameter._version)

    def place(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """Where a shifted parameter was, in a row, and what was written to it since. None: it is not
        shifted."""
        shifted = self._places.get(id(parameter))
        if shifted is None or parameter._version == shifted.version:
            return None if shifted is None else shifted.here
        now = _parameters.flat(parameter, parameter)
        return torch.where(now == shifted.ahead, shifted.here, now)

    def forget(self) -> None:
        """The parameters have been moved elsewhere."""
        self._places = {}

    def back(self) -> None:
        """Puts the parameters back where they were before the shift."""
        if not self._places:
            return
        with torch.no_grad():
            for parameter in self._job.parameters():
                here = self.place(parameter)
                if here is not None:
                    parameter.copy_(_parameters.unflat(parameter, here))
        self.forget()

"""GradientOptimizer: ranks exchange gradients during the backward pass, and apply their mean."""
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from .._context import checked_number
from ..errors import ArgumentError, StateError
from . import _methods, _parameters, _share
from ._job import loss_scale
from ._module_hook import untraced
from ._wrapper import Named, Wrapper, weakly


def after_accumulation(parameter: torch.nn.Parameter, function: Callable[[torch.nn.Parameter], None]) -> Any:
    """Calls a function whenever a backward pass has added to parameter.grad. Returns a handle."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):
        return parameter.register_post_accumulate_grad_hook(function)
    with torch.enable_grad():  # torch before 2.1
        node: Any = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    handle = node.register_hook(lambda *unused: function(parameter))
    handle.kept = node  # it would be forgotten, and its hooks with it
    handle.kind = _kind(parameter)
    return handle


def _kind(parameter: torch.Tensor) -> Tuple[torch.dtype, torch.device]:
    """Torch before 2.1 forgets hooks of a parameter when this changes."""
    return parameter.dtype, parameter.device


class GradientOptimizer(Wrapper):
    """Ranks exchange gradients as the backward pass completes them, and apply their mean.

    When the last parameter has its gradient, `.grad` has the means. Then the backward pass returns, so
    clipping and scalers need nothing special. Where a parameter had no gradient, synchronize() does
    that, or step().
    """

    def __init__(self, optimiser: torch.optim.Optimizer, named_parameters: Named, passes: int,
                 **options: Any):
        passes = checked_number("backward_passes_per_step", passes, 1)
        super().__init__(optimiser, named_parameters, {"method": _methods.GRADIENT}, **options)
        self._passes = passes
        self._seen: Dict[int, int] = {}  # backward passes of each parameter since the last exchange
        self._pushed: Dict[int, Tuple[torch.Tensor, int]] = {}  # the gradient and its version then
        self._synchronised = False
        self._mixed = False  # a backward pass has added gradients of this rank alone to the means
        self._scale = 1.0
        self._compared = False  # the ranks' optimisers
        self._trained = 0  # parameters that are to have a gradient in this step
        self.job.between = weakly(self._check_between)
        own = weakref.ref(self)

        @untraced
        def tell(parameter: torch.nn.Parameter) -> None:
            optimiser = own()
            if optimiser is not None:
                optimiser._gradient(parameter)
        self._handles: List[Any] = [after_accumulation(parameter, tell)
                                    for parameter in self.job.parameters()]

    def _check_between(self) -> None:
        if self._pushed:
            raise StateError("gradients were pushed and not applied: save after step()")

    def _begin(self) -> None:
        """Equal means give equal parameters only where all ranks apply them alike. A job that was opened to
        load a checkpoint may have lacked the options then."""
        self.job.open()
        if not self._compared:
            _share.check_options(_methods.options(self.optimiser), self.job.group)
            self._compared = True

    def _gradient(self, parameter: torch.nn.Parameter) -> None:
        """A backward pass has added to the parameter's gradient."""
        seen = self._seen[id(parameter)] = self._seen.get(id(parameter), 0) + 1
        if self._synchronised or seen > self._passes:
            self._mixed = self._synchronised
            raise StateError(f"parameter '{self._names[id(parameter)]}' had another gradient"
                             f" before step(), and backward_passes_per_step is {self._passes}: set that, or"
                             " call this optimiser's zero_grad(), not the module's, to drop gradients")
        if seen == self._passes:
            self._push(parameter)
            if len(self._pushed) == self._trained:
                self._all_pushed()

    def _check_unchanged(self) -> None:
        """What changes gradients after their push, such as clipping, would be lost."""
        for parameter in self.job.parameters():
            gradient, version = self._pushed.get(id(parameter), (parameter.grad, None))
            if version is not None and (parameter.grad is not gradient or gradient._version != version):
                raise StateError(f"the gradient of '{self.job.tensor(parameter).name}' was changed after its"
                                 " push, and another one is missing: call synchronize() after the backward"
                                 " pass, and clip then")

    def _check_converted(self) -> None:
        """Nothing is exchanged of a parameter whose hook was forgotten."""
        for parameter, handle in zip(self.job.parameters(), self._handles):
            if getattr(handle, "kind", None) not in (None, _kind(parameter)):
                raise StateError(f"parameter '{self._names[id(parameter)]}' was converted or moved after the"
                                 " distributed optimiser was made: do that first, and make a new one")

    def _all_pushed(self) -> None:
        """The backward pass has completed the last gradient."""
        self.synchronize()

    def _push(self, parameter: torch.nn.Parameter) -> None:
        self._begin()
        if not self._pushed:
            self._scale = loss_scale(self._scaler)
            self._trained = sum(one.requires_grad for one in self.job.parameters())
        if parameter.grad is None or parameter.grad.is_sparse:
            raise ArgumentError(f"{self.job.tensor(parameter)!r} has no dense gradient")
        row = _parameters.flat(parameter, parameter.grad)
        self.job.accepted()
        if not self.job.tensor(parameter).is_pushed:  # by a call that an exception has ended
            self.job.push([(self.job.tensor(parameter), row)], self._scale)
        self._pushed[id(parameter)] = parameter.grad, parameter.grad._version

    @untraced
    def synchronize(self) -> None:
        """Waits until every `.grad` has the mean of all ranks; after a withdrawn step, NaN. On a GPU the
        stream waits."""
        if self._synchronised:
            return
        self._push_rest()
        with torch.no_grad():
            self._deliver()
        self._synchronised = True

    def _push_rest(self) -> None:
        """Pushes gradients of fewer passes, as the last batches of an epoch have them."""
        self._begin()
        for parameter in self.job.parameters():
            if id(parameter) in self._seen and id(parameter) not in self._pushed:
                self._push(parameter)

    def _deliver(self) -> None:
        """The means go where the gradients are, and where another rank alone had one, into new ones."""
        rows = []
        for parameter in self.job.parameters():
            values = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
            rows.append((parameter, values, _parameters.flat(parameter, values)))
        pushed = self.job.deliver([(self.job.tensor(parameter), row) for parameter, _, row in rows])
        for (parameter, values, row), has in zip(rows, pushed):
            if has and (parameter.grad is not None or self.job.accepted()):
                if row.data_ptr() != values.data_ptr():
                    values.copy_(_parameters.unflat(parameter, row))
                parameter.grad = values

    @untraced
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """Applies the mean gradients. A withdrawn step, or one with an overflow, applies nothing."""
        self._check_trained()
        self._check_converted()
        loss = self._loss(closure)
        if self._mixed:
            raise StateError("a backward pass has added gradients of this rank alone to the means: call"
                             " zero_grad() to drop both")
        found = getattr(self, "found_inf", None)
        if not self._synchronised:
            if found is not None:
                raise StateError("a parameter had no gradient: call synchronize() before"
                                 " scaler.unscale_() and scaler.step()")
            self._check_unchanged()
            self.synchronize()
        if self._ahead is not None:
            self._ahead.back()
        accepted = self.job.accepted()  # on a GPU only streams have waited so far
        if accepted and not (found is not None and float(found) > 0):
            self._own_step()
        if self._ahead is not None:
            self._ahead.updated(accepted)
        self._forget()
        return loss

    def _forget(self) -> None:
        self._seen.clear()
        self._pushed.clear()
        self._synchronised = self._mixed = False

    def zero_grad(self, set_to_none: Optional[bool] = None) -> None:
        if self._pushed and not self._synchronised:
            raise StateError("gradients were pushed and not applied: call step() before zero_grad(), or"
                             " synchronize() where the backward pass has failed")
        self._forget()
        super().zero_grad(set_to_none)

    def _shared_row(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        return self._ahead.place(parameter) if self._ahead is not None else None

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().close()

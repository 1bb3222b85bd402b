"""overlap="forward": the updates of a step are applied in the forward pass that follows."""
from typing import Any, Dict, List, NamedTuple, Optional, Set

import torch

from ..errors import ArgumentError, StateError
from . import _methods, _parameters
from ._gradients import GradientOptimizer
from ._module_hook import ModuleHook, untraced
from ._wrapper import Named, weakly


class Due(NamedTuple):
    """The update of one parameter, which is on its way."""
    parameter: torch.nn.Parameter
    pushed: bool                      # by this rank
    options: Dict[str, Any]           # of its group, as they were at step()
    gradient: Optional[torch.Tensor]  # what the optimiser gets if no rank pushed


class Owners:
    """Which parameters each module applies before its forward pass.

    Those are its own, and those of modules below it that were never called: such modules, as in
    attention, are read by the ones above them. A module in evaluation applies all that lie below it,
    because it may take another path then.
    """

    def __init__(self, keys: Set[int]):
        self._keys = keys
        self._called: Set[int] = set()
        self._found: Dict[int, List[int]] = {}

    def reached(self, module: torch.nn.Module) -> List[int]:
        """The ids of the parameters that the module applies, now that it is called."""
        if not module.training:
            return self._ids(module.parameters())
        if id(module) not in self._called:
            self._called.add(id(module))
            self._found.clear()
        if id(module) not in self._found:
            self._found[id(module)] = self._ids(self._uncalled(module))
        return self._found[id(module)]

    def _ids(self, parameters: Any) -> List[int]:
        return [id(one) for one in parameters if id(one) in self._keys]

    def _uncalled(self, module: torch.nn.Module) -> Any:
        yield from module.parameters(recurse=False)
        for child in module.children():
            if id(child) not in self._called:
                yield from self._uncalled(child)


def check(optimiser: torch.optim.Optimizer, module: Named, overlap: str, method: str,
          options: Dict[str, Any]) -> None:
    """Refuses what cannot be applied in parts, or before the whole step is accepted."""
    wanted = 'overlap="forward"'
    if overlap != "forward":
        raise ArgumentError(f'overlap is {overlap!r}, and must be "forward" or None')
    if method != _methods.GRADIENT:
        raise ArgumentError(f'{wanted} needs method="gradient": here ranks exchange the steps of'
                            f" {_methods.kind_of(optimiser)}")
    if not isinstance(module, torch.nn.Module):
        raise ArgumentError(f"for {wanted}, give the module in place of its named parameters")
    if not _methods.propagates(options["policy"]):
        raise ArgumentError(f'{wanted} applies updates before a step is accepted: give a policy= that has'
                            ' "non_finite": "propagate"')
    if options["scaler"] is not None:
        raise ArgumentError(f"{wanted} cannot take back a step that overflows: train in bfloat16, which"
                            " needs no scaler, or leave overlap out")
    if options["lookahead"]:
        raise ArgumentError(f"{wanted} and lookahead=True exclude each other: the shift needs all updates")
    if not type(optimiser).step.__module__.startswith("torch.optim"):
        raise ArgumentError(f"{wanted} steps one parameter at a time, and the step() of"
                            f" {type(optimiser).__name__} is not one of torch.optim's: leave overlap out")


class ForwardOptimizer(GradientOptimizer):
    """A GradientOptimizer whose step() does not wait.

    The update of a parameter is applied just before the forward pass of the module that has it, with
    the options that its group had at step(). state_dict() and load_state_dict(), of the model too,
    shared() and close() apply the rest first. Whatever else reads parameters calls finish() first.

    synchronize() after a backward pass brings the means into `.grad`, for example to clip them. That
    step is then applied at once.
    """

    def __init__(self, optimiser: torch.optim.Optimizer, module: Named, passes: int, overlap: str,
                 method: str, **options: Any):
        check(optimiser, module, overlap, method, options)
        super().__init__(optimiser, module, passes, **{**options, "lookahead": False})
        self._due: Dict[int, Due] = {}  # by the id of the parameter
        self._open = False              # the step was ended, and not waited for
        self._owners = Owners({id(parameter) for parameter in self.job.parameters()})
        self._reached: Set[int] = set()  # parameters that a module applied since the last step
        self._direct: Set[int] = set()   # parameters that were used without a call of a module
        self.job.finish = weakly(self.finish)
        for part in module.modules():  # type: ignore[union-attr]
            self._hook(part)

    def _hook(self, module: torch.nn.Module) -> None:
        before = module.register_forward_pre_hook(ModuleHook(self._before_forward))
        # Hooks that compute a weight, as those of weight_norm() do, come after this one.
        module._forward_pre_hooks.move_to_end(before.id, last=False)
        self._handles += [before, module._register_state_dict_hook(ModuleHook(self._before_reading)),
                          module._register_load_state_dict_pre_hook(ModuleHook(self._before_reading))]

    def _before_forward(self, module: torch.nn.Module) -> None:
        for key in self._owners.reached(module):
            self._reached.add(key)
            self._apply(key)

    def _before_reading(self, unused: Any) -> None:
        """The dictionary of a module shares the memory of its parameters."""
        self.finish()

    # ---- a step

    def _gradient(self, parameter: torch.nn.Parameter) -> None:
        if id(parameter) in self._due:
            raise StateError(f"the forward pass used '{self.job.tensor(parameter).name}' without a call of"
                             " the module that has it, and before its update was applied: call finish()"
                             " before such a forward pass")
        if id(parameter) not in self._reached:
            self._direct.add(id(parameter))
        super()._gradient(parameter)

    def _push(self, parameter: torch.nn.Parameter) -> None:
        if not self._pushed:
            self.finish()
        super()._push(parameter)

    def _all_pushed(self) -> None:
        """step() ends the step."""

    @untraced
    def synchronize(self) -> None:
        self.finish()
        super().synchronize()

    @untraced
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        """Ends the step. The next forward pass applies it."""
        self._check_trained()
        self._check_converted()
        loss = self._loss(closure)
        if getattr(self, "found_inf", None) is not None:
            raise StateError('overlap="forward" works without a GradScaler: train in bfloat16')
        if self._synchronised:
            super().step()
        else:
            self._check_unchanged()
            self._leave()
        self._reached.clear()
        return loss

    def _leave(self) -> None:
        """Ends the step, and notes what its updates are to be applied with."""
        self._push_rest()
        self.finish()
        self.job.end()
        self._open = True
        for group in self.optimiser.param_groups:
            options = _frozen(group)
            for parameter in group["params"]:
                key = id(parameter)
                pushed = key in self._pushed
                left = None if pushed or parameter.grad is None else parameter.grad.clone()
                if key in self._exchanged:
                    self._due[key] = Due(parameter, pushed, options, left)
        self._forget()
        # Schedules of the wrapped optimiser warn if it has not stepped when they do. torch 1, torch 2:
        setattr(self.optimiser, "_step_count", max(1, getattr(self.optimiser, "_step_count", 1)))
        setattr(self.optimiser, "_opt_called", True)
        for key in self._direct:
            self._apply(key)

    # ---- its updates

    def finish(self) -> None:
        """Applies all updates that are on their way. Afterwards the parameters are those of the last
        step()."""
        if self._open:
            self._end()
        for key in list(self._due):
            self._apply(key)

    def _end(self) -> None:
        self._check(self.job.wait())
        self._open = False

    @staticmethod
    def _check(accepted: bool) -> None:
        if not accepted:
            raise StateError("a step was withdrawn after a part of it was applied: the policy of the job was"
                             " changed, and has no longer \"non_finite\": \"propagate\"")

    def _apply(self, key: int) -> None:
        """Applies the update of a parameter, if one is on its way."""
        due = self._due.get(key)
        if due is None:
            return
        if self._open and due.pushed:
            self._check(self.job.wait_for(self.job.tensor(due.parameter)))
        elif self._open:
            self._end()  # before that, no rank knows what others pushed
        with torch.inference_mode(False):  # else training cannot change the state that the optimiser makes
            if not self._apply_list(due):
                self._step_one(due, self._taken(due))
        del self._due[key]

    def _apply_list(self, due: Due) -> bool:
        """Plain SGD changes only the elements that are in an update. False: nothing was changed, as the
        optimiser is another one, or there is no short list."""
        parameter, rate = due.parameter, _methods.plain_rate(self.optimiser, due.options)
        if rate is None or parameter.dtype != torch.float32 or parameter.device.type != "cpu":
            return False
        row = _parameters.flat(parameter, parameter)
        shared = row.data_ptr() == parameter.data_ptr()  # else the row is a copy
        return shared and self.job.apply_sgd(self.job.tensor(parameter), row, rate)

    def _taken(self, due: Due) -> Optional[torch.Tensor]:
        row = torch.empty(due.parameter.numel(), dtype=due.parameter.dtype, device=due.parameter.device)
        pushed = self.job.write([(self.job.tensor(due.parameter), row)])[0]
        return _parameters.unflat(due.parameter, row) if pushed else due.gradient

    def _step_one(self, due: Due, gradient: Optional[torch.Tensor]) -> None:
        """The wrapped optimiser's step, of one parameter."""
        inner, parameter = self.optimiser, due.parameter
        groups, own = inner.param_groups, parameter.grad
        try:
            inner.param_groups = [{**due.options, "params": [parameter]}]
            parameter.grad = gradient
            inner.step()
        finally:
            inner.param_groups, parameter.grad = groups, own

    def close(self) -> None:
        try:
            self.finish()
        finally:
            super().close()


def _frozen(group: Dict[str, Any]) -> Dict[str, Any]:
    """The options of a group, which schedulers change after step()."""
    return {name: value.clone() if isinstance(value, torch.Tensor) else value
            for name, value in group.items() if name not in ("params", "param_names")}

"""What the distributed optimisers share: they wrap an optimiser of torch, and own a job."""
import contextlib
import weakref
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ..errors import ArgumentError
from .._abi import DType, Form
from . import _cuda, _methods, _parameters, _share
from ._ahead import Ahead
from ._job import Job, checked_scaler
from ._placement import HostPlacement

EXACT = "float32 of "  # in a state, before the name of a parameter

Named = Union[None, torch.nn.Module, Iterable[Tuple[str, torch.nn.Parameter]]]


def positions(optimiser: torch.optim.Optimizer) -> Iterator[Tuple[str, torch.nn.Parameter]]:
    """Names for parameters that were given none: the group's number, and that in the group."""
    for at, group in enumerate(optimiser.param_groups):
        for number, parameter in enumerate(group["params"]):
            yield f"{at}.{number}", parameter


def named(optimiser: torch.optim.Optimizer, given: Named) -> List[Tuple[str, torch.nn.Parameter]]:
    """All parameters that were given, which have those of the optimiser, with their names."""
    if isinstance(given, torch.nn.Module):
        _parameters.refuse_model(given)
        given = given.named_parameters()
    pairs = list(positions(optimiser) if given is None else given)
    if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 and isinstance(pair[0], str)
               and isinstance(pair[1], torch.Tensor) for pair in pairs):
        raise ArgumentError("named_parameters must be the module, or pairs of names and parameters, as its"
                            " named_parameters() gives them")
    known: Dict[int, Tuple[str, torch.nn.Parameter]] = {}
    for name, parameter in pairs:
        known.setdefault(id(parameter), (name, parameter))  # tied weights have several names
    for name, parameter in positions(optimiser):
        if id(parameter) not in known:
            raise ArgumentError(f"named_parameters lacks parameter {name} of the optimiser, of shape"
                                f" {tuple(parameter.shape)}")
    return list(known.values())


# Those that were not closed, by the ids of their parameters.
_owners: "weakref.WeakValueDictionary[int, Wrapper]" = weakref.WeakValueDictionary()

_groups: "weakref.WeakKeyDictionary[torch.nn.Module, Any]" = weakref.WeakKeyDictionary()  # see below


def refuse_twice(module: Optional[torch.nn.Module], process_group: Any) -> None:
    """Gradients would be exchanged twice among the same ranks."""
    group = process_group if process_group is not None else dist.group.WORLD
    for name, part in module.named_modules() if module is not None else ():
        if isinstance(part, DistributedDataParallel) and part.process_group == group:
            raise ArgumentError(f"{f'module {name!r}' if name else 'the module'} is of"
                                " DistributedDataParallel, which"
                                " exchanges the gradients among these ranks already: give the module inside"
                                " it and call that one, or use adtopk_hook")
    if module is not None:
        _groups[module] = group


def refuse_inside(module: torch.nn.Module, *unused: Any) -> None:
    """A hook before the forward pass, which DDP may be running. It does not look otherwise whether a DDP
    has the module, because one that is not called exchanges nothing.

    A function of this file, so that the module can be copied, and torch.compile() takes it in.
    """
    ddp: Any = DistributedDataParallel._active_ddp_module
    if ddp is not None and ddp.require_backward_grad_sync and torch.is_grad_enabled() and (
            ddp.process_group == _groups.get(module)):
        raise ArgumentError("DistributedDataParallel calls this module, and would exchange the gradients that"
                            " the distributed optimiser exchanges: call the module itself, or use"
                            " adtopk_hook")


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a method as long as its object lives, and does not keep it alive."""
    found = weakref.WeakMethod(method)

    def call(*arguments: Any) -> Any:
        own = found()
        return own(*arguments) if own is not None else None
    return call


class OptimiserJob(Job):
    """The job of an optimiser: forms for looking ahead, and elements in f32 where drifts are exchanged."""

    def __init__(self, *arguments: Any, ahead: Optional[bool], method: str):
        """ahead: whether to register parameters for looking ahead; None: where it costs little."""
        super().__init__(*arguments)
        self._ahead = ahead
        self.method = method
        self.between: Callable[[], None] = lambda: None  # raises where a checkpoint would lack something
        self.finish: Callable[[], None] = lambda: None   # applies updates that are on their way
        self.velocity: Dict[str, torch.Tensor] = {}  # of the shared parameters, by name
        self.exact: Dict[str, torch.Tensor] = {}  # shared parameters in 16 bits before rounding, by name

    def _registered(self, parameter: torch.nn.Parameter, place: HostPlacement) -> Tuple[DType, Form]:
        dtype = DType.F32 if self.method == _methods.STEP else _parameters.DTYPES[parameter.dtype]
        forms = _parameters.forms(dtype)
        ahead = not place.is_far_ahead if self._ahead is None else self._ahead
        return dtype, forms | Form.PENDING if ahead and parameter.dtype == torch.float32 else forms

    @property
    def step(self) -> int:
        """Steps that are done, and applied."""
        self.finish()
        return super().step

    def _between_steps(self) -> None:
        self.finish()
        self.between()

    def _kept(self) -> Dict[str, torch.Tensor]:
        return {name: row.clone() for name, row in (
            *self.velocity.items(), *((EXACT + name, row) for name, row in self.exact.items()))}

    def _keeps_state(self) -> bool:
        return bool(self.velocity)  # without `exact` ranks lose half of a last digit, once

    def _take(self, kept: Dict[str, torch.Tensor]) -> None:
        found: Dict[str, Dict[str, torch.Tensor]] = {"velocity": {}, "float32 copy": {}}
        for key, row in kept.items():
            what, name = "velocity", key
            if key.startswith(EXACT) and key not in self._parameters:
                what, name = "float32 copy", key[len(EXACT):]
            if name not in self._parameters or row.numel() != self._parameters[name].numel():
                raise ArgumentError(f"the state has a {what} for '{name}', which the model lacks")
            found[what][name] = row.clone()
        self.velocity, self.exact = found.values()


class Wrapper(torch.optim.Optimizer):
    """An optimiser of torch whose ranks exchange. Groups, state and options are those of the wrapped
    one, so that schedulers and checkpoints work as before; `job` has the exchange.

    compared: the options that decide what is exchanged, which are equal on all ranks.
    """

    _step_supports_amp_scaling = True  # GradScaler calls step() on all ranks, overflow or not

    def __init__(self, optimiser: torch.optim.Optimizer, given: Named, compared: Dict[str, Any], policy: Any,
                 scaler: Any, lookahead: Optional[bool], process_group: Any, address: Optional[str],
                 job: Optional[str], run_id: Optional[str], connect_timeout: Optional[float]):
        # Not Optimizer.__init__(): everything that it makes is the wrapped optimiser's.
        if isinstance(optimiser, Wrapper):
            raise ArgumentError("this optimiser exchanges already: give the one of torch")
        module = given if isinstance(given, torch.nn.Module) else None
        refuse_twice(module, process_group)
        if lookahead and module is None:
            raise ArgumentError("to look ahead, give the module in place of its named parameters")
        everything = named(optimiser, given)
        own = {id(parameter) for _, parameter in positions(optimiser)}
        pairs = list(_parameters.registrations(pair for pair in everything if id(pair[1]) in own))
        device = _parameters.checked_device(dict(pairs))
        ahead = module is not None and lookahead is not False
        method = compared["method"]
        _methods.check(optimiser, policy, method, ahead)
        self.optimiser = optimiser
        self.job = OptimiserJob(pairs, _parameters.label(module or optimiser), policy, process_group, address,
                                job, run_id, connect_timeout, ahead=lookahead if ahead else False,
                                method=method)
        self._scaler = checked_scaler(scaler)
        for name, parameter in pairs:
            if id(parameter) in _owners:
                raise ArgumentError(f"another distributed optimiser exchanges parameter '{name}': close()"
                                    " that one first")
        self._grouped: List[int] = []  # ids of the groups that the next line was made of
        self._groups: Dict[int, Dict[str, Any]] = {}
        self._names = {id(parameter): name for name, parameter in everything}
        self._exchanged = {id(parameter) for _, parameter in pairs}
        _share.check_options(compared, process_group)
        # Frozen ones as well, unless the ranks' own backend cannot reach them.
        _share.broadcast_parameters([pair for pair in everything if _cuda.device_of(pair[1]) == device],
                                    process_group=process_group)
        self._inside = module.register_forward_pre_hook(refuse_inside) if module is not None else None
        if self._inside is not None:
            weakref.finalize(self, self._inside.remove)
        self._ahead = Ahead(self.job, module, weakly(self._reach)) if module is not None and ahead else None
        _owners.update(dict.fromkeys(self._exchanged, self))

    def _group(self, parameter: torch.Tensor) -> Optional[Dict[str, Any]]:
        """The parameter's group; None if that was removed. Loading a state makes new ones."""
        groups = self.optimiser.param_groups
        grouped = [id(group) for group in groups]
        if self._grouped != grouped:
            self._grouped = grouped
            self._groups = {id(one): group for group in groups for one in group["params"]}
        return self._groups.get(id(parameter))

    def _reach(self, parameter: torch.Tensor) -> Optional[_methods.Reach]:
        """How far an update moves a parameter. None: nobody knows, or none follows."""
        group = self._group(parameter)
        return _methods.reach(self.optimiser, group, parameter) if group is not None else None

    # ---- the wrapped optimiser

    def __getattr__(self, name: str) -> Any:
        """Whatever else an optimiser has, such as its hooks, is the wrapped one's."""
        if name.startswith("__") or "optimiser" not in self.__dict__:
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        return getattr(self.optimiser, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Lightning gives its own wrapper this class. What our methods set there belongs to the optimiser in
        it, which is what they read."""
        outer = name.startswith("_") and name not in self.__dict__
        object.__setattr__(self.__dict__.get("_optimizer", self) if outer else self, name, value)

    @property
    def param_groups(self) -> List[Dict[str, Any]]:  # type: ignore[override]
        return self.optimiser.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimiser.state

    @property
    def defaults(self) -> Dict[str, Any]:  # type: ignore[override]
        return self.optimiser.defaults

    def state_dict(self) -> Dict[str, Any]:
        """The wrapped optimiser's. `job.state_dict()` has the rest, and is collective."""
        self.finish()
        return self.optimiser.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.finish()
        self.optimiser.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: Optional[bool] = None) -> None:
        """set_to_none: None is the default of this version of torch."""
        self.optimiser.zero_grad(**({} if set_to_none is None else {"set_to_none": set_to_none}))

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        raise ArgumentError("the parameters of a distributed optimiser are fixed: make a new one, of an"
                            " optimiser that has the group")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: save what its state_dict()"
                        " returns, and that of its job")

    def __repr__(self) -> str:
        return f"{type(self).__name__} of {self.optimiser!r}"

    # ---- steps

    def _check_trained(self) -> None:
        """Refuses a step that would change a parameter on each rank alone."""
        for name, parameter in positions(self.optimiser):
            if parameter.requires_grad and parameter.numel() and id(parameter) not in self._exchanged:
                raise ArgumentError(f"parameter '{self._names.get(id(parameter), name)}' of shape"
                                    f" {tuple(parameter.shape)} was frozen, or not there, when the"
                                    " distributed optimiser was made, so that ranks do not exchange it:"
                                    " freeze it, or make a new one now that the model is complete")

    def finish(self) -> None:
        """Applies all updates that are on their way. Only overlap="forward" leaves any."""

    def _loss(self, closure: Any) -> Any:
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _own_step(self) -> None:
        """The wrapped optimiser's step, after a GradScaler's scale was taken off."""
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            for parameter in self.job.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(float(scale))
        self.optimiser.step()

    def _shared_row(self, parameter: torch.Tensor) -> Optional[torch.Tensor]:
        """The parameter that all ranks share, in a row. None: the parameter itself."""
        raise NotImplementedError

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Within it the parameters are those that all ranks share: to evaluate and save them."""
        own = []
        self.finish()
        with torch.no_grad():
            for parameter in self.job.parameters():
                row = self._shared_row(parameter)
                if row is not None:
                    own.append((parameter, parameter.detach().clone()))
                    parameter.copy_(_parameters.unflat(parameter, row))
        try:
            yield
        finally:
            with torch.no_grad():
                for parameter, values in own:
                    parameter.copy_(values)

    def close(self) -> None:
        """Leaves the job. The parameters are then those that all ranks share; with LocalSteps each rank's
        own, unless exchange() came last."""
        if self._inside is not None:
            self._inside.remove()
        if self._ahead is not None:
            self._ahead.close()
        for key in self._exchanged:
            if getattr(_owners.get(key), "job", None) is self.job:
                del _owners[key]
        self.job.close()

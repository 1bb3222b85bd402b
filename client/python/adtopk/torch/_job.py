"""The job of a model: its parameters, its ranks, and what a checkpoint keeps of them."""
import contextlib
import os
import time
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from .. import errors
from .._abi import DType, Form
from .._context import Checkpoint, Context, checked_number
from .._tensor import Tensor
from .._warn import warn
from . import _methods, _parameters, _place, _residuals, _run
from ._placement import HostPlacement, Row

Named = Iterable[Tuple[str, torch.nn.Parameter]]
PHASES = ("push", "wait", "write")
MIDDLE = ("in the middle of a backward pass: call this when it has returned; after one that failed go on from"
          " a checkpoint")


def checked_scaler(scaler: Any) -> Any:
    """The GradScaler that was given, or None."""
    if scaler is not None and not callable(getattr(scaler, "get_scale", None)):
        raise errors.ArgumentError(f"scaler is {scaler!r}, and must be the GradScaler of the training")
    return scaler


def _leave(context: Context, place: HostPlacement, forgotten: bool = False) -> None:
    """Closes both. A forked child has no part in the placement. forgotten: its job was not closed."""
    if not context.forked:
        place.close()
    if forgotten:
        context._close(False)
    else:
        context.close()


def loss_scale(scaler: Any) -> float:
    """The scale of the gradients of this step."""
    return float(scaler.get_scale()) if scaler is not None else 1.0


class Copied:
    """What is in the place of a job in a copy of what had it. It exchanges nothing."""

    def __init__(self, label: str):
        self._label = label

    def __repr__(self) -> str:
        return f"<what was copied of the exchange of {self._label}: nothing>"


class Job:
    """Parameters that the ranks of a process group exchange.

    named: the parameters with the names that policies and checkpoints see. label: the name of the job if
    none is given. The other arguments are those of ADTopkState. Nothing is opened before open() or the
    first exchange.
    """

    method = _methods.GRADIENT  # what residuals are a part of

    def __init__(self, named: Named, label: str, policy: Any, process_group: Any, address: Optional[str],
                 job: Optional[str], run_id: Optional[str], connect_timeout: Optional[float]):
        self._parameters: Dict[str, torch.nn.Parameter] = dict(named)
        _parameters.checked_device(self._parameters)
        self._group = process_group
        self._label = label
        self._policy = _methods.checked_policy(policy)
        self._options: Dict[str, Any] = {"address": address, "job": job, "run_id": run_id,
                                         "connect_timeout": connect_timeout}
        self._context: Optional[Context] = None
        self._closed = False
        self._place: Any = None  # a HostPlacement, or one of its heirs
        self._tensors: Dict[int, Tensor] = {}  # by the id of the parameter
        self._layouts: Dict[int, Any] = {}     # of parameters, by their ids
        self._restored = _residuals.Restored()
        self._loaded: Optional[_residuals.Loaded] = None
        self._withdrawn = 0
        self._accepted = True      # the last step
        self._over = False         # deliver() has ended the step, and not copied all of it yet
        self._undecided = False    # streams wait for its end, and the host has not
        self._seconds = dict.fromkeys(PHASES, 0.0)

    def named(self) -> List[Tuple[str, torch.nn.Parameter]]:
        """The parameters, in the order in which they are registered."""
        return list(self._parameters.items())

    def parameters(self) -> List[torch.nn.Parameter]:
        """The parameters without their names."""
        return list(self._parameters.values())

    # ---- opening

    @property
    def context(self) -> Context:
        """The rank's connection. StateError before the first exchange, which opens it."""
        if self._context is None:
            raise errors.StateError("nothing was exchanged yet: the first exchange, or open(), joins the job")
        self.accepted()
        return self._context

    @property
    def device(self) -> torch.device:
        """Where the parameters are: a model may be moved until the job is opened."""
        return _parameters.checked_device(self._parameters)

    @property
    def group(self) -> Any:
        """The process group whose ranks exchange."""
        return self._group if self._group is not None else dist.group.WORLD

    def _registered(self, parameter: torch.nn.Parameter, place: HostPlacement) -> Tuple[DType, Form]:
        """The type and forms with which a parameter is registered."""
        dtype = _parameters.DTYPES[parameter.dtype]
        return dtype, _parameters.forms(dtype)

    def open(self) -> Context:
        """Joins the job with all ranks of the process group, and registers the parameters. Once."""
        self.check_open()
        if self._context is not None:
            return self._context
        group, device = self.group, self.device
        _residuals.check_steps(group, self._loaded, device.type)
        job, run_id = _run.agree(group, self._options["job"], self._options["run_id"], self._label)
        context, place = _place.join(
            group, device, **{**self._options, "job": job, "run_id": run_id},
            rank=dist.get_rank(group), world_size=dist.get_world_size(group), policy=self._policy)
        self.note_layouts()
        try:
            for name, shape in self._shapes().items():
                parameter = self._parameters[name]
                self._tensors[id(parameter)] = place.register(
                    name, shape, *self._registered(parameter, place))
            context.commit()
            place.committed()
        except BaseException:
            self._tensors.clear()
            _leave(context, place)
            raise
        weakref.finalize(self, _leave, context, place, True)
        self._context, self._place = context, place
        if context.rank == 0:
            self._warn()
        return context

    def _warn(self) -> None:
        """The daemon takes rules that match nothing, because a policy may serve several models."""
        for pattern in _methods.unmatched(self._policy, self._parameters):
            warn(f"no parameter's name matches the policy's rule \"{pattern}\"; one name is"
                 f" '{next(iter(self._parameters))}'")

    @property
    def step(self) -> int:
        """Steps that are done, those before the checkpoint that was loaded included."""
        before = self._loaded.step if self._loaded is not None else 0
        self.accepted()
        return before + self._steps()

    def _steps(self) -> int:
        """Steps of this job. They can be read after close() as well."""
        return self._context._number if self._context is not None else 0

    def check_open(self) -> None:
        """Raises a StateError after close()."""
        if self._closed:
            raise errors.ReleasedError(f"{self!r} was closed: make a new one, of a new"
                                       " DistributedDataParallel where it is a hook's state")

    def close(self) -> None:
        """Leaves the job."""
        self._closed = True
        if self._context is not None:
            self._undecided = False
            _leave(self._context, self._place)

    # ---- a step

    def note_layouts(self) -> None:
        """Notes, once, how parameters lie in memory: from now on rows of their elements are kept."""
        if not self._layouts:
            self._layouts = {id(parameter): _parameters.layout(parameter) for parameter in self.parameters()}

    def tensor(self, parameter: torch.Tensor) -> Tensor:
        """What the parameter is registered as. ArgumentError if it has been laid out anew since then: its
        residual would go to other elements."""
        try:
            tensor = self._tensors[id(parameter)]
            if _parameters.layout(parameter) != self._layouts[id(parameter)]:
                raise errors.ArgumentError(
                    f"parameter '{tensor.name}' has another shape or memory format than when its exchange"
                    f" began, and is now of shape {tuple(parameter.shape)} with strides {parameter.stride()}:"
                    " convert the model before the first step")
            return tensor
        except KeyError:
            raise errors.ArgumentError(
                f"a parameter of shape {tuple(parameter.shape)} is not one of the model that {self!r} was"
                " made for, or was frozen then: make it after the model is complete") from None

    @staticmethod
    def _check(tensor: Tensor, gradient: torch.Tensor) -> None:
        """Nothing else would notice that a parameter has become another one."""
        if gradient.numel() != tensor.numel or _parameters.DTYPES.get(gradient.dtype) != tensor.dtype:
            raise errors.ArgumentError(f"the gradient of '{tensor.name}' is {gradient.dtype} of shape"
                                       f" {tuple(gradient.shape)}; {tensor!r} was registered")

    def push(self, gradients: Iterable[Row], scale: float) -> None:
        """Hands over elements that lie in memory as each tensor was registered."""
        self.accepted()
        self._over = False
        with self._timed("push"):
            self._place.push(self._prepared(gradients, scale), scale)

    def _prepared(self, gradients: Iterable[Row], scale: float) -> Iterator[Row]:
        """The gradients, with what was loaded for them."""
        restored = self._restored
        for tensor, gradient in gradients:
            self._check(tensor, gradient)
            if restored.parts:
                gradient = restored.add(tensor.name, gradient, scale)
            yield tensor, gradient

    def wait(self) -> bool:
        """Ends the step. False: a gradient of some rank had NaN or Inf, and nothing is to be applied."""
        with self._timed("wait"):
            self._accepted = self._place.wait()
        self._undecided = False
        self._restored.settle(self._accepted)
        self._withdrawn += not self._accepted
        return self._accepted

    def accepted(self) -> bool:
        """Whether the last step was accepted. Waits for it where only streams have waited so far."""
        return self.wait() if self._undecided else self._accepted

    def deliver(self, places: Sequence[Row]) -> List[bool]:
        """Ends the step, and copies the updates of tensors; NaN if the step is withdrawn. False in place
        of one: no rank pushed it, and nothing was copied.

        On a GPU the stream waits and the host does not, if this rank has pushed all these tensors. Called
        again after an exception, it goes on.
        """
        if self._over:
            pass
        elif self._place.streams_wait and all(tensor.is_pushed for tensor, _ in places):
            with self._timed("wait"):
                self._place.wait_in_stream()
            self._undecided = True
        else:
            self.wait()
        self._over = True
        if self._undecided or self._accepted:
            found = self.write(places)
        else:
            for _, into in places:
                into.fill_(float("nan"))
            found = [True] * len(places)
        self._over = False
        return found

    def end(self) -> None:
        """Ends the step without waiting. Then comes wait(), perhaps after wait_for()."""
        self._place.end()

    def wait_for(self, tensor: Tensor) -> bool:
        """Waits for the update of one tensor that this rank pushed. False: as wait()."""
        with self._timed("wait"):
            return bool(self._place.wait_for(tensor))

    def write(self, places: Sequence[Row]) -> List[bool]:
        """Copies the updates of tensors. False in place of one: no rank pushed it, so it has none."""
        with self._timed("write"):
            for tensor, into in places:
                self._check(tensor, into)
            return list(self._place.write(places))

    def apply_sgd(self, tensor: Tensor, row: torch.Tensor, rate: float) -> bool:
        """Plain SGD on parameters in host memory. False: the update is no short list, and nothing was
        changed."""
        with self._timed("write"):
            self._check(tensor, row)
            return self._place.apply_sgd(tensor, row, rate)

    def look_ahead(self, row: Row, ahead: torch.Tensor, reach: _methods.Reach) -> bool:
        """Writes into `ahead` where the next gradients of these parameters are taken, between two steps. The
        second moment is a row, too. False: they are taken here."""
        self.accepted()
        return bool(self._place.look_ahead(row, ahead, reach))

    @contextlib.contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._seconds[phase] += time.perf_counter() - began

    def stats(self) -> Dict[str, float]:
        """Counts of this rank, and its mean milliseconds in a step: copying gradients to the daemon,
        waiting for the step, and copying updates. `adtopkctl stats` has the bytes that a node sent."""
        steps = self._steps()
        found = {"steps": float(steps), "withdrawn": float(self._withdrawn),
                 "elements": float(sum(one.numel() for one in self._parameters.values()))}
        for phase in PHASES:
            found[f"{phase}_ms"] = 1000 * self._seconds[phase] / max(steps, 1)
        return found

    # ---- checkpoints

    def _shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The shape in which each parameter is registered."""
        return {name: _parameters.memory_shape(parameter)
                for name, parameter in self._parameters.items()}

    def _between_steps(self) -> None:
        """Raises StateError in the middle of a step."""

    def _kept(self) -> Dict[str, torch.Tensor]:
        """What a checkpoint keeps besides residuals, the same on all ranks."""
        return {}

    def _keeps_state(self) -> bool:
        """Whether a checkpoint without _kept() would lack something."""
        return False

    def _take(self, kept: Dict[str, torch.Tensor]) -> None:
        """Takes in what _kept() gave."""

    def state_dict(self, full: bool = False) -> Dict[str, Any]:
        """The residuals, for a checkpoint. All ranks call it, after the same step.

        Each rank saves its own dictionary, and loads it again. With full=True every rank gets the same
        one, with the sum of all residuals, so that it is enough to save that of one rank. A run of
        another number of ranks can load it.
        """
        self._between_steps()
        self.accepted()
        own: Dict[str, torch.Tensor] = {}
        if self._context is not None:
            daemon = self._options["address"] or os.environ.get("ADTOPK_ADDRESS", "")
            own = _residuals.own_residuals(self.group, self._context.tensors, daemon)
        for name, part in self._restored.parts.items():  # loaded, and not pushed yet
            own[name] = own.get(name, 0) + part
        if full:
            own = _residuals.gather(self.group, own, self._shapes(), self.parameters()[0].device)
        return {"format": _residuals.FORMAT, "world_size": dist.get_world_size(self.group),
                "rank": None if full else dist.get_rank(self.group), "kept": self._kept(),
                "method": self.method, "step": self.step, "residuals": own}

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Takes in what state_dict() gave, before the first step.

        The first backward pass raises MismatchError on all ranks if theirs are of different steps.
        """
        if self._context is not None:
            raise errors.StateError("load the state before the first backward pass")
        parts = _residuals.check(saved, dist.get_rank(self.group), dist.get_world_size(self.group),
                                 self._shapes(), _methods.takes_means(self._policy), self.method)
        self._take(saved.get("kept", {}))
        self._restored.parts = parts
        self._loaded = _residuals.Loaded(saved["step"], saved["rank"] is None)

    @property
    def checkpoint_due(self) -> bool:
        """Whether an operator has asked for a checkpoint after this step: the same on all ranks.

        Ask after every step, and save then as you do at other times: it is true after one step only.
        """
        if self._context is None:
            return False
        self._between_steps()
        self.accepted()
        return self.context.checkpoint_due

    def checkpoint_save(self, folder: "Union[str, os.PathLike[str]]") -> None:
        """Saves residuals with the turns and thresholds of sparsifiers to an existing folder.

        All ranks call it, after the same step. Instead of state_dict(), where more than residuals is to
        come back: a run that loads it under the same policy goes on with the same bits.
        """
        self._between_steps()
        self.accepted()
        if self._restored.parts or self._keeps_state():
            raise errors.StateError("what load_state_dict() gave is not pushed yet, or this optimiser keeps"
                                    " more than residuals: use state_dict()")
        self.context.checkpoint_save(folder)

    def checkpoint_saved(self, saved: bool = True) -> None:
        """Says that the ranks have saved what state_dict() gave, so that operators who asked hear it.

        All ranks call it when their files are whole, after the same step. saved: whether this rank could
        save. If one could not, all ranks get SystemCallError, and training may go on.
        """
        self._between_steps()
        self.accepted()
        if self._context is not None:
            self._context.checkpoint_saved(saved)

    def checkpoint_load(self, folder: "Union[str, os.PathLike[str]]",
                        step: Optional[int] = None) -> Checkpoint:
        """Loads what checkpoint_save() saved, before the first step. All ranks call it; opens the job.

        step: that of the model, if it is known. StateError if the checkpoint is of another one, and on
        all ranks MismatchError if theirs differ: close the state then.
        """
        if self._context is not None:
            raise errors.StateError("load the checkpoint before the first backward pass")
        if step is not None:
            self._loaded = _residuals.Loaded(checked_number("step", step, 0, 2**63), True)
        try:
            found = self.open().checkpoint_load(folder)
        finally:
            self._loaded = None
        if step not in (None, found.step):
            raise errors.StateError(f"the checkpoint in {os.fspath(folder)} is of step {found.step}, and the"
                                    f" model of step {step}: residuals and parameters must be of one step")
        self._loaded = _residuals.Loaded(found.step, False)
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        """DistributedDataParallel copies and saves its hook's state with the model."""
        warn(f"{self!r} is left out of what is copied or saved: adtopk does not exchange the"
             " gradients of a copy, and residuals are in what state_dict() returns")
        return Copied, (self._label,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._label}, {len(self._parameters)} parameters>"

"""What the hook knows: the model's parameters, the open job, and the step under way."""
import os
import weakref
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._context import Context
from .._tensor import Tensor
from . import _parameters, _residuals, _run


class ADTopkState:
    """The state of adtopk_hook for one model.

    model: the module, or its DistributedDataParallel. policy: as Context takes it, the same on all
    ranks; None is the daemon's. scaler: the GradScaler of the training, if it has one, so that a
    changed loss scale changes no residual. process_group: the model's, None is DDP's own or the
    default one. address, job and run_id: as Context takes them; the first rank's job and run id are
    those of all ranks.

    Nothing is opened before the hook's first call. close() leaves the job; so does the end of the
    program.
    """

    def __init__(self, model: torch.nn.Module, policy: Any = None, scaler: Any = None,
                 process_group: Any = None, address: Optional[str] = None, job: Optional[str] = None,
                 run_id: Optional[str] = None):
        _parameters.refuse_model(model)
        inner = model.module if isinstance(model, torch.nn.parallel.DistributedDataParallel) else model
        self._group = process_group or getattr(model, "process_group", None)
        self._parameters = dict(_parameters.registrations(model))
        if not self._parameters:
            raise errors.ArgumentError("the model has no parameter to train")
        self._model_name = type(inner).__name__
        self._policy = policy
        self._scaler = scaler
        self._options: Dict[str, Any] = {"address": address, "job": job, "run_id": run_id}
        self._context: Optional[Context] = None
        self._tensors: Dict[int, Tensor] = {}  # by the id of the parameter
        self._used: Set[int] = set()  # parameters that had a gradient since the last step
        self._waiting: List[Tuple[Any, torch.futures.Future]] = []  # buckets of this step
        self._scale = 1.0
        self._restored = _residuals.Restored()
        self._handles = [parameter.register_hook(self._marker(id(parameter)))
                         for parameter in self._parameters.values()]

    def _marker(self, key: int) -> Any:
        """A hook that notes that a parameter has a gradient. It keeps no reference to this state."""
        used = self._used
        return lambda gradient: used.add(key)

    # ---- opening

    @property
    def context(self) -> Context:
        """The open job. StateError before the hook's first call."""
        if self._context is None:
            raise errors.StateError("the hook was not called yet")
        return self._context

    @property
    def group(self) -> Any:
        """The process group whose ranks exchange."""
        return self._group if self._group is not None else dist.group.WORLD

    def _open(self) -> Context:
        """Joins the job with all ranks of the process group, and registers the parameters."""
        group = self.group
        job, run_id = _run.agree(group, self._options["job"], self._options["run_id"], self._model_name)
        context = Context(address=self._options["address"], job=job, run_id=run_id,
                          rank=dist.get_rank(group), world_size=dist.get_world_size(group),
                          policy=self._policy)
        try:
            for name, shape in self._shapes().items():
                parameter = self._parameters[name]
                dtype = _parameters.DTYPES[parameter.dtype]
                self._tensors[id(parameter)] = context.register(name, shape, dtype,
                                                                _parameters.forms(dtype))
            context.commit()
        except BaseException:
            self._tensors.clear()
            context.close()
            raise
        weakref.finalize(self, context.close)
        self._context = context
        return context

    def close(self) -> None:
        """Leaves the job, and takes the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._context is not None:
            self._context.close()

    # ---- a step

    def _tensor(self, parameter: torch.nn.Parameter) -> Tensor:
        try:
            return self._tensors[id(parameter)]
        except KeyError:
            raise errors.ArgumentError(
                f"a parameter of shape {tuple(parameter.shape)} is not one of the model that ADTopkState"
                " was given, or was frozen then: make the state after the model is complete") from None

    def _begin(self) -> None:
        """At the first bucket of a step: the loss scale, which holds for all of it."""
        self._scale = float(self._scaler.get_scale()) if self._scaler is not None else 1.0

    def add_bucket(self, bucket: Any) -> torch.futures.Future:
        """Pushes the gradients of one of DDP's buckets. The last one waits for the step."""
        if self._context is None:
            self._open()
        if not self._waiting:
            self._begin()
        if bucket.buffer().is_sparse:
            raise errors.ArgumentError("DDP handed over a sparse gradient: make the module that has it"
                                       " with sparse=False")
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            if gradient.numel() and id(parameter) in self._used:
                self._push(self._tensor(parameter), gradient)
        future: torch.futures.Future = torch.futures.Future()
        self._waiting.append((bucket, future))
        if bucket.is_last():
            self._finish()
        return future

    def _push(self, tensor: Tensor, gradient: torch.Tensor) -> None:
        if gradient.numel() != tensor.numel or _parameters.DTYPES.get(gradient.dtype) != tensor.dtype:
            raise errors.ArgumentError(f"the gradient of '{tensor.name}' is {gradient.dtype} of shape"
                                       f" {tuple(gradient.shape)}; {tensor!r} was registered")
        pushed = self._restored.add(tensor.name, gradient, self._scale)
        tensor.push_address(pushed.data_ptr(), self._scale)

    def _finish(self) -> None:
        """Waits for the step, writes the updates into all buckets and completes their futures."""
        accepted = self.context.step_wait()
        self._restored.settle(accepted)
        waiting, self._waiting = self._waiting, []
        self._used.clear()
        for bucket, future in waiting:
            if accepted:
                self._write(bucket)
            else:  # as the sum of all ranks would be: every scaler skips the step
                bucket.buffer().fill_(float("nan"))
            future.set_result(bucket.buffer())

    def _write(self, bucket: Any) -> None:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            if gradient.numel():
                self._tensor(parameter).update().copy_to_address(gradient.data_ptr())

    # ---- checkpoints

    def _shapes(self) -> Dict[str, Tuple[int, ...]]:
        """The shape in which each parameter is registered."""
        return {name: _parameters.memory_shape(parameter)
                for name, parameter in self._parameters.items()}

    def _between_steps(self) -> None:
        if self._waiting:
            raise errors.StateError("in the middle of a backward pass")

    def state_dict(self, full: bool = False) -> Dict[str, Any]:
        """The residuals, for a checkpoint. All ranks call it, after the same step.

        Each rank saves its own dictionary, and loads it again. With full=True every rank gets the same
        one, with the sum of all residuals, so that it is enough to save that of one rank.
        """
        self._between_steps()
        own: Dict[str, torch.Tensor] = {}
        if self._context is not None:
            daemon = self._options["address"] or os.environ.get("ADTOPK_ADDRESS", "")
            own = _residuals.own_residuals(self.group, self._context.tensors, daemon)
        for name, part in self._restored.parts.items():  # loaded, and not pushed yet
            own[name] = own.get(name, 0) + part
        if full:
            own = _residuals.gather(self.group, own, self._shapes())
        return {"format": _residuals.FORMAT, "world_size": dist.get_world_size(self.group),
                "rank": None if full else dist.get_rank(self.group),
                "step": self._context.step if self._context is not None else 0, "residuals": own}

    def load_state_dict(self, saved: Dict[str, Any]) -> None:
        """Takes in what state_dict() gave, before the first step."""
        if self._context is not None:
            raise errors.StateError("load the state before the first backward pass")
        self._restored.parts = _residuals.check(saved, dist.get_rank(self.group),
                                                dist.get_world_size(self.group), self._shapes())

    def __repr__(self) -> str:
        return f"<ADTopkState of {self._model_name}, {len(self._parameters)} parameters>"

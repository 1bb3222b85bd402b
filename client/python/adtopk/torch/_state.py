"""What the hook knows: the model's parameters, the open job, and the step under way."""
from typing import Any, List, Optional, Set, Tuple

import torch

from .. import errors
from . import _parameters
from ._job import MIDDLE, Job, checked_scaler, loss_scale
from ._module_hook import untraced
from ._placement import Row


class ADTopkState(Job):
    """The state of adtopk_hook for one model.

    model: the module, or its DistributedDataParallel. policy: as Context takes it, the same on all
    ranks; None is the daemon's. scaler: the GradScaler of the training, if it has one, so that a
    changed loss scale changes no residual. process_group: the model's, None is DDP's own or the
    default one. address, job, run_id and connect_timeout: as Context takes them; the first rank's job
    and run id are those of all ranks.

    Nothing is opened before the hook's first call. close() leaves the job; so does the end of the
    program.
    """

    def __init__(self, model: torch.nn.Module, policy: Any = None, scaler: Any = None,
                 process_group: Any = None, address: Optional[str] = None, job: Optional[str] = None,
                 run_id: Optional[str] = None, connect_timeout: Optional[float] = None):
        inner = _parameters.inside(model)
        ignored = frozenset(getattr(inner, "_ddp_params_and_buffers_to_ignore", ()))
        _parameters.refuse_model(model, ignored)
        own = (pair for pair in inner.named_parameters() if pair[0] not in ignored)
        super().__init__(_parameters.registrations(own), _parameters.label(inner), policy,
                         process_group or getattr(model, "process_group", None), address, job, run_id,
                         connect_timeout)
        self._scaler = checked_scaler(scaler)
        self._used: Set[int] = set()  # parameters that had a gradient since the last step
        # The buckets of this step, what DDP waits for, and where their updates go.
        self._waiting: List[Tuple[Any, torch.futures.Future, List[Row]]] = []
        self._scale = 1.0
        self._handles = [parameter.register_hook(self._marker(id(parameter)))
                         for parameter in self._parameters.values()]

    def _marker(self, key: int) -> Any:
        """A hook that notes that a parameter has a gradient. It keeps no reference to this state."""
        used = self._used
        return torch.utils.hooks.unserializable_hook(lambda gradient: used.add(key))

    def close(self) -> None:
        """Leaves the job, and takes the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().close()

    @untraced
    def add_bucket(self, bucket: Any) -> torch.futures.Future:
        """Pushes the gradients of one of DDP's buckets. The last one waits for the step."""
        self.open()
        if not self._waiting:
            self._scale = loss_scale(self._scaler)  # for all buckets of the step
        if bucket.buffer().is_sparse:
            raise errors.ArgumentError("DDP handed over a sparse gradient: make the module that has it"
                                       " with sparse=False")
        found = [(parameter, gradient)
                 for parameter, gradient in zip(bucket.parameters(), bucket.gradients()) if gradient.numel()]
        places = [(self.tensor(parameter), gradient) for parameter, gradient in found]
        self.push((place for place, (parameter, _) in zip(places, found) if id(parameter) in self._used),
                  self._scale)
        future = self._place.future()
        self._waiting.append((bucket, future, places))
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        """Writes the updates of the step into all buckets, and completes their futures."""
        places = [place for *_, rows in self._waiting for place in rows]
        # NaN in a step that is withdrawn, as the sum of all ranks would be: every scaler skips it.
        taken = self.deliver(places)
        waiting, self._waiting = self._waiting, []
        self._used.clear()
        for (_, gradient), pushed in zip(places, taken):
            if not pushed:
                gradient.zero_()
        for bucket, future, _ in waiting:
            future.set_result(bucket.buffer())

    def _between_steps(self) -> None:
        if self._waiting:
            raise errors.StateError(MIDDLE)

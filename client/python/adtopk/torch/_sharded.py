"""FSDP2: the replicas of a sharded model exchange the gradients of their shards."""
import weakref
from typing import Any, List, Optional, Set, Tuple

import torch

from ..errors import ArgumentError, StateError
from . import _parameters
from ._job import MIDDLE, Job, checked_scaler, loss_scale
from ._module_hook import untraced


def _local(name: str, parameter: Any) -> torch.Tensor:
    """This rank's shard, with the parameter's memory."""
    placements = getattr(parameter, "placements", None)
    if placements is None or len(placements) != 1:
        raise ArgumentError(f"parameter '{name}' is not sharded over one mesh: call fully_shard(module,"
                            " mesh=...) first, with the mesh of the shards alone")
    if not placements[0].is_shard(0):
        raise ArgumentError(f"parameter '{name}' has the placement {placements[0]}: only shards along"
                            " axis 0 leave fibres whole")
    local: torch.Tensor = parameter.to_local().detach()
    return local.requires_grad_()


def _whole(parameter: Any, local: torch.Tensor) -> Any:
    """The gradient of a parameter, of which this is the rank's shard."""
    return type(parameter.detach()).from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride())


class ShardedState(Job):
    """The exchange of one shard of a model with the same shard of its other replicas."""

    def __init__(self, module: torch.nn.Module, group: Any, policy: Any, scaler: Any,
                 address: Optional[str], job: Optional[str], run_id: Optional[str],
                 connect_timeout: Optional[float]):
        trained = [(name, parameter) for name, parameter in module.named_parameters()
                   if parameter.requires_grad]
        shards = [(name, _local(name, parameter)) for name, parameter in trained]
        super().__init__(_parameters.registrations(shards), _parameters.label(module), policy, group, address,
                         job, run_id, connect_timeout)
        self._scaler = checked_scaler(scaler)
        self._scale = 1.0
        self._pushed: Set[int] = set()  # numbers of parameters
        self._pairs: List[Tuple[Any, torch.Tensor]] = [
            (parameter, shard) for (_, parameter), (_, shard) in zip(trained, shards) if shard.numel()]
        own = weakref.ref(self)
        self._handles = [self._hook(own, at) for at in range(len(self._pairs))]

    def _hook(self, own: Any, at: int) -> Any:
        @untraced
        def tell(parameter: Any) -> None:
            state = own()
            if state is not None:
                state._gradient(at)
        return self._pairs[at][0].register_post_accumulate_grad_hook(tell)

    def _gradient(self, at: int) -> None:
        """FSDP has reduced a parameter's gradient over the shards."""
        parameter, shard = self._pairs[at]
        self.open()
        if not self._pushed:
            self._scale = loss_scale(self._scaler)
            # FSDP itself ends its backward pass so. This one comes after it.
            torch.autograd.Variable._execution_engine.queue_callback(self.synchronize)
        if at in self._pushed:
            raise StateError(f"two gradients of '{self.tensor(shard).name}' in one backward pass")
        self._pushed.add(at)
        gradient = _parameters.flat(shard, parameter.grad.to_local())
        self.push([(self.tensor(shard), gradient)], self._scale)

    @untraced
    def synchronize(self) -> None:
        """Waits until the gradients have the means of all replicas, also of parameters that only other
        replicas used. The end of a backward pass does so. On a GPU the stream waits."""
        self.open()
        rows = []
        for parameter, shard in self._pairs:
            gradient = torch.empty_like(shard) if parameter.grad is None else parameter.grad.to_local()
            rows.append((parameter, shard, gradient, _parameters.flat(shard, gradient)))
        with torch.no_grad():
            taken = self.deliver([(self.tensor(shard), row) for _, shard, _, row in rows])
            self._pushed.clear()
            for (parameter, shard, gradient, row), has in zip(rows, taken):
                if has and row.data_ptr() != gradient.data_ptr():
                    gradient.copy_(_parameters.unflat(shard, row))
                if has and parameter.grad is None:
                    parameter.grad = _whole(parameter, gradient)

    def _between_steps(self) -> None:
        if self._pushed:
            raise StateError(MIDDLE)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        super().close()


def fully_shard_hook(module: torch.nn.Module, mesh: Any, policy: Any = None, scaler: Any = None,
                     address: Optional[str] = None, job: Optional[str] = None,
                     run_id: Optional[str] = None,
                     connect_timeout: Optional[float] = None) -> ShardedState:
    """The replicas of a module under FSDP2 exchange their gradients, at the end of each backward pass.

    module: after fully_shard() with the mesh of the shards, normally the GPUs or processes of a node.
    mesh: the mesh, or process group, of the replicas: the ranks that have the same shard, normally one
    on each node. The other arguments, and what is returned, are those of ADTopkState.

        mesh = init_device_mesh("cpu", (nodes, per_node), mesh_dim_names=("replicas", "shards"))
        fully_shard(model, mesh=mesh["shards"])
        state = adt.fully_shard_hook(model, mesh["replicas"])
    """
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise ArgumentError(f"FSDP2 needs a later torch than {torch.__version__}")
    if hasattr(mesh, "get_group"):
        if getattr(mesh, "ndim", 1) != 1:
            raise ArgumentError(f"the mesh of the replicas has {mesh.ndim} dimensions, and must have one")
        mesh = mesh.get_group()
    return ShardedState(module, mesh, policy, scaler, address, job, run_id, connect_timeout)

"""`ZeroRedundancyOptimizer`: each rank stores the states of its share of the parameters (ZeRO, Rajbhandari and others).

`DistributedDataParallel` makes gradients equal on all ranks. A rank updates its own parameters and sends them to the
others. The public name is in `torch.distributed.optim`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from flambeau.core.device import CPU
from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.algorithms.join import Join, Joinable, JoinHook
from flambeau.distributed.collectives.objects import gather_object
from flambeau.distributed.ddp.replicas import _broadcast_coalesced
from flambeau.distributed.world import world
from flambeau.optim.optimizer import Optimizer
from flambeau.tensor.tensor import Tensor

__all__ = ["ZeroRedundancyOptimizer"]

explain_absent_names(globals(), "torch.distributed.optim.zero_redundancy_optimizer")

_MESSAGE = 25 * 1024 * 1024  # bytes of parameters in one message


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer of `optimizer_class` whose states are distributed over the ranks of a group.

    Parameters are assigned by decreasing size, each to the rank with the fewest elements so far. Steps are bitwise
    equal to those of the optimizer itself.

    Args:
        params: As for any optimizer, equal on all ranks.
        defaults: Options of `optimizer_class`.
        process_group: The group; default: all ranks.
        parameters_as_bucket_view: No effect; parameters are sent in messages of 25 MiB.
        overlap_with_ddp: Raises NotSupportedError if True.

    Raises:
        TypeError: If `params` is not an iterable of tensors or groups.
        ValueError: If it is empty.
    """

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: Any = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        groups = _list_params(params)
        if overlap_with_ddp:
            raise NotSupportedError("overlap_with_ddp: Flambeau's optimizers do not step within backward")
        self.process_group = world().require_default() if process_group is None else process_group
        self.rank, self.world_size = self.process_group.rank(), self.process_group.size()
        self.parameters_as_bucket_view = parameters_as_bucket_view
        self._sizes = [0] * self.world_size  # number of elements assigned to each rank so far
        self._owner: dict[int, int] = {}  # ranks by parameters' identities
        # the states of all ranks, once `consolidate_state_dict` has collected them
        self._states: list[dict[str, Any]] = []
        self._local: Optimizer | None = None
        Optimizer.__init__(self, groups, defaults)
        Joinable.__init__(self)
        self._local = optimizer_class(
            [self._share(group, self.rank) for group in self.param_groups], **defaults
        )
        _take_options(self._local.param_groups, self.param_groups)

    @property
    def optim(self) -> Optimizer:
        """Return the optimizer of this rank's share of the parameters."""
        assert self._local is not None
        return self._local

    # -- who has what -------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, and deal its parameters out."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for p in sorted(group["params"], key=Tensor.numel, reverse=True):
            rank = min(range(self.world_size), key=self._sizes.__getitem__)
            self._owner[id(p)] = rank
            self._sizes[rank] += p.numel()
        if self._local is not None:
            self._local.add_param_group(self._share(group, self.rank))

    def _share(self, group: dict[str, Any], rank: int) -> dict[str, Any]:
        """Return a group with a rank's parameters alone, the largest first."""
        mine = [p for p in group["params"] if self._owner[id(p)] == rank]
        return {**group, "params": sorted(mine, key=Tensor.numel, reverse=True)}

    # -- a step -------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Update this rank's share of the parameters, and send it to the other ranks."""
        Join.notify_join_context(self)
        _take_options(self.optim.param_groups, self.param_groups)
        loss = self.optim.step(**kwargs) if closure is None else self.optim.step(closure=closure, **kwargs)
        _take_options(self.param_groups, self.optim.param_groups)
        self._sync_params()
        return loss

    def _sync_params(self) -> None:
        for rank in range(self.world_size):
            theirs = [p.detach() for group in self.param_groups for p in self._share(group, rank)["params"]]
            if theirs:
                _broadcast_coalesced(self.process_group, theirs, _MESSAGE, rank)

    # -- checkpoints --------------------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Copy all states to the CPU of one rank, which can then call `state_dict`. All ranks must call this."""
        _take_options(self.optim.param_groups, self.param_groups)
        here = [None] * self.world_size if self.rank == to else None
        gather_object(_on_cpu(self.optim.state_dict()), here, group=self.process_group, group_dst=to)
        self._states = [state for state in here or () if state is not None]

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all parameters, in the format of the wrapped optimizer.

        Raises:
            RuntimeError: If they are not here.
        """
        if not self._states:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call "
                f"`consolidate_state_dict(to={self.rank})` on all ranks beforehand if you meant to save the global "
                "state."
            )
        found = super().state_dict()
        index_of = self._indices()
        states: dict[int, Any] = {}
        for rank, local in enumerate(self._states):
            for group, saved in zip(self.param_groups, local["param_groups"], strict=True):
                for p, place in zip(self._share(group, rank)["params"], saved["params"], strict=True):
                    if place in local["state"]:
                        states[index_of[id(p)]] = local["state"][place]
        return {**found, "state": dict(sorted(states.items()))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore this rank's share of the state that `state_dict` returned."""
        super().load_state_dict({**state_dict, "state": {}})
        index_of = self._indices()
        local = self.optim.state_dict()
        states = {}
        for group, saved in zip(self.optim.param_groups, local["param_groups"], strict=True):
            for p, place in zip(group["params"], saved["params"], strict=True):
                if index_of[id(p)] in state_dict["state"]:
                    states[place] = state_dict["state"][index_of[id(p)]]
        self.optim.load_state_dict({**local, "state": states})
        _take_options(self.optim.param_groups, self.param_groups)

    def _indices(self) -> dict[int, int]:
        """Return the number of each parameter in all groups, by its identity."""
        params = [p for group in self.param_groups for p in group["params"]]
        return {id(p): i for i, p in enumerate(params)}

    # -- uneven inputs ------------------------------------------------------------------------------------------

    def join_hook(self, **_kwargs: Any) -> JoinHook:
        """Return the hook of a rank without more inputs. It still updates its share, because only this rank has these
        states.
        """
        return _ZeROJoinHook(self)

    @property
    def join_device(self) -> Any:
        return self.param_groups[0]["params"][0].device

    @property
    def join_process_group(self) -> Any:
        return self.process_group


class _ZeROJoinHook(JoinHook):
    def __init__(self, zero: ZeroRedundancyOptimizer) -> None:
        self.zero = zero

    def main_hook(self) -> None:
        zero = self.zero
        _take_options(zero.optim.param_groups, zero.param_groups)
        zero.optim.step()
        zero._sync_params()


def _list_params(params: Any) -> list[Any]:
    """Return the parameters or groups, as a list."""
    if isinstance(params, Tensor):
        raise TypeError(f"`params` argument should be an iterable of Tensors, but got {params.type()}")
    if not isinstance(params, Iterable):
        raise TypeError(
            f"`params` argument should be an iterable of Tensors or dicts, but got {type(params).__name__}"
        )
    found = list(params)
    if not found:
        raise ValueError("ZeroRedundancyOptimizer got an empty parameter list")
    if not all(isinstance(p, Tensor) for p in found) and not all(isinstance(p, dict) for p in found):
        raise TypeError("`params` argument should be an iterable of Tensors or dicts")
    if any(isinstance(p, dict) and "params" not in p for p in found):
        raise ValueError(
            "Each parameter group passed-in via `params` must have a 'params' key mapping to the parameters in the "
            "group"
        )
    return found


def _take_options(targets: list[dict[str, Any]], sources: list[dict[str, Any]]) -> None:
    """Copy options from some groups to others. Schedulers change those of the outer optimizer."""
    for target, source in zip(targets, sources, strict=True):
        target.update({name: value for name, value in source.items() if name != "params"})


def _on_cpu(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to(CPU)
    if isinstance(value, dict):
        return {name: _on_cpu(member) for name, member in value.items()}
    return [_on_cpu(member) for member in value] if isinstance(value, list) else value

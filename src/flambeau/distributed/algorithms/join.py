"""torch.distributed.algorithms.join: ranks that run out of inputs continue to answer the collectives of the others.

# Note [Joining]
Every call of the first joinable begins with a sum over the group, to which a rank with inputs contributes 1 and a rank
without inputs 0. So each rank knows how many ranks still have inputs. A rank without inputs repeats the others'
collectives by calling `main_hook` of its hooks until the sum is 0. Then every rank calls `post_hook`, by which the last
ranks share their final state with the others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple
from warnings import warn

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.tensor.functions.creation import ones, zeros

__all__ = ["Join", "JoinHook", "Joinable"]

explain_absent_names(globals(), "torch.distributed.algorithms.join")

_SKEW = 1000  # missing inputs of a rank from which a warning is issued


class JoinHook:
    """The actions of a rank that has run out of inputs. Both methods of this base class do nothing."""

    def main_hook(self) -> None:
        """Answer the collectives of one iteration of the ranks that still have inputs."""

    def post_hook(self, is_last_joiner: bool) -> None:
        """Run once after all ranks have finished. `is_last_joiner` is True on the ranks that worked longest."""


class Joinable(ABC):
    """An object with collectives in each iteration."""

    @abstractmethod
    def __init__(self) -> None:
        super().__init__()
        self._join_config = _JoinConfig.construct_disabled_join_config()

    @abstractmethod
    def join_hook(self, **kwargs: Any) -> JoinHook:
        """Return the hook that a rank without inputs runs for this object. `kwargs` are the keyword arguments of
        `Join`.
        """

    @property
    @abstractmethod
    def join_device(self) -> Any:
        """Return the device on which `Join` adds its counters."""

    @property
    @abstractmethod
    def join_process_group(self) -> Any:
        """Return the group of its collectives."""


class _JoinConfig(NamedTuple):
    """The settings of a joinable; only the first of several announces iterations."""

    enable: bool
    throw_on_early_termination: bool
    is_first_joinable: bool

    @staticmethod
    def construct_disabled_join_config() -> _JoinConfig:
        return _JoinConfig(False, False, False)


class Join:
    """A context manager for loops whose number of iterations differs from rank to rank: see Note [Joining].

    Args:
        joinables: The objects to join, in the order of their collectives in an iteration; all of one group.
        enable: False disables the context manager.
        throw_on_early_termination: Raise RuntimeError on all ranks when the first runs out of inputs.
        kwargs: Passed to each joinable's `join_hook`.

    Raises:
        ValueError: If there are no joinables, or they use several groups.
    """

    def __init__(
        self,
        joinables: list[Joinable],
        enable: bool = True,
        throw_on_early_termination: bool = False,
        **kwargs: Any,
    ) -> None:
        if not joinables:
            raise ValueError("The join context manager requires at least one joinable")
        self._joinables = joinables
        self._join_hooks = [joinable.join_hook(**kwargs) for joinable in joinables]
        self._enable = enable
        self._throws = throw_on_early_termination
        for place, joinable in enumerate(joinables):
            joinable._join_config = _JoinConfig(enable, throw_on_early_termination, place == 0)
        self._group, self._device = joinables[0].join_process_group, joinables[0].join_device
        if any(joinable.join_process_group != self._group for joinable in joinables):
            raise ValueError("Using join context manager with multiple process groups")
        self._rank = self._group.rank()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, value: object, traceback: object) -> None:
        if not self._enable or kind:
            return
        mirrored = 0
        while self._number_at_work():
            if self._throws:
                reduce_in_place(self._group, ones(1, device=self._device))
                raise RuntimeError(f"Rank {self._rank} exhausted all inputs.")
            for hook in self._join_hooks:
                hook.main_hook()
            mirrored += 1
            if mirrored == _SKEW + 1:
                self._warn()
        for hook in self._join_hooks:
            hook.post_hook(mirrored == 0)

    def _number_at_work(self) -> int:
        """Return the number of ranks that begin another iteration."""
        number = zeros(1, device=self._device)
        reduce_in_place(self._group, number)
        return int(number.item())

    def _warn(self) -> None:
        warn(
            f"Detected uneven input skew of greater than {_SKEW}. This means that rank {self._rank} has at least "
            f"{_SKEW} fewer inputs than other currently-active ranks. This level of skew could lead to performance "
            "degradation during training.",
            stacklevel=3,
        )

    @staticmethod
    def notify_join_context(joinable: Joinable) -> Any:
        """Notify ranks without inputs that this rank begins another iteration.

        Returns:
            The work of the sum over all ranks, or None if `joinable` is not the first joinable of an active `Join`.

        Raises:
            RuntimeError: If `throw_on_early_termination` is set and a rank has no more inputs.
        """
        if not hasattr(joinable, "_join_config"):
            raise AssertionError(
                f"Check that the {type(joinable)} constructor calls the ``Joinable`` constructor"
            )
        config = joinable._join_config
        if not (config.enable and config.is_first_joinable):
            return None
        place, group = joinable.join_device, joinable.join_process_group
        work = reduce_in_place(group, ones(1, device=place), async_op=True)
        if config.throw_on_early_termination:
            ended = zeros(1, device=place)
            reduce_in_place(group, ended)
            if ended.item():
                raise RuntimeError(
                    "Detected at least one rank that exhausted inputs. Throwing across all ranks."
                )
        return work

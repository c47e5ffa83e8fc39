"""`CyclicLR` and `OneCycleLR`: the rate rises and falls, and the momentum falls and rises."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.optim.lr_scheduler.base import (
    LRScheduler,
    Rate,
    attributes_of,
    check_optimizer,
    for_each_group,
    is_number,
    put,
)
from flambeau.optim.optimizer import Optimizer

Group = dict[str, Any]


class MomentumCycle(LRScheduler):
    """A scheduler that may also set each group's momentum, or its first beta."""

    cycle_momentum: bool
    use_beta1: bool

    def _begin_momentum(
        self, optimizer: Optimizer, base: Any, largest: Any, anew: bool
    ) -> tuple[list[Any], list[Any]]:
        """Return each group's lowest and highest momentum. If `anew`, store them in the groups."""
        if "momentum" not in optimizer.defaults and "betas" not in optimizer.defaults:
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        self.use_beta1 = "betas" in optimizer.defaults
        bases = for_each_group("base_momentum", optimizer, base)
        tops = for_each_group("max_momentum", optimizer, largest)
        for group, low, high in zip(optimizer.param_groups if anew else (), bases, tops, strict=anew):
            self._put_momentum(group, high)
            group["max_momentum"], group["base_momentum"] = high, low
        return bases, tops

    def _put_momentum(self, group: Group, value: Any) -> None:
        if self.use_beta1:
            group["betas"] = (value, *group["betas"][1:])
        else:
            group["momentum"] = value


class CyclicLR(MomentumCycle):
    """A schedule between `base_lr` and `max_lr`, `step_size_up` steps up and `step_size_down` down.

    Args:
        mode: "triangular"; "triangular2" halves the height each cycle; "exp_range" has `gamma**step` of it.
        scale_fn: Another factor of the height, of the cycle's number or (scale_mode "iterations") of the step's.
        cycle_momentum: Let the momentum go the other way, from `max_momentum` to `base_momentum`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float = 0.8,
        max_momentum: float = 0.9,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        bases = for_each_group("base_lr", optimizer, base_lr)
        if last_epoch == -1:
            for group, lr in zip(optimizer.param_groups, bases, strict=True):
                put(group, "lr", lr)
        self.max_lrs = for_each_group("max_lr", optimizer, max_lr)
        up = float(step_size_up)
        self.total_size = up + (up if step_size_down is None else float(step_size_down))
        if not self.total_size:
            raise ValueError("step_size_up and step_size_down must not both be zero")
        self.step_ratio = up / self.total_size
        if scale_fn is None and not (isinstance(mode, str) and mode in _HEIGHTS):
            raise ValueError("mode is invalid and scale_fn is None")
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else _HEIGHTS[mode]
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.base_momentums, self.max_momentums = self._begin_momentum(
                optimizer, base_momentum, max_momentum, last_epoch == -1
            )
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """Return the amplitude of cycle (or step) number x, as a fraction of the full one."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        if self.mode == "triangular":
            return 1.0
        return 1 / (2.0 ** (x - 1)) if self.mode == "triangular2" else self.gamma**x

    def get_lr(self) -> list[Rate]:
        super().get_lr()
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        height = x / self.step_ratio if x <= self.step_ratio else (x - 1) / (self.step_ratio - 1)

        def rise(low: Any, high: Any) -> Any:
            return (
                (high - low)
                * height
                * self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
            )

        if self.cycle_momentum:
            pairs = zip(self.optimizer.param_groups, self.base_momentums, self.max_momentums, strict=True)
            for group, low, high in pairs:
                self._put_momentum(group, high - rise(low, high))
        return [base + rise(base, top) for base, top in zip(self.base_lrs, self.max_lrs, strict=True)]

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return lr

    def state_dict(self) -> dict[str, Any]:
        custom = self._scale_fn_custom
        return super().state_dict() | {"_scale_fn_custom": None if custom is None else attributes_of(custom)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = state_dict["_scale_fn_custom"]
        super().load_state_dict({k: v for k, v in state_dict.items() if k != "_scale_fn_custom"})
        if saved is not None:
            self._scale_fn_custom.__dict__.update(saved)


_HEIGHTS = {"triangular": "cycle", "triangular2": "cycle", "exp_range": "iterations"}


class OneCycleLR(MomentumCycle):
    """A schedule of one cycle: the rate rises from `max_lr / div_factor` to `max_lr`, then falls close to 0.

    Args:
        total_steps: The number of steps; or else `epochs * steps_per_epoch` steps.
        pct_start: The share of the steps in which the rate rises.
        anneal_strategy: "cos" or "linear".
        cycle_momentum: Change the momentum in the opposite direction, from `max_momentum` to `base_momentum` and back.
        final_div_factor: The first rate divided by the last one.
        three_phase: Fall to the first rate in as many steps as the rise took, then to the last one.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        self.total_steps = _length(total_steps, epochs, steps_per_epoch)
        if not isinstance(pct_start, float) or pct_start < 0 or pct_start > 1:
            known = isinstance(pct_start, str | bytes) or is_number(pct_start)
            kind = ValueError if known and not isinstance(pct_start, complex) else TypeError
            raise kind(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        self._schedule_phases = _phases(pct_start, self.total_steps, three_phase)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        self._anneal_func_type = anneal_strategy
        tops = for_each_group("max_lr", optimizer, max_lr)
        if last_epoch == -1:
            for group, top in zip(optimizer.param_groups, tops, strict=True):
                first = top / div_factor
                group.update(initial_lr=first, max_lr=top, min_lr=first / final_div_factor)
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self._begin_momentum(optimizer, base_momentum, max_momentum, last_epoch == -1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Rate]:
        super().get_lr()
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}"
            )
        phase, part = self._phase()
        rates = []
        for group in self.optimizer.param_groups:
            rates.append(self._between(group[phase["start_lr"]], group[phase["end_lr"]], part))
            if self.cycle_momentum:
                start, end = group[phase["start_momentum"]], group[phase["end_momentum"]]
                self._put_momentum(group, self._between(start, end, part))
        return rates

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return lr

    def _phase(self) -> tuple[Group, float]:
        """Return the phase of the present step, and which part of it is over."""
        start = 0.0
        for phase in self._schedule_phases:
            end = phase["end_step"]
            if self.last_epoch <= end or phase is self._schedule_phases[-1]:
                break
            start = end
        return phase, (self.last_epoch - start) / (end - start)

    def _between(self, start: Any, end: Any, part: float) -> Any:
        if self._anneal_func_type == "linear":
            return (end - start) * part + start
        return end + (start - end) / 2.0 * (math.cos(math.pi * part) + 1)


def _length(total: int | None, epochs: int | None, per_epoch: int | None) -> int:
    if total is not None:
        return _positive("total_steps", total)
    if epochs is not None and per_epoch is not None:
        return _positive("epochs", epochs) * _positive("steps_per_epoch", per_epoch)
    raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")


def _positive(name: str, value: Any) -> int:
    if not isinstance(value, int) or value <= 0:
        kind = ValueError if is_number(value) and not isinstance(value, complex) else TypeError
        raise kind(f"Expected positive integer {name}, but got {value}")
    return value


def _phases(start: float, total: int, three: bool) -> list[Group]:
    """Return the end of each phase, and the options of a group between which it interpolates."""
    ends: Sequence[float] = [
        float(start * total) - 1,
        *([float(2 * start * total) - 2] if three else []),
        total - 1,
    ]
    rates = ["initial_lr", "max_lr", *(["initial_lr"] if three else []), "min_lr"]
    momentums = ["max_momentum", "base_momentum", "max_momentum", *(["max_momentum"] if three else [])]
    return [
        {
            "end_step": end, "start_lr": rates[i], "end_lr": rates[i + 1], "start_momentum": momentums[i],
            "end_momentum": momentums[i + 1],
        }
        for i, end in enumerate(ends)
    ]  # fmt: skip

"""Schedulers along a curve. Each rate is computed from the previous one, so several schedulers can act together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from typing import Any

from flambeau.optim.lr_scheduler.base import Callables, ClosedForm, LRScheduler, Rate
from flambeau.optim.optimizer import Optimizer


class LambdaLR(Callables):
    """The initial rate times `lr_lambda(epoch)`; one function for all groups, or a list."""

    def get_lr(self) -> list[Rate]:
        super().get_lr()
        return [base * f(self.last_epoch) for f, base in zip(self.lr_lambdas, self.base_lrs, strict=True)]

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return base


class MultiplicativeLR(Callables):
    """The rate before times `lr_lambda(epoch)`; one function for all groups, or a list."""

    def _check(self) -> None:
        for f in self.lr_lambdas:
            if not callable(f):
                raise TypeError(f"lr_lambda should be a function, but got {type(f).__name__}")

    def get_lr(self) -> list[Rate]:
        rates = super().get_lr()
        if self._is_initial:
            return rates
        return [lr * f(self.last_epoch) for f, lr in zip(self.lr_lambdas, rates, strict=True)]

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return lr


class StepLR(ClosedForm):
    """A schedule that multiplies the rate by gamma every `step_size` epochs."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return lr * self.gamma if self.last_epoch and self.last_epoch % self.step_size == 0 else lr

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return base * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(ClosedForm):
    """A schedule that multiplies the rate by gamma at each milestone, twice at one that is listed twice."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        times = self.milestones.get(self.last_epoch)
        return lr if times is None else lr * self.gamma**times

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return base * self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch)


class ConstantLR(ClosedForm):
    """A schedule that multiplies the rate by `factor` until `total_iters` epochs are over."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if factor > 1.0 or factor < 0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        if self.last_epoch == 0:
            return lr * self.factor
        return lr * (1.0 / self.factor) if self.last_epoch == self.total_iters else lr

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return base * (self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor))


class LinearLR(ClosedForm):
    """Multiplies the rate by a factor that changes linearly from `start_factor` to `end_factor` in `total_iters`
    epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if start_factor > 1.0 or start_factor <= 0:
            raise ValueError(
                "Starting multiplicative factor expected to be greater than 0 and less or equal to 1."
            )
        if end_factor > 1.0 or end_factor < 0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        if self.last_epoch == 0:
            return lr * self.start_factor
        if self._is_initial or self.last_epoch > self.total_iters:
            return lr
        rise = self.end_factor - self.start_factor
        return lr * (1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise))

    def _rate_at_epoch(self, base: Rate) -> Rate:
        passed = min(self.total_iters, self.last_epoch)
        return base * (self.start_factor + (self.end_factor - self.start_factor) * passed / self.total_iters)


class ExponentialLR(ClosedForm):
    """A schedule that multiplies the rate by gamma every epoch."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return lr if self._is_initial else lr * self.gamma

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return base * self.gamma**self.last_epoch


class PolynomialLR(ClosedForm):
    """A schedule that falls to zero in `total_iters` epochs, by a power of the remaining fraction."""

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        if self._is_initial or self.last_epoch > self.total_iters:
            return lr
        left, before = (1.0 - epoch / self.total_iters for epoch in (self.last_epoch, self.last_epoch - 1))
        return lr * (left / before) ** self.power

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power


class CosineAnnealingLR(ClosedForm):
    """A schedule along half a cosine from the initial rate to `eta_min` in `T_max` epochs, and back."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:  # noqa: N803
        if T_max == 0:
            raise ValueError("T_max must not be zero")
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        if self._is_initial:
            return lr
        if self._step_count == 1 and self.last_epoch > 0:
            return self._at(base, self.last_epoch * math.pi / self.T_max)
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:  # from the lowest point up
            return lr + (base - self.eta_min) * (1 - math.cos(math.pi / self.T_max)) / 2
        here, before = (
            1 + math.cos(math.pi * epoch / self.T_max) for epoch in (self.last_epoch, self.last_epoch - 1)
        )
        return here / before * (lr - self.eta_min) + self.eta_min

    def _rate_at_epoch(self, base: Rate) -> Rate:
        return self._at(base, math.pi * self.last_epoch / self.T_max)

    def _at(self, base: Rate, angle: float) -> Rate:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(angle)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """A schedule that falls along half a cosine and then restarts: periods of T_0, T_0 T_mult, ... epochs."""

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        if not isinstance(eta_min, int | float):
            raise ValueError(f"Expected float or int eta_min, but got {eta_min} of type {type(eta_min)}")
        self.T_0, self.T_i, self.T_mult, self.eta_min = T_0, T_0, T_mult, eta_min
        self.T_cur: Any = last_epoch
        super().__init__(optimizer, last_epoch)

    def _next(self, lr: Rate, base: Rate) -> Rate:
        return self.eta_min + (base - self.eta_min) * (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2

    def step(self, epoch: float | None = None) -> None:
        """Go to the next epoch, or to `epoch`, which may be fractional: within an epoch, after each batch."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur, self.T_i = self.T_cur % self.T_i, self.T_i * self.T_mult
        elif epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        else:
            self._go_to(epoch)
        self.last_epoch = math.floor(epoch)
        with self._having("_get_lr_called_within_step"):
            self._set(self.get_lr())

    def _go_to(self, epoch: float) -> None:
        """Set the period that an epoch lies in, and the position within the period."""
        if epoch < self.T_0:
            self.T_i, self.T_cur = self.T_0, epoch
        elif self.T_mult == 1:
            self.T_cur = epoch % self.T_0
        else:
            period = int(math.log(epoch / self.T_0 * (self.T_mult - 1) + 1, self.T_mult))
            self.T_cur = epoch - self.T_0 * (self.T_mult**period - 1) / (self.T_mult - 1)
            self.T_i = self.T_0 * self.T_mult**period

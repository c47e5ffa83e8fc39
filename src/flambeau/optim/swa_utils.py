"""Averaged weights: `AveragedModel` and its averaging functions, `update_bn`, and the schedule `SWALR`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any

from flambeau.core.dtype import int64
from flambeau.nn.modules.batchnorm import _BatchNorm
from flambeau.nn.modules.module import Module
from flambeau.optim.lr_scheduler.base import LRScheduler, Rate, for_each_group
from flambeau.optim.optimizer import Optimizer
from flambeau.tape.mode import recording
from flambeau.tensor.exchange.data import tensor

Average = Callable[[Any, Any, Any], Any]
Averages = Callable[[Sequence[Any], Sequence[Any], Any], None]


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def _all_towards(averages: Sequence[Any], news: Sequence[Any], weight: float) -> None:
    with recording(False):
        for average, new in zip(averages, news, strict=True):
            if average.is_floating_point() or average.is_complex():
                average.lerp_(new, weight)
            else:
                average.copy_(average * (1 - weight) + new * weight)


def get_ema_multi_avg_fn(decay: float = 0.999) -> Averages:
    """Return a function of lists that moves averages to values, keeping the share `decay` of each average.

    Raises:
        ValueError: For a decay outside [0, 1].
    """
    _check_decay(decay)

    def ema_update(averages: Sequence[Any], news: Sequence[Any], count: Any) -> None:
        _all_towards(averages, news, 1 - decay)

    return ema_update


def get_swa_multi_avg_fn() -> Averages:
    """Return a rule for lists: each average is the mean of all that it was given."""

    def swa_update(averages: Sequence[Any], news: Sequence[Any], count: Any) -> None:
        _all_towards(averages, news, 1 / (int(count) + 1))

    return swa_update


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """Return a function that moves one average to a value, keeping the share `decay` of the average.

    Raises:
        ValueError: For a decay outside [0, 1].
    """
    _check_decay(decay)

    def ema_update(average: Any, new: Any, count: Any) -> Any:
        with recording(False):
            return decay * average + (1 - decay) * new

    return ema_update


def get_swa_avg_fn() -> Average:
    """Return a function that moves one average to a value, so that it is the mean of all values so far."""

    def swa_update(average: Any, new: Any, count: Any) -> Any:
        with recording(False):
            return average + (new - average) / (count + 1)

    return swa_update


class AveragedModel(Module):
    """A copy of a model with averaged parameters, which `update_parameters` updates.

    Args:
        model: The model to copy.
        device: The device of the averages.
        avg_fn: `(average, new, count) -> average` of one parameter; default: the mean.
        multi_avg_fn: `(averages, news, count)`, in place, for parameters of one device and dtype.
        use_buffers: Average buffers, too, instead of copying them.
    """

    n_averaged: Any

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: Averages | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module: Any = deepcopy(model)
        if device is not None:
            self.module = self.module.to(device)
        self.register_buffer("n_averaged", tensor(0, dtype=int64, device=device))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the averaged model's result."""
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Take the model's parameters of now into the averages."""
        pairs = [
            (average.detach(), new.detach().to(average.device))
            for average, new in zip(
                self._averaged_tensors(self.module), self._averaged_tensors(model), strict=False
            )
        ]
        if int(self.n_averaged) == 0:
            for average, new in pairs:
                average.copy_(new)
        else:
            self._average(pairs)
        if not self.use_buffers:
            for mine, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                mine.detach().copy_(theirs.detach())
        self.n_averaged += 1

    def _averaged_tensors(self, model: Module) -> Iterable[Any]:
        return itertools.chain(model.parameters(), model.buffers() if self.use_buffers else ())

    def _average(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        if self.avg_fn is not None:
            for average, new in pairs:
                average.copy_(self.avg_fn(average, new, self.n_averaged.to(average.device)))
            return
        groups: dict[Any, list[tuple[Any, Any]]] = {}
        for average, new in pairs:
            groups.setdefault((average.device, average.dtype), []).append((average, new))
        for (where, _), group in groups.items():
            averages, news = ([pair[i] for pair in group] for i in (0, 1))
            (self.multi_avg_fn or get_swa_multi_avg_fn())(averages, news, self.n_averaged.to(where))


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Recompute the running statistics of a model's batch normalizations, by one pass over `loader`.

    Batches are tensors, or lists and tuples whose first item is the model's input, which is moved to `device`.
    """
    layers = {m: m.momentum for m in model.modules() if isinstance(m, _BatchNorm)}
    if not layers:
        return
    was_training = model.training
    model.train()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # the mean over all batches
    with recording(False):
        for batch in loader:
            x = batch[0] if isinstance(batch, list | tuple) else batch
            model(x if device is None else x.to(device))
    for layer, momentum in layers.items():
        layer.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """A scheduler that changes each group's rate to `swa_lr` in `anneal_epochs` steps and keeps it.

    Args:
        swa_lr: The final rate, one or a list with one for each group.
        anneal_strategy: "cos" or "linear".

    Raises:
        ValueError: For other strategies, and for negative epochs.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: Any,
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        for rate, group in zip(
            for_each_group("swa_lr", optimizer, swa_lr), optimizer.param_groups, strict=True
        ):
            group["swa_lr"] = rate
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(
                f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}"
            )
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def anneal_func(self, t: float) -> float:
        """Return the fraction of the change that is complete at time `t`, both from 0 to 1."""
        return t if self._anneal_strategy == "linear" else (1 - math.cos(math.pi * t)) / 2

    def get_lr(self) -> list[Rate]:
        """Return the next rates. Only `step` may call this; other callers get a UserWarning."""
        self._warn_if_asked()
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, after = (
            self.anneal_func(max(0, min(1, n / max(1, self.anneal_epochs)))) for n in (step - 1, step)
        )
        rates = []
        for group in self.optimizer.param_groups:
            last = group["swa_lr"]
            first = last if before == 1 else (group["lr"] - before * last) / (1 - before)
            rates.append(last * after + first * (1 - after))
        return rates

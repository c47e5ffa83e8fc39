"""`LRScheduler`: sets the learning rates of an optimizer's groups, step by step."""

from __future__ import annotations

import functools
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

from flambeau.optim.optimizer import Optimizer
from flambeau.tensor.tensor import Tensor

Rate = Any
"""A learning rate: a number, or a tensor of one element, which is changed in place."""

_DOCS = "https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate"
EPOCH_DEPRECATION_WARNING = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where possible. Please use "
    "`scheduler.step()` to step the scheduler. During the deprecation, if epoch is different from None, the closed "
    "form is used instead of the new chainable form, where available. Please open an issue if you are unable to "
    "replicate your use case: https://github.com/pytorch/pytorch/issues/new/choose."
)


class LRScheduler:
    """The base of the learning rate schedulers.

    A subclass defines `_next`, which returns the rate after a group's rate, or `get_lr`, which returns the rates of all
    groups. If there is a closed form, `_rate_at_epoch` returns the rate after `last_epoch` steps.

    Args:
        optimizer: The optimizer whose groups' "lr" is set.
        last_epoch: Number of steps so far minus one; -1 starts again. From 0 on the groups must have an "initial_lr".

    Raises:
        KeyError: If "initial_lr" is missing.
    """

    _get_lr_called_within_step = False
    _is_initial = False
    _last_lr: list[Rate]

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        check_optimizer(optimizer)
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", copy_rate(group["lr"]))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    "last_epoch >= 0.\nThis typically happens when:\n1. You're trying to resume training from a "
                    "checkpoint but haven't properly loaded the optimizer state\n2. You're using last_epoch >= 0 for a "
                    "fresh training run (not recommended)"
                )
        self.base_lrs = values_of(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        _watch(optimizer)
        self._initial_step()

    def _initial_step(self) -> None:
        """Set the first rates."""
        self._step_count = 0
        with self._having("_is_initial"):
            self.step()

    @contextmanager
    def _having(self, name: str) -> Iterator[None]:
        setattr(self, name, True)
        try:
            yield
        finally:
            setattr(self, name, False)

    def step(self, epoch: int | None = None) -> None:
        """Set the next rates. Call it after the optimizer's step; otherwise it warns."""
        if self._step_count == 1:
            self._check_order()
        self._step_count += 1
        if epoch is not None:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
        self._update_lr(epoch)

    def _check_order(self) -> None:
        if not hasattr(self.optimizer.step, "_wrapped_by_lr_sched"):
            warnings.warn(
                "Seems like `optimizer.step()` has been overridden after learning rate scheduler initialization. "
                "Please, make sure to call `optimizer.step()` before `lr_scheduler.step()`. See more details at "
                + _DOCS,
                UserWarning,
                stacklevel=3,
            )
        elif not getattr(self.optimizer, "_opt_called", False):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later, you "
                "should call them in the opposite order: `optimizer.step()` before `lr_scheduler.step()`.  Failure to "
                "do this will result in PyTorch skipping the first value of the learning rate schedule. See more "
                "details at " + _DOCS,
                UserWarning,
                stacklevel=3,
            )

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        with self._having("_get_lr_called_within_step"):
            closed = getattr(self, "_get_closed_form_lr", None) if epoch is not None else None
            try:
                rates = self.get_lr() if closed is None else closed()
            except TypeError as error:
                if type(error) is TypeError:
                    raise
                raise TypeError(
                    f"a rate or a factor of {type(self).__name__} is not a number: {error}"
                ) from None
            self._set(rates)

    def _set(self, rates: list[Rate]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            put(group, "lr", rate)
        self._last_lr = values_of(self.optimizer, "lr")

    def get_last_lr(self) -> list[Rate]:
        """Return the rates that were set last, one for each group."""
        return self._last_lr

    def get_lr(self) -> list[Rate]:
        """Return the next rates. Only `step` may call this; other callers get a UserWarning."""
        self._warn_if_asked()
        groups = self.optimizer.param_groups  # if a group was added there are more groups than initial rates
        return [self._next(group["lr"], base) for group, base in zip_longest(groups, self.base_lrs)]

    def _warn_if_asked(self) -> None:
        if not self._get_lr_called_within_step:
            warnings.warn(
                "To get the last learning rate computed by the scheduler, please use `get_last_lr()`.",
                UserWarning,
                stacklevel=3,
            )

    def _next(self, lr: Rate, base: Rate) -> Rate:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return all but the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned. Restore the optimizer's state, too."""
        self.__dict__.update(state_dict)


class ClosedForm(LRScheduler):
    """A scheduler with a closed form of its rate."""

    def _rate_at_epoch(self, base: Rate) -> Rate:
        raise NotImplementedError

    def _get_closed_form_lr(self) -> list[Rate]:
        return [self._rate_at_epoch(base) for base in self.base_lrs]


class Callables(LRScheduler):
    """The base class of schedulers that call a function of the epoch for each group.

    The state includes the attributes of callable objects, but no functions.
    """

    lr_lambdas: list[Any]

    def __init__(self, optimizer: Optimizer, lr_lambda: Any, last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        several = isinstance(lr_lambda, list | tuple)
        if several and len(lr_lambda) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(lr_lambda)}")
        self.optimizer = optimizer
        self.lr_lambdas = list(lr_lambda) if several else [lr_lambda] * count
        self._check()
        super().__init__(optimizer, last_epoch)

    def _check(self) -> None:
        """Do nothing. A subclass raises TypeError for arguments that cannot be called; here the first call raises."""

    def state_dict(self) -> dict[str, Any]:
        state = {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"}
        return state | {"lr_lambdas": [attributes_of(f) for f in self.lr_lambdas]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for f, saved in zip(self.lr_lambdas, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                f.__dict__.update(saved)


def attributes_of(f: Callable[..., Any]) -> dict[str, Any] | None:
    """Return the part of a callable that a checkpoint stores: the attributes of an object, nothing of a function."""
    return None if isinstance(f, types.FunctionType) else f.__dict__.copy()


def check_optimizer(optimizer: Any) -> None:
    """Raise TypeError if the argument is not an optimizer."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")


def copy_rate(value: Rate) -> Rate:
    """Return a copy of a rate that is a tensor, because tensors are changed in place; other rates unchanged."""
    return value.clone() if isinstance(value, Tensor) else value


def values_of(optimizer: Optimizer, key: str) -> list[Rate]:
    """Return an option's value in each group."""
    return [copy_rate(group[key]) for group in optimizer.param_groups]


def put(group: dict[str, Any], key: str, value: Rate) -> None:
    """Set a group's option; a tensor is filled."""
    if isinstance(group[key], Tensor):
        group[key].fill_(value.item() if isinstance(value, Tensor) else value)
    else:
        group[key] = value


def for_each_group(name: str, optimizer: Optimizer, value: Any) -> list[Any]:
    """Return an argument as a list with a value for each group.

    Raises:
        ValueError: For a list of another length.
        TypeError: For a value that is not a number.
    """
    count = len(optimizer.param_groups)
    if not isinstance(value, list | tuple):
        value = [value] * count
    if len(value) != count:
        raise ValueError(
            f"{name} must have the same length as optimizer.param_groups. {name} has {len(value)} values, "
            f"param_groups has {count}."
        )
    for v in value:
        if not is_number(v):
            raise TypeError(
                f"{name} must be a number, or a list with one for each group, but got {v!r} of type {type(v).__name__}"
            )
    return [copy_rate(v) for v in value]


def is_number(value: Any) -> bool:
    """Return True for numbers of any library, and for tensors and arrays of numbers."""
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return isinstance(value, complex) or hasattr(type(value), "__float__")


def _watch(optimizer: Optimizer) -> None:
    """Have the optimizer note that its step was called."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    step = optimizer.step.__func__  # type: ignore[attr-defined]
    # the function belongs to the optimizer, so a strong reference would be a cycle
    reference = weakref.ref(optimizer)

    @functools.wraps(step)
    def noted_step(*args: Any, **kwargs: Any) -> Any:
        self = reference()
        assert self is not None
        self.__dict__["_opt_called"] = True
        return step(self, *args, **kwargs)

    noted_step.__dict__["_wrapped_by_lr_sched"] = True
    optimizer.__dict__["step"] = noted_step

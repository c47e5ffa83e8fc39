"""`no_grad` and similar context managers and decorators, which control recording."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from flambeau.tape.mode import mode, shared_mode

F = TypeVar("F", bound=Callable[..., Any])


class DecoratorContextManager:
    """A context manager that can decorate functions, generators (suspended ones leave it) and classes' methods."""

    def __enter__(self) -> None:
        raise NotImplementedError

    def __exit__(self, *error: object) -> None:
        raise NotImplementedError

    def clone(self) -> Any:
        """Return a new context manager of this class; a decorated function uses one for each call."""
        return type(self)()

    def __call__(self, function: F) -> F:
        if inspect.isclass(function):
            warnings.warn(
                "Decorating classes is deprecated and will be disabled in future versions. You should only decorate "
                "functions or methods. To preserve the current behavior of class decoration, you can directly decorate "
                "the `__init__` method and nothing else.",
                FutureWarning,
                stacklevel=2,
            )
        if inspect.isgeneratorfunction(function):
            return self._generator(function)  # type: ignore[return-value]

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            try:
                with self.clone():
                    given = generator.send(None)
                while True:
                    try:
                        sent = yield given
                    except GeneratorExit:
                        with self.clone():
                            generator.close()
                        raise
                    except BaseException as error:
                        with self.clone():
                            given = generator.throw(error)
                    else:
                        with self.clone():
                            given = generator.send(sent)
            except StopIteration as end:
                return end.value

        return wrapper


class _Recording(DecoratorContextManager):
    on: bool

    def __new__(cls, orig_func: Any = None) -> Any:
        manager = super().__new__(cls)
        manager.__init__()  # type: ignore[misc]
        return manager if orig_func is None else manager(orig_func)

    def __init__(self, orig_func: Any = None) -> None:
        self._saved: list[bool] = []

    def __enter__(self) -> None:
        self._saved.append(mode.recording)
        mode.recording = self.on and not mode.inference

    def __exit__(self, *error: object) -> None:
        mode.recording = self._saved.pop()


class no_grad(_Recording):
    """A context manager in which nothing is recorded: results require no gradient. Also a decorator, `@no_grad`."""

    on = False


class enable_grad(_Recording):
    """A context manager in which operations are recorded, also inside of `no_grad`. Also a decorator."""

    on = True


class set_grad_enabled(DecoratorContextManager):
    """Switch recording on or off, immediately; as a context manager, restore the former state at the block's end."""

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)
        self._saved = _switch(self.mode)

    def __call__(self, function: F) -> F:
        mode.recording = self._saved  # as a decorator it acts inside the function only
        return super().__call__(function)

    def __enter__(self) -> None:
        mode.recording = self.mode

    def __exit__(self, *error: object) -> None:
        mode.recording = self._saved

    def __str__(self) -> str:
        return f"torch.autograd.grad_mode.set_grad_enabled(mode={self.mode})"

    def clone(self) -> Any:
        return set_grad_enabled(self.mode)


def _switch(on: bool) -> bool:
    before = mode.recording
    mode.recording = on
    return before


class inference_mode(DecoratorContextManager):
    """A context manager like `no_grad` whose new tensors have no version counter.

    Such tensors cannot be saved for backward, or be changed in place outside of it.
    """

    def __new__(cls, mode: Any = True) -> Any:
        manager = super().__new__(cls)
        if isinstance(mode, bool):
            return manager
        manager.__init__()  # type: ignore[misc]
        return manager(mode)

    def __init__(self, mode: bool = True) -> None:
        self.mode = mode
        self._saved: list[tuple[bool, bool]] = []

    def __enter__(self) -> None:
        self._saved.append((mode.recording, mode.inference))
        mode.inference = self.mode
        mode.recording = not self.mode
        shared_mode.add(self.mode)

    def __exit__(self, *error: object) -> None:
        mode.recording, mode.inference = self._saved.pop()
        shared_mode.add(-self.mode)

    def clone(self) -> Any:
        return inference_mode(self.mode)


class enforce_grad_layout_policy(DecoratorContextManager):
    """Set whether a leaf's gradient must have the leaf's layout, immediately and in this thread.

    As a context manager, it restores the former state at the block's end. With False, a gradient that nothing else
    uses becomes `.grad` as it is, without a copy into the leaf's layout.

    Args:
        enable: True, the default of programs, or False.
    """

    def __init__(self, enable: bool = True) -> None:
        self.mode = enable
        self.prev, mode.keeps_layout = mode.keeps_layout, enable

    def __call__(self, function: F) -> F:
        mode.keeps_layout = self.prev  # as a decorator it acts inside the function only
        return super().__call__(function)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        mode.keeps_layout = self.prev

    def clone(self) -> Any:
        return enforce_grad_layout_policy(self.mode)


class set_multithreading_enabled(DecoratorContextManager):
    """Allow backward passes to use worker threads. Flambeau's run on the calling thread in either mode.

    Args:
        mode: True or False.
    """

    def __init__(self, mode: bool) -> None:
        self.mode = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def clone(self) -> Any:
        return set_multithreading_enabled(self.mode)


def is_grad_enabled() -> bool:
    """Return True if operations are recorded in this thread."""
    return mode.recording


def is_inference_mode_enabled() -> bool:
    """Return True if this thread is inside `inference_mode`."""
    return mode.inference


for _class in (
    no_grad, enable_grad, enforce_grad_layout_policy, set_grad_enabled, inference_mode, set_multithreading_enabled,
):  # fmt: skip
    _class.__module__ = __name__

"""Builders of modules such as `torch.xpu`, for devices that PyTorch's CPU build does not have either."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from flambeau.core.errors import absent_device
from flambeau.core.public_names import raising_function


def build_refusals(
    module: str, names: Iterable[str], error_of: Callable[[str], Exception]
) -> dict[str, Callable[..., NoReturn]]:
    """Return functions that raise because there is no such device.

    Args:
        module: The public name of their module.
        names: The names of the functions.
        error_of: Returns the error of one function by its name.
    """

    def build(name: str) -> Callable[..., NoReturn]:
        text = f"Raise {type(error_of(name)).__name__}: there is no such device."
        return raising_function(module, name, text, partial(error_of, name))

    return {name: build(name) for name in names}


def build_answers(module: str, answers: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """Return functions that return constants which are true without such a device.

    Args:
        module: The public name of their module.
        answers: Name of each function -> its result, or a class to create it with.
    """

    def build(name: str, value: Any) -> Callable[..., Any]:
        def answer(*args: Any, **kwargs: Any) -> Any:
            return value() if isinstance(value, type) else value

        answer.__name__ = answer.__qualname__ = name
        answer.__module__ = module
        answer.__doc__ = f"Return {answer()!r}, because there is no such device."
        return answer

    return {name: build(name, value) for name, value in answers.items()}


def build_classes(module: str, names: Iterable[str]) -> dict[str, type]:
    """Return classes for `isinstance` whose constructors raise RuntimeError, as PyTorch's do.

    Args:
        module: The public name of their module.
        names: The names of the classes.
    """

    def refuse(cls: type, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"Tried to instantiate dummy base class {cls.__name__}: there is no such device")

    text = "A class of objects that exist on such a device only."
    return {
        name: type(name, (), {"__new__": refuse, "__module__": module, "__doc__": text}) for name in names
    }


class DeviceGuard:
    """A context manager that would make a device current; a negative index or None changes nothing.

    Attributes:
        kind: The device type.
    """

    kind = ""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None else device if isinstance(device, int) else 0
        self.prev_idx = -1

    def __enter__(self) -> None:
        if self.idx >= 0:
            raise absent_device(self.kind)

    def __exit__(self, *exception: object) -> None:
        pass

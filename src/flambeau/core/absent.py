"""Names of PyTorch that exist only to be imported: every use of them raises.

Libraries import classes of subsystems that most programs never use, and evaluate `isinstance(x, DTensor)` for objects
that never are one. Such names exist here, so that the import and the check work; every use names the missing feature.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable
from typing import Any, NoReturn

from flambeau.core.errors import NotSupportedError
from flambeau.core.public_names import raising_function


class _AbsentType(ABCMeta):
    """The metaclass of absent classes, which have no instances.

    It is an ABCMeta so that a class may inherit from an absent and from an abstract one.
    """

    _reason: str

    def __getitem__(cls, item: Any) -> Any:
        """Return the class itself for the parameters of a generic class."""
        return cls

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotSupportedError(cls._reason)

    def __getattr__(cls, name: str) -> NoReturn:
        raise AttributeError(
            f"type object '{cls.__name__}' has no attribute '{name}': {cls._reason}", name=name
        )


def absent_class(module: str, name: str, advice: str, *bases: type) -> Any:
    """Return a class that `isinstance`, `issubclass` and subclassing accept, and that has no instances.

    Args:
        module: PyTorch's name of the public module: "torch.distributed.tensor".
        name: The name of the class.
        advice: What to do instead.
        bases: The base classes.

    Raises:
        NotSupportedError: When the class is called.
    """
    reason = _reason_of(module, name, advice)
    return _AbsentType(name, bases, {"__module__": module, "__doc__": reason, "_reason": reason})


def absent_function(module: str, name: str, advice: str) -> Callable[..., NoReturn]:
    """Return a function that raises NotSupportedError. The arguments are those of `absent_class`."""
    reason = _reason_of(module, name, advice)
    return raising_function(module, name, reason, lambda: NotSupportedError(reason))


def _reason_of(module: str, name: str, advice: str) -> str:
    return f"{module}.{name} can be imported but not used: Flambeau has no {module} yet. {advice}"

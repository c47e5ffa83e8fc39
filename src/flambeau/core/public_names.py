"""Names of public objects: their public module, and errors for absent names and for copies.

# Note [Where a class says it is from]
Classes and functions are defined in internal modules and shown in public ones. Reprs, tracebacks and pickles use
`__module__`, so it is the public module: `flambeau.cuda`, from which a pickle can be loaded. If `torch` is Flambeau
(`flambeau run`) it is `torch.cuda`, as in PyTorch: see cli/import_hook.py. Otherwise it is not, because PyTorch itself
may be installed, and `torch.Size` would be its class.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import unwrap
from types import FunctionType
from typing import Any, NoReturn

# Packages that programs do not name.
_INNER = {"core", "data", "driver", "observe", "ops", "runtime", "tape", "tensor"}
# Modules of PyTorch for which core/absent_modules/names.txt has names.
LISTED = (
    "torch._dynamo", "torch._functorch", "torch._higher_order_ops", "torch._jit_internal", "torch._prims_common",
    "torch._subclasses", "torch.ao", "torch.distributed", "torch.export", "torch.fx", "torch.jit",
    "torch.nn.intrinsic", "torch.nn.qat", "torch.nn.quantizable", "torch.nn.quantized", "torch.onnx",
    "torch.quantization", "torch.utils.tensorboard",
)  # fmt: skip


def publish(namespace: dict[str, Any]) -> None:
    """Set `__module__` of the classes and functions in a public module's namespace to that module.

    Renamed and wrapped functions, which are not found under their own module and name, get a new qualified name too.
    """
    for name, value in namespace.items():
        if isinstance(value, type | FunctionType) and value.__name__ == name and is_inner(value.__module__):
            value.__module__ = namespace["__name__"]
            if isinstance(value, type) and "__annotations__" in value.__dict__:
                value.__annotations__ = {}  # `typing.get_type_hints` would look for their names in the public module
        if isinstance(value, FunctionType) and name[0] != "_" and not _leads_back(value):
            value.__module__, value.__qualname__ = namespace["__name__"], name
            within = unwrap(value)
            if within.__qualname__[0] == "_":
                within.__qualname__ = name  # errors show this name


def _leads_back(value: FunctionType) -> bool:
    found: Any = sys.modules.get(value.__module__)
    for part in value.__qualname__.split("."):
        # without calling __getattr__, which may import modules
        found = getattr(found, "__dict__", {}).get(part)
    return found is value


def is_inner(module: str) -> bool:
    """Return True if a dotted name belongs to an internal package, which programs do not name."""
    package, _, rest = module.partition(".")
    return package == "flambeau" and rest.partition(".")[0] in _INNER


class _Explanation:
    """The text of an AttributeError with the nearest name, which is searched only when the text is read.

    Attributes:
        text: What has no such attribute.
        name: The absent name.
        owner: The module, class or object whose names are compared.
    """

    __slots__ = ("name", "owner", "text")

    def __init__(self, text: str, name: str, owner: object) -> None:
        self.text, self.name, self.owner = text, name, owner

    def __str__(self) -> str:
        advice = import_module("flambeau.core.absent_names").advice_for(self.owner, self.name)
        near = None if advice else self._nearest()
        if near is not None:
            return f"{self.text}. Did you mean: '{near}'?"
        return f"{self.text}: Flambeau lacks it{f'. {advice}.' if advice else ' (PyTorch may have it)'}"

    __repr__ = __str__

    def _nearest(self) -> str | None:
        names = [name for name in dir(self.owner) if name[:1] != "_" or self.name[:1] == "_"]
        return next(iter(import_module("difflib").get_close_matches(self.name, names, 1, 0.75)), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def absence(text: str, name: str, owner: object) -> AttributeError:
    """Return the AttributeError of an absent name, which suggests the nearest name of `owner`."""
    return AttributeError(_Explanation(text, name, owner), name=name)


def raising_function(
    module: str, name: str, text: str, create_error: Callable[[], Exception]
) -> Callable[..., NoReturn]:
    """Return a function that takes any arguments and raises.

    Args:
        module: The public module that shows it.
        name: Its name.
        text: Its docstring.
        create_error: Returns the error of one call.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise create_error()

    refuse.__module__, refuse.__name__, refuse.__qualname__, refuse.__doc__ = module, name, name, text
    return refuse


def lacking(module: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a public module. It raises AttributeError, so that `hasattr` is False.

    Names that core/absent_modules/names.txt lists are there: they raise when they are used.

    Args:
        module: The name of the module in PyTorch.
    """

    def find_or_raise(name: str) -> Any:
        if module.startswith(LISTED) and name[:2] != "__":
            value = import_module("flambeau.core.absent_modules").find_absent(module, name)
            if value is not None:
                return value
        owner = sys.modules.get(f"flambeau{module.removeprefix('torch')}")
        raise absence(f"module '{module}' has no attribute '{name}'", name, owner)

    return find_or_raise


def explain_absent_names(namespace: dict[str, Any], module: str) -> None:
    """Make a public module raise `lacking`'s error for absent names. Type checkers do not see its `__getattr__`."""
    namespace["__getattr__"] = lacking(module)


def not_copied(self: object, protocol: int) -> NoReturn:
    """Refuse copies and pickles of objects that own a device's resource."""
    raise TypeError(f"cannot pickle '{type(self).__name__}' object")


def lacks(self: object, name: str) -> NoReturn:
    """Return the error for an absent attribute of a public class."""
    raise absence(f"'{type(self).__name__}' object has no attribute '{name}'", name, type(self))

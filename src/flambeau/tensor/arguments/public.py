"""The binding of public names: `torch.*` functions and `Tensor` methods, each defined once next to its code."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import CO_VARARGS, CO_VARKEYWORDS, Parameter, Signature
from types import FunctionType, MappingProxyType
from typing import Any, TypeVar

from flambeau.tensor.arguments.arg_aliases import accepting
from flambeau.tensor.arguments.arg_errors import standing_for
from flambeau.tensor.arguments.torch_function import arm_for
from flambeau.tensor.signatures import renamed
from flambeau.tensor.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
Front = Callable[[Any], Any]

functions: dict[str, Any] = {}
"""The functions of the `torch` namespace by name."""


class PublicSignature(Signature):
    """The documented signature of a public function, read from its definition on first use."""

    __slots__ = ("_built", "_define", "_method", "_name")

    def __init__(self, define: Callable[..., Any], name: str, method: bool) -> None:
        self._define, self._name, self._method = define, name, method
        self._built: Any = None

    def _build(self) -> Any:
        if self._built is None:
            module = import_module("flambeau.tensor.arguments.public_signatures")
            self._built = module.documented_signature(self._define, self._name, self._method)
        return self._built

    @property
    def parameters(self) -> MappingProxyType[str, Parameter]:
        """Return the parameters by name, in order."""
        return self._build().parameters

    @property
    def return_annotation(self) -> Any:
        """Return the annotation of the function's result."""
        return self._build().return_annotation

    def replace(self, **changes: Any) -> Any:
        """Return a signature with other parameters or another result."""
        return self._build().replace(**changes)

    def __reduce__(self) -> Any:
        return self._build().__reduce__()


def _bind_method(name: str, define: Any, plain: bool = False, front: Front | None = None) -> None:
    if name in Tensor.__dict__:
        raise ValueError(f"Tensor.{name} is bound twice")
    if "<locals>" in getattr(define, "__qualname__", ""):
        define.__qualname__ = f"Tensor.{name}"  # which errors name
    plain = plain and name not in renamed
    bound = define if plain else accepting(define, name, method=True)
    setattr(
        Tensor,
        name,
        _document(bound if front is None else _put_before(bound, front, define), define, name, True),
    )


def _bind_function(name: str, define: Any, front: Front | None = None) -> None:
    if name in functions:
        raise ValueError(f"torch.{name} is bound twice")
    bound = accepting(define, name)
    functions[name] = _document(bound if front is None else _put_before(bound, front, define), define, name)


def _document(bound: Any, define: Any, name: str, method: bool = False) -> Any:
    """Set the documented signature on `bound` and return `bound`. A definition with explicit parameters is left
    unchanged.
    """
    if method and isinstance(bound, FunctionType) and not bound.__doc__ and name[-1] == "_":
        bound.__doc__ = f"Change this tensor in place as `{name.rstrip('_')}` does, and return it."
    if isinstance(bound, FunctionType) and not (bound is define and _states_parameters(define)):
        bound.__signature__ = PublicSignature(define, name, method)  # type: ignore[attr-defined]
    return bound


def _states_parameters(define: FunctionType) -> bool:
    further = define.__code__.co_flags & (CO_VARARGS | CO_VARKEYWORDS)
    return not further and ... not in (define.__defaults__ or ())


def _put_before(bound: Any, front: Front, define: Any) -> Any:
    """Return a public function that calls `front` first. `front` passes calls that it does not handle to `bound`."""

    def leave(*args: Any, **given: Any) -> Any:
        if arm_for((*args, *given.values())):  # an argument overrides functions, the first in this process
            return public(*args, **given)
        return bound(*args, **given)

    public = standing_for(front(leave), define)
    return public


def function(define: F) -> F:
    """Bind a function as `torch.<name>`."""
    _bind_function(define.__name__, define)
    return define


def plain_function(define: F) -> F:
    """Bind `torch.<name>` without a wrapper. The function is called often and reads NumPy's names itself."""
    name = define.__name__
    functions[name] = _document(accepting(define, name) if name in renamed else define, define, name)
    return define


def method(define: F) -> F:
    """Bind a function as `Tensor.<name>`."""
    _bind_method(define.__name__, define)
    return define


def method_and_function(define: F) -> F:
    """Bind an in-place method, `Tensor.<name>_`, also as a function of the torch namespace, as PyTorch does for
    some.
    """
    return function(method(define))


def plain_method(define: F) -> F:
    """Bind a function as `Tensor.<name>` without a wrapper; see `plain_function`."""
    _bind_method(define.__name__, define, plain=True)
    return define


def method_of(function: Callable[..., Any], define: Any, front: Front | None = None) -> None:
    """Bind `define` as the method of a function's name. It also accepts numbers as separate arguments."""
    define.__name__, define.__qualname__ = function.__name__, f"Tensor.{function.__name__}"
    define.__doc__ = function.__doc__
    _bind_method(define.__name__, define, front=front)


def both(define: F) -> F:
    """Bind a function as `torch.<name>` and `Tensor.<name>`, with the tensor as first argument."""
    return method(function(define))


def behind(front: Front, *, as_function: bool = True) -> Callable[[F], F]:
    """Return `both` or `method` for a frequently called function, with `front` before the argument parser.

    Args:
        front: Receives the function with its argument parser, and returns the function to bind. That runs a call
            directly if all arguments are exactly of the expected types, and leaves all others to the function that it
            received.
        as_function: Bind `torch.<name>`, too.
    """

    def bind(define: F) -> F:
        if as_function:
            _bind_function(define.__name__, define, front)
        _bind_method(define.__name__, define, front=front)
        return define

    return bind


def alias(name: str, define: Callable[..., Any], *, as_function: bool = True, as_method: bool = True) -> None:
    """Give a bound function another public name (`mul` and `multiply`)."""
    if as_function:
        _bind_function(name, define)
    if as_method:
        _bind_method(name, define)

"""The errors of PyTorch's argument parser, which a public function raises once a call has failed.

# Note [Arguments of wrong types]
Problem: PyTorch's parser looks at the types of all arguments first. Here each call would pay for what few calls need.
Rule: a public function runs at once. If it raises anything, its arguments are compared with the annotations of its
parameters, and the first that does not fit raises the parser's TypeError instead.
Exception: the functions in `EAGER`, which are seldom called and would take what the parser refuses, look first.
Consequences: a right call pays nothing for the comparison. Annotations of public functions are part of the interface:
`Any` means that several types fit (PyTorch's parser has several signatures there). A wrong argument that a function
does not use is not noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

from flambeau.core.dtype import dtype
from flambeau.core.errors import RaceError, type_name
from flambeau.runtime.generator import Generator
from flambeau.tensor.integers import int_or_none
from flambeau.tensor.tensor import Tensor

# Annotations that Python has no type for: an int or several, several ints, a tuple or list of tensors, any number.
IntOrTuple = Any
IntTuple = Any
TensorList = Any
Number = Any

EAGER = {
    "as_strided_", "broadcast_to", "combinations", "dist", "inner", "is_conj", "is_neg", "isclose", "mvlgamma",
    "mvlgamma_", "nan_to_num_", "new_full", "resolve_conj", "resolve_neg", "split_with_sizes", "tril_indices",
    "triu_indices", "unflatten", "unique", "unique_consecutive", "unsafe_chunk", "unsafe_split",
}  # fmt: skip
"""The functions that compare their arguments before they run."""


_CHOICES = ("bool", "str")
"""Types of arguments that PyTorch's functions in Python check themselves, with errors of their own."""


def checking(define: Callable[..., Any], name: str, *, method: bool = False) -> Any:
    """Return `define` such that a failed call with an argument of a wrong type raises TypeError in PyTorch's words."""
    if not isinstance(define, FunctionType):
        return define

    def call(*args: Any, **given: Any) -> Any:
        try:
            return define(*args, **given)
        except RaceError:
            raise
        except Exception as error:
            worded = isinstance(error, ValueError | RuntimeError)
            mistake = explained(define, name, args, given, method, _CHOICES if worded else ())
            if mistake is None or str(error).startswith(f"{name}(): argument "):
                raise
            raise mistake from error

    return standing_for(call, define)


def looking_first(define: Any, name: str, method: bool) -> Any:
    """Return `define`; if it is one of `EAGER`, such that it compares its arguments before it runs."""
    if name not in EAGER:
        return define
    parameters = signature(define).parameters
    tests = {key: _expected(str(parameter.annotation))[0] for key, parameter in parameters.items()}
    in_order = tuple(tests.values())

    def call(*args: Any, **given: Any) -> Any:
        fits = all(test(value) for test, value in zip(in_order, args, strict=False))
        if not fits or not all(tests[key](value) for key, value in given.items() if key in tests):
            mistake = explained(define, name, args, given, method)
            if mistake is not None:
                raise mistake
        return define(*args, **given)

    return standing_for(call, define)


def standing_for(call: Any, define: FunctionType) -> Any:
    """Give `call` the names of the function that it calls, and its signature."""
    call.__name__, call.__qualname__ = define.__name__, define.__qualname__
    call.__module__, call.__doc__ = define.__module__, define.__doc__
    call.__annotations__, call.__wrapped__ = define.__annotations__, define
    return call


def explained(
    define: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    given: dict[str, Any],
    method: bool,
    skipped: tuple[str, ...] = (),
) -> TypeError | None:
    """Return the TypeError of the first argument that is not of its parameter's type; None if all are.

    Parameters whose types are in `skipped` may have any argument.
    """
    for at, (parameter, value) in enumerate(_matched(define, args, given)):
        fits, expected = _expected(str(parameter.annotation))
        if expected not in skipped and not fits(value):
            where = f" (position {at + (not method)})" if at < len(args) else ""
            argument = f"argument '{parameter.name}'{where}"
            return TypeError(f"{name}(): {argument} must be {expected}, {_instead(expected, value)}")
    return None


def _instead(expected: str, value: Any) -> str:
    """Return what an argument is instead of the expected type, in PyTorch's words."""
    if expected == "tuple of ints" and isinstance(value, tuple | list):
        at = _wrong_place(value) or 0
        return f"but found element of type {type_name(value[at])} at pos {at}"
    return f"not {type_name(value)}"


def _matched(
    define: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any]
) -> list[tuple[Parameter, Any]]:
    """Return the arguments with the parameters that take them; nothing if there are too many, which Python says."""
    parameters = signature(define).parameters
    taking: list[Parameter] = []
    for parameter in parameters.values():
        if parameter.kind is Parameter.VAR_POSITIONAL:
            taking += [parameter] * (len(args) - len(taking))
        elif parameter.kind is not Parameter.KEYWORD_ONLY and parameter.kind is not Parameter.VAR_KEYWORD:
            taking.append(parameter)
    if len(args) > len(taking):
        return []
    named = [(parameters[key], value) for key, value in given.items() if key in parameters]
    return [*zip(taking, args, strict=False), *named]


@cache
def _expected(annotation: str) -> tuple[Callable[[Any], bool], str]:
    """Return a test that each argument of an annotated type passes, and PyTorch's name for the type."""
    kind, _, other = annotation.partition(" | ")
    if kind == "Given":
        kind, other = "Tensor", "None"
    if kind not in KINDS or other not in ("", "None"):
        return _fits_any, ""
    fits, name = KINDS[kind]
    return (lambda value: value is None or fits(value)) if other else fits, name


def _fits_any(value: Any) -> bool:
    return True


def _of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _is_int(value: Any) -> bool:
    return int_or_none(value) is not None


def _is_real(value: Any) -> bool:
    """A number that is not complex: Python's, NumPy's, or of a tensor with one element."""
    if isinstance(value, Tensor):
        return value.numel() == 1
    return hasattr(value, "__float__") and not isinstance(value, complex)


def _is_format(value: Any) -> bool:
    return type(value).__name__ == "memory_format"  # whose module binds public names, so it imports this one


def _is_int_or_tuple(value: Any) -> bool:
    return _is_int(value) or _is_int_tuple(value)


def _is_int_tuple(value: Any) -> bool:
    return isinstance(value, tuple | list) and _wrong_place(value) is None


def _wrong_place(values: Any) -> int | None:
    """Return where the first element is that is not an int; of bools PyTorch's parser sees the first place alone."""
    wrong = (
        at for at, each in enumerate(values) if not _is_int(each) and not (at and isinstance(each, bool))
    )
    return next(wrong, None)


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, Tensor) for each in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, complex) or _is_real(value)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "Tensor": (_of(Tensor), "Tensor"), "bool": (_of(bool), "bool"), "dtype": (_of(dtype), "torch.dtype"),
    "int": (_is_int, "int"), "float": (_is_real, "float"), "str": (_of(str), "str"),
    "Generator": (_of(Generator), "torch.Generator"), "memory_format": (_is_format, "torch.memory_format"),
    "IntOrTuple": (_is_int_or_tuple, "tuple of ints"), "IntTuple": (_is_int_tuple, "tuple of ints"),
    "TensorList": (_is_tensor_list, "tuple of Tensors"), "Number": (_is_number, "Number"),
}  # fmt: skip
"""The annotations that say a type: what fits them, and PyTorch's name for it."""

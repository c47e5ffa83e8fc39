"""`torch.library.infer_schema`: the schema of a function from its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, Union

from flambeau.core.device import device
from flambeau.core.dtype import dtype
from flambeau.tensor.tensor import Tensor


def _list_names() -> dict[Any, str]:
    """Return the annotations of parameters and their types in a schema."""
    number = Union[int, float, bool]  # noqa: UP007 (as programs write it)
    scalars: list[tuple[Any, str, bool]] = [
        (Tensor, "Tensor", True), (int, "SymInt", True), (float, "float", True), (bool, "bool", True),
        (str, "str", False), (number, "Scalar", True), (dtype, "ScalarType", False), (device, "Device", False),
    ]  # fmt: skip
    names: dict[Any, str] = {}
    for kind, name, has_lists in scalars:
        names |= {kind: name, typing.Optional[kind]: f"{name}?"}  # noqa: UP045
        for item, text in ((kind, name), (typing.Optional[kind], f"{name}?")):  # noqa: UP045
            if (has_lists and text == name) or text == "Tensor?":
                for form in (typing.Sequence, typing.List, Sequence, list):  # noqa: UP006
                    names[form[item]] = f"{text}[]"
                    if text != "Tensor" and text != "Tensor?":
                        names[typing.Optional[form[item]]] = f"{text}[]?"  # noqa: UP045
    return names


_NAMES = _list_names()
_RETURNS: dict[Any, str] = {
    Tensor: "Tensor", int: "SymInt", float: "float", bool: "bool", int | float | bool: "Scalar",
    typing.List[Tensor]: "Tensor[]", list[Tensor]: "Tensor[]",  # noqa: UP006
}  # fmt: skip


def infer_schema(
    prototype_function: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str],
    op_name: str | None = None,
    tags: Any = (),
) -> str:
    """Return the schema that a function's annotations describe.

    Args:
        prototype_function: The function.
        mutates_args: Names of arguments that it changes, or "unknown": all tensors.
        op_name: The operator's name, which the schema then begins with.
        tags: Not used.

    Raises:
        ValueError: If an annotation is missing or has no type in schemas.
    """
    signature = inspect.signature(prototype_function)

    def fail(text: str) -> NoReturn:
        raise ValueError(f"infer_schema(func): {text} Got func with signature {signature})")

    if isinstance(mutates_args, str) and mutates_args != "unknown":
        raise ValueError(
            "mutates_args must either be a sequence of the names of the arguments that are mutated or the string "
            "'unknown'. "
        )
    changed = mutates_args if isinstance(mutates_args, str) else tuple(mutates_args)
    parts: list[str] = []
    for at, parameter in enumerate(signature.parameters.values()):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            fail("We do not support positional-only args, varargs, or varkwargs.")
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_describe(parameter, at, changed, prototype_function, fail))
    if changed != "unknown" and (unseen := set(changed) - signature.parameters.keys()):
        fail(
            f"{unseen} in mutates_args were not found in the custom op's signature. mutates_args should contain the "
            "names of all args that the custom op mutates, or just the string 'unknown' if you don't know."
        )
    returns = _describe_returns(signature.return_annotation, prototype_function, fail)
    return f"{op_name or ''}({', '.join(parts)}) -> {returns}"


def _describe(
    parameter: inspect.Parameter, at: int, changed: Any, function: Any, fail: Callable[[str], NoReturn]
) -> str:
    name = parameter.name
    if parameter.annotation is parameter.empty:
        fail(f"Parameter {name} must have a type annotation.")
    annotation = _evaluate(parameter.annotation, function, fail)
    if annotation not in _NAMES:
        fail(
            f"Parameter {name} has unsupported type {parameter.annotation}. The valid types are: {_NAMES.keys()}."
        )
    kind = _NAMES[annotation]
    if changed == "unknown" or name in changed:
        if kind.startswith("Tensor"):
            kind = f"Tensor(a{at}!){kind[len('Tensor') :]}"
        elif changed != "unknown":
            fail(
                f"Parameter {name} is in mutable_args but only Tensors or collections of Tensors can be mutated"
            )
    if parameter.default is parameter.empty:
        return f"{kind} {name}"
    value = parameter.default
    if value is None or isinstance(value, int | float):
        return f"{kind} {name}={value}"
    if isinstance(value, str | device):
        return f'{kind} {name}="{value}"'
    if isinstance(value, dtype):
        return f"{kind} {name}={str(value).removeprefix('torch.')}"
    fail(
        f"Parameter {name} has an unsupported default value type {type(value)}. Please file an issue on GitHub so we "
        "can prioritize this."
    )


def _evaluate(annotation: Any, function: Any, fail: Callable[[str], NoReturn]) -> Any:
    if isinstance(annotation, str):
        try:
            return eval(annotation, function.__globals__)
        except Exception as error:
            fail(f"Unsupported type annotation {annotation}. It is not a type. ({error})")
    return annotation


def _describe_returns(annotation: Any, function: Any, fail: Callable[[str], NoReturn]) -> str:
    if annotation is inspect.Parameter.empty:
        fail("No return type annotation was provided. Please add one.")
    annotation = _evaluate(annotation, function, fail)
    if annotation is None:
        return "()"
    parts = typing.get_args(annotation) if typing.get_origin(annotation) is tuple else (annotation,)
    names = []
    for part in parts:
        kind = _evaluate(part, function, fail)
        if kind not in _RETURNS:
            fail(f"Return has unsupported type {annotation}. The valid types are: {_RETURNS}.")
        names.append(_RETURNS[kind])
    return f"({', '.join(names)})" if typing.get_origin(annotation) is tuple else names[0]

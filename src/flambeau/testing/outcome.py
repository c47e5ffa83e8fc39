"""`Outcome`: the result of a run of a program, in a form in which two runs can be compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import flambeau as torch
from flambeau.core.host_arrays import array_at

_NUMBER = re.compile(
    r"(?<![\w.])(0x[0-9a-fA-F]+|[0-9]{14,20})(?!\w|\.[0-9])"
)  # an address of a virtual GPU, or not
_OBJECT = re.compile(r" at 0x[0-9a-f]+>")  # as Python shows objects
_FLOAT = re.compile(r"-?(0x[01]\.[0-9a-f]+p[+-][0-9]+|inf|nan)")  # a float as `frozen` writes it


@dataclass(frozen=True, slots=True)
class Outcome:
    """The value that a program returned, frozen to bytes, or the error that it raised as `Type: text`, and its line."""

    value: Any = None
    error: str | None = None
    line: str = ""

    def __str__(self) -> str:
        if self.error is None:
            return f"gives {format_value(self.value)}"
        return f"raises {self.error}" + (f" ({self.line})" if self.line else "")

    def unlike(self, other: Outcome) -> str:
        """Return the first difference of two outcomes whose reports look equal, because they omit most of a value;
        otherwise "".
        """
        if self == other or str(self) != str(other):
            return ""
        return "first difference: " + _difference(self.value, other.value)


def frozen(value: Any) -> Any:
    """Return a value that equals another such value exactly if both have the same bits.

    Tensors and arrays become (dtype, shape, bytes).

    Raises:
        TypeError: If a value cannot be compared between runs.
    """
    if isinstance(value, torch.Tensor):
        there = value.detach().cpu().resolve_conj().contiguous()
        array = array_at(there.data_ptr(), there.meta.shape, there.meta.dtype.numpy, there.meta.byte_strides)
        return "tensor", str(there.dtype), tuple(there.shape), array.tobytes()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple([frozen(v) for v in value])
    if isinstance(value, Mapping):
        return tuple([(frozen(k), frozen(v)) for k, v in value.items()])
    if value is None or isinstance(value, str | bytes | bool | int | complex | np.generic):
        return value
    if isinstance(value, float):
        return value.hex()
    raise TypeError(
        f"explore compares what the function returns in each order, and cannot compare {type(value).__name__}; "
        "return tensors, arrays, numbers, strings, or lists, tuples and dicts of them"
    )


def without_addresses(outcome: Outcome, range: tuple[int, int]) -> Outcome:
    """Return an outcome whose texts have addresses relative to their device.

    Addresses of each machine and of Python objects differ, so texts of two runs would never be equal.

    Args:
        outcome: The outcome of a run.
        range: The first address of the run's machine, and the one after its last.
    """

    def relative(match: re.Match[str]) -> str:
        ptr = int(match[0], 0) if match[0].startswith("0x") else int(match[0])
        return f"<address {ptr - range[0]:#x}>" if range[0] <= ptr < range[1] else match[0]

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return _NUMBER.sub(relative, _OBJECT.sub(" at 0x...>", value))
        return value if _is_array(value) or not isinstance(value, tuple) else tuple(map(clean, value))

    return replace(outcome, value=clean(outcome.value))


def format_value(value: Any) -> str:
    """Return a frozen value for a report: the first elements of a tensor, not its bytes; the beginning of a text."""
    if _is_array(value):
        first = _elements(value)[:4].tolist()
        return f"{value[1].removeprefix('torch.')}{list(value[2])} of {', '.join(map(str, first))} ..."
    if isinstance(value, tuple):
        return "(" + ", ".join(map(format_value, value)) + ")"
    text = repr(float.fromhex(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _difference(one: Any, other: Any) -> str:
    """Return the position of the first difference of two frozen values: an index, a line of a text, an element."""
    if isinstance(one, str) and isinstance(other, str) and not _FLOAT.fullmatch(one):
        return _difference_of_lines(one.splitlines(keepends=True), other.splitlines(keepends=True))
    if not isinstance(one, tuple) or not isinstance(other, tuple) or len(one) != len(other):
        return f"{one!r} for {other!r}"
    if _is_array(one) and one[:3] == other[:3]:
        return _difference_of_elements(one, other)
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    return f"item {at}, {_difference(one[at], other[at])}"


def _difference_of_lines(one: list[str], other: list[str]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return f"{len(one)} lines for {len(other)}"
    return f"line {at + 1}, {one[at]!r} for {other[at]!r}"


def _difference_of_elements(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    mine, theirs = _elements(one), _elements(other)
    bits = f"V{mine.itemsize}"
    unlike = mine.view(bits) != theirs.view(bits)
    at = int(unlike.argmax())
    place = ", ".join(map(str, np.unravel_index(at, one[2])))
    return f"[{place}], {mine[at]} for {theirs[at]}; {int(unlike.sum())} of {mine.size} elements differ"


def _is_array(value: Any) -> bool:
    """Return True if a frozen value stands for a tensor or an array whose elements are not records."""
    if not isinstance(value, tuple) or len(value) != 4:
        return False
    return value[0] == "tensor" or (value[0] == "array" and not value[1].startswith(("[", "{")))


def _elements(value: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    """Return the elements of a frozen tensor or array as a flat array."""
    kind, dtype, _, data = value
    numpy = getattr(torch, dtype.removeprefix("torch.")).numpy if kind == "tensor" else np.dtype(dtype)
    return np.frombuffer(data, numpy)

"""`assert_close`: PyTorch's comparison of tensors, numbers, and sequences and mappings of them, with its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np

import flambeau as torch

_TOLERANCES = {  # relative and absolute tolerance; 0, 0 for other dtypes
    torch.float16: (1e-3, 1e-5),
    torch.bfloat16: (1.6e-2, 1e-5),
    torch.float32: (1.3e-6, 1e-5),
    torch.float64: (1e-7, 1e-7),
    torch.complex32: (1e-3, 1e-5),
    torch.complex64: (1.3e-6, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}
_OF_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
Message = str | Callable[[str], str] | None


@dataclass(frozen=True)
class _Rules:
    rtol: float | None
    atol: float | None
    equal_nan: bool
    check_device: bool
    check_dtype: bool
    check_layout: bool
    check_stride: bool
    msg: Message
    item: str = ""  # where in the sequences and mappings: "[0]['a']"

    def fail(self, text: str) -> NoReturn:
        message = f"{text}\n\nThe failure occurred for item {self.item}" if self.item else text
        raise AssertionError(
            self.msg(message) if callable(self.msg) else message if self.msg is None else self.msg
        ) from None

    def tolerances(self, *dtypes: Any) -> tuple[float, float]:
        """Return the relative and absolute tolerance that the caller gave, or the larger defaults of the two dtypes."""
        if self.rtol is not None and self.atol is not None:
            return self.rtol, self.atol
        found = [_TOLERANCES.get(dtype, (0.0, 0.0)) for dtype in dtypes]
        return max(rtol for rtol, _ in found), max(atol for _, atol in found)


_LOOSE = {torch.float16: (1e-3, 1e-3), torch.float32: (1e-4, 1e-5), torch.float64: (1e-5, 1e-8)}


def assert_allclose(
    actual: Any,
    expected: Any,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = True,
    msg: str = "",
) -> None:
    """Raise AssertionError if two tensors differ by more than wide tolerances. Deprecated: use `assert_close`."""
    if not isinstance(actual, torch.Tensor):
        actual = torch.tensor(actual)
    if not isinstance(expected, torch.Tensor):
        expected = torch.tensor(expected, dtype=actual.dtype)
    if rtol is None and atol is None:
        found = [_LOOSE.get(each.dtype, (0.0, 0.0)) for each in (actual, expected)]
        rtol, atol = max(loose[0] for loose in found), max(loose[1] for loose in found)
    assert_close(
        actual, expected, rtol=rtol, atol=atol, equal_nan=equal_nan, check_dtype=False, msg=msg or None
    )


def assert_close(
    actual: Any,
    expected: Any,
    *,
    allow_subclasses: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
    equal_nan: bool = False,
    check_device: bool = True,
    check_dtype: bool = True,
    check_layout: bool = True,
    check_stride: bool = False,
    msg: Message = None,
) -> None:
    """Raise AssertionError unless |actual - expected| <= atol + rtol |expected|, and devices and dtypes are equal.

    Args:
        rtol, atol: Tolerances; by default they follow from the dtype.
        msg: The message, or a function that returns it from the default message.

    Raises:
        ValueError: If only one of the tolerances is present.
        TypeError: If the arguments cannot be compared.
    """
    if (rtol is None) != (atol is None):
        missing = "rtol" if rtol is None else "atol"
        raise ValueError(f"Both 'rtol' and 'atol' must be either specified or omitted, but got no {missing}.")
    same = type(actual) is type(expected) or (
        allow_subclasses and isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor)
    )
    rules = _Rules(rtol, atol, equal_nan, check_device, check_dtype, check_layout, check_stride, msg)
    if isinstance(actual, torch.Tensor | np.ndarray) and not same:
        _refuse(actual, expected)
    _compare(actual, expected, rules)


def _compare(actual: Any, expected: Any, rules: _Rules) -> None:
    kinds = (actual, expected)
    if all(isinstance(x, Sequence) and not isinstance(x, str) for x in kinds):
        _compare_sequences(actual, expected, rules)
    elif all(isinstance(x, Mapping) for x in kinds):
        _compare_mappings(actual, expected, rules)
    elif actual is None or expected is None:
        if actual is not expected:
            rules.fail(f"None mismatch: {actual} is not {expected}")
    elif all(isinstance(x, bool | np.bool_) for x in kinds):
        if bool(actual) is not bool(expected):
            rules.fail(f"Booleans mismatch: {bool(actual)} is not {bool(expected)}")
    elif all(isinstance(x, int | float | complex) for x in kinds):
        _compare_numbers(actual, expected, rules)
    elif all(isinstance(x, torch.Tensor) for x in kinds) or all(isinstance(x, np.ndarray) for x in kinds):
        _compare_tensors(torch.as_tensor(actual), torch.as_tensor(expected), rules)
    else:
        _refuse(actual, expected)


def _refuse(actual: Any, expected: Any) -> NoReturn:
    raise TypeError(
        f"No comparison pair was able to handle inputs of type {type(actual)} and {type(expected)}."
    )


def _compare_sequences(actual: Sequence[Any], expected: Sequence[Any], rules: _Rules) -> None:
    if len(actual) != len(expected):
        rules.fail(f"The length of the sequences mismatch: {len(actual)} != {len(expected)}")
    for i, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        _compare(mine, theirs, replace(rules, item=f"{rules.item}[{i!r}]"))


def _compare_mappings(actual: Mapping[Any, Any], expected: Mapping[Any, Any], rules: _Rules) -> None:
    missing = sorted(expected.keys() - actual.keys(), key=str)
    additional = sorted(actual.keys() - expected.keys(), key=str)
    if missing or additional:
        lines = ["The keys of the mappings do not match:"]
        lines += [f"Missing keys in the actual mapping: {missing}"] if missing else []
        lines += [f"Additional keys in the actual mapping: {additional}"] if additional else []
        rules.fail("\n".join(lines))
    for key in sorted(actual, key=str):
        _compare(actual[key], expected[key], replace(rules, item=f"{rules.item}[{key!r}]"))


def _compare_numbers(actual: Any, expected: Any, rules: _Rules) -> None:
    if rules.check_dtype and type(actual) is not type(expected):
        rules.fail(f"The (d)types do not match: {type(actual)} != {type(expected)}.")
    rtol, atol = rules.tolerances(*[_OF_NUMBERS[type(x)] for x in (actual, expected)])
    _compare_scalars(actual, expected, rtol, atol, rules)


def _compare_scalars(actual: Any, expected: Any, rtol: float, atol: float, rules: _Rules) -> None:
    both_nan = rules.equal_nan and actual != actual and expected != expected
    difference = abs(actual - expected)
    within = difference <= atol + rtol * abs(expected) and difference != float("inf")
    if actual == expected or both_nan or within:
        return
    relative = float("inf") if expected == 0 else difference / abs(expected)
    exact = rtol == atol == 0
    rules.fail(
        f"Scalars are not {'equal' if exact else 'close'}!\n\nExpected {expected} but got {actual}.\n"
        f"Absolute difference: {difference}{'' if exact else f' (up to {atol} allowed)'}\n"
        f"Relative difference: {relative}{'' if exact else f' (up to {rtol} allowed)'}"
    )


def _compare_tensors(actual: Any, expected: Any, rules: _Rules) -> None:
    _compare_attributes(actual, expected, rules)
    rtol, atol = rules.tolerances(actual.dtype, expected.dtype)
    if actual.device != expected.device:
        actual, expected = actual.cpu(), expected.cpu()
    if actual.dtype != expected.dtype:
        kind = torch.promote_types(actual.dtype, expected.dtype)
        actual, expected = actual.to(kind), expected.to(kind)
    actual, expected = actual.detach(), expected.detach()
    matches = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=rules.equal_nan)
    if matches.all().item():
        return
    if actual.ndim == 0:
        _compare_scalars(actual.item(), expected.item(), rtol, atol, rules)
    rules.fail(_mismatch(actual.cpu(), expected.cpu(), matches.cpu(), rtol, atol))


def _compare_attributes(actual: Any, expected: Any, rules: _Rules) -> None:
    looked_at = [
        (True, "shape", actual.shape, expected.shape),
        (rules.check_layout, "layout", actual.layout, expected.layout),
        (rules.check_device, "device", actual.device, expected.device),
        (rules.check_dtype, "dtype", actual.dtype, expected.dtype),
        (rules.check_stride, "stride()", actual.stride(), expected.stride()),
    ]
    for look, name, mine, theirs in looked_at:
        if look and mine != theirs:
            rules.fail(f"The values for attribute '{name}' do not match: {mine} != {theirs}.")


def _mismatch(actual: Any, expected: Any, matches: Any, rtol: float, atol: float) -> str:
    """Return the number of elements that differ, and the index of the largest difference. All tensors are on the
    CPU.
    """
    if actual.dtype is torch.bool or not (actual.dtype.is_floating_point or actual.dtype.is_complex):
        actual, expected = actual.to(torch.int64), expected.to(torch.int64)
    absolute = (actual - expected).abs()
    relative = absolute / expected.abs()
    differ, total = int((~matches).sum().item()), matches.numel()
    exact = rtol == atol == 0
    lines = [
        f"Tensor-likes are not {'equal' if exact else 'close'}!\n",
        f"Mismatched elements: {differ} / {total} ({differ / total:.1%})",
    ]
    for name, found, limit in (("absolute", absolute, atol), ("relative", relative, rtol)):
        flat = torch.where(matches, 0, found).flatten()
        at = int(flat.argmax().item())
        index = tuple(int(i) for i in np.unravel_index(at, tuple(matches.shape)))
        allowed = "" if exact else f" (up to {limit} allowed)"
        lines.append(f"Greatest {name} difference: {flat[at].item()} at index {index}{allowed}")
    return "\n".join(lines)

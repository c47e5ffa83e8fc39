"""Random programs on rows, shared by the tests of reductions and of softmax in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flambeau as torch


def operands(shape: tuple[int, ...], kind: Any) -> list[Any]:
    """Return a tensor, a row, and a tensor whose elements are strided, the same at each call."""
    torch.manual_seed(5)
    x = torch.randn(shape, device="cuda").to(kind)
    strided = torch.randn((*shape[:-1], 2 * shape[-1]), device="cuda")[..., ::2]
    return [x, torch.randn(shape[-1], device="cuda"), strided]


Step = tuple[str, int, int, bool]


def walk(perform: Callable[[str, Any, Any, bool], Any], values: list[Any], steps: list[Step]) -> list[Any]:
    """Run steps on a list of tensors, and return what it holds in the end.

    `perform(name, a, b, flag)` gives the result of a step; an error counts as one. "drop" replaces a tensor.
    """
    for name, i, j, flag in steps:
        a, b = values[i % len(values)], values[j % len(values)]
        try:
            made = values.pop(i % len(values)) * 2 if name == "drop" else perform(name, a, b, flag)
        except (RuntimeError, IndexError, NotImplementedError) as error:
            made = a + len(str(error))
        values.append(made)
        if len(values) > 6:
            values.pop(i % 6)
    return values


def check_equals_eager_code(
    walk: Callable[[list[Any], Any], list[Any]], shape: tuple[int, ...], kind: Any, steps: Any
) -> None:
    """Check that `walk`, compiled, gives the bits, layouts and versions that it gives by eager code."""
    want = walk(operands(shape, kind), steps)
    compiled = torch.compile(walk)
    for _ in range(2):  # the second run finds the groups
        got = compiled(operands(shape, kind), steps)
        for x, y in zip(got, want, strict=True):
            assert (x.dtype, x.shape, x.stride(), x._version) == (y.dtype, y.shape, y.stride(), y._version)
            assert torch.equal(x.nan_to_num(), y.nan_to_num())
            assert torch.equal(x.isnan(), y.isnan())

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

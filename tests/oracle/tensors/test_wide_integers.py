"""Arguments that are wrong by their size, next to PyTorch: integers beyond 63 bits, numbers beyond a dtype, indices
into dimensions without elements.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from support import torch

import flambeau

Call = Callable[[Any, int], Any]
CALLS: dict[str, Call] = {
    "tril": lambda m, n: m.ones(3, 3).tril(n),
    "triu_": lambda m, n: m.ones(3, 3).triu_(n),
    "diag": lambda m, n: m.ones(3, 3).diag(n),
    "diagonal": lambda m, n: m.ones(3, 3).diagonal(n),
    "diagonal_copy": lambda m, n: m.diagonal_copy(m.ones(3, 3), n),
    "tril_indices": lambda m, n: m.tril_indices(1, n),
    "triu_indices": lambda m, n: m.triu_indices(n, 1),
    "rot90": lambda m, n: m.ones(2, 2).rot90(n),
    "chunk": lambda m, n: m.ones(3).chunk(n),
    "split": lambda m, n: m.ones(3).split(n),
    "unfold": lambda m, n: m.ones(3).unfold(0, 1, n),
    "slice_copy": lambda m, n: m.slice_copy(m.ones(3), 0, n),
    "slice_scatter": lambda m, n: m.slice_scatter(m.ones(3), m.ones(3), 0, 0, n),
    "diff": lambda m, n: m.ones(3).diff(n),
    "cov": lambda m, n: m.ones(3).cov(correction=n),
    "polygamma": lambda m, n: m.polygamma(n, m.ones(3)),
    "polygamma_": lambda m, n: m.ones(3).polygamma_(n),
    "randint": lambda m, n: m.randint(0, n, (2,)),
    "random_": lambda m, n: m.ones(3).random_(n),
}
NUMBERS = (300, -300, 1 << 40, 1 << 63, 1 << 70, 1e6, 1e39, 2.5, 1j, True, float("inf"), float("nan"))
DTYPES = ("uint8", "int8", "int32", "int64", "float16", "bfloat16", "float32", "complex64")
EMPTY = (((0,), 0), ((0, 3), 0), ((3, 0), 1), ((2, 0, 2), 1))


def outcome(call: Callable[[Any], Any], module: Any) -> str:
    """Return the type of the error of a call, or the values of its result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return str(call(module).tolist())
        except Exception as error:
            return type(error).__name__


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [1 << 63, -(1 << 63) - 1, 1 << 70])
def test_wide_integer_is_refused(name: str, n: int) -> None:
    call = CALLS[name]
    assert outcome(lambda m: call(m, n), flambeau) == outcome(lambda m: call(m, n), torch) == "ValueError"


@pytest.mark.parametrize("name", ["addcmul", "copy_"])
def test_number_beyond_dtype(name: str) -> None:
    for dtype, number in itertools.product(DTYPES, NUMBERS):

        def call(m: Any, dtype: str = dtype, number: Any = number) -> Any:
            x = m.ones(1, dtype=getattr(m, dtype))
            return x.copy_(number) if name == "copy_" else m.addcmul(x, x, x, value=number)

        assert outcome(call, flambeau) == outcome(call, torch), (dtype, number)


@pytest.mark.parametrize("name", ["scatter", "scatter_add", "index_copy", "index_fill"])
@pytest.mark.parametrize(("shape", "dim"), EMPTY)
@pytest.mark.parametrize("count", [0, 1, 2])
def test_write_into_dimension_without_elements(
    name: str, shape: tuple[int, ...], dim: int, count: int
) -> None:
    sizes = tuple(count if d == dim else n for d, n in enumerate(shape))

    def call(m: Any) -> Any:
        along = m.zeros(sizes if name.startswith("scatter") else count, dtype=m.int64)
        return getattr(m.zeros(shape), name)(dim, along, 1.0 if name == "index_fill" else m.ones(sizes))

    assert outcome(call, flambeau) == outcome(call, torch)

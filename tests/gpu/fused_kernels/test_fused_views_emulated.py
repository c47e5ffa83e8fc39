"""Fused kernels with views of results and joined results: the CUDA source gives the bits of separate kernels."""

from __future__ import annotations

import random
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from test_fused_emulated import GPU, Chain, of_layout

import flambeau
from flambeau.core.errors import NotSupportedError
from flambeau.core.meta import Meta
from flambeau.driver.protocol import FusedView
from flambeau.ops.op import table
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")


class ViewChain(Chain):
    """Operators whose arguments may be views of results."""

    def view(self, source: int, index: Any) -> int:
        """Add the view `index` of a result: what NumPy's indexing gives, or a function of the array."""
        whole = self.results[-1 - source]
        part = index(whole) if callable(index) else whole[index]
        assert np.shares_memory(part, whole)
        item = part.itemsize
        meta = Meta.of(part.shape, tuple([s // item for s in part.strides]), self.meta(source).dtype, GPU)
        offset = part.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        self.steps.append(FusedView(source, meta, offset))  # type: ignore[arg-type]
        self.results.append(part)
        return -len(self.steps)

    def meta(self, a: Any) -> Any:
        step = self.steps[-1 - a] if isinstance(a, int) and a < 0 else None
        return step.meta if isinstance(step, FusedView) else super().meta(a)


def fill(*shape: int, kind: str = "float32", seed: int = 0) -> Any:
    return operator_properties.maker(getattr(flambeau, kind), seed)(*shape, low=0.2, high=3)


def run(chain: ViewChain, name: str, *args: Any, **how: Any) -> int:
    return chain.run(table[name], *args, alone=of_layout, **how)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(3, 5, 16), (2, 3, 6), (2, 7, 2)])
def test_rotated_halves(kind: str, shape: tuple[int, ...]) -> None:
    """Compute `x * cos + cat((-second, first)) * sin`, where the halves are views of a result."""
    half = shape[-1] // 2
    chain = ViewChain([fill(*shape, kind=kind), fill(*shape[1:], kind=kind, seed=1)])
    x = run(chain, "add", 0, 0)
    first, second = chain.view(x, np.s_[..., :half]), chain.view(x, np.s_[..., half:])
    joined = run(chain, "cat", run(chain, "neg", second), first, params=(2,))
    run(chain, "add", run(chain, "mul", x, 1), run(chain, "mul", joined, 1))
    chain.check([len(chain.steps) - 1])
    chain.check([len(chain.steps) - 1], tight=True)


def test_rotated_pairs_are_stored_with_gaps() -> None:
    chain = ViewChain([fill(4, 6), fill(4, 6, seed=1)])
    x = run(chain, "mul", 0, 1)
    a, b = chain.view(x, np.s_[:, ::2, None]), chain.view(x, np.s_[:, 1::2, None])
    run(chain, "cat", run(chain, "sub", a, b), run(chain, "add", a, b), params=(2,))
    chain.check([len(chain.steps) - 1])


@pytest.mark.parametrize("seed", range(3))
def test_joined_inputs_and_results_of_several_sizes(seed: int) -> None:
    chain = ViewChain(
        [fill(3, 4, seed=seed), fill(3, 6, seed=seed), fill(3, 14, seed=seed), fill(3, 4, seed=9)]
    )
    inner = run(chain, "cat", run(chain, "neg", 0), 3, params=(1,))
    outer = run(chain, "cat", run(chain, "mul", inner, 2.0), 1, params=(1,))
    run(chain, "add", outer, 2)
    chain.check([len(chain.steps) - 1], tight=bool(seed % 2))


VIEWS = [
    np.s_[1:], np.s_[..., ::2], np.s_[:, None], np.s_[..., 1:3], lambda x: x.swapaxes(0, -1),
    lambda x: x.reshape(2, -1, *x.shape[1:]),
]  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_random_views_of_views(seed: int) -> None:
    choice = random.Random(seed)
    chain = ViewChain([fill(4, 3, 8, seed=seed), fill(8, seed=seed)])
    x = run(chain, "mul", 0, 1)
    for _ in range(3):
        try:
            x = chain.view(x, choice.choice(VIEWS))
        except (AssertionError, ValueError, IndexError):
            continue
        x = run(chain, choice.choice(["neg", "sqrt", "abs"]), x)
        if choice.random() < 0.5:
            x = run(chain, "add", x, x)
    chain.check([len(chain.steps) - 1], tight=bool(seed % 2))


def test_elements_without_strides_are_refused() -> None:
    chain = ViewChain([fill(4, 6), fill(6)])
    flat = chain.view(run(chain, "mul", 0, 1), lambda x: x.reshape(-1))
    run(chain, "neg", flat)
    with pytest.raises(NotSupportedError, match="is not computed by its readers"):
        chain.check([len(chain.steps) - 1])

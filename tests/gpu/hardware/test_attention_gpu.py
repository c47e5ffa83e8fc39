"""Attention on a real GPU, beside its formula in float64 from products and exponentials on the same GPU."""

from __future__ import annotations

import random
from typing import Any

import pytest
from gpu_kit import GPU, needs_gpu

import flambeau
from flambeau.nn.functional import scaled_dot_product_attention

pytestmark = needs_gpu

ROUNDINGS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
LENGTHS = (1, 5, 64, 65, 127, 128, 200, 333, 640, 1000)
DEPTHS = (16, 32, 64, 72, 96, 128)


def by_formula(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Return softmax(q k^T / sqrt(depth)) v, where causal without the keys after each query."""
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if causal:
        later = flambeau.ones(scores.shape[-2:], dtype=flambeau.bool, device=q.device).triu(1)
        scores = scores.masked_fill(later, -flambeau.inf)
    return flambeau.softmax(scores, -1) @ v


def result_and_gradients(attend: Any, operands: list[Any], grad: Any) -> list[Any]:
    leaves = [x.detach().requires_grad_() for x in operands]
    out = attend(*leaves)
    return [out.detach(), *flambeau.autograd.grad(out, leaves, grad)]


def cases() -> list[tuple[str, int, int, int, int, bool]]:
    draw = random.Random(20261128)
    kinds = list(ROUNDINGS)
    return [
        (
            draw.choice(kinds),
            draw.choice((1, 3, 40)),
            draw.choice(LENGTHS),
            draw.choice(LENGTHS),
            draw.choice(DEPTHS),
            index % 2 == 0,
        )
        for index in range(40)
    ]


@pytest.mark.parametrize(("kind", "samples", "queries", "keys", "depth", "causal"), cases())
def test_results_and_gradients_are_near_the_formula_and_repeat(
    kind: str, samples: int, queries: int, keys: int, depth: int, causal: bool
) -> None:
    flambeau.manual_seed(queries * keys + depth)
    lengths = (queries, keys, keys, queries)
    q, k, v, grad = (
        flambeau.randn(samples, n, depth, device=GPU, dtype=getattr(flambeau, kind)) for n in lengths
    )

    def attend(*x: Any) -> Any:
        return scaled_dot_product_attention(*x, is_causal=causal)

    got = result_and_gradients(attend, [q, k, v], grad)
    wide = [x.double() for x in (q, k, v, grad)]
    want = result_and_gradients(lambda *x: by_formula(*x, causal), wide[:3], wide[3])
    for name, near, exact in zip(("result", "of q", "of k", "of v"), got, want, strict=True):
        # one key makes all gradients of q and k zero: what is left of them is the rounding of the others
        size = max(exact.norm().item(), 0.5 * want[0].norm().item())
        distance = (near.double() - exact).norm().item() / size
        assert distance < 4 * ROUNDINGS[kind], (name, distance / ROUNDINGS[kind])
    for _ in range(3):
        again = result_and_gradients(attend, [q, k, v], grad)
        assert all(bool((x == y).all()) for x, y in zip(got, again, strict=True))

"""The gradients of pooling against those that PyTorch's autograd finds."""

from __future__ import annotations

from typing import Any

import pytest
from functional import close, draw
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, torch

from flambeau.ops.nn.sliding_windows import Windows
from flambeau.ops.op import table
from flambeau.tensor.call import call

NEAR = {"float16": 0.01, "bfloat16": 0.1, "float32": 1e-5, "float64": 1e-13}
KINDS = st.sampled_from(list(NEAR))


def run(name: str, *args: Any, params: tuple[Any, ...] = ()) -> Any:
    return call(table[name], [from_torch(x) for x in args], params)


def gradient(forward: Any, x: Any, seed: int = 3) -> tuple[Any, Any, Any]:
    """A gradient of the result, PyTorch's gradient by x, and the result's indices if it has some."""
    x = x.detach().requires_grad_()
    out, *index = forward(x) if isinstance(forward(x), tuple) else (forward(x),)
    grad = draw(*out.shape, seed=seed, kind=str(x.dtype)[6:])
    out.backward(grad)
    return grad, x.grad, index[0] if index else None


def sizes(data: Any, ndim: int, low: int, high: int) -> tuple[int, ...]:
    return tuple([data.draw(st.integers(low, high)) for _ in range(ndim)])


def every_window_holds_an_element(how: Windows, size: tuple[int, ...]) -> bool:
    """Where one lies in the padding alone, PyTorch's backward writes outside its memory."""
    each = zip(size, how.size(size), how.kernel, how.stride, how.padding, how.dilation, strict=True)
    return all(
        any(0 <= o * s - p + t * d < n for t in range(k)) for n, m, k, s, p, d in each for o in range(m)
    )


@given(st.integers(1, 3), st.integers(1, 2), st.data(), KINDS, st.booleans(), st.booleans())
def test_pools(ndim: int, batch: int, data: Any, kind: str, ceil: bool, include: bool) -> None:
    size, kernel, stride = (sizes(data, ndim, *ends) for ends in ((1, 8), (1, 4), (1, 3)))
    dilation, padding = sizes(data, ndim, 1, 2), tuple([data.draw(st.integers(0, k // 2)) for k in kernel])
    x, functional = draw(batch, 2, *size, kind=kind), torch.nn.functional
    how = Windows(kernel, stride, padding, dilation, ceil)
    if all(n > 0 for n in how.size(size)) and every_window_holds_an_element(how, size):
        pool = getattr(functional, f"max_pool{ndim}d")
        grad, wanted, index = gradient(
            lambda x: pool(x, kernel, stride, padding, dilation, ceil, return_indices=True), x
        )
        close(run("max_pool_backward", grad, index, params=(how, size)), wanted, 1, NEAR[kind])
    plain = Windows(kernel, stride, padding, (1,) * ndim, ceil)
    lacking = ndim == 3 and (
        kind in ("float16", "bfloat16") or any(n < k for n, k in zip(size, kernel, strict=True))
    )
    if all(n > 0 for n in plain.size(size)) and not lacking:  # what PyTorch's CPU lacks
        divisor = data.draw(st.sampled_from((None, 3, -2))) if ndim > 1 else None
        more = (divisor,) if ndim > 1 else ()
        pool = getattr(functional, f"avg_pool{ndim}d")
        grad, wanted, _ = gradient(lambda x: pool(x, kernel, stride, padding, ceil, include, *more), x)
        found = run("avg_pool_backward", grad, params=(plain, include, divisor, size, False))
        close(found, wanted, 2, NEAR[kind])


@given(st.integers(1, 3), st.integers(1, 2), st.data(), st.sampled_from(("float32", "float64", "bfloat16")))
def test_adaptive_pools(ndim: int, batch: int, data: Any, kind: str) -> None:
    size, target = sizes(data, ndim, 1, 7), sizes(data, ndim, 1, 8)
    x, functional = draw(batch, 2, *size, kind=kind), torch.nn.functional
    pool = getattr(functional, f"adaptive_avg_pool{ndim}d")
    grad, wanted, _ = gradient(lambda x: pool(x, target), x)
    close(run("adaptive_avg_pool_backward", grad, params=(size, False)), wanted, 2, NEAR[kind])
    pool = getattr(functional, f"adaptive_max_pool{ndim}d")
    grad, wanted, index = gradient(lambda x: pool(x, target, return_indices=True), x)
    close(run("adaptive_max_pool_backward", grad, index, params=(size,)), wanted, 1, NEAR[kind])


def test_adaptive_means_of_infinities_stay_in_their_windows() -> None:
    grad = torch.tensor([[[1.0, float("inf"), 2.0]]])
    found = run("adaptive_avg_pool_backward", grad, params=((7,), False)).tolist()[0][0]
    assert found[0] < 1
    assert found[3] == float("inf")
    assert found[6] < 1


@pytest.mark.parametrize("ndim", (1, 2, 3))
def test_unpooling(ndim: int) -> None:
    x, functional = draw(2, 3, *(6,) * ndim), torch.nn.functional
    values, index = getattr(functional, f"max_pool{ndim}d")(x, 2, 2, return_indices=True)
    unpool = getattr(functional, f"max_unpool{ndim}d")
    grad, wanted, _ = gradient(lambda v: unpool(v, index, 2, 2), values)
    close(run("max_unpool_backward", grad, index), wanted, 0, 0)
    with pytest.raises(RuntimeError, match="Found an invalid max index: 1000"):
        run("max_unpool_backward", grad, torch.where(index == index.max(), 1000, index))


def test_refusals() -> None:
    how, grad = Windows((2,), (2,), (0,), (1,)), draw(1, 2, 3)
    index = torch.zeros(1, 2, 3, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"spatial size \[4\], but got \[3\]"):
        run("max_pool_backward", grad, index, params=(how, (8,)))
    with pytest.raises(RuntimeError, match="should be type int64"):
        run("max_pool_backward", grad, index.int(), params=(how, (6,)))
    with pytest.raises(RuntimeError, match="Expected shape of indices"):
        run("adaptive_max_pool_backward", grad, index[..., :2], params=((8,),))
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        run("avg_pool_backward", index, params=(how, True, None, (6,), False))

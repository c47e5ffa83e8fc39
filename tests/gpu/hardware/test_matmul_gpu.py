"""Matrix products: the plans of cuBLASLt read by NumPy on any machine with cuda-bindings; the products on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if find_spec("cuda") is None:
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

from gpu_kit import GPU, needs_gpu

import flambeau as torch
from flambeau.core.device import device
from flambeau.core.dtype import bfloat16, complex32, complex64, complex128, dtype, float16, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.cuda.libraries.cublaslt import Gemm, Matrix
from flambeau.driver.cuda.linalg.products import Operands
from flambeau.driver.protocol import Launch
from flambeau.ops.linalg import matmul

PLACE = device("cuda", 0)
Array = np.ndarray[Any, Any]


# -- plans, read by NumPy ---------------------------------------------------------------------------------


def read(memory: Array, matrix: Matrix, batch: int) -> Array:
    """The batch of matrices that the library sees in memory."""
    size = memory.itemsize
    strides = (matrix.batch_stride * size, size, matrix.ld * size)
    seen = np.lib.stride_tricks.as_strided(memory, (batch, matrix.rows, matrix.columns), strides)
    return seen.transpose(0, 2, 1) if matrix.transposed else seen


def multiplied(gemm: Gemm, a: Array, b: Array, d: Array) -> None:
    target = np.lib.stride_tricks.as_strided(
        d,
        (gemm.batch, gemm.d.rows, gemm.d.columns),
        tuple(d.itemsize * s for s in (gemm.d.batch_stride, 1, gemm.d.ld)),
    )
    target[...] = read(a, gemm.a, gemm.batch) @ read(b, gemm.b, gemm.batch)


@st.composite
def layout(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor of the shape: dims in any order, with gaps, some dims expanded."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for d in order:
        strides[d] = step
        step *= shape[d] + draw(st.sampled_from([0, 0, 0, 1, 3]))
    for d in range(len(shape)):
        if draw(st.integers(0, 9)) == 0:
            strides[d] = 0
    return tuple(strides)


@st.composite
def factors(draw: st.DrawFn) -> tuple[Meta, Meta]:
    m, k, n = (draw(st.integers(1, 4)) for _ in range(3))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    left = [*draw(st.sampled_from([batch, [], [1] * len(batch)])), m, k]
    right = [*draw(st.sampled_from([batch, [], batch[1:]])), k, n]
    shapes = [tuple(left), tuple(right)]
    if draw(st.integers(0, 9)) == 0:
        shapes[0] = (k,)
    if draw(st.integers(0, 9)) == 0:
        shapes[1] = (k,)
    a, b = (Meta.of(s, draw(layout(s)), float32, PLACE) for s in shapes)
    return a, b


def strided(memory: Array, meta: Meta) -> Array:
    return np.lib.stride_tricks.as_strided(memory, meta.shape, [s * memory.itemsize for s in meta.strides])


@settings(max_examples=400)
@given(factors(), st.booleans())
def test_plans_are_the_products(metas: tuple[Meta, Meta], turn: bool) -> None:
    signature = matmul.matmul.rule(metas, (False,))
    (out,) = signature.outputs
    if turn and out.ndim >= 2:  # out= may be column-major
        order = (*range(out.ndim - 2), out.ndim - 1, out.ndim - 2)
        shape = tuple(out.shape[d] for d in order)
        dense = Meta.contiguous_of(shape, out.dtype, PLACE).strides
        out = out.with_(strides=tuple(dense[d] for d in order))
    x = Operands(Launch(matmul.matmul.kernel, (out,), signature.inputs, signature.params))
    gemm = x.gemm(tf32=False)
    random = np.random.default_rng(0)
    memories = [random.integers(-9, 9, 4000).astype(np.float64) for _ in range(2)]
    given_a, given_b = signature.inputs
    assert isinstance(given_a, Meta) and isinstance(given_b, Meta)
    want = (strided(memories[0], given_a) @ strided(memories[1], given_b)).reshape(out.shape)
    a, b = memories[::-1] if x.turned else memories
    if x.a_at is None:
        a = np.ascontiguousarray(strided(a, x.a)).reshape(-1)
    if x.b_at is None:
        b = np.ascontiguousarray(strided(b, x.b)).reshape(-1)
    d = np.zeros(4000)
    multiplied(gemm, b, a, d)
    got = strided(d, out) if x.d_at is not None else d[: out.numel].reshape(out.shape)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("a", "b", "staged"),
    [
        (((5, 7), (7, 1)), ((7, 3), (3, 1)), ()),
        (((5, 7), (1, 5)), ((7, 3), (1, 7)), ()),  # both transposed
        (
            ((2, 5, 7), (100, 20, 1)),
            ((2, 7, 3), (0, 3, 1)),
            (),
        ),  # leading dimensions, a batch that stands still
        (((5, 7), (14, 2)), ((7, 3), (3, 1)), ("a",)),
        (((7,), (2,)), ((7,), (3,)), ()),  # vectors with steps
        (((2, 3, 5, 7), (1000, 40, 7, 1)), ((2, 3, 7, 3), (63, 21, 3, 1)), ("a",)),  # a batch of two strides
    ],
)
def test_what_is_staged(a: Any, b: Any, staged: tuple[str, ...]) -> None:
    metas = tuple(Meta.of(*x, float32, PLACE) for x in (a, b))
    signature = matmul.matmul.rule(metas, (False,))
    x = Operands(Launch(matmul.matmul.kernel, signature.outputs, signature.inputs, signature.params))
    assert tuple(name for name, at in (("a", x.a_at), ("b", x.b_at), ("d", x.d_at)) if at is None) == staged


# -- products on a GPU ------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def without_tf32() -> Iterator[None]:
    """Whatever the environment allows (TORCH_ALLOW_TF32_CUBLAS_OVERRIDE)."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-20, "float64": 2.0**-48}
EPS |= {"complex32": 2.0**-9, "complex64": 2.0**-20, "complex128": 2.0**-48}


def random_array(shape: tuple[int, ...], kind: dtype, seed: int) -> Array:
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape)
    return x + 1j * random.standard_normal(shape) if kind.is_complex else x


def tensor(x: Array, kind: dtype) -> Any:
    wide = complex128 if kind.is_complex else float64
    return torch.tensor(x.tolist(), dtype=wide).to(kind).to(GPU)


def numpy_of(x: Any) -> Array:
    return np.asarray(x.cpu().to(complex128 if x.dtype.is_complex else float64).numpy())


def close(got: Any, want: Array, depth: int = 1) -> None:
    eps = EPS[got.dtype.name] * (1 if got.dtype.name in ("float16", "bfloat16", "complex32") else 4)
    np.testing.assert_allclose(numpy_of(got), want, rtol=eps, atol=eps * 4 * max(depth, 1) ** 0.5)


SHAPES = [
    ((3, 4), (4, 2)), ((64, 64), (64, 64)), ((129, 77), (77, 65)), ((4,), (4,)), ((5, 4), (4,)), ((4,), (4, 3)),
    ((2, 3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)), ((1, 300), (300, 1)), ((3, 0), (0, 2)), ((8, 33, 17), (8, 17, 9)),
]  # fmt: skip


@needs_gpu
@pytest.mark.parametrize(
    "kind", [d for d in matmul.PRODUCTS if d.is_floating_point or d.is_complex], ids=lambda d: d.name
)
def test_products(kind: dtype) -> None:
    for left, right in SHAPES:
        a, b = tensor(random_array(left, kind, 1), kind), tensor(random_array(right, kind, 2), kind)
        close(torch.matmul(a, b), numpy_of(a) @ numpy_of(b), left[-1])


@needs_gpu
@pytest.mark.parametrize("kind", (float16, float32, float64, complex64, complex32), ids=lambda d: d.name)
def test_layouts(kind: dtype) -> None:
    a, b = tensor(random_array((40, 60), kind, 1), kind), tensor(random_array((60, 50), kind, 2), kind)
    want = numpy_of(a) @ numpy_of(b)
    for x in (a, a.t().contiguous().t(), torch.cat([a, a], 1)[:, :60], torch.stack([a, a], 2)[:, :, 1]):
        for y in (b, b.t().contiguous().t(), torch.cat([b, b], 1)[:, 50:]):
            close(x @ y, want, 60)
    out = torch.empty(50, 40, dtype=kind, device=GPU).t()
    torch.matmul(a, b, out=out)
    close(out, want, 60)
    shifted = torch.cat([a.reshape(-1)[:1], a.reshape(-1)])[1:].reshape(
        40, 60
    )  # an address that is not aligned
    close(shifted @ b, want, 60)


@needs_gpu
@pytest.mark.parametrize("kind", (float16, float32, float64, complex64, complex32), ids=lambda d: d.name)
@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0, 1), (0.5, 2), (1, -1)])
def test_added(kind: dtype, beta: float, alpha: float) -> None:
    a, b = tensor(random_array((12, 20), kind, 1), kind), tensor(random_array((20, 16), kind, 2), kind)
    for shape in ((12, 16), (16,), (12, 1), (1,), (1, 16)):
        c = tensor(random_array(shape, kind, 3), kind)
        want = beta * numpy_of(c) + alpha * (numpy_of(a) @ numpy_of(b))
        close(torch.addmm(c, a, b, beta=beta, alpha=alpha), want, 20)
    c = tensor(random_array((16, 12), kind, 3), kind).t()
    close(
        torch.addmm(c, a, b, beta=beta, alpha=alpha),
        beta * numpy_of(c) + alpha * (numpy_of(a) @ numpy_of(b)),
        20,
    )
    if beta == 0:
        nans = torch.full((12, 16), float("nan"), dtype=kind, device=GPU)
        assert not np.isnan(numpy_of(torch.addmm(nans, a, b, beta=0))).any()
    empty = torch.addmm(c, a[:, :0], b[:0], beta=beta)
    close(empty, beta * numpy_of(c))
    batches = [tensor(random_array(s, kind, 4), kind) for s in ((3, 5, 6), (3, 5, 4), (3, 4, 6))]
    want = beta * numpy_of(batches[0]) + alpha * (numpy_of(batches[1]) @ numpy_of(batches[2]))
    close(torch.baddbmm(*batches, beta=beta, alpha=alpha), want, 4)


@needs_gpu
def test_tf32_follows_the_flag() -> None:
    x = random_array((256, 256), float32, 1)
    a = tensor(x, float32)
    want = numpy_of(a) @ numpy_of(a)
    errors = {}
    for allowed in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        errors[allowed] = np.abs(numpy_of(a @ a) - want).max()
    assert errors[False] < 1e-4 < errors[True] < 1


@needs_gpu
def test_streams_have_workspaces_of_their_own() -> None:
    a = tensor(random_array((300, 300), float32, 1), float32)
    want = numpy_of(a) @ numpy_of(a)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    results = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(a @ a)
    torch.cuda.synchronize()
    for got in results:
        close(got, want, 300)


@needs_gpu
def test_same_bits_each_time() -> None:
    a = tensor(random_array((200, 3000), float32, 1), float32)
    first = numpy_of(a @ a.t())
    for _ in range(5):
        assert (numpy_of(a @ a.t()) == first).all()


@needs_gpu
@pytest.mark.parametrize("kind", (float16, bfloat16), ids=lambda kind: kind.name)
def test_halves_are_multiplied_into_float32(kind: dtype) -> None:
    x, y = random_array((4, 30, 70), kind, 0), random_array((4, 70, 50), kind, 1)
    a, b, c = tensor(x, kind), tensor(y, kind), tensor(random_array((50,), kind, 2), kind)
    exact = numpy_of(a) @ numpy_of(b)
    for got, want in (
        (torch.bmm(a, b, float32), exact),
        (torch.mm(a[1], b[1], float32), exact[1]),
        (torch.mm(b[1].t(), a[1].t(), float32), exact[1].T),
        (torch.addmm(c, a[1], b[1], out_dtype=float32), numpy_of(c) + exact[1]),
        (torch.addmm(c, a[1], b[1], out_dtype=float32, beta=2, alpha=3), 2 * numpy_of(c) + 3 * exact[1]),
        (torch.baddbmm(c.float(), a, b, out_dtype=float32, beta=0.5), numpy_of(c) / 2 + exact),
    ):
        assert got.dtype is float32
        np.testing.assert_allclose(numpy_of(got), want, rtol=1e-4, atol=1e-4)

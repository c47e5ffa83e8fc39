"""Linear algebra's CUDA routines with LAPACK in the libraries' place and the kernels emulated: no GPU needed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if not find_spec("cuda"):
    pytest.skip("cuda-bindings is not installed", allow_module_level=True)

import emulated
from library_kit import Device, Driver, Library

import flambeau
from flambeau.core.dtype import float32, from_numpy
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import KernelSteps
from flambeau.driver.cuda.kernel_builder import find_function
from flambeau.driver.cuda.libraries import cublas, cusolver
from flambeau.driver.cuda.linalg import linear_solve
from flambeau.driver.protocol import Launch
from flambeau.ops.linalg import linalg
from flambeau.testing import operator_properties

pytestmark = pytest.mark.skipif(not emulated.available(), reason="g++ is not installed")
GPU = flambeau.device("cuda", 0)
KINDS = (np.float64, np.complex128)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: Any) -> None:
    for module in (cublas, cusolver):
        monkeypatch.setattr(module, "NativeLibrary", Library)


def meta_of(x: Any) -> Meta:
    return Meta.of(x.shape, tuple([s // x.itemsize for s in x.strides]), from_numpy(x.dtype), GPU)


def laid_out(m: Meta) -> Any:
    """Zeros in memory as a result of this layout."""
    return np.ndarray(m.shape, m.dtype.numpy, bytearray(max(m.nbytes, 1)), 0, m.byte_strides)


def both(op: Any, inputs: Any, params: Any = ()) -> tuple[list[Any], list[Any]]:
    """The outputs of the CUDA routine and of the host body."""
    signature = op.rule([meta_of(x) for x in inputs], params)
    launch = Launch(op.kernel, signature.outputs, signature.inputs, signature.params, capability=(9, 0))
    seen = [np.broadcast_to(x, m.shape) for x, m in zip(inputs, signature.inputs, strict=True)]
    device = Device()
    results = [[laid_out(m) for m in signature.outputs] for _ in range(2)]
    routine = find_function(op.kernel.cuda.library)(launch, device, Driver(device))
    before = [np.array(x) for x in inputs]
    routine([x.ctypes.data for x in (*results[0], *inputs)], (), 0, 0)
    assert not device.held, "workspace was not given back"
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(inputs, before, strict=True))
    with np.errstate(all="ignore"):
        op.kernel.host(launch)(results[1], seen)
    return results[0], results[1]


def close(got: Any, want: Any) -> None:
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10)


def cases(op: Any, kind: Any) -> Iterator[tuple[list[Any], Any]]:
    for inputs, params in op.samples(
        operator_properties.maker(from_numpy(np.dtype(kind)), 0), from_numpy(np.dtype(kind))
    ):
        yield [np.array(x) for x in inputs], params


def turned(x: Any) -> Any:
    """The same numbers, the last dimension outermost in memory."""
    return np.array(np.moveaxis(x, -1, 0), order="C").transpose(*range(1, x.ndim), 0)


SAME = ("inv_ex", "solve_ex", "det", "slogdet", "cholesky_ex", "lu_factor_ex", "lu_solve", "solve_triangular", "qr",
        "geqrf", "householder_product", "svdvals", "eigvalsh", "lstsq")  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_results_are_the_hosts(name: str) -> None:
    op = getattr(linalg, name)
    for inputs, params in cases(op, np.complex128):
        close(*both(op, inputs, params))
    if name in ("inv_ex", "qr"):
        close(*both(op, [turned(x) for x in inputs], params))


@pytest.mark.parametrize("name", ("det", "slogdet"))
def test_results_of_real_matrices(name: str) -> None:
    for inputs, params in cases(getattr(linalg, name), np.float64):
        close(*both(getattr(linalg, name), inputs, params))


def random(*shape: int, kind: Any = np.float64, seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal(shape)
    return (x + 1j * generator.standard_normal(shape) if np.dtype(kind).kind == "c" else x).astype(kind)


def test_definite_matrices() -> None:
    kind = np.complex128
    a = random(3, 4, 4, kind=kind)
    good = a @ a.conj().swapaxes(-1, -2) + np.eye(4, dtype=kind)
    bad = np.array(good)
    bad[1, 2, 2] = -5
    for x in (good, bad, good[0]):
        for upper in (False, True):
            close(*both(linalg.cholesky_ex, [x], (upper,)))
    (factors, info), _ = both(linalg.cholesky_ex, [bad], (False,))
    assert info.tolist() == [0, 3, 0] and factors[1, 2, 2] < 0 and np.isfinite(factors).all()


def test_singular_matrices() -> None:
    kind = np.complex128
    a = random(2, 3, 3, kind=kind)
    a[1, :, 1] = 0
    for op, inputs in (
        (linalg.inv_ex, [a]),
        (linalg.solve_ex, [a, random(2, 3, 2, kind=kind)]),
        (linalg.inv_ex, [a[1]]),
    ):
        got, want = both(op, inputs)
        close(got, want)
        assert got[-1].max() == 2
    close(*both(linalg.det, [a]))
    close(*both(linalg.slogdet, [a]))
    got, want = both(linalg.lu_factor_ex, [a], (False,))
    assert got[2].tolist()[1] in (0, 2) and np.array_equal(got[1], want[1])


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 5, 3), (2, 3, 5), (40, 33), (2, 33, 40)])
def test_singular_values(shape: Any) -> None:
    kind = np.complex128
    for x in (random(*shape, kind=kind),):
        for full in (False, True):
            (u, s, vh, info), want = both(linalg.svd, [x], (full,))
            assert u.shape == want[0].shape and vh.shape == want[2].shape and not info.any()
            k = s.shape[-1]
            close([u[..., :k] * s[..., None, :] @ vh[..., :k, :], s], [x, want[1]])
            for q in (u, vh.conj().swapaxes(-1, -2)):
                close(
                    [q.conj().swapaxes(-1, -2) @ q],
                    [np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], *[q.shape[-1]] * 2)).astype(kind)],
                )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 4), (3, 5, 5)])
def test_eigenvectors(kind: Any, shape: Any) -> None:
    x = random(*shape, kind=kind)
    for uplo in ("L", "u"):
        (values, vectors, info), want = both(linalg.eigh, [x], (uplo,))
        close([values], want[:1])
        lower, upper = np.tril(x), np.triu(x)
        part = (
            lower + np.tril(x, -1).conj().swapaxes(-1, -2)
            if uplo == "L"
            else upper + np.triu(x, 1).conj().swapaxes(-1, -2)
        )
        part = part - 1j * np.eye(shape[-1]) * part.imag if kind is np.complex128 else part
        close([part @ vectors], [vectors * values[..., None, :].astype(kind)])
        assert not info.any()
    (values, vectors, info), want = both(linalg.eig, [x])
    close([np.sort(values)], [np.sort(want[0])])
    close([x @ vectors], [vectors * values[..., None, :]])
    (values, _), _ = both(linalg.eigvals, [x])
    close([np.sort(values)], [np.sort(want[0])])


@pytest.mark.parametrize("op", [linalg.svd, linalg.svdvals, linalg.eigh, linalg.eig, linalg.lstsq])
def test_matrices_that_are_not_finite(op: Any) -> None:
    x = random(3, 4, 4)
    x[1, 2, 1] = np.nan
    params = {"linalg_svd": (False,), "linalg_eigh": ("L",), "linalg_lstsq": (1e-6,)}.get(op.name, ())
    got, _ = both(op, [x, random(3, 4, 2)] if op is linalg.lstsq else [x], params)
    assert got[-1].tolist() == [0, -1, 0]
    assert np.isnan(got[0][1]).all() and np.isfinite(got[0][[0, 2]]).all()


def test_the_triangle_that_is_not_read_may_hold_anything() -> None:
    x = random(3, 3)
    x[0, 2] = np.nan
    (values, _, info), _ = both(linalg.eigh, [x], ("L",))
    assert info == 0 and np.isfinite(values).all()


def test_matrices_without_elements() -> None:
    close(*both(linalg.det, [np.zeros((2, 0, 0))]))
    close(*both(linalg.slogdet, [np.zeros((0, 0))]))
    close(*both(linalg.qr, [np.zeros((2, 3, 0))], ("complete",)))
    close(*both(linalg.svd, [np.zeros((3, 0))], (True,)))
    got, _ = both(linalg.lstsq, [np.zeros((0, 2)), np.zeros((0, 3))], (1e-6,))
    assert got[0].shape == (2, 3) and not got[0].any() and got[1] == 0


@pytest.mark.parametrize("ones", (False, True))
@pytest.mark.parametrize("upper", (False, True))
def test_triangular_systems_of_any_layout(upper: bool, ones: bool) -> None:
    a, b = random(2, 3, 3) + 3 * np.eye(3), random(2, 3, 4)
    wide = np.zeros((2, 6, 6))[:, ::2, ::2]
    wide[...] = a
    for x in (a, np.array(a.swapaxes(1, 2)).swapaxes(1, 2), wide, a[:1], a[0]):
        close(*both(linalg.solve_triangular, [x, b if x.ndim == 3 else b[0]], (upper, ones)))


def test_rows_too_far_apart_for_the_library_are_copied() -> None:
    """Its leading dimensions are 32-bit numbers: a greater one would be cut off."""
    b = Meta.contiguous_of((2, 3), float32, GPU)
    for step, copied in (((1 << 31) - 1, False), (1 << 31, True)):
        a = Meta.of((2, 2), (step, 1), float32, GPU)
        signature = linalg.solve_triangular.rule((a, b), (True, False))
        launch = Launch(linalg.solve_triangular.kernel, signature.outputs, signature.inputs, signature.params)
        device = Device()
        steps = KernelSteps(launch, device, Driver(device))
        found, _, _ = linear_solve._readable(steps, steps.inputs[0])
        assert (found is not steps.inputs[0]) is copied


def test_rows_of_lu() -> None:
    op = linalg.lu_rows
    for pivots, rows in (
        (np.array([[2, 2, 3], [3, 3, 3]], np.int32), 4),
        (np.array([5, 3, 3, 4, 5], np.int32), 5),
    ):
        got, want = both(op, [pivots], (rows,))
        assert np.array_equal(got[0], want[0])
    got, want = both(op, [np.array([7, 12_500], np.int32)], (12_500,))
    assert np.array_equal(got[0], want[0])

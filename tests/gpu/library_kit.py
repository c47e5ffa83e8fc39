"""NVIDIA's linear algebra by LAPACK, and our kernels by the emulator: CUDA routines run on the CPU, to the letter of
the libraries' documented C interfaces. For tests without a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
from emulated import Device as EmulatedDevice
from emulated import built, execute
from scipy.linalg import blas, lapack

from flambeau.core.host_arrays import array_at
from flambeau.core.meta import Meta
from flambeau.driver.cuda.device.program import wire_format
from flambeau.driver.protocol import Launch

Array = np.ndarray[Any, Any]
_TYPES = {0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}
_LETTERS = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
_TRANSPOSE = {0: lambda a: a, 1: lambda a: a.T, 2: lambda a: a.conj().T}


_PLAIN: dict[str, Callable[..., Array]] = {"copy": lambda a: a, "matmul": np.matmul}


class Device(EmulatedDevice):
    """Memory for launches; whatever is not written in it is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.libraries: dict[str, Any] = {}
        self.held: dict[int, Any] = {}

    def take(self, nbytes: int, native: Any) -> int:
        memory = np.full(nbytes + 256, 0xFF, np.uint8)
        ptr = -(-memory.ctypes.data // 256) * 256
        self.held[ptr] = memory
        return ptr

    def give(self, ptr: int, native: Any) -> None:
        del self.held[ptr]


class Driver:
    """Runs kernels by the emulator; by NumPy products, and copies, of which there are as many as there are layouts."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def load(self, launch: Launch, index: int) -> tuple[Launch, Any]:
        return launch, None if launch.kernel.name in _PLAIN else built(launch, self.device)

    def launch(self, exe: tuple[Launch, Any], ptrs: Any, scalars: Any, stream: int) -> None:
        launch, program = exe
        if program is None:
            out, *inputs = (at(ptr, meta) for ptr, meta in zip(ptrs, launch.operands, strict=True))
            out[...] = _PLAIN[launch.kernel.name](*inputs)
            return
        wire = [wire_format(x) for x in launch.inputs if not isinstance(x, Meta)]
        execute(program, ptrs, wire, scalars, 0)


def at(ptr: int, meta: Meta) -> Array:
    return array_at(ptr, meta.shape, meta.dtype.numpy, meta.byte_strides)


def _matrix(ptr: Any, rows: int, columns: int, ld: int, kind: Any) -> Array:
    assert ld >= max(1, rows)
    size = np.dtype(kind).itemsize
    return array_at(ptr, (rows, columns), np.dtype(kind), (size, ld * size))


def _vector(ptr: int, count: int, kind: Any) -> Array:
    return array_at(ptr, (count,), np.dtype(kind), (np.dtype(kind).itemsize,))


def _real(kind: Any) -> Any:
    return np.zeros(0, kind).real.dtype


class Library:
    """In the place of `flambeau.driver.cuda.libraries.native_library.NativeLibrary`."""

    def __init__(self, *about: Any) -> None:
        pass

    def function(self, name: str, signature: str) -> Callable[..., None]:
        if name.startswith("cufft"):  # see test_transform_plans
            return _nothing
        plain = re.sub(r"^(cusolverDn|cublas)", "", name)
        letter = "" if f"_{plain.lower()}" in globals() or plain.startswith("X") else plain[0]
        found = (
            _sizes if plain.endswith("_bufferSize") else globals()[f"_{plain.removeprefix(letter).lower()}"]
        )

        def call(*args: Any) -> None:
            assert len(args) == len(signature), (name, len(args), signature)
            for arg, kind in zip(args, signature, strict=True):
                assert kind == "p" or type(arg) is int, (name, args)
            if letter:
                found(_LETTERS[letter], *args)
            else:
                found(*args)

        return call


def _nothing(*args: Any) -> None:
    pass


_create = _createparams = _creategesvdjinfo = _xgesvdjsetmaxsweeps = _setstream = _nothing
_create_v2 = _setstream_v2 = _nothing


def _sizes(*args: Any) -> None:
    for arg in args:
        if hasattr(arg, "_obj"):
            arg._obj.value = 64


def _lu(a: Array, pivots: Any, info: Array) -> None:
    if pivots is None:
        for k in range(min(a.shape)):
            with np.errstate(all="ignore"):
                a[k + 1 :, k] /= a[k, k]
            a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
        info[0] = 0
        return
    (getrf,) = lapack.get_lapack_funcs(("getrf",), (a,))
    a[...], found, info[0] = getrf(a)
    pivots[...] = found + 1


def _xgetrf(
    h: Any, p: Any, m: int, n: int, kind: int, a: int, lda: int, pivots: Any, compute: int, *rest: Any
) -> None:
    assert compute == kind and rest[1] == rest[3] == 64
    exchanged = None if pivots is None else _vector(pivots, min(m, n), np.int64)
    _lu(_matrix(a, m, n, lda, _TYPES[kind]), exchanged, _vector(rest[4], 1, np.int32))


def _xgetrs(h: Any, p: Any, trans: int, n: int, columns: int, kind: int, a: int, lda: int, pivots: int, kind_b: int,
            b: int, ldb: int, info: int) -> None:  # fmt: skip
    x, factors = _matrix(b, n, columns, ldb, _TYPES[kind_b]), _matrix(a, n, n, lda, _TYPES[kind])
    (getrs,) = lapack.get_lapack_funcs(("getrs",), (factors,))
    x[...] = getrs(factors, _vector(pivots, n, np.int64) - 1, x, trans=trans)[0]


def _getrfbatched(kind: Any, h: Any, n: int, a: int, lda: int, pivots: Any, info: int, count: int) -> None:
    for i, ptr in enumerate(_vector(a, count, np.int64)):
        exchanged = None if pivots is None else _vector(pivots + 4 * n * i, n, np.int32)
        _lu(_matrix(ptr, n, n, lda, kind), exchanged, _vector(info + 4 * i, 1, np.int32))


def _getrsbatched(kind: Any, h: Any, trans: int, n: int, columns: int, a: int, lda: int, pivots: int, b: int, ldb: int,
                  info: Any, count: int) -> None:  # fmt: skip
    for i, (factors, x) in enumerate(
        zip(_vector(a, count, np.int64), _vector(b, count, np.int64), strict=True)
    ):
        wide = np.array(_vector(pivots + 4 * n * i, n, np.int32), np.int64)
        code = next(c for c, t in _TYPES.items() if t is kind)
        _xgetrs(
            None, None, trans, n, columns, code, int(factors), lda, wide.ctypes.data, code, int(x), ldb, 0
        )


def _potrf(a: Array, uplo: int, info: Array) -> None:
    (potrf,) = lapack.get_lapack_funcs(("potrf",), (a,))
    a[...], info[0] = potrf(a, lower=uplo == 0, clean=0)


def _xpotrf(h: Any, p: Any, uplo: int, n: int, kind: int, a: int, lda: int, *rest: Any) -> None:
    _potrf(_matrix(a, n, n, lda, _TYPES[kind]), uplo, _vector(rest[5], 1, np.int32))


def _potrfbatched(kind: Any, h: Any, uplo: int, n: int, a: int, lda: int, info: int, count: int) -> None:
    for i, ptr in enumerate(_vector(a, count, np.int64)):
        _potrf(_matrix(ptr, n, n, lda, kind), uplo, _vector(info + 4 * i, 1, np.int32))


def _xgeqrf(
    h: Any, p: Any, m: int, n: int, kind: int, a: int, lda: int, kind_tau: int, tau: int, *rest: Any
) -> None:
    x = _matrix(a, m, n, lda, _TYPES[kind])
    (geqrf,) = lapack.get_lapack_funcs(("geqrf",), (x,))
    x[...], _vector(tau, min(m, n), _TYPES[kind_tau])[...] = geqrf(x)[:2]


def _orgqr(
    kind: Any, h: Any, m: int, n: int, k: int, a: int, lda: int, tau: int, work: int, size: int, info: int
) -> None:
    assert size == 64 and m >= n >= k
    x = _matrix(a, m, n, lda, kind)
    factors = _vector(tau, k, kind)
    q = np.eye(m, dtype=kind)
    for i in range(k):
        v = np.concatenate([np.zeros(i), [1], x[i + 1 :, i]]).astype(kind)
        q = q - factors[i] * np.outer(q @ v, v.conj())
    x[...] = q[:, :n]


_ungqr = _orgqr


def _gesvdj(kind: Any, h: Any, job: int, econ: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int, v: int,
            ldv: int, work: int, size: int, info: int, params: Any) -> None:  # fmt: skip
    left, values, right = np.linalg.svd(_matrix(a, m, n, lda, kind), full_matrices=not econ)
    k = min(m, n)
    _vector(s, k, _real(kind))[...] = values
    assert ldu >= m and ldv >= n
    if job:
        _matrix(u, m, k if econ else m, ldu, kind)[...] = left
        _matrix(v, n, k if econ else n, ldv, kind)[...] = right.conj().T
    _vector(info, 1, np.int32)[0] = 0


def _gesvdjbatched(kind: Any, h: Any, job: int, m: int, n: int, a: int, lda: int, s: int, u: int, ldu: int, v: int,
                   ldv: int, work: int, size: int, info: int, params: Any, count: int) -> None:  # fmt: skip
    size = np.dtype(kind).itemsize
    assert max(m, n) <= 32
    for i in range(count):
        values = s + i * min(m, n) * _real(kind).itemsize
        places = a + i * lda * n * size, u + i * ldu * m * size, v + i * ldv * n * size
        _gesvdj(
            kind,
            h,
            job,
            0,
            m,
            n,
            places[0],
            lda,
            values,
            places[1],
            ldu,
            places[2],
            ldv,
            0,
            0,
            info + 4 * i,
            0,
        )


def _xsyevd(
    h: Any, p: Any, job: int, uplo: int, n: int, kind: int, a: int, lda: int, kind_w: int, w: int, *rest: Any
) -> None:
    x = _matrix(a, n, n, lda, _TYPES[kind])
    values, vectors = np.linalg.eigh(x, "LU"[uplo])
    _vector(w, n, _TYPES[kind_w])[...] = values
    x[...] = vectors if job else np.nan
    _vector(rest[5], 1, np.int32)[0] = 0


def _xsyevbatched(*args: Any) -> None:
    *args, info, count = args
    n, kind, a, lda, kind_w, w = args[4:10]
    for i in range(count):
        args[6] = a + i * lda * n * np.dtype(_TYPES[kind]).itemsize
        args[9] = w + i * n * np.dtype(_TYPES[kind_w]).itemsize
        _xsyevd(*args, info + 4 * i)


def _xgeev(h: Any, p: Any, left: int, job: int, n: int, kind: int, a: int, lda: int, kind_w: int, w: int, kind_vl: int,
           vl: Any, ldvl: int, kind_vr: int, vr: int, ldvr: int, *rest: Any) -> None:  # fmt: skip
    assert left == 0 and vl is None and kind_vl == kind_vr == kind
    x = _matrix(a, n, n, lda, _TYPES[kind])
    (geev,) = lapack.get_lapack_funcs(("geev",), (x,))
    *values, _, vectors, _ = geev(x)
    _vector(w, n, _TYPES[kind_w])[...] = values[0] if len(values) == 1 else values[0] + 1j * values[1]
    if job:
        _matrix(vr, n, n, ldvr, _TYPES[kind])[...] = vectors
    x[...] = np.nan
    _vector(rest[5], 1, np.int32)[0] = 0


def _trsm_v2(kind: Any, h: Any, side: int, uplo: int, trans: int, diag: int, m: int, n: int, alpha: Any, a: int, lda: int,
             b: int, ldb: int) -> None:  # fmt: skip
    assert side == 1
    x, triangle = _matrix(b, m, n, ldb, kind), _matrix(a, n, n, lda, kind)
    x[...] = blas.get_blas_funcs("trsm", (triangle,))(
        1, triangle, x, side=1, lower=uplo == 0, trans_a=trans, diag=diag
    )


def _trsmbatched(kind: Any, h: Any, *args: Any) -> None:
    *args, count = args
    for triangle, x in zip(_vector(args[7], count, np.int64), _vector(args[9], count, np.int64), strict=True):
        args[7], args[9] = int(triangle), int(x)
        _trsm_v2(kind, h, *args)

"""Matrix products by cuBLASLt, without copies if a leading dimension describes each operand's layout.

The library is column-major. A row-major D = A B is the column-major D' = B' A', so the operands are exchanged and
nothing is transposed. An operand without a leading dimension (both strides above 1, a batch without a single stride,
complex32) is staged: the pointwise template copies it to temporary memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

from flambeau.core.dtype import bfloat16, complex32, complex64, dtype, float16, float32
from flambeau.core.errors import NotSupportedError
from flambeau.core.layout import view_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import device_only
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.cuda.libraries.cublaslt import DATA, WORKSPACE, CublasLt, Gemm, Matrix, Product, scalar
from flambeau.driver.cuda.linalg import direct_products
from flambeau.driver.cuda.linalg.matrices import transpose_meta
from flambeau.driver.protocol import Expression, Kernel, Launch, Routine

Run = Callable[[Sequence[int], Sequence[Any], Any, int], None]
TF32_SINCE = (8, 0)


_ROUTINE = Routine("linalg.products:direct_product", library="linalg.products:product")
MATMUL = Kernel("matmul", device_only, cuda=_ROUTINE)
ADDMM = Kernel("addmm", device_only, cuda=_ROUTINE)
"""Steps of other routines, which are small or large as products of programs are."""
_COPY = Kernel("copy", device_only, cuda=Expression("a"))
_TIMES_BETA = "b == 0 ? T{} : to<T>(widen(a) * to<decltype(widen(a))>(b))"
_SCALED = Kernel("scaled", device_only, cuda=Expression(_TIMES_BETA))


def product(launch: Launch, device: CudaDevice, driver: Any) -> Run:
    """Multiply by cuBLASLt: `matmul` (inputs a, b) or `addmm` (inputs added, a, b, beta, alpha)."""
    planned = product_of_structure(launch, device, driver)
    if planned is not None:
        numbers, run_of_shape = planned
        return run_of_shape(*numbers)
    kind = _Matmul if len(launch.inputs) == 2 else _Addmm
    return kind(launch, device, driver, _uses_tf32(launch, device))


def product_of_structure(
    launch: Launch, device: CudaDevice, driver: Any
) -> tuple[tuple[Any, ...], Callable[..., Run]] | None:
    """Return the numbers of a product by cuBLASLt, and the function that makes its run of them.

    None if an operand is staged or the sum is empty: then each launch is built.
    """
    x, out = Operands(launch), launch.outputs[0]
    if x.kind not in DATA or x.a_at is None or x.b_at is None or x.d_at is None or x.inner == 0:
        return None
    gemm = x.gemm(_uses_tf32(launch, device) and x.kind is float32)
    if len(launch.inputs) == 2:
        return (gemm,), partial(_PlainProduct, device, x.turned)
    added = tensors(launch)[0]
    return (gemm, x.c_at, added, out), partial(_SumOfProducts, driver, device, x.turned, x.bias)


def direct_product(launch: Launch, device: CudaDevice) -> KernelProgram | None:
    """Return the kernel of a small product; None if a library computes it."""
    return direct_products.product(launch, _uses_tf32(launch, device))


def _uses_tf32(launch: Launch, device: CudaDevice) -> bool:
    return bool(launch.params[-1]) and device.capability >= TF32_SINCE


# -- layouts ------------------------------------------------------------------------------------------------


class Operands:
    """Operands as metas of shape (*batch, rows, columns), each with its library matrix, or None if it is staged.

    Attributes:
        kind, out: The library's dtypes of the factors and of the result.
        turned: True if the output is column-major; a, b, c and d are then the transposed operands: d' = b' a'.
        bias: True if c is one row that is added to all rows of d.
    """

    def __init__(self, launch: Launch) -> None:
        added, a, b = tensors(launch)
        out = launch.outputs[0]
        self.kind, self.out = _library_dtype(a.dtype), _library_dtype(out.dtype)
        shape = (*a.shape[:-1], b.shape[-1])
        self.inner, self.batch = a.shape[-1], prod(a.shape[:-2])
        # The batch may be merged into rows; an operand for which no view does so is staged.
        d, c = _seen_as(out, shape), None if added is None else _seen_as(added, shape)
        self.turned = (
            d is not None and self._result(d) is None and self._result(transpose_meta(d)) is not None
        )
        if self.turned:
            assert d is not None
            a, b, d, c = (
                transpose_meta(b), transpose_meta(a), transpose_meta(d), None if c is None else transpose_meta(c)
            )  # fmt: skip
            shape = d.shape
        self.shape, self.a, self.b, self.d = shape, a, b, out if d is None else d
        self.a_at, self.b_at = self._either(a), self._either(b)
        self.c_at, self.d_at = self._result(c), self._result(d)
        self.bias = c is not None and self.d_at is not None and self._is_bias(c)

    def _is_bias(self, c: Meta) -> bool:
        row = c.shape[-1] > 1 and c.strides[-1] == 1 and not any(c.strides[:-1])
        return row and self.out in (float16, bfloat16, float32)

    def _result(self, x: Meta | None) -> Matrix | None:
        return None if x is None else self._matrix(x, self.out)

    def _matrix(self, x: Meta, kind: dtype) -> Matrix | None:
        return row_major(x.shape, x.strides) if x.dtype is kind else None

    def _either(self, x: Meta) -> Matrix | None:
        """Return the operand as row-major, or as column-major and transposed; None if it is neither."""
        found = self._matrix(x, self.kind)
        if found is None:
            other = self._matrix(transpose_meta(x), self.kind)
            return None if other is None else other._replace(transposed=True)
        return found

    def gemm(self, tf32: bool) -> Gemm:
        """Return the description of the column-major product, with C in D's layout and dense staged operands."""
        d = self.d_at or dense(self.shape)
        return Gemm(
            self.kind,
            self.out,
            self.batch,
            self.b_at or dense(self.b.shape),
            self.a_at or dense(self.a.shape),
            d,
            d,
            tf32=tf32,
        )


def _library_dtype(kind: dtype) -> dtype:
    return complex64 if kind is complex32 else kind


def row_major(shape: Sequence[int], strides: Sequence[int]) -> Matrix | None:
    """Return a row-major (*batch, rows, columns) matrix as a column-major one with rows and columns exchanged."""
    rows, columns = shape[-2:]
    down, along = strides[-2:]
    if (columns > 1 and along != 1) or (rows > 1 and down < columns):
        return None
    batch = view_strides(shape[:-2], strides[:-2], (prod(shape[:-2]),)) if len(shape) > 2 else (0,)
    return None if batch is None else Matrix(columns, rows, down if rows > 1 else columns, batch[0])


def dense(shape: Sequence[int]) -> Matrix:
    rows, columns = shape[-2:]
    return Matrix(columns, rows, columns, rows * columns)


def dense_meta(x: Meta, kind: dtype) -> Meta:
    return Meta.contiguous_of(x.shape, kind, x.device)


def tensors(launch: Launch) -> tuple[Meta | None, Meta, Meta]:
    """Return the added tensor, if there is one, and the two factors."""
    metas = [x for x in launch.inputs if isinstance(x, Meta)]
    return (None, metas[0], metas[1]) if len(metas) == 2 else (metas[0], metas[1], metas[2])


def _seen_as(x: Meta, shape: tuple[int, ...]) -> Meta | None:
    strides = view_strides(x.shape, x.strides, shape)
    return None if strides is None else x.with_(shape, strides)


# -- launches -----------------------------------------------------------------------------------------------


def _library_of(device: CudaDevice) -> CublasLt:
    if device.blas is None:
        device.blas = CublasLt()
    library: CublasLt = device.blas
    return library


class _PlainProduct:
    """The product A B of operands that the library reads in place."""

    def __init__(self, device: CudaDevice, turned: bool, gemm: Gemm) -> None:
        self._device, self._turned = device, turned
        self._product = Product(_library_of(device), gemm)

    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        d, a, b = ptrs
        if self._turned:
            a, b = b, a
        self.multiply(a, b, d, native, stream)

    def multiply(self, a: int, b: int, d: int, native: Any, stream: int) -> None:
        product, place = self._product, self._device.workspace_of(stream, WORKSPACE, native)
        product(b, a, d, d, product.one, product.zero, place)


class _SumOfProducts:
    """The sum beta C + alpha A B of factors that the library reads in place.

    If C has D's layout it is read in place; a row is added by the product's epilogue if beta is 1. Otherwise C is first
    copied to D.
    """

    def __init__(
        self,
        driver: Any,
        device: CudaDevice,
        turned: bool,
        bias: bool,
        gemm: Gemm,
        c: Matrix | None,
        added: Meta,
        target: Meta,
    ) -> None:
        self._driver, self._device, self._turned, self._bias, self._kind = (
            driver,
            device,
            turned,
            bias,
            gemm.kind,
        )
        self._copy = None if c is not None else Launch(_COPY, (target,), (added,))
        self._fill: Any = None
        self._gemms = {"plain": gemm}
        if c is not None:
            self._gemms["added"] = gemm._replace(c=c)
        if bias:
            self._gemms["bias"] = gemm._replace(bias=True)
        self._products: dict[str, Product] = {}
        self._product(next(reversed(self._gemms)))

    def _product(self, name: str) -> Product:
        found = self._products.get(name)
        if found is None:
            found = self._products[name] = Product(_library_of(self._device), self._gemms[name])
        return found

    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        d, c, a, b = ptrs
        if self._turned:
            a, b = b, a
        self.add(c, a, b, d, scalars, native, stream)

    def add(self, c: int, a: int, b: int, d: int, scalars: Sequence[Any], native: Any, stream: int) -> None:
        beta, alpha = scalars
        name, source, factor = "added", c, beta
        if beta == 0:
            name, source = "plain", d
        elif beta == 1 and self._bias:
            name, factor = "bias", 0
        elif self._copy is not None:
            name, source = "plain", d
            self._fill = self._fill or self._driver.load(self._copy, self._device.index)
            self._driver.launch(self._fill, (d, c), (), stream)
        product = self._product(name)
        scale = product.one if alpha == 1 else scalar(self._kind, alpha)
        share = product.zero if factor == 0 else product.one if factor == 1 else scalar(self._kind, factor)
        product(b, a, source, d, scale, share, self._device.workspace_of(stream, WORKSPACE, native))


class _ProductRoutine:
    """The common part of both product routines: operands, staging copies in temporary memory, the library."""

    def __init__(self, launch: Launch, device: CudaDevice, driver: Any, tf32: bool) -> None:
        self.driver, self.device = driver, device
        self.operands = x = Operands(launch)
        if x.kind not in DATA:
            raise NotSupportedError(f"cuBLASLt multiplies no {x.kind}")
        self.gemm = x.gemm(tf32 and x.kind is float32)
        a, b, d = dense_meta(x.a, x.kind), dense_meta(x.b, x.kind), dense_meta(x.d, x.out)
        self._bytes = [m.nbytes for m in (a, b, d)]
        self._load_a = None if x.a_at is not None else self.step(_COPY, a, x.a)
        self._load_b = None if x.b_at is not None else self.step(_COPY, b, x.b)
        self._store_d = None if x.d_at is not None else self.step(_COPY, x.d, d)

    def step(self, kernel: Kernel, target: Meta, *inputs: Meta | dtype) -> Any:
        return self.driver.load(Launch(kernel, (target,), inputs), self.device.index)

    def call_staged(
        self, a: int, b: int, d: int, native: Any, stream: int, call: Callable[[int, int, int], None]
    ) -> None:
        """Run `call(a, b, d)` with temporary memory in place of each staged operand."""
        held: list[int] = []

        def take_temporary(which: int) -> int:
            held.append(self.device.take(self._bytes[which], native))
            return held[-1]

        try:
            if self._load_a is not None:
                source, a = a, take_temporary(0)
                self.driver.launch(self._load_a, (a, source), (), stream)
            if self._load_b is not None:
                source, b = b, take_temporary(1)
                self.driver.launch(self._load_b, (b, source), (), stream)
            inner = d if self._store_d is None else take_temporary(2)
            call(a, b, inner)
            if self._store_d is not None:
                self.driver.launch(self._store_d, (d, inner), (), stream)
        finally:
            for ptr in reversed(held):
                self.device.give(ptr, native)


class _Matmul(_ProductRoutine):
    def __init__(self, launch: Launch, device: CudaDevice, driver: Any, tf32: bool) -> None:
        super().__init__(launch, device, driver, tf32)
        out = launch.outputs[0]
        self._empty = None if self.operands.inner else self.step(_SCALED, out, out, float32)
        if self._empty is None:
            self._product = _PlainProduct(device, self.operands.turned, self.gemm)

    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        d, a, b = ptrs
        if self._empty is not None:  # the sum is empty
            return self.driver.launch(self._empty, (d, d), (0.0,), stream)
        if self.operands.turned:
            a, b = b, a

        def call(a: int, b: int, d: int) -> None:
            self._product.multiply(a, b, d, native, stream)

        self.call_staged(a, b, d, native, stream, call)


class _Addmm(_ProductRoutine):
    def __init__(self, launch: Launch, device: CudaDevice, driver: Any, tf32: bool) -> None:
        super().__init__(launch, device, driver, tf32)
        x, (added, _, _), out = self.operands, tensors(launch), launch.outputs[0]
        beta = launch.inputs[3]
        assert added is not None and isinstance(beta, dtype)
        self._alone = None if x.inner else self.step(_SCALED, out, added, beta)
        if self._alone is None:
            target = out if x.d_at is not None else dense_meta(out, x.out)
            self._sum = _SumOfProducts(driver, device, x.turned, x.bias, self.gemm, x.c_at, added, target)

    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        d, c, a, b = ptrs
        if self._alone is not None:
            return self.driver.launch(self._alone, (d, c), scalars[:1], stream)
        if self.operands.turned:
            a, b = b, a

        def call(a: int, b: int, d: int) -> None:
            self._sum.add(c, a, b, d, scalars, native, stream)

        self.call_staged(a, b, d, native, stream, call)

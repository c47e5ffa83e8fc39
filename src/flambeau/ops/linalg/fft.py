"""Discrete Fourier transforms: complex to complex, real to half spectrum, half spectrum to real.

Each transforms any dims of any strides in one call. `tensor/functions/fft.py` handles the other arguments of
`torch.fft` (sizes, names of normalizations, Hermitian inputs). On CUDA devices an executable is a plan in the device's
bounded cache, like cuFFT's (`Op.planned`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import complex32, complex64, complex128, dtype, float16, float32, float64
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Kernel, Launch, Routine
from flambeau.ops.op import NOT_DIFFERENTIABLE, Derivative, Make, Op, Operand, Sample, Signature, define, note
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.shape.joining import cat
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]

NONE, ROOT, WHOLE = "1", "1/sqrt(n)", "1/n"
"""What a transform of n points scales its result by."""

_FORWARD = {NONE: "backward", ROOT: "ortho", WHOLE: "forward"}  # SciPy's name of the direction that is scaled
_BACKWARD = {NONE: "forward", ROOT: "ortho", WHOLE: "backward"}


def is_supported(kind: dtype, on_cpu: bool) -> bool:
    """Return True if transforms support this dtype; half precision is supported on GPUs only."""
    narrow = kind is float16 or kind is complex32
    return kind in (float32, float64, complex64, complex128) or (narrow and not on_cpu)


def _check(x: Meta, sizes: Sequence[int]) -> None:
    """Check a transform's dtype and sizes; `sizes` are the points of each transformed dim in the time domain."""
    if not is_supported(x.dtype, x.device.type != "cuda"):
        raise RuntimeError(f"Unsupported dtype {x.dtype.torch_name}")
    if x.itemsize == (4 if x.dtype.is_complex else 2) and any(n & (n - 1) for n in sizes):
        raise RuntimeError(
            "cuFFT only supports dimensions whose sizes are powers of two when computing in half precision, "
            f"but got a signal size of{list(sizes)}"
        )


def _points(launch: Launch) -> list[int]:
    """Return the number of points along each transformed dim: those of the full signal, even if one side is half a
    spectrum.
    """
    (x,) = launch.inputs
    assert isinstance(x, Meta)
    return [max(x.shape[d], launch.outputs[0].shape[d]) for d in launch.params[0]]


def _flops(launch: Launch) -> int:
    """Return the number of operations, 5 n log2(n) for each transform of n complex points; half of it for real
    points.
    """
    points = math.prod(_points(launch))
    (x,) = launch.inputs
    assert isinstance(x, Meta)
    count = max(x.numel, launch.outputs[0].numel)
    complex_to_complex = x.dtype.is_complex and launch.outputs[0].dtype.is_complex
    return int((5 if complex_to_complex else 2.5) * count * math.log2(max(points, 2)))


def _host(transform: Callable[[Any, Launch], Callable[[Array], Array]]) -> Callable[[Launch], Body]:
    def host(launch: Launch) -> Body:
        from scipy import fft  # imported here because it is slow to import

        (source,) = launch.inputs
        assert isinstance(source, Meta)
        widen, run = to_computing(source.dtype, source.dtype), transform(fft, launch)

        def body(outputs: list[Array], inputs: list[Array]) -> None:
            (out,) = outputs
            x = widen(inputs[0])
            if x.dtype == out.dtype:  # complex to complex: SciPy works in place
                out[...] = x
                x = out
            result = run(x)
            if not np.may_share_memory(result, out):
                np.copyto(out, result, casting="unsafe")

        return body

    return host


# -- complex to complex: params are dims, the scale, whether forward ---------------------------------------


def _c2c_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (x,) = operands
    assert isinstance(x, Meta)
    _check(x, [x.shape[d] for d in params[0]])
    return Signature((Meta.contiguous_of(x.shape, x.dtype, x.device),), (x,), params)


def _c2c(fft: Any, launch: Launch) -> Callable[[Array], Array]:
    dims, scale, forward = launch.params
    if forward:
        return lambda x: fft.fftn(x, axes=dims, norm=_FORWARD[scale], overwrite_x=True)
    return lambda x: fft.ifftn(x, axes=dims, norm=_BACKWARD[scale], overwrite_x=True)


def _c2c_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    for forward in (True, False):
        yield (make(3, 4),), ((-1,), NONE, forward)
        yield (make(2, 5, 6),), ((2, 0), ROOT, forward)
        yield (make(2, 7),), ((0, 1), WHOLE, forward)


# -- real to half a spectrum: params are dims, the last of which is halved, and the scale ------------------


def _r2c_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (x,) = operands
    assert isinstance(x, Meta)
    dims, _ = params
    _check(x, [x.shape[d] for d in dims])
    shape = list(x.shape)
    shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    return Signature((Meta.contiguous_of(tuple(shape), x.dtype.to_complex(), x.device),), (x,), params)


def _r2c(fft: Any, launch: Launch) -> Callable[[Array], Array]:
    dims, scale = launch.params
    return lambda x: fft.rfftn(x, axes=dims, norm=_FORWARD[scale])


def _r2c_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4),), ((-1,), NONE)
    yield (make(2, 5, 6),), ((2, 0), ROOT)
    yield (make(2, 7),), ((0, 1), WHOLE)


# -- half a spectrum to real, backward: params are dims, the scale, points of the last of them -------------


def _c2r_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    (x,) = operands
    assert isinstance(x, Meta)
    dims, _, points = params
    shape = list(x.shape)
    shape[dims[-1]] = points
    _check(x, [shape[d] for d in dims])
    return Signature((Meta.contiguous_of(tuple(shape), x.dtype.to_real(), x.device),), (x,), params)


def _c2r(fft: Any, launch: Launch) -> Callable[[Array], Array]:
    dims, scale, _ = launch.params
    sizes = [launch.outputs[0].shape[d] for d in dims]
    return lambda x: fft.irfftn(x, s=sizes, axes=dims, norm=_BACKWARD[scale])


def _c2r_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (make(3, 4),), ((-1,), WHOLE, 6)
    yield (make(2, 5, 6),), ((2, 0), ROOT, 3)
    yield (make(2, 4),), ((0, 1), NONE, 7)


# -- derivatives: the transform's adjoint is the one in the other direction, with the same scale -------------------


def _c2c_back(grad: Any, params: Any, call: Any) -> Any:
    dims, scale, forward = params
    return call(c2c, (grad,), (dims, scale, not forward))


def _r2c_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    """Return the gradient of a real-to-complex transform. The omitted half of the spectrum contributes nothing."""
    dims, scale = params
    x, last = metas[0], dims[-1]
    missing = list(grad.shape)
    missing[last] = x.shape[last] - missing[last]
    whole = grad.new_zeros(missing)
    return call(c2c, (_concatenate(call, grad, whole, last),), (dims, scale, False)).real


def _concatenate(call: Any, a: Any, b: Any, dim: int) -> Any:
    return call(cat, (a, b), (dim,)) if b.numel() else a


def _c2r_back(grad: Any, metas: Any, params: Any, call: Any) -> Any:
    """Return the gradient of a complex-to-real transform, in which most frequencies count twice."""
    dims, scale, points = params
    last = dims[-1]
    half = call(r2c, (grad,), (dims, scale))
    size = half.shape[last]
    twice = grad.new_tensor([1.0 + (0 < i < points - size + 1) for i in range(size)])
    shape = [1] * half.ndim
    shape[last] = size
    given = half * twice.reshape(shape)
    kept = metas[0].shape[last]
    if kept <= size:
        return given.narrow(last, 0, kept)
    missing = list(given.shape)
    missing[last] = kept - size
    return _concatenate(call, given, given.new_zeros(missing), last)


def _transform(
    name: str, rule: Any, run: Any, dtypes: tuple[dtype, ...], samples: Any, back: Derivative
) -> Op:
    kernel = Kernel(
        name,
        _host(run),
        _flops,
        cuda=Routine(library=f"linalg.fft:{name.removeprefix('_')}"),
        work=element_work.transform,
    )
    return define(Op(name, rule, kernel, dtypes, samples, planned=True, derivative=back))


c2c = _transform(
    "_fft_c2c",
    _c2c_rule,
    _c2c,
    (complex64, complex128),
    _c2c_samples,
    Derivative(_c2c_back, linear="together"),
)
note(c2c, "fft.fft")
r2c = _transform(
    "_fft_r2c", _r2c_rule, _r2c, (float32, float64), _r2c_samples, Derivative(_r2c_back, linear="together")
)
note(r2c, "fft.rfft")
c2r = _transform(
    "_fft_c2r",
    _c2r_rule,
    _c2r,
    (complex64, complex128),
    _c2r_samples,
    Derivative(_c2r_back, linear="together"),
)
note(c2r, "fft.irfft")


# -- a window that no sum of cosines gives: params are points, dtype, device, the place of the other end ----------


def _kaiser_rule(operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
    """Infer the result. The param beta is passed by value."""
    points, kind, device, _ = params
    return Signature((Meta.contiguous_of((points,), kind, device),), (float64,), params)


def _kaiser_host(launch: Launch) -> Body:
    points, kind, _, last = launch.params
    from_middle = np.arange(points, dtype=kind.numpy) * (2 / last) - 1
    inside = np.sqrt(np.maximum(1 - from_middle**2, 0))

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        (beta,) = inputs
        outputs[0][...] = np.i0(beta * inside) / np.i0(beta)

    return body


def _kaiser_samples(make: Make, kind: dtype) -> Iterable[Sample]:
    yield (12.0,), (5, kind, CPU, 4)
    yield (3.0,), (6, kind, CPU, 6)


_KAISER = Expression(
    "cyl_bessel_i0(a * sqrt(fmax(1 - squared(i * k0 - 1), 0.0))) / cyl_bessel_i0(a)",
    constants=lambda launch: (2 / launch.params[3],),
    indexed=True,
)

kaiser_window = define(
    Op(
        "kaiser_window",
        _kaiser_rule,
        Kernel("kaiser_window", _kaiser_host, cuda=_KAISER),
        (float64,),
        _kaiser_samples,
        derivative=NOT_DIFFERENTIABLE,
    )
)

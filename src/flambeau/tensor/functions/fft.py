"""`torch.fft`: names, sizes and normalizations of Fourier transforms, over the three transforms of `ops/linalg/fft.py`.

Common arguments. input: a tensor; integers and bools become the default dtype. n, s: points of each transformed
dimension; the input is cropped, or padded with zeros, to them. dim: the dimensions; default: the last one, two, or all.
norm: "backward" (the default: the inverse transform is divided by n), "forward" (the forward one is), "ortho" (each by
sqrt(n)). out: the tensor to store to. Errors: RuntimeError (dtypes, sizes below 1, norms, duplicate dims), IndexError
(dims out of range).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.dtype import FLOATING, dtype
from flambeau.core.errors import argument_type
from flambeau.core.flags import flags
from flambeau.core.layout import wrap_dim
from flambeau.ops.autocast_rules import FLOAT32_ON_CPU
from flambeau.ops.linalg import fft as ops
from flambeau.ops.op import Op
from flambeau.tensor import autocast
from flambeau.tensor.arguments.arg_errors import IntOrTuple
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.arguments.options import integer
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.call import call, call_into
from flambeau.tensor.out_argument import deliver
from flambeau.tensor.tensor import Tensor


def fft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return the discrete Fourier transform along one dimension; complex, of n points."""
    return _c2c_along("fft", input, n, dim, norm, out, forward=True)


def ifft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return the inverse of `fft`."""
    return _c2c_along("ifft", input, n, dim, norm, out, forward=False)


def rfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return `fft` of real input: the n // 2 + 1 frequencies that are not negative."""
    return _r2c_along("rfft", input, n, dim, norm, out, forward=True)


def ihfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return the inverse of `hfft`: n // 2 + 1 values of the time domain."""
    return _r2c_along("ihfft", input, n, dim, norm, out, forward=False)


def irfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return the inverse of `rfft`: n real points, by default 2 * (size - 1)."""
    return _c2r_along("irfft", input, n, dim, norm, out, forward=False)


def hfft(
    input: Tensor, n: int | None = None, dim: int = -1, norm: str | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return `fft` of a Hermitian signal from its first half: n real points, by default 2 * (size - 1)."""
    return _c2r_along("hfft", input, n, dim, norm, out, forward=True)


def fftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return `fft` along several dimensions."""
    return _c2c_over("fftn", input, s, dim, norm, out, forward=True)


def ifftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the inverse of `fftn`."""
    return _c2c_over("ifftn", input, s, dim, norm, out, forward=False)


def rfftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return `fftn` of real input: in the last dimension the frequencies that are not negative."""
    return _r2c_over("rfftn", input, s, dim, norm, out, forward=True)


def ihfftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the inverse of `hfftn`."""
    return _r2c_over("ihfftn", input, s, dim, norm, out, forward=False)


def irfftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the inverse of `rfftn`: real."""
    return _c2r_over("irfftn", input, s, dim, norm, out, forward=False)


def hfftn(
    input: Tensor,
    s: IntOrTuple | None = None,
    dim: IntOrTuple | None = None,
    norm: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return `fftn`, which is real, of a signal that is Hermitian in the last dimension, from its first half."""
    return _c2r_over("hfftn", input, s, dim, norm, out, forward=True)


def _of_two_dims(name: str, over: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def define(
        input: Tensor,
        s: IntOrTuple | None = None,
        dim: IntOrTuple = (-2, -1),
        norm: str | None = None,
        *,
        out: Tensor | None = None,
    ) -> Tensor:
        return over(input, s, dim, norm, out=out)

    define.__name__ = define.__qualname__ = name
    define.__doc__ = f"`{over.__name__}` along two dimensions, by default the last two."
    return define


fft2, ifft2 = _of_two_dims("fft2", fftn), _of_two_dims("ifft2", ifftn)
rfft2, irfft2 = _of_two_dims("rfft2", rfftn), _of_two_dims("irfft2", irfftn)
hfft2, ihfft2 = _of_two_dims("hfft2", hfftn), _of_two_dims("ihfft2", ihfftn)


# -- one dimension ------------------------------------------------------------------------------------------


def _c2c_along(
    name: str, input: Any, n: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    n, dim = _checked_arguments(name, input, n, dim, norm)
    if not input.dtype.is_complex:
        _check_out(name, out, complex=True)
    x = _promote(input, to_complex=True)
    at = _wrap_dim(dim, x.ndim)
    points, scale = _points(x.meta.shape[at] if n is None else n), _scale(norm, forward)
    _check_out(name, out, complex=True)
    return _run(ops.c2c, _resize_dims(x, (at,), (points,)), ((at,), scale, forward), out)


def _r2c_along(
    name: str, input: Any, n: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    n, dim = _checked_arguments(name, input, n, dim, norm)
    if input.dtype.is_complex:
        raise RuntimeError(f"{name} expects a real input tensor, but got {input.dtype.torch_name}")
    _check_out(name, out, complex=True)
    x = _promote(input)
    at = _wrap_dim(dim, x.ndim)
    x = _resize_dims(x, (at,), (_points(x.meta.shape[at] if n is None else n),))
    return _to_spectrum(x, (at,), _scale(norm, forward), out, forward)


def _c2r_along(
    name: str, input: Any, n: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    n, dim = _checked_arguments(name, input, n, dim, norm)
    _check_out(name, out, complex=False)
    x = _promote(input, to_complex=True)
    at = _wrap_dim(dim, x.ndim)
    points = _points(2 * (x.meta.shape[at] - 1) if n is None else n)
    if n is not None:
        x = _resize_dims(x, (at,), (n // 2 + 1,))
    return _to_real(x, (at,), points, _scale(norm, forward), out, forward)


# -- several dimensions -------------------------------------------------------------------------------------


def _c2c_over(
    name: str, input: Any, s: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    _check_tensor(name, input, norm)
    dims, sizes = _canonical(name, input, s, dim)
    x = _promote(input, to_complex=True)
    scale = _scale(norm, forward)
    x = _resize_dims(x, dims, sizes)
    _check_out("fftn", out, complex=True)
    if not dims:
        copy: Tensor = deliver(x.clone(), out)
        return copy
    return _run(ops.c2c, x, (dims, scale, forward), out)


def _r2c_over(
    name: str, input: Any, s: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    _check_tensor(name, input, norm)
    if forward and input.dtype.is_complex:
        raise RuntimeError(f"{name} expects a real-valued input tensor, but got {input.dtype.torch_name}")
    dims, sizes = _canonical(name, input, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    if input.dtype.is_complex:
        raise RuntimeError(f"Only supports floating-point dtypes, but found: {input.dtype.torch_name}")
    x, scale = _promote(input), _scale(norm, forward)
    _check_out(name, out, complex=True)
    return _to_spectrum(_resize_dims(x, dims, sizes), dims, scale, out, forward)


def _c2r_over(
    name: str, input: Any, s: Any, dim: Any, norm: Any, out: Tensor | None, forward: bool
) -> Tensor:
    _check_tensor(name, input, norm)
    dims, sizes = _canonical(name, input, s, dim)
    if not dims:
        raise RuntimeError(f"{name} must transform at least one axis")
    # Without a size, sizes[-1] is that of the half spectrum, which 2 (n - 1) and 2 n - 1 points share: take the even.
    halved = s is None or _ints(s)[-1] == -1
    points = _points(2 * (input.meta.shape[dims[-1]] - 1) if halved else sizes[-1])
    x, scale = _promote(input, to_complex=True), _scale(norm, forward)
    _check_out(name, out, complex=False)
    x = _resize_dims(x, dims, (*sizes[:-1], points // 2 + 1))
    return _to_real(x, dims, points, scale, out, forward)


def _canonical(name: str, input: Tensor, s: Any, dim: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return dims and sizes from the caller's `s` and `dim`."""
    ndim, dims = input.ndim, None
    if dim is not None:
        dims = tuple([_wrap_dim(d, ndim) for d in _ints(dim)])
        if len(set(dims)) != len(dims):
            raise RuntimeError("FFT dims must be unique")
    if s is not None:
        given = _ints(s)
        if dims is not None and len(dims) != len(given):
            raise RuntimeError("When given, dim and shape arguments must have the same length")
        if len(given) > ndim:
            raise RuntimeError(
                f"Got shape with {len(given)} values but input tensor only has {ndim} dimensions."
            )
        dims = tuple(range(ndim - len(given), ndim)) if dims is None else dims
    elif dims is None:
        dims = tuple(range(ndim))
    shape = input.meta.shape
    sizes = [shape[d] for d in dims] if s is None else [
        shape[d] if n == -1 else n for d, n in zip(dims, given, strict=True)
    ]  # fmt: skip
    return dims, tuple([_points(n) for n in sizes])


# -- what they share ----------------------------------------------------------------------------------------


def _run(op: Op, x: Tensor, params: tuple[Any, ...], out: Tensor | None) -> Tensor:
    """Run a transform. The result is cast to the dtype of `out`, as in PyTorch."""
    result: Tensor = (
        call(op, (x,), params) if out is None else call_into(op, (out,), (x,), params, resize=True)
    )
    return result


def _to_spectrum(x: Tensor, dims: tuple[int, ...], scale: str, out: Tensor | None, forward: bool) -> Tensor:
    """Return half of the spectrum of real input. The backward transform is the conjugate of the forward transform."""
    params = (dims, scale)
    if forward:
        return _run(ops.r2c, x, params, out)
    spectrum = _run(ops.r2c, x, params, None)
    result: Tensor = functions["conj_physical"](spectrum, out=out)
    return result


def _to_real(
    x: Tensor, dims: tuple[int, ...], points: int, scale: str, out: Tensor | None, forward: bool
) -> Tensor:
    """Return the real signal of half a spectrum. The forward transform is the backward transform of the conjugate."""
    return _run(ops.c2r, x.conj() if forward else x, (dims, scale, points), out)


def _scale(norm: Any, forward: bool) -> str:
    if norm == "ortho":
        return ops.ROOT
    if norm not in (None, "backward", "forward"):
        raise RuntimeError(f'Invalid normalization mode: "{norm}"')
    return ops.WHOLE if forward == (norm == "forward") else ops.NONE


def _promote(x: Tensor, to_complex: bool = False) -> Tensor:
    """Return integers and bools in the default dtype, and then as complex numbers if `to_complex`."""
    if autocast.threads:
        (x,) = autocast.cast(FLOAT32_ON_CPU, x)
    kind = x.dtype if x.dtype.category >= FLOATING else flags.default_dtype
    if not ops.is_supported(kind, x.device.type != "cuda"):
        raise RuntimeError(f"Unsupported dtype {kind.torch_name}")
    return x.to(kind.to_complex() if to_complex else kind)


def _resize_dims(x: Tensor, dims: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Return `x` cut, or padded with zeros at the end, to these sizes."""
    for dim, size in zip(dims, sizes, strict=True):
        if x.meta.shape[dim] > size:
            x = x.narrow(dim, 0, size)
    shape = list(x.meta.shape)
    for dim, size in zip(dims, sizes, strict=True):
        shape[dim] = size
    if tuple(shape) == x.meta.shape:
        return x
    padded: Tensor = x.new_zeros(shape)
    part = padded
    for dim in dims:
        part = part.narrow(dim, 0, x.meta.shape[dim])
    part.copy_(x)
    return padded


def _points(n: int) -> int:
    if n < 1:
        raise RuntimeError(f"Invalid number of data points ({n}) specified")
    return n


def _wrap_dim(dim: int, ndim: int) -> int:
    if not ndim:
        raise IndexError(f"Dimension specified as {dim} but tensor has no dimensions")
    return wrap_dim(dim, ndim)


def _ints(values: Any) -> tuple[int, ...]:
    """Return sizes or dimensions as ints. Raises TypeError."""
    return ints_of(values, "fft", "s or dim", 2)


def _check_tensor(name: str, input: Any, norm: Any) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(argument_type(f"fft_{name}", "input", 1, "Tensor", input))
    if norm is not None and not isinstance(norm, str):
        raise TypeError(f"fft_{name}(): argument 'norm' must be str, not {type(norm).__name__}")


def _checked_arguments(name: str, input: Any, n: Any, dim: Any, norm: Any) -> tuple[int | None, int]:
    _check_tensor(name, input, norm)
    of = f"fft_{name}"
    return None if n is None else integer(n, of, "n", 2), integer(dim, of, "dim", 3)


def _check_out(name: str, out: Tensor | None, complex: bool) -> None:
    if out is None:
        return
    if complex and not out.dtype.is_complex:
        raise RuntimeError(f"{name} expects a complex output tensor, but got {out.dtype.torch_name}")
    if not complex and not out.dtype.is_floating_point:
        raise RuntimeError(f"{name} expects a floating point output tensor, but got {out.dtype.torch_name}")


# -- frequencies and their order ----------------------------------------------------------------------------


def fftfreq(
    n: int, d: float = 1.0, *, out: Tensor | None = None, dtype: dtype | None = None, **given: Any
) -> Tensor:
    """Return the frequency of each point of a transform of n points at distance d: zero, positive, negative."""
    n = integer(n, "fft_fftfreq", "n", 1)
    result = _frequencies("fftfreq", n, dtype, out, given)
    result.narrow(0, (n + 1) // 2, n // 2).copy_(functions["arange"](-(n // 2), 0, dtype=result.dtype))
    step = n * float(d)
    return result.mul_(1.0 / step if step else math.inf)


def rfftfreq(
    n: int, d: float = 1.0, *, out: Tensor | None = None, dtype: dtype | None = None, **given: Any
) -> Tensor:
    """Return the non-negative frequencies of `fftfreq`, which are those of a real transform."""
    n = integer(n, "fft_rfftfreq", "n", 1)
    result = _frequencies("rfftfreq", n, dtype, out, given, halved=True)
    step = n * float(d)
    return result.mul_(1.0 / step if step else math.inf)


def _frequencies(
    name: str, n: Any, kind: dtype | None, out: Tensor | None, given: dict[str, Any], halved: bool = False
) -> Tensor:
    """Return 0, 1, 2, ... in floating point, in `out` if it is not None."""
    count = int(n / 2) + 1 if halved else n
    if count < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {count}: [{count}]")
    kind = kind or (out.dtype if out is not None else flags.default_dtype)
    if kind.category < FLOATING:
        raise RuntimeError(f"{name} requires a floating point or complex dtype")
    result: Tensor = functions["arange"](count, dtype=kind, out=out, **given)
    return result


def fftshift(input: Tensor, dim: IntOrTuple | None = None) -> Tensor:
    """Reorder points by frequency, with the zero frequency in the middle."""
    return _shift(input, dim, lambda size: size // 2)


def ifftshift(input: Tensor, dim: IntOrTuple | None = None) -> Tensor:
    """Return the inverse of `fftshift`."""
    return _shift(input, dim, lambda size: (size + 1) // 2)


def _shift(input: Tensor, dim: Any, shift: Callable[[int], int]) -> Tensor:
    dims = tuple(range(input.ndim)) if dim is None else _ints(dim)
    shifts = [shift(input.meta.shape[_wrap_dim(d, input.ndim)]) for d in dims]
    result: Tensor = functions["roll"](input, shifts, dims)
    return result

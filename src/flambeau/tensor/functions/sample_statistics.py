"""Functions that compute covariance, numerical gradients, histograms, renormalized vectors and hashes of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.dtype import (
    BOOL,
    FLOATING,
    INTEGRAL,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint64,
)
from flambeau.core.layout import wrap_dim
from flambeau.core.typeinfo import finfo
from flambeau.ops.autocast_rules import FLOAT32_ON_CUDA
from flambeau.ops.copy import require_64_bits
from flambeau.tape.mode import mode
from flambeau.tensor import autocast
from flambeau.tensor.arguments import return_types
from flambeau.tensor.arguments.arg_errors import Number
from flambeau.tensor.arguments.integers import as_int, is_int
from flambeau.tensor.arguments.public import both, function, functions, method
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.functions.arithmetic import publish
from flambeau.tensor.functions.norms import vector_norm
from flambeau.tensor.out_argument import deliver, require_dtype
from flambeau.tensor.signatures import signatures
from flambeau.tensor.tensor import Tensor

# -- covariance -----------------------------------------------------------------------------------------------


@both
def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Any:
    """Return the covariance matrix of variables, one a row; `fweights` count observations, `aweights` weigh them."""
    if input.ndim > 2:
        raise RuntimeError(
            f"cov(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    if input.dtype.category == BOOL:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    x = input.reshape(1, -1) if input.ndim < 2 else input
    weights = _weights(x.shape[1], fweights, aweights)
    total = x.shape[1] if weights is None else weights.sum()
    if weights is not None and total.item() == 0:
        raise RuntimeError("cov(): weights sum to zero, can't be normalized")
    mean = (x if weights is None else x * weights).sum(1) / total
    freedom = total - as_int(correction)
    if aweights is not None and correction != 0:
        freedom = total - correction * (weights * aweights).sum() / total
    if freedom <= 0:
        warn_program(
            "cov(): degrees of freedom is <= 0. Correction should be strictly less than the number of observations.",
            UserWarning,
        )
        freedom = 0 * freedom
    away = x - mean.unsqueeze(1)
    weighed = away if weights is None else away * weights
    return (away @ weighed.t().conj() / freedom).squeeze()


def _weights(observations: int, fweights: Any, aweights: Any) -> Any:
    """Return the product of the weights that are not None; None if both are."""
    if fweights is not None:
        _check_weights("fweights", fweights, observations, fweights.dtype.category == INTEGRAL, "integral")
    if aweights is not None:
        _check_weights(
            "aweights", aweights, observations, aweights.dtype.category == FLOATING, "floating point"
        )
    if fweights is None or aweights is None:
        return aweights if fweights is None else fweights
    return fweights * aweights


def _check_weights(name: str, weights: Any, observations: int, of_kind: bool, kind: str) -> None:
    if weights.ndim > 1:
        raise RuntimeError(
            f"cov(): expected {name} to have one or fewer dimensions but got {name} with {weights.ndim} dimensions"
        )
    if not of_kind:
        raise RuntimeError(
            f"cov(): expected {name} to have {kind} dtype but got {name} with {weights.dtype.torch_name} dtype"
        )
    if weights.numel() != observations:
        raise RuntimeError(
            f"cov(): expected {name} to have the same numel as there are observations in the input but got "
            f"{weights.numel()} != {observations}"
        )
    if observations and weights.min().item() < 0:
        raise RuntimeError(f"cov(): {name} cannot be negative")


@both
def corrcoef(input: Tensor) -> Any:
    """Return the correlation matrix of variables, each of which is a row of `input`."""
    if input.ndim > 2:
        raise RuntimeError(
            f"corrcoef(): expected input to have two or fewer dimensions but got an input with {input.ndim} dimensions"
        )
    c = cov(input)
    if c.ndim == 0:
        return c / c
    spread = (c.diagonal().real if c.dtype.is_complex else c.diagonal()).sqrt()
    c = c / spread.reshape(-1, 1) / spread.reshape(1, -1)
    if not c.dtype.is_complex:
        return c.clamp(-1, 1)
    return functions["complex"](c.real.clamp(-1, 1), c.imag.clamp(-1, 1))


# -- gradients of samples -------------------------------------------------------------------------------------------


@function
@signatures("""
gradient(input: Tensor, *, dim: IntTuple, edge_order: int=)
gradient(input: Tensor, *, spacing: Number | None=, dim: int | None=, edge_order: int=)
gradient(input: Tensor, *, spacing: NumberTuple | Number | TensorList, dim: IntTuple, edge_order: int=)
gradient(input: Tensor, *, spacing: NumberTuple | TensorList, dim: int | None=, edge_order: int=)
""")
def gradient(input: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> tuple[Any, ...]:
    """Return the gradient of samples along each of `dim` (default: all), by central differences.

    Args:
        spacing: Distance of samples, one for each dim, or a vector of coordinates for each dim.
        edge_order: Order of the differences at the edges.
    """
    if edge_order not in (1, 2):
        raise RuntimeError("torch.gradient only supports edge_order=1 and edge_order=2.")
    if input.dtype is uint8:
        raise RuntimeError("torch.gradient does not support uint8 input.")
    dims = _gradient_dims(input, dim)
    for d in dims:
        if input.shape[d] < edge_order + 1:
            raise RuntimeError("torch.gradient expected each dimension size to be at least edge_order+1")
    steps = _spacings(spacing, len(dims))
    found = []
    for d, step in zip(dims, steps, strict=True):
        if isinstance(step, Tensor):
            found.append(_uneven_gradient(input, d, _coordinates(input, d, step), edge_order))
        else:
            found.append(_even_gradient(input, d, step, edge_order))
    return tuple(found)


def _gradient_dims(x: Tensor, dim: Any) -> list[int]:
    if dim is None:
        return list(range(x.ndim))
    dims = [wrap_dim(d, x.ndim) for d in (dim if isinstance(dim, (tuple, list)) else (dim,))]
    for at, d in enumerate(dims):
        if d in dims[:at]:
            raise RuntimeError(f"dim {d} appears multiple times in the list of dims")
    return dims


def _spacings(spacing: Any, count: int) -> Sequence[Any]:
    """Return one distance or one vector of coordinates for each dimension."""
    if spacing is None:
        return [1.0] * count
    if isinstance(spacing, (tuple, list)):
        if len(spacing) != count:
            raise RuntimeError(
                "torch.gradient expected spacing to be unspecified, a scalar, or a list of length equal to the number "
                f"of dimensions, but got a list of length {len(spacing)} for {count} dimensions"
            )
        return spacing
    return [spacing] * count


def _coordinates(x: Any, dim: int, coordinates: Any) -> Any:
    if coordinates.ndim != 1 or coordinates.numel() != x.shape[dim]:
        raise RuntimeError(
            f"torch.gradient expected each element of spacing to have one dimension, of size {x.shape[dim]}, "
            f"but got {list(coordinates.shape)}"
        )
    if coordinates.device is not x.device:
        raise RuntimeError(
            f"torch.gradient expected each tensor to be on the same device, but got devices {coordinates.device} "
            f"and {x.device}!"
        )
    return coordinates


def _even_gradient(x: Any, dim: int, step: Any, edge_order: int) -> Any:
    n = x.shape[dim]

    def at(i: int) -> Any:
        return x.narrow(dim, i, 1)

    if edge_order == 1:
        first, last = (at(1) - at(0)) / step, (at(n - 1) - at(n - 2)) / step
    else:
        first = (-1.5 * at(0) + 2 * at(1) - 0.5 * at(2)) / step
        last = (0.5 * at(n - 3) - 2 * at(n - 2) + 1.5 * at(n - 1)) / step
    middle = (x.narrow(dim, 2, n - 2) - x.narrow(dim, 0, n - 2)) / (2 * step)
    return functions["cat"]([first, middle, last], dim)


def _uneven_gradient(x: Any, dim: int, coordinates: Any, edge_order: int) -> Any:
    n = x.shape[dim]
    shape = [1] * x.ndim
    shape[dim] = n - 1
    gaps = (coordinates[1:] - coordinates[:-1]).reshape(shape)
    slopes = (x.narrow(dim, 1, n - 1) - x.narrow(dim, 0, n - 1)) / gaps
    before, after = gaps.narrow(dim, 0, n - 2), gaps.narrow(dim, 1, n - 2)
    left, right = slopes.narrow(dim, 0, n - 2), slopes.narrow(dim, 1, n - 2)
    middle = (left * after + right * before) / (before + after)
    first, last = slopes.narrow(dim, 0, 1), slopes.narrow(dim, n - 2, 1)
    if edge_order == 2:
        h0, h1 = gaps.narrow(dim, 0, 1), gaps.narrow(dim, 1, 1)
        first = first + (first - slopes.narrow(dim, 1, 1)) * h0 / (h0 + h1)
        h0, h1 = gaps.narrow(dim, n - 2, 1), gaps.narrow(dim, n - 3, 1)
        last = last + (last - slopes.narrow(dim, n - 3, 1)) * h0 / (h0 + h1)
    return functions["cat"]([first, middle, last], dim)


# -- histograms -----------------------------------------------------------------------------------------------


@function
@signatures("""
histogram(input: Tensor, bins: Tensor, *, weight: Tensor | None=, density: bool=)
histogram(input: Tensor, bins: int=, *, range: FloatTuple | None=, weight: Tensor | None=, density: bool=)
""")
def histogram(
    input: Tensor,
    bins: Any = 100,
    *,
    range: Any = None,
    weight: Tensor | None = None,
    density: bool = False,
    out: Any = None,
) -> Any:
    """Return (counts, edges): of `bins` equal bins over `range` (the input's own by default), or of edges in a
    tensor.
    """
    edges = (
        [bins]
        if isinstance(bins, Tensor)
        else [_even_edges(input.reshape(-1, 1), 0, bins, range, "histogram")]
    )
    counts = _counts("histogram", input.reshape(-1, 1), edges, _flat_weight(input, weight), density)
    return return_types.histogram.of(deliver((counts, edges[0]), out), out)


def _histogram(
    self: Any, bins: Any = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    return histogram(self, bins, range=range, weight=weight, density=density)


publish(_histogram, "histogram", "Counts of elements in bins, and the bins' edges.", method)


@function
@signatures("""
histogramdd(input: Tensor, bins: int | IntTuple | TensorList, range: FloatTuple | None=, weight: Tensor | None=,
    density: bool=)
""")
def histogramdd(
    input: Tensor, bins: Any, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    """Return (counts, edges) of points, the rows of the last dimension: bins or edges for each of its coordinates."""
    if input.ndim < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    count = input.shape[-1]
    listed = [bins] * count if is_int(bins) else list(bins)
    if len(listed) != count:
        raise RuntimeError(
            f"torch.histogramdd: expected {count} sequences of bin edges for a {count}-dimensional histogram but got "
            f"{len(listed)}"
        )
    sizes = [b.numel() - 1 if isinstance(b, Tensor) else int(b) for b in listed]
    if math.prod(max(size, 0) for size in sizes) >= 1 << 60:  # before the edges are made
        raise RuntimeError(f"Storage size calculation overflowed with sizes={sizes}")
    points = input.reshape(-1, count)
    edges = [
        b if isinstance(b, Tensor) else _even_edges(points, at, b, range, "histogramdd")
        for at, b in enumerate(listed)
    ]
    weights = _flat_weight(input.select(-1, 0), weight)
    return return_types.histogramdd((_counts("histogramdd", points, edges, weights, density), tuple(edges)))


def _flat_weight(like: Any, weight: Any) -> Any:
    if weight is None:
        return None
    if weight.shape != like.shape:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided it should have the same shape as the input tensor "
            f"excluding its innermost dimension, but got input with shape {list(like.shape)} and weight with shape "
            f"{list(weight.shape)}"
        )
    if weight.dtype is not like.dtype:
        raise RuntimeError(
            "torch.histogramdd: if weight tensor is provided, input tensor and weight tensor should have the same "
            f"dtype, but got input {like.dtype.torch_name}, and weight {weight.dtype.torch_name}"
        )
    return weight.reshape(-1)


def _even_edges(points: Any, at: int, bins: int, range: Any, name: str) -> Any:
    if bins <= 0:
        raise RuntimeError(f"torch.{name}(): bins must be > 0, but got {bins} for dimension {at}")
    low, high = _outer_edges(points, at, range, name)
    return functions["linspace"](low, high, bins + 1, dtype=points.dtype, device=points.device)


def _outer_edges(points: Any, at: int, range: Any, name: str) -> tuple[float, float]:
    if range is not None:
        if len(range) != 2 * points.shape[1]:
            raise RuntimeError(
                f"torch.{name}: for a {points.shape[1]}-dimensional histogram range should have "
                f"{2 * points.shape[1]} elements, but got {len(range)}"
            )
        low, high = range[2 * at], range[2 * at + 1]
        if low > high:
            raise RuntimeError(
                f"torch.{name}: min should not exceed max, but got min {low} max {high} for dimension {at}"
            )
    elif points.dtype not in (float32, float64):
        raise NotImplementedError(f"\"histogramdd\" not implemented for '{points.dtype.torch_name}'")
    elif points.numel():
        column = points.select(1, at)
        low, high = column.min().item(), column.max().item()
        if not (math.isfinite(low) and math.isfinite(high)):
            raise RuntimeError(f"torch.{name}: dimension {at}'s range [{low}, {high}] is not finite")
    else:
        low, high = 0.0, 1.0
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _counts(name: str, points: Any, edges: Sequence[Any], weights: Any, density: bool) -> Any:
    """Return the number, or the total weight, of points in each bin. Only the last bin includes its upper edge."""
    if points.dtype.category != FLOATING:
        raise NotImplementedError(f"\"{name}\" not implemented for '{points.dtype.torch_name}'")
    for at, bounds in enumerate(edges):
        if bounds.dtype is not points.dtype:
            raise RuntimeError(
                "torch.histogramdd: input tensor and bins tensors should have the same dtype, but got input "
                f"{points.dtype.torch_name} and bins {bounds.dtype.torch_name} for dimension {at}"
            )
    shape = [bounds.numel() - 1 for bounds in edges]
    place, inside = 0, True
    for at, bounds in enumerate(edges):
        x = points.select(1, at).contiguous()
        where = (functions["searchsorted"](bounds, x, right=True) - 1).minimum(
            x.new_full((), shape[at] - 1).long()
        )
        inside = inside & (x >= bounds[0]) & (x <= bounds[-1])
        place = place * shape[at] + where
    ones: Any = points.new_ones(points.shape[0]) if weights is None else weights
    wide = float64 if points.dtype is float64 else float32
    held = points.new_zeros(math.prod(shape), dtype=wide)
    held.scatter_add_(0, functions["where"](inside, place, 0), functions["where"](inside, ones, 0).to(wide))
    held = held.reshape(shape)
    return (_as_density(held, edges) if density else held).to(points.dtype)


def _as_density(held: Any, edges: Sequence[Any]) -> Any:
    total = held.sum()
    for at, bounds in enumerate(edges):
        shape = [1] * held.ndim
        shape[at] = -1
        held = held / (bounds[1:] - bounds[:-1]).reshape(shape)
    return held / total


# -- norms held -----------------------------------------------------------------------------------------------


def _renorm(input: Any, p: Any, dim: int, maxnorm: Any) -> Any:
    require_64_bits(p)
    if isinstance(p, complex):
        raise RuntimeError("renorm: p must be real-valued")
    if not p > 0:  # NaN is refused, too
        raise RuntimeError("renorm: non-positive-norm not supported")
    if isinstance(maxnorm, complex):
        raise RuntimeError("renorm: maxnorm must be real-valued")
    if not maxnorm >= 0:
        raise RuntimeError(f"renorm: expected maxnorm to be >= 0 but got {maxnorm}")
    if input.ndim <= 1:
        raise RuntimeError(f"renorm: input needs at least 2 dimensions, got {input.ndim} dimensions")
    d = wrap_dim(dim, input.ndim)
    wide = input.float() if input.dtype.is_floating_point and input.dtype.itemsize < 4 else input
    norms = vector_norm(wide, p, tuple([i for i in range(input.ndim) if i != d]), True)
    maxnorm = min(maxnorm, finfo(norms.dtype).max)  # larger ones overflow in the branch that is not used
    factor = functions["where"](norms > maxnorm, maxnorm / (norms + 1e-7), 1.0)
    return input * factor.to(input.dtype.to_real())


@function
def renorm(input: Tensor, p: Number, dim: int, maxnorm: Number, *, out: Any = None) -> Any:
    """Return the slices along `dim`. A slice whose p-norm exceeds `maxnorm` is scaled down to that norm."""
    if autocast.threads and out is None:
        (input,) = autocast.cast(FLOAT32_ON_CUDA, input)
    found = _renorm(input, p, dim, maxnorm)
    if out is not None:
        require_dtype(found.dtype, out)
    return deliver(found, out)


def _renorm_method(self: Any, p: Number, dim: int, maxnorm: Number) -> Any:
    return renorm(self, p, dim, maxnorm)


def _renorm_(self: Any, p: Number, dim: int, maxnorm: Number) -> Any:
    recorded = mode.recording and requires_grad(self)
    before = self.clone() if recorded else self  # the values that its formulas save
    return self.copy_(_renorm(before, p, dim, maxnorm))


publish(_renorm_method, "renorm", renorm.__doc__ or "", method)
publish(_renorm_, "renorm_", "`renorm` in place.", method)


# -- hashes ---------------------------------------------------------------------------------------------------


_HASHED = {bool_, uint8, int8, int16, int32, int64, float16, bfloat16, float32, float64}


@both
@signatures("""
hash_tensor(input: Tensor, dim: IntOrTuple | None=, *, keepdim: bool=, mode: int=)
""")
def hash_tensor(
    input: Tensor, dim: Any = (), *, keepdim: bool = False, mode: int = 0, out: Any = None
) -> Tensor:
    """Return the exclusive or of the elements' 64 bits over all dimensions or `dim`, as uint64.

    Elements are widened to int64, or float64, before.

    Args:
        dim: A dimension or several; all of them without one.
        mode: The hash; 0 is the only one.

    Raises:
        IndexError: If a dimension is out of range, or has no elements.
        RuntimeError: If `mode` is not 0, or `input` has no elements and `dim` is not given.
        NotImplementedError: If elements are complex or unsigned with more than 8 bits.
    """
    if mode != 0:
        raise RuntimeError(f"Unknown hash_tensor mode: {mode}")
    if out is not None and out.dtype is not uint64:
        raise RuntimeError(f"Expected result to be of dtype uint64, but got {out.dtype.torch_name}")
    x: Any = input.detach()
    dims = _hashed_dims(x, dim)
    kind = x.dtype
    if kind not in _HASHED and x.numel():
        raise NotImplementedError(f"\"xor_sum_{x.device.type}\" not implemented for '{kind.torch_name}'")
    bits = x.to(float64).view(int64) if kind.is_floating_point else x.to(int64)
    rest = [n for at, n in enumerate(x.shape) if at not in dims]
    flat = bits.permute([*[at for at in range(x.dim()) if at not in dims], *dims])
    flat = flat.reshape(*rest, math.prod([x.shape[at] for at in dims]))
    while flat.shape[-1] > 1:
        half = flat.shape[-1] // 2
        pairs = flat[..., :half] ^ flat[..., half : 2 * half]
        flat = pairs if flat.shape[-1] % 2 == 0 else functions["cat"]((pairs, flat[..., -1:]), -1)
    shape = [1 if at in dims else n for at, n in enumerate(x.shape)] if keepdim else rest
    return deliver(flat.reshape(shape).view(uint64), out)


def _hashed_dims(x: Any, dim: Any) -> list[int]:
    """Return the reduced dimensions, counted from the first."""
    given = [] if dim is None else [dim] if is_int(dim) else list(dim)
    dims = [wrap_dim(as_int(each), x.dim()) for each in given] or list(range(x.dim()))
    if not x.numel() and not given:
        raise RuntimeError(
            "hash_tensor: Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim "
            "with the 'dim' argument."
        )
    for each, at in zip(given, dims, strict=False):
        if x.dim() and not x.shape[at]:
            raise IndexError(f"hash_tensor: Expected reduction dim {each} to have non-zero size.")
        if dims.count(at) > 1:
            raise RuntimeError(f"dim {at} appears multiple times in the list of dims")
    return dims if x.dim() else []

"""Interpolation, grid_sample and affine_grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flambeau.core.callsite import warn_program
from flambeau.core.errors import argument_type
from flambeau.nn.functional.activation import require_tensor
from flambeau.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d
from flambeau.ops.nn.interpolation import Resampling
from flambeau.ops.nn.interpolation import interpolate as _interpolate
from flambeau.ops.nn.sampling import grid_sample as _grid_sample
from flambeau.tensor.arguments.extents import ints_of
from flambeau.tensor.call import call
from flambeau.tensor.functions import creation, joining
from flambeau.tensor.functions.matmul import matmul
from flambeau.tensor.tensor import Tensor

_MODES = {
    "linear": (3, "linear"), "bilinear": (4, "linear"), "trilinear": (5, "linear"), "bicubic": (4, "cubic"),
    "lanczos": (4, "lanczos"),
}  # fmt: skip
_AREA = {3: adaptive_avg_pool1d, 4: adaptive_avg_pool2d, 5: adaptive_avg_pool3d}
_ALL = ("nearest", "area", "nearest-exact")


def interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize (N, C, spatial ...) to `size`, or by `scale_factor`.

    Args:
        mode: nearest, nearest-exact, linear (3D), bilinear, bicubic, lanczos (4D), trilinear (5D) or area.
        antialias: For bilinear, bicubic and lanczos, which needs it: widen the filter when downsampling.

    Raises:
        ValueError: If arguments contradict each other.
    """
    if mode in _ALL:
        if align_corners is not None:
            raise ValueError(
                "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | "
                "trilinear"
            )
    elif align_corners is None:
        align_corners = False
    shape = require_tensor(input, "interpolate").shape
    _each(scale_factor if size is None else size, len(shape) - 2, "scale_factor" if size is None else "size")
    _check_one_is_given(size, scale_factor, recompute_scale_factor)
    if antialias and not (mode in ("bilinear", "bicubic", "lanczos") and len(shape) == 4):
        raise ValueError(
            "Anti-alias option is restricted to bilinear, bicubic, and lanczos modes and requires a 4-D tensor as input"
        )
    if align_corners is not None and not isinstance(align_corners, bool):
        raise TypeError(argument_type("interpolate", "align_corners", 5, "bool", align_corners))
    kind = mode if mode in _ALL and len(shape) in _AREA else _kind(mode, len(shape))
    if kind == "lanczos":
        _check_lanczos(align_corners, antialias)
    sizes, scales = _sizes(shape, size, scale_factor, recompute_scale_factor or mode == "area")
    if mode == "area":
        return _AREA[len(shape)](input, sizes)
    if min(*sizes, *shape[2:]) <= 0:
        raise RuntimeError(_empty_or_negative(shape[2:], sizes))
    return call(
        _interpolate, (input,), (Resampling(kind, sizes, scales, bool(align_corners), bool(antialias)),)
    )


def _empty_or_negative(shape: Sequence[int], sizes: Sequence[int]) -> str:
    """Return PyTorch's words for spatial sizes that cannot be interpolated."""
    names = ("D", "H", "W")[-len(sizes) :]
    old, new = (", ".join([f"{d}: {n}" for d, n in zip(names, each, strict=True)]) for each in (shape, sizes))
    return f"Input and output sizes should be greater than 0, but got input ({old}) output ({new})"


def _check_lanczos(align_corners: bool | None, antialias: bool) -> None:
    if align_corners:
        raise ValueError("Lanczos mode does not support align_corners=True")
    if not antialias:
        raise ValueError("Lanczos mode requires antialias=True")


def _kind(mode: str, ndim: int) -> str:
    wanted, kind = _MODES.get(mode, (0, ""))
    if kind and wanted == ndim:
        return kind
    if ndim in (3, 4, 5) and wanted and kind != "lanczos":
        raise NotImplementedError(f"Got {ndim}D input, but {mode} mode needs {wanted}D input")
    raise NotImplementedError(
        "Input Error: Only 3D, 4D and 5D input Tensors supported (got "
        f"{ndim}D) for the modes: nearest | linear | bilinear | bicubic | trilinear | lanczos | area | "
        f"nearest-exact (got {mode})"
    )


def _check_one_is_given(size: Any, factor: Any, recompute: bool | None) -> None:
    if size is not None and factor is not None:
        raise ValueError("only one of size or scale_factor should be defined")
    if size is None and factor is None:
        raise ValueError("either size or scale_factor should be defined")
    if size is not None and recompute:
        raise ValueError("recompute_scale_factor is not meaningful with an explicit size.")


def _sizes(
    shape: Sequence[int], size: Any, factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], tuple[float | None, ...]]:
    """Return the spatial size of the result, and the factors that places are computed with. None stands for the
    quotients of the sizes.
    """
    dims = len(shape) - 2
    if size is not None:
        return ints_of(_each(size, dims, "size"), "interpolate", "size", 2), (None,) * dims
    factors = [_number(f, recompute) for f in _each(factor, dims, "scale_factor")]
    if not all(map(math.isfinite, factors)):
        raise RuntimeError(
            f"value cannot be converted to type int64_t without overflow: scale_factor={factor}"
        )
    sizes = tuple([math.floor(n * f) for n, f in zip(shape[2:], factors, strict=True)])
    if recompute:
        return ints_of(sizes, "interpolate", "output_size", 2), (None,) * dims
    return sizes, tuple(factors)


def _each(value: Any, dims: int, name: str) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * dims
    if len(value) != dims:
        raise ValueError(
            f"Input and {name} must have the same number of spatial dimensions, but got input with {dims} spatial "
            f"dimensions and {name} of {value}. Please provide input tensor in (N, C, d1, d2, ...,dK) format and "
            f"{name} in (o1, o2, ...,oK) format."
        )
    return value


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """Call `interpolate`. Deprecated name."""
    _warn("upsample")
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return the older name of `interpolate` in the mode nearest."""
    _warn("upsample_nearest")
    return interpolate(input, size, scale_factor)


def upsample_bilinear(input: Tensor, size: Any = None, scale_factor: Any = None) -> Tensor:
    """Return the older name of `interpolate` in the mode bilinear, corners aligned."""
    _warn("upsample_bilinear")
    return interpolate(input, size, scale_factor, "bilinear", True)


def _number(factor: Any, recompute: bool | None) -> float:
    if isinstance(factor, (str, bytes)) or (
        isinstance(factor, Tensor) and not (recompute and factor.numel() == 1)
    ):
        raise TypeError(argument_type("interpolate", "scale_factor", 3, "float", factor))
    return float(factor)


def _warn(name: str) -> None:
    warn_program(
        f"`nn.functional.{name}` is deprecated. Use `nn.functional.interpolate` instead.",
        UserWarning,
    )


_CORNERS = (
    "Default {0} behavior has changed to align_corners=False since 1.3.0. Please specify align_corners=True if the "
    "old behavior is desired. See the documentation of grid_sample for details."
)


def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:  # fmt: skip
    """Return input (N, C, spatial ...) read at the places (x, y[, z]) in [-1, 1] of grid (N, ..., dims)."""
    if mode not in ("bilinear", "nearest", "bicubic"):
        raise ValueError(
            f"nn.functional.grid_sample(): expected mode to be 'bilinear', 'nearest' or 'bicubic', but got: '{mode}'"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "nn.functional.grid_sample(): expected padding_mode to be 'zeros', 'border', or 'reflection', but got: "
            f"'{padding_mode}'"
        )
    if align_corners is None:
        warn_program(_CORNERS.format("grid_sample and affine_grid"), UserWarning)
    elif not isinstance(align_corners, bool):
        raise TypeError(argument_type("grid_sampler", "align_corners", 5, "bool", align_corners))
    args = (require_tensor(input, "grid_sampler"), require_tensor(grid, "grid_sampler", "grid", 2))
    return call(_grid_sample, args, (mode, padding_mode, bool(align_corners)))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """Return the sampling grid (N, H, W, 2) or (N, D, H, W, 3) of the affine maps `theta`, (N, 2, 3) or (N, 3, 4).

    It is a matrix product: on CUDA it follows `torch.backends.cuda.matmul.allow_tf32`.
    """
    if align_corners is None:
        warn_program(_CORNERS.format("grid_sample and affine_grid"), UserWarning)
    elif not isinstance(align_corners, bool):
        raise TypeError(argument_type("affine_grid_generator", "align_corners", 3, "bool", align_corners))
    if not require_tensor(theta, "affine_grid").dtype.is_floating_point:
        raise ValueError(f"Expected theta to have floating point type, but got {theta.dtype}")
    dims = len(size) - 2
    if dims not in (2, 3):
        raise NotImplementedError(
            "affine_grid only supports 4D and 5D sizes, for 2D and 3D affine transforms, respectively. "
            f"Got size {tuple(size)}."
        )
    if theta.dim() != 3 or tuple(theta.shape[1:]) != (dims, dims + 1):
        form = f"Nx{dims}x{dims + 1}"
        raise ValueError(
            f"Expected a batch of {dims}D affine matrices of shape {form} for size {tuple(size)}. "
            f"Got {tuple(theta.shape)}."
        )
    if min(size) <= 0:
        raise ValueError(f"Expected non-zero, positive output size. Got {tuple(size)}")
    spatial = ints_of(size, "affine_grid", "size", 2)[2:]
    axes = [_places(n, bool(align_corners), theta, d, dims) for d, n in enumerate(spatial)]
    parts = [a.expand(spatial) for a in reversed(axes)]
    base = joining.stack([*parts, creation.ones_like(parts[0])], -1).reshape(1, -1, dims + 1)
    product = matmul(base.expand(theta.shape[0], -1, -1), theta.transpose(1, 2))
    return product.view(theta.shape[0], *spatial, dims)


def _places(n: int, align: bool, like: Tensor, axis: int, dims: int) -> Tensor:
    """Return n positions in [-1, 1] along one axis: from edge to edge, or the centres of n parts."""
    if n == 1:
        at = creation.zeros(1, dtype=like.dtype, device=like.device)
    else:
        at = creation.linspace(-1, 1, n, dtype=like.dtype, device=like.device)
        at = at if align else at * ((n - 1) / n)
    return at.reshape([-1 if d == axis else 1 for d in range(dims)])

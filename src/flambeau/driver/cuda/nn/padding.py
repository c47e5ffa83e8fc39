"""`pad` in all modes: each output element computes the position of its source, dimension by dimension."""

from __future__ import annotations

from flambeau.core.layout import Dims
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_layout import is_wide, pack_walk
from flambeau.driver.cuda.codegen.layout_parameters import blocks, carrier, i64
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram, c_name, wire_type
from flambeau.driver.protocol import Launch

# The source of position `at` in a padded dimension of `size` elements; outside for constant padding.
_PLACES = {
    "constant": "inside &= at >= 0 && at < size;",
    "reflect": "if (at < 0) at = -at; if (at >= size) at = 2 * (size - 1) - at;",
    "replicate": "at = at < 0 ? 0 : at >= size ? size - 1 : at;",
    "circular": "if (at < 0) at += size; if (at >= size) at -= size;",
}


def pad(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of pad. Params: (mode, (before, after) of each dimension). A constant's value is a scalar."""
    mode, pads = launch.params
    (out,), x = launch.outputs, launch.inputs[0]
    assert isinstance(x, Meta)
    dims, padded = _merge_dims(out, x, pads)
    wide = is_wide(dims)
    walk, index = ("WideWalk", "i64") if wide else ("Walk", "u32")
    constant = mode == "constant"
    element = c_name(x.dtype) if constant else carrier(x.itemsize)
    value = f", {wire_type(x.dtype)} value" if constant else ""
    steps = "\n".join([_dimension(d, len(dims), wide, padded[::-1][d] is not None) for d in range(len(dims))])
    text = f"""
struct Pads {{ i64 before[{len(dims)}], size[{len(dims)}]; }};
__device__ __forceinline__ i64 place_of(i64 at, i64 size, bool& inside) {{ {_PLACES[mode]} return at; }}
extern "C" __global__ void __launch_bounds__(256) run({element}* out, const {element}* x{value},
    {walk}<{len(dims)}, 2> walk, Pads pads, i64 n) {{
  const i64 first = blockIdx.x * 1024ll + threadIdx.x;
#pragma unroll
  for (int u = 0; u < 4; ++u) {{
    const i64 i = first + u * 256;
    if (i >= n) return;
    {index} left = ({index})i, to_ = 0;
    i64 from = 0;
    bool inside = true;
{steps}
    out[to_] = {f"inside ? x[from] : to<{element}>(value)" if constant else "x[from]"};
  }}
}}
"""
    inner = padded[::-1]
    numbers = [*[p[0] if p else 0 for p in inner], *[p[1] if p else 1 for p in inner]]
    return KernelProgram(
        text, blocks(out.numel, 1024), 256, (pack_walk(dims, wide), i64(*numbers), i64(out.numel))
    )


def _merge_dims(
    out: Meta, x: Meta, pads: tuple[tuple[int, int], ...]
) -> tuple[Dims, list[tuple[int, int] | None]]:
    """Return merged dimensions of the output with both strides, and of padded ones (before, the input's size).

    Neighbours that are not padded become one where both layouts allow it.
    """
    dims: Dims = []
    padded: list[tuple[int, int] | None] = []
    for size, length, around, *strides in zip(out.shape, x.shape, pads, out.strides, x.strides, strict=True):
        steps, about = tuple(strides), (around[0], length) if any(around) else None
        if size == 1 and about is None:
            continue
        mergeable = bool(dims) and about is None and padded[-1] is None
        if mergeable and all(a == b * size for a, b in zip(dims[-1][1], steps, strict=True)):
            dims[-1] = (dims[-1][0] * size, steps)
        else:
            dims.append((size, steps))
            padded.append(about)
    return dims or [(1, (0, 0))], padded or [None]


def _dimension(d: int, ndim: int, wide: bool, padded: bool) -> str:
    """Return C++ for the position in dimension d, counted from the innermost, and its part of both offsets."""
    quotient = (
        "left / walk.size[{d}]" if wide else "(__umulhi(left, walk.magic[{d}]) + left) >> walk.shift[{d}]"
    )
    split = f"const auto q{d} = {quotient.format(d=d)}; const auto r{d} = left - q{d} * walk.size[{d}]; left = q{d};"
    if d == ndim - 1:
        split = f"const auto r{d} = left;"
    place = f"place_of((i64)r{d} - pads.before[{d}], pads.size[{d}], inside)" if padded else f"(i64)r{d}"
    return f"    {split} to_ += r{d} * walk.stride[0][{d}]; from += {place} * (i64)walk.stride[1][{d}];"

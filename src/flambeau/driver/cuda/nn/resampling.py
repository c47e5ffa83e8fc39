"""Interpolation and its gradient: a thread sums the taps of its position, or the positions that read its element.

Places and weights are computed where they are needed, as the host's tables are: to the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import dtype, float64
from flambeau.core.tracing.symbols import pack, round_to_float32
from flambeau.driver.cuda.codegen.layout_parameters import carrier
from flambeau.driver.cuda.codegen.sliding_windows import Lattice, element, program, view
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Launch

_DIMS = 3
_HEADERS = ("windows.cuh", "resampling.cuh")
_FILTERS = {"linear": "Triangle", "cubic": "WidenedCubic", "lanczos": "Lanczos"}


def _taps(how: Any, kind: str) -> str:
    """Return the C++ type of the taps."""
    if how.mode.startswith("nearest"):
        return f"Nearest<{kind}, {_flag(how.mode == 'nearest-exact')}>"
    if how.antialias:
        return f"Widened<{kind}, {_FILTERS[how.mode]}>"
    return f"{'Linear' if how.mode == 'linear' else 'Cubic'}<{kind}, {_flag(how.align_corners)}>"


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _axes(how: Any, size: Sequence[int], kind: dtype) -> bytes:
    """Return the axes of an interpolation. Ratios are rounded to the precision of the host's tables."""
    ratios = [how.ratio(*each) for each in zip(size, how.size, how.scales, strict=True)]
    if kind is not float64:
        ratios = [round_to_float32(ratio) for ratio in ratios]
    lead = _DIMS - len(size)
    return pack("<6i3d", *(1,) * lead, *size, *(1,) * lead, *how.size, *(1.0,) * lead, *ratios)


def _number(kind: dtype) -> str:
    return "double" if kind is float64 else "float"


def _plain(size: Sequence[int]) -> Lattice:
    """Return a lattice that only numbers elements."""
    return Lattice.adaptive(size, size)


def interpolate(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of interpolation. Params: how positions map."""
    how = launch.params[0]
    out, x = launch.operands
    dims = list(range(_DIMS - (x.ndim - 2), _DIMS))
    moved = how.mode.startswith("nearest")
    taps = "\n".join([f"  const Taps t{d}(o.at[{d}], axes, {d});" for d in dims])
    if moved:
        value = f"x[from.at({_places(dims, 't{0}.index(0)')})]"
    else:
        read = f"widen(x[from.at({_places(dims, 't{0}.index(u{0})')})])"
        taps += "\n  typedef decltype(widen(E{})) T;\n" + _sum_text(dims, read, "total")
        value = "to<E>(total)"
    body = f"""
  const Place<I> o = place_of<I>(i, w.count);
  x += from.plane<I>(o.plane);
{taps}
  out[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = {value};"""
    parameters = [
        ("Lattice w", _plain(out.shape[2:]).pack()), ("Axes axes", _axes(how, x.shape[2:], x.dtype)),
        ("View to_", view(out)), ("View from", view(x)),
    ]  # fmt: skip
    types = {"E": carrier(x.itemsize) if moved else element(x), "Taps": _taps(how, _number(x.dtype))}
    return program(body, types, "E* out, const E* x", parameters, out.numel, _HEADERS)


def _places(dims: Sequence[int], index: str) -> str:
    return ", ".join([index.format(d) if d in dims else "0" for d in range(_DIMS)])


def _sum_text(dims: Sequence[int], read: str, name: str) -> str:
    """Return C++ that declares `name`: sums of taps, nested by dimension."""
    d, *inner = dims
    value = f"s{inner[0]}" if inner else read
    return f"""
  T {name}{{}};
  for (int u{d} = 0; u{d} < t{d}.count; ++u{d}) {{
    {_sum_text(inner, read, value) if inner else ""}
    const T term = {value} * (T)t{d}.weight(u{d});
    {name} = u{d} ? {name} + term : term;
  }}"""


def interpolate_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the gradient kernel of interpolation. Params: how positions map, the input's spatial size."""
    how, size = launch.params
    out, grad = launch.operands
    dims = list(range(_DIMS - (out.ndim - 2), _DIMS))
    ranges = "\n".join([f"  const Readers r{d} = readers_of<Taps>(me.at[{d}], axes, {d});" for d in dims])
    body = f"""
  typedef decltype(widen(E{{}})) T;
  const Place<I> me = place_of<I>(i, w.count);
  grad += from.plane<I>(me.plane);
{ranges}
{_gather_text(dims[::-1], f"widen(grad[from.at({_places(dims, 'o{0}')})])", "total")}
  out[to_.plane<I>(me.plane) + to_.at(me.at[0], me.at[1], me.at[2])] = to<E>(total);"""
    parameters = [
        ("Lattice w", _plain(size).pack()), ("Axes axes", _axes(how, size, out.dtype)),
        ("View to_", view(out)), ("View from", view(grad)),
    ]  # fmt: skip
    types = {"E": element(out), "Taps": _taps(how, _number(out.dtype))}
    return program(body, types, "E* out, const E* grad", parameters, out.numel, _HEADERS)


def _gather_text(dims: Sequence[int], read: str, name: str) -> str:
    """Return C++ that declares `name`: the sum over positions that read this element, nested by dimension."""
    d, *inner = dims
    value = f"s{inner[0]}" if inner else read
    return f"""
  T {name}{{}};
  for (i32 o{d} = r{d}.first; o{d} < r{d}.end; ++o{d}) {{
    T share;
    if (!share_of<Taps>(o{d}, me.at[{d}], axes, {d}, share)) continue;
    {_gather_text(inner, read, value) if inner else ""}
    {name} += {value} * share;
  }}"""

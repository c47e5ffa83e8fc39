"""Pooling and its gradients. A thread reduces one window; a thread of a gradient visits all windows with its element.

No atomic additions are used, and each sum has the order of the reference implementation. Long adaptive windows are
reduced by a warp each.
"""

from __future__ import annotations

from math import prod

from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.layout_parameters import i64
from flambeau.driver.cuda.codegen.multi_kernel import KernelPlan, Pass, WorkspaceLayout
from flambeau.driver.cuda.codegen.sliding_windows import Lattice, element, program, view
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.device.program import KernelProgram
from flambeau.driver.protocol import Launch

_UNROLLED = 27  # elements of a window up to which a thread reads all of them before it computes
_LONG = 64  # elements of a window from which a warp shares it
_HEADERS = ("windows.cuh", "accumulate.cuh")
_GUARDED = ("checked.cuh", "windows.cuh")
_INVALID = "Found an invalid max index: {index} (output volumes are of {size} elements)"
_TYPES = "  typedef decltype(widen(E{})) T;"


def _lattice(launch: Launch, size: tuple[int, ...], count: tuple[int, ...]) -> Lattice:
    """Return the lattice of a fixed pooling, from the first param."""
    how = launch.params[0]
    return Lattice(size, count, how.kernel, how.stride, how.padding, how.dilation)


# -- maxima ---------------------------------------------------------------------------------------------------


def max_pool(launch: Launch, device: CudaDevice) -> KernelProgram:
    x = launch.inputs[0]
    assert isinstance(x, Meta)
    lattice = _lattice(launch, x.shape[2:], launch.outputs[0].shape[2:])
    if lattice.taps <= _UNROLLED:
        return _few_maxima(launch, x, lattice)
    return _maxima(launch, x, lattice, "false")


def adaptive_max_pool(launch: Launch, device: CudaDevice) -> KernelProgram:
    x = launch.inputs[0]
    assert isinstance(x, Meta)
    return _maxima(launch, x, Lattice.adaptive(x.shape[2:], launch.outputs[0].shape[2:]), "true")


def _maxima(launch: Launch, x: Meta, lattice: Lattice, adaptive: str) -> KernelProgram:
    """Return the kernel of maxima over windows. A NaN wins; of equal elements the first one wins."""
    values, places = launch.outputs
    body = f"""
{_TYPES}
  const Place<I> o = place_of<I>(i, w.count);
  const Span a = span_of<{adaptive}>(w, 0, o.at[0]), b = span_of<{adaptive}>(w, 1, o.at[1]);
  const Span c = span_of<{adaptive}>(w, 2, o.at[2]);
  x += from.plane<I>(o.plane);
  T best = least<T>();
  i64 where = ((i64)a.first * w.size[1] + b.first) * w.size[2] + c.first;
  for (i32 ia = 0, z = a.first; ia < a.taps; ++ia, z += a.step)
    for (i32 ib = 0, y = b.first; ib < b.taps; ++ib, y += b.step) {{
      const E* row = x + from.at(z, y, c.first);
      const i64 step = c.step * from.step[4];
      for (i32 ic = 0, v = c.first; ic < c.taps; ++ic, v += c.step, row += step) {{
        const T seen = widen(*row);
        if (seen > best || is_nan(seen)) {{ best = seen; where = ((i64)z * w.size[1] + y) * w.size[2] + v; }}
      }}
    }}
  values[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = to<E>(best);
  places[at.plane<I>(o.plane) + at.at(o.at[0], o.at[1], o.at[2])] = where;"""
    parameters = [
        ("Lattice w", lattice.pack()), ("View from", view(x)), ("View to_", view(values)), ("View at", view(places)),
    ]  # fmt: skip
    return program(
        body, {"E": element(x)}, "E* values, i64* places, const E* x", parameters, values.numel, _HEADERS
    )


def _few(lattice: Lattice, x: Meta) -> str:
    """Return C++ that loads all elements of a small window into the array `seen`.

    The loads are independent, so the thread waits for memory once. Elements that are not `inside` are loaded from a
    valid address, which is cheaper than a branch.
    """
    number = "i32" if _is_near(x) else "i64"
    inside = (
        "true"
        if lattice.inside()
        else "(u32)(z0 + a) < w.size[0] && (u32)(y0 + b) < w.size[1] && (u32)(v0 + c) < w.size[2]"
    )
    return f"""
{_TYPES}
{lattice.constants()}
  constexpr int A = {lattice.kernel_of(0)}, B = {lattice.kernel_of(1)}, C = {lattice.kernel_of(2)};
  const Place<I> o = place_of<I>(i, w.count);
  const i32 z0 = o.at[0] * w.stride[0] - w.pad[0], y0 = o.at[1] * w.stride[1] - w.pad[1];
  const i32 v0 = o.at[2] * w.stride[2] - w.pad[2];
  const {number} sz = from.step[2], sy = from.step[3], sv = from.step[4];
  x += from.plane<I>(o.plane);
  const {number} first = z0 * sz + y0 * sy + v0 * sv;
  E seen[A * B * C];
  bool there[A * B * C];
#pragma unroll
  for (int t = 0; t < A * B * C; ++t) {{
    const int a = t / (B * C) * w.dilation[0], b = t / C % B * w.dilation[1], c = t % C * w.dilation[2];
    there[t] = {inside};
    seen[t] = x[there[t] ? first + a * sz + b * sy + c * sv : 0];
  }}"""


def _is_near(x: Meta) -> bool:
    """Return True if element offsets within a plane fit in 32 bits."""
    return sum((n - 1) * abs(s) for n, s in zip(x.shape[2:], x.strides[2:], strict=True)) < 1 << 30


def _few_maxima(launch: Launch, x: Meta, lattice: Lattice) -> KernelProgram:
    """Return the kernel of maxima over small windows."""
    values, places = launch.outputs
    number = "i32" if prod(x.shape[2:]) < 1 << 31 else "i64"
    body = f"""{_few(lattice, x)}
  T best{{}};
  {number} where = -1;
#pragma unroll
  for (int t = 0; t < A * B * C; ++t) {{
    const i32 z = z0 + t / (B * C) * w.dilation[0], y = y0 + t / C % B * w.dilation[1], v = v0 + t % C * w.dilation[2];
    const T here = widen(seen[t]);
    const bool better = there[t] && (where < 0 || here > best || is_nan(here));
    best = better ? here : best;
    where = better ? (({number})z * w.size[1] + y) * w.size[2] + v : where;
  }}
  values[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = to<E>(best);
  places[at.plane<I>(o.plane) + at.at(o.at[0], o.at[1], o.at[2])] = where;"""
    parameters = [
        ("Lattice w", lattice.pack()), ("View from", view(x)), ("View to_", view(values)), ("View at", view(places)),
    ]  # fmt: skip
    return program(body, {"E": element(x)}, "E* values, i64* places, const E* x", parameters, values.numel)


def max_pool_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    grad = launch.inputs[0]
    assert isinstance(grad, Meta)
    return _maxima_back(launch, _lattice(launch, launch.outputs[0].shape[2:], grad.shape[2:]), "false")


def adaptive_max_pool_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    grad = launch.inputs[0]
    assert isinstance(grad, Meta)
    return _maxima_back(launch, Lattice.adaptive(launch.outputs[0].shape[2:], grad.shape[2:]), "true")


def _maxima_back(launch: Launch, lattice: Lattice, adaptive: str) -> KernelProgram:
    """Return the kernel in which each element sums the gradients of the windows whose maximum it was."""
    out, grad, index = launch.operands
    body = f"""
{_TYPES}
{lattice.constants() if adaptive == "false" else ""}
  const Place<I> me = place_of<I>(i, w.size);
  const Holders a = holders_of<{adaptive}>(w, 0, me.at[0]), b = holders_of<{adaptive}>(w, 1, me.at[1]);
  const Holders c = holders_of<{adaptive}>(w, 2, me.at[2]);
  const i64 here = ((i64)me.at[0] * w.size[1] + me.at[1]) * w.size[2] + me.at[2];
  grad += from.plane<I>(me.plane);
  index += at.plane<I>(me.plane);
  T total{{}};
  for (i32 z = a.first; z < a.end; ++z)
    for (i32 y = b.first; y < b.end; ++y)
      for (i32 v = c.first; v < c.end; ++v)
        if (index[at.at(z, y, v)] == here) total = add(total, widen(grad[from.at(z, y, v)]));
  out[to_.plane<I>(me.plane) + to_.at(me.at[0], me.at[1], me.at[2])] = to<E>(total);"""
    parameters = [
        ("Lattice w", lattice.pack()), ("View to_", view(out)), ("View from", view(grad)), ("View at", view(index)),
    ]  # fmt: skip
    operands = "E* out, const E* grad, const i64* index"
    return program(body, {"E": element(out)}, operands, parameters, out.numel)


# -- means ------------------------------------------------------------------------------------------------------


def avg_pool(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the kernel of average pooling. Params: the lattice, count_include_pad, divisor_override."""
    _, include, divisor = launch.params
    x, out = launch.inputs[0], launch.outputs[0]
    assert isinstance(x, Meta)
    lattice = _lattice(launch, x.shape[2:], out.shape[2:])
    if lattice.taps <= _UNROLLED:
        return _few_means(launch, x, lattice, include, divisor)
    return _means(launch, x, lattice, "false", 1, include, divisor)


def _few_means(
    launch: Launch, x: Meta, lattice: Lattice, include: bool, divisor: int | None
) -> KernelProgram:
    """Return the kernel of means over small windows. The last dimension is the outermost loop, as on the host."""
    out = launch.outputs[0]
    body = f"""{_few(lattice, x)}
  T total{{}};
#pragma unroll
  for (int c = 0; c < C; ++c) {{
    T rows{{}};
#pragma unroll
    for (int b = 0; b < B; ++b) {{
      T column{{}};
#pragma unroll
      for (int a = 0; a < A; ++a) {{
        const int t = (a * B + b) * C + c;
        column = there[t] ? add(column, widen(seen[t])) : column;
      }}
      rows = add(rows, column);
    }}
    total = add(total, rows);
  }}
  {_share("false", include, divisor, "o.at")}
  out[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = to<E>(shared(total, share));"""
    parameters = [("Lattice w", lattice.pack()), ("View from", view(x)), ("View to_", view(out))]
    headers = ("windows.cuh", "means.cuh")
    return program(body, {"E": element(x)}, "E* out, const E* x", parameters, out.numel, headers)


def adaptive_avg_pool(launch: Launch, device: CudaDevice) -> KernelProgram:
    x, out = launch.inputs[0], launch.outputs[0]
    assert isinstance(x, Meta)
    lattice = Lattice.adaptive(x.shape[2:], out.shape[2:])
    held = prod([-(-n // m) for n, m in zip(x.shape[2:], out.shape[2:], strict=True)])
    return _means(launch, x, lattice, "true", 32 if held >= _LONG else 1, True, None)


def _means(
    launch: Launch, x: Meta, lattice: Lattice, adaptive: str, lanes: int, include: bool, divisor: int | None
) -> KernelProgram:
    """Return the kernel of means over windows.

    The last dimension is the outermost loop, as in the reference implementation. A warp that shares a window adds
    its parts in a fixed tree.
    """
    out = launch.outputs[0]
    alone = """
  for (i32 ic = 0, v = c.first; ic < c.taps; ++ic, v += c.step) {
    T rows{};
    for (i32 ib = 0, y = b.first; ib < b.taps; ++ib, y += b.step) {
      T column{};
      for (i32 ia = 0, z = a.first; ia < a.taps; ++ia, z += a.step) column = add(column, widen(x[from.at(z, y, v)]));
      rows = add(rows, column);
    }
    total = add(total, rows);
  }"""
    together = """
  const i32 volume = a.taps * b.taps * c.taps;
  for (i32 t = threadIdx.x % 32; t < volume; t += 32) {
    const i32 rows = t / c.taps, deep = rows / b.taps;
    const i32 z = a.first + deep, y = b.first + rows - deep * b.taps, v = c.first + t - rows * c.taps;
    total = add(total, widen(x[from.at(z, y, v)]));
  }
#pragma unroll
  for (int away = 16; away; away /= 2) total = add(total, __shfl_xor_sync(~0u, total, away));
  if (threadIdx.x % 32) return;"""
    body = f"""
{_TYPES}
{lattice.constants() if adaptive == "false" else ""}
  const Place<I> o = place_of<I>(i, w.count);
  const Span a = span_of<{adaptive}>(w, 0, o.at[0]), b = span_of<{adaptive}>(w, 1, o.at[1]);
  const Span c = span_of<{adaptive}>(w, 2, o.at[2]);
  x += from.plane<I>(o.plane);
  T total{{}};
{together if lanes > 1 else alone}
  {_share(adaptive, include, divisor, "o.at")}
  out[to_.plane<I>(o.plane) + to_.at(o.at[0], o.at[1], o.at[2])] = to<E>(shared(total, share));"""
    parameters = [("Lattice w", lattice.pack()), ("View from", view(x)), ("View to_", view(out))]
    return program(
        body,
        {"E": element(x)},
        "E* out, const E* x",
        parameters,
        out.numel,
        ("windows.cuh", "means.cuh"),
        lanes,
    )


def _share(adaptive: str, include: bool, divisor: int | None, at: str) -> str:
    """Return C++ that declares `share`, the number by which the window at `at` is divided."""
    if divisor is not None:
        return f"const i64 share = {divisor};"
    each = [f"share_of<{adaptive}>(w, {d}, {at}[{d}], {str(bool(include)).lower()})" for d in range(3)]
    return f"const i64 share = (i64){' * '.join(each)};"


def avg_pool_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    """Return the gradient kernel of average pooling. Params: the lattice, count_include_pad, divisor_override, size."""
    _, include, divisor, size = launch.params
    grad = launch.inputs[0]
    assert isinstance(grad, Meta)
    return _means_back(launch, _lattice(launch, size, grad.shape[2:]), "false", include, divisor)


def adaptive_avg_pool_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    grad = launch.inputs[0]
    assert isinstance(grad, Meta)
    return _means_back(
        launch, Lattice.adaptive(launch.outputs[0].shape[2:], grad.shape[2:]), "true", True, None
    )


def _means_back(
    launch: Launch, lattice: Lattice, adaptive: str, include: bool, divisor: int | None
) -> KernelProgram:
    """Return the kernel in which each element adds its share of the windows that contain it.

    The last window is first, as in the reference implementation.
    """
    out, grad = launch.operands
    body = f"""
{_TYPES}
{lattice.constants() if adaptive == "false" else ""}
  const Place<I> me = place_of<I>(i, w.size);
  const Holders a = holders_of<{adaptive}>(w, 0, me.at[0]), b = holders_of<{adaptive}>(w, 1, me.at[1]);
  const Holders c = holders_of<{adaptive}>(w, 2, me.at[2]);
  grad += from.plane<I>(me.plane);
  T total{{}};
  for (i32 v = c.end - 1; v >= c.first; --v) {{
    if (!holds<{adaptive}>(w, 2, v, me.at[2])) continue;
    T rows{{}};
    for (i32 y = b.end - 1; y >= b.first; --y) {{
      if (!holds<{adaptive}>(w, 1, y, me.at[1])) continue;
      T column{{}};
      for (i32 z = a.end - 1; z >= a.first; --z) {{
        if (!holds<{adaptive}>(w, 0, z, me.at[0])) continue;
        const i32 o[3] = {{z, y, v}};
        {_share(adaptive, include, divisor, "o")}
        column = add(column, shared(widen(grad[from.at(z, y, v)]), share));
      }}
      rows = add(rows, column);
    }}
    total = add(total, rows);
  }}
  out[to_.plane<I>(me.plane) + to_.at(me.at[0], me.at[1], me.at[2])] = to<E>(total);"""
    parameters = [("Lattice w", lattice.pack()), ("View to_", view(out)), ("View from", view(grad))]
    return program(
        body,
        {"E": element(out)},
        "E* out, const E* grad",
        parameters,
        out.numel,
        ("windows.cuh", "means.cuh"),
    )


# -- unpooling ------------------------------------------------------------------------------------------------------


def _flat(x: Meta) -> Lattice:
    """Return a lattice that numbers the elements of x."""
    return Lattice.adaptive(x.shape[2:], x.shape[2:])


def max_unpool(launch: Launch, device: CudaDevice) -> KernelPlan:
    """Return the launches of max_unpool.

    Each element of the result first finds the last maximum that is written there, then reads it. The result does
    not depend on the order of writes.
    """
    out, x, index = launch.operands
    work, volume = WorkspaceLayout(), prod(out.shape[2:])
    owners = work.take(4 * out.numel)
    claim = """
  const Place<I> p = place_of<I>(i, w.count);
  const i64 to_ = index[at.plane<I>(p.plane) + at.at(p.at[0], p.at[1], p.at[2])];
  if ((u64)to_ >= (u64)volume) { guard.fail(to_, volume, 0); return; }
  const u32 mine = (u32)(i - p.plane * (I)places);
  atomicMax(owners + p.plane * volume + to_, mine + 1);"""
    count = ("i64 places", i64(prod(x.shape[2:])))
    parameters = [
        ("Lattice w", _flat(x).pack()), ("View at", view(index)), ("i64 volume", i64(volume)), count,
        ("Guard guard", device.assertions.guard(launch.kernel.name, _INVALID)),
    ]  # fmt: skip
    claiming = program(claim, {}, "u32* owners, const i64* index", parameters, x.numel, _GUARDED)
    fetch = """
  const Place<I> p = place_of<I>(i, w.count);
  const u32 owner = owners[i];
  E value{};
  if (owner) {
    const Place<u32> source = place_of<u32>(owner - 1, s.count);
    value = x[from.plane<I>(p.plane) + from.at(source.at[0], source.at[1], source.at[2])];
  }
  out[to_.plane<I>(p.plane) + to_.at(p.at[0], p.at[1], p.at[2])] = value;"""
    parameters = [
        ("Lattice w", _flat(out).pack()), ("Lattice s", _flat(x).pack()), ("View to_", view(out)),
        ("View from", view(x)),
    ]  # fmt: skip
    operands = "E* out, const E* x, const u32* owners"
    fetching = program(fetch, {"E": element(out)}, operands, parameters, out.numel)
    passes = (Pass(claiming, (owners, (2, 0))), Pass(fetching, ((0, 0), (1, 0), owners)))
    return KernelPlan(passes if x.numel else passes[1:], work.nbytes, work.nbytes)


def max_unpool_backward(launch: Launch, device: CudaDevice) -> KernelProgram:
    out, grad, index = launch.operands
    body = """
  const Place<I> p = place_of<I>(i, w.count);
  const i64 from_ = index[at.plane<I>(p.plane) + at.at(p.at[0], p.at[1], p.at[2])];
  if ((u64)from_ >= (u64)volume) { guard.fail(from_, volume, 0); return; }
  const Place<u64> source = place_of<u64>((u64)from_, s.count);
  out[to_.plane<I>(p.plane) + to_.at(p.at[0], p.at[1], p.at[2])] =
      grad[from.plane<I>(p.plane) + from.at(source.at[0], source.at[1], source.at[2])];"""
    parameters = [
        ("Lattice w", _flat(out).pack()), ("Lattice s", _flat(grad).pack()), ("View to_", view(out)),
        ("View from", view(grad)), ("View at", view(index)), ("i64 volume", i64(prod(grad.shape[2:]))),
        ("Guard guard", device.assertions.guard(launch.kernel.name, _INVALID)),
    ]  # fmt: skip
    operands = "E* out, const E* grad, const i64* index"
    return program(body, {"E": element(out)}, operands, parameters, out.numel, _GUARDED)

"""Fourier transforms by cuFFT plans, which use the operands' strides directly where possible.

A plan covers up to three dims; further dims are transformed in place, three at a time. An operand with strides that no
plan supports is staged: the copy that scales it writes it densely to temporary memory. A half spectrum is always
staged, because the library overwrites the input of a transform to real numbers. The staged copy is also made exactly
Hermitian, which is how other libraries read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod, sqrt
from typing import Any

from flambeau.core.layout import view_strides
from flambeau.core.meta import Meta
from flambeau.driver.cuda.codegen.kernel_steps import Array, KernelSteps, Places, device_only
from flambeau.driver.cuda.device.device import CudaDevice
from flambeau.driver.cuda.libraries.cufft import FORWARD, INVERSE, FftPlan, Side, Transforms
from flambeau.driver.protocol import Expression, Kernel, Launch, Source

_DIMS = 3  # the maximum number of dimensions of a plan
_CALLS = 16  # calls of one plan, up to which calls are cheaper than staging

_SCALES: dict[str, Callable[[int], float]] = {
    "1": lambda n: 1.0, "1/sqrt(n)": lambda n: 1 / sqrt(n), "1/n": lambda n: 1 / n,
}  # fmt: skip

_SCALED = Kernel(
    "scaled",
    device_only,
    cuda=Expression(
        "weighed(widen(a), (part<decltype(widen(a))>)k0)", constants=lambda launch: launch.params
    ),
)


# -- the three kinds ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Transform:
    """A transform that a launch requests. `dims` are all dimensions, a halved one last; `inverse` is True for
    complex to real.
    """

    dims: tuple[int, ...]
    scale: float
    inverse: bool
    halved: bool


def _complex(launch: Launch) -> _Transform:
    dims, scale, forward = launch.params
    out = launch.outputs[0]
    factor = _SCALES[scale](prod([out.shape[d] for d in dims]))
    return _Transform(tuple([d for d in dims if out.shape[d] > 1]), factor, not forward, False)


def _from_real(launch: Launch) -> _Transform:
    dims, scale = launch.params
    x = launch.operands[1]
    return _Transform(tuple(dims), _SCALES[scale](prod([x.shape[d] for d in dims])), False, True)


def _to_real(launch: Launch) -> _Transform:
    dims, scale, _ = launch.params
    out = launch.outputs[0]
    return _Transform(tuple(dims), _SCALES[scale](prod([out.shape[d] for d in dims])), True, True)


class _TransformRoutine:
    """A transform that is ready to launch. Real operands without complex alignment are staged."""

    def __init__(
        self, read: Callable[[Launch], _Transform], launch: Launch, device: CudaDevice, driver: Any
    ) -> None:
        asked = read(launch)
        asked = _Transform(
            tuple([d % launch.outputs[0].ndim for d in asked.dims]), asked.scale, asked.inverse, asked.halved
        )
        self._alignments = [2 * m.itemsize for m in launch.operands if not m.dtype.is_complex]
        self._build = partial(_steps, asked, launch, device, driver)
        self._steps = self._build()
        self._staged: KernelSteps | None = None

    def __call__(self, ptrs: Sequence[int], scalars: Sequence[Any], native: Any, stream: int) -> None:
        if any(ptr % size for ptr in ptrs for size in self._alignments):
            if self._staged is None:
                self._staged = self._build(staged=True)
            return self._staged(ptrs, scalars, native, stream)
        self._steps(ptrs, scalars, native, stream)

    def close(self) -> None:
        self._steps.close()
        if self._staged is not None:
            self._staged.close()


fft_c2c = partial(_TransformRoutine, _complex)
fft_r2c = partial(_TransformRoutine, _from_real)
fft_c2r = partial(_TransformRoutine, _to_real)


# -- steps ----------------------------------------------------------------------------------------------------


def _steps(
    asked: _Transform, launch: Launch, device: CudaDevice, driver: Any, staged: bool = False
) -> KernelSteps:
    """Return the steps of a launch. With `staged`, none of them passes a real operand's own memory to the library."""
    steps = KernelSteps(launch, device, driver)
    try:
        _add_steps(steps, asked, staged)
    except BaseException:
        steps.close()
        raise
    return steps


def _add_steps(steps: KernelSteps, asked: _Transform, staged: bool) -> None:
    (out,), (x,) = steps.outputs, steps.inputs
    if not asked.dims:
        return steps.run(_SCALED, out, x, params=(asked.scale,))
    first, others = _group_dims(asked, out.meta)
    to_real = asked.halved and not out.meta.dtype.is_complex
    source, target = _choose_places(steps, first, others, to_real, staged)
    scale = asked.scale
    if source.place != x.place:
        if to_real:
            _load_half(steps, source, x, asked.dims, scale)
        else:
            steps.run(_SCALED, source, x, params=(scale,))
        scale = 1.0
    run = partial(_run, steps, INVERSE if asked.inverse else FORWARD)
    for group in others if to_real else ():
        run(source, source, group)
    run(source, target, first)
    for group in () if to_real else others:
        run(target, target, group)
    if target.place != out.place or scale != 1:
        steps.run(_SCALED, out, target, params=(scale,))


def _group_dims(asked: _Transform, out: Meta) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the dims of the plan between input and output, and those of each in-place plan, outer dims first."""
    fixed = asked.dims[-1:] if asked.halved else ()
    free = _by_memory(out, asked.dims[: len(asked.dims) - len(fixed)])
    count = max(0, len(free) - (_DIMS - len(fixed)))
    others = [free[at : at + _DIMS] for at in range(0, count, _DIMS)]
    if others and count % _DIMS:
        others[-1] = free[count - count % _DIMS : count]
    return (*free[count:], *fixed), others


def _by_memory(x: Meta, dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(dims, key=lambda d: (-x.strides[d], d)))


def _choose_places(
    steps: KernelSteps, first: tuple[int, ...], others: list[tuple[int, ...]], to_real: bool, staged: bool
) -> tuple[Array, Array]:
    """Return the arrays that the transform reads and writes: the operands if a plan supports their strides, else
    temporary memory.
    """
    (out,), (x,) = steps.outputs, steps.inputs
    order = (*_by_memory(out.meta, [d for d in range(out.meta.ndim) if d not in first]), *first)
    real = not x.meta.dtype.is_complex, not out.meta.dtype.is_complex
    for writes in (True, False):
        if writes and staged and real[1]:
            continue
        for reads in (True, False):
            if reads and (to_real or (staged and real[0])):
                continue
            a, b = (
                meta if own else _dense(meta, order) for own, meta in ((reads, x.meta), (writes, out.meta))
            )
            chain = a if to_real else b
            limit = _CALLS if writes or reads else None
            if _walk(a, b, first, limit) and all(_walk(chain, chain, group, None) for group in others):
                return x if reads else steps.temp(a), out if writes else steps.temp(b)
    raise AssertionError("dense memory can be walked")


def _dense(x: Meta, order: Sequence[int]) -> Meta:
    """Return the tensor laid out without gaps, with the last dim of `order` innermost."""
    strides, step = [0] * x.ndim, 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(1, x.shape[dim])
    return x.with_(strides=tuple(strides))


# -- plans ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Walk:
    """Calls of one cuFFT plan that transform a whole tensor into another.

    Attributes:
        source, target: The layouts of both tensors within a call.
        batch: Number of transforms of a call.
        places: Byte offsets in both tensors, of each call.
    """

    source: Side
    target: Side
    batch: int
    places: list[tuple[int, int]]


def _walk(source: Meta, target: Meta, dims: tuple[int, ...], limit: int | None) -> _Walk | None:
    """Return how at most `limit` calls of one plan cover both tensors; None if they cannot."""
    read, write = _points(source, dims), _points(target, dims)
    if read is None or write is None:
        return None
    rest = _by_memory(target, [d for d in range(target.ndim) if d not in dims])
    for peeled in range(len(rest) + 1):
        outer, batch = rest[:peeled], rest[peeled:]
        if limit is not None and prod([target.shape[d] for d in outer]) > limit:
            return None
        from_step, to_step = _merged_stride(source, batch), _merged_stride(target, batch)
        if from_step is not None and to_step is not None:
            places = _offsets(source, target, outer)
            if not all(_is_aligned(source, here) and _is_aligned(target, there) for here, there in places):
                return None
            return _Walk(
                Side(source.dtype, *read, from_step),
                Side(target.dtype, *write, to_step),
                prod([target.shape[d] for d in batch]),
                places,
            )
    return None


def _is_aligned(x: Meta, offset: int) -> bool:
    """Return True if a plan may begin at `offset`: the library requires complex alignment of real numbers."""
    return x.dtype.is_complex or offset % (2 * x.dtype.itemsize) == 0


def _points(x: Meta, dims: Sequence[int]) -> tuple[tuple[int, ...], int] | None:
    """Return cuFFT's embedding and stride for a tensor's points along `dims`; None if no values describe them."""
    sizes = [x.shape[d] for d in dims]
    strides = [x.strides[d] for d in dims]
    for at in reversed(range(len(dims))):
        if sizes[at] == 1:  # every stride is valid
            strides[at] = strides[at + 1] * sizes[at + 1] if at + 1 < len(dims) else 1
    embed = [sizes[0]]
    for outer, inner, size in zip(strides, strides[1:], sizes[1:], strict=False):
        if not inner or outer % inner or outer // inner < size:
            return None
        embed.append(outer // inner)
    narrow = x.dtype.to_real().itemsize == 2  # the library accepts no strides of half precision
    if not strides[-1] or (narrow and (strides[-1] != 1 or embed != sizes)):
        return None
    return tuple(embed), strides[-1]


def _merged_stride(x: Meta, batch: Sequence[int]) -> int | None:
    """Return the distance between neighbours in `batch` dims that merge into one; None if they do not."""
    sizes = [x.shape[d] for d in batch]
    count = prod(sizes)
    found = view_strides(sizes, [x.strides[d] for d in batch], (count,)) if sizes else (1,)
    if found is None or (count > 1 and not found[0]):
        return None
    return max(1, found[0])


def _offsets(source: Meta, target: Meta, dims: Sequence[int]) -> list[tuple[int, int]]:
    return [
        (
            sum(i * source.byte_strides[d] for i, d in zip(at, dims, strict=True)),
            sum(i * target.byte_strides[d] for i, d in zip(at, dims, strict=True)),
        )
        for at in product(*[range(target.shape[d]) for d in dims])
    ]


def _run(steps: KernelSteps, direction: int, source: Array, target: Array, dims: tuple[int, ...]) -> None:
    """Add a transform of `dims` to the steps."""
    walk = _walk(source.meta, target.meta, dims, None)
    assert walk is not None
    sizes = tuple([max(source.meta.shape[d], target.meta.shape[d]) for d in dims])
    plan = FftPlan(transforms_of(steps.device), sizes, walk.source, walk.target, walk.batch)
    steps.on_close(plan.close)
    device = steps.device

    def step(places: Places, native: Any, stream: int) -> None:
        read, write = places[source.place], places[target.place]
        for from_here, to_there in walk.places:
            plan.launch(read + from_here, write + to_there, direction, device, native)

    steps.call(step)


def transforms_of(device: CudaDevice) -> Transforms:
    """Return cuFFT on a device, loaded on first use."""
    if "cufft" not in device.libraries:
        device.libraries["cufft"] = Transforms()
    found: Transforms = device.libraries["cufft"]
    return found


# -- half a spectrum ------------------------------------------------------------------------------------------


def _load_half(steps: KernelSteps, out: Array, x: Array, dims: Sequence[int], scale: float) -> None:
    """Add a copy of half a spectrum to dense memory, scaled."""
    points = steps.outputs[0].meta.shape[dims[-1]]
    order = _by_memory(out.meta, range(out.meta.ndim))
    a, b = (
        m.with_(tuple([m.shape[d] for d in order]), tuple([m.strides[d] for d in order]))
        for m in (out.meta, x.meta)
    )
    mirrored = tuple([d in dims[:-1] for d in order])
    middle = points // 2 if points % 2 == 0 else -1
    params = (order.index(dims[-1]), mirrored, middle, scale)
    steps.run(_HALF, Array(out.place, a), Array(x.place, b), params=params)


def _half_text(launch: Launch) -> str:
    half, mirrored, _, _ = launch.params
    dims = range(len(mirrored))
    sizes = "".join(f", i64 size{d}, i64 step{d}" for d in dims)
    lines = []
    for d in reversed(dims):
        lines.append(
            f"const {{u}} c{d} = left % ({{u}})size{d}; left /= ({{u}})size{d}; at += c{d} * step{d};"
        )
        other = f"(c{d} ? size{d} - c{d} : 0)" if mirrored[d] else f"c{d}"
        lines.append(f"mirror += {other} * step{d};")
    unsigned = "u32" if launch.outputs[0].numel < 1 << 32 else "u64"
    walk = "\n    ".join(lines).replace("{u}", unsigned)
    return f"""
extern "C" __global__ void __launch_bounds__(256) run(O0* out, const I0* x, i64 n, i64 middle, double scale{sizes}) {{
  typedef decltype(widen(x[0])) W;
  const i64 i = blockIdx.x * 256ll + threadIdx.x;
  if (i < n) {{
    {unsigned} left = i;
    i64 at = 0, mirror = 0;
    {walk}
    W v = widen(x[at]);
    if (c{half} == 0 || (i64)c{half} == middle) {{
      const W w = widen(x[mirror]);
      if (mirror == at) v.im = 0;
      else v = {{(v.re + w.re) / 2, (v.im - w.im) / 2}};
    }}
    out[i] = to<O0>(scaled(v, (part<W>)scale));
  }}
}}
"""


def _half_constants(launch: Launch) -> list[float]:
    _, _, middle, scale = launch.params
    (x,) = launch.inputs
    assert isinstance(x, Meta)
    layout = [n for pair in zip(x.shape, x.strides, strict=True) for n in pair]
    return [launch.outputs[0].numel, middle, float(scale), *layout]


_HALF = Kernel(
    "half_spectrum",
    device_only,
    cuda=Source(_half_text, lambda launch: -(-launch.outputs[0].numel // 256), 256, _half_constants),
)

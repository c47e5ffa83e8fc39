"""Kernels of fused launches with views and joined results: loops over boxes, whose elements are computed from inputs.

# Note [Views in fused kernels]
Problem: A later step reads a part of an earlier result, in another layout, or a result that joins others (`cat`). That
result should not exist in memory.
Rule: An element of a view of f(a, b) is f of elements of a and b. So the steps that a view depends on are computed
again at the places of the view's elements, which is the same arithmetic on the same values. The output of a kernel with
a `cat` is divided into boxes, each of which has elements of one of the joined tensors.
Consequences: `boxes` needs layouts in which the places of a view's elements in each operand have strides, as slices,
transposed views and most reshaped ones have. Of other results, and of more elements than the result has, it raises
`NotInlined`: such a result is stored first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from flambeau.core.layout import is_dense, merge_dims
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Expression, Fused, FusedStep, FusedView, Launch, is_join, uses_index

_MOST_STEPS, _MOST_READS = 96, 24  # of a kernel, which bound its registers and parameters
_MOST_BOXES = 8


class NotInlined(Exception):
    """The error raised if the readers of a step cannot compute its result again, so that it must be stored.

    Attributes:
        step: The number of the step.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"the result of step {step} is not computed by its readers")
        self.step = step


class Frame(NamedTuple):
    """Elements in the memory of a value: the box's shape, and their strides and offset, counted in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class Box(NamedTuple):
    """The kernel of one box.

    Attributes:
        launch: A fused launch without views and joined results, whose operands are parts of the operands.
        places: For each address of `launch`, the number of the operand and the bytes from its first element.
    """

    launch: Launch
    places: tuple[tuple[int, int], ...]


def has_views(form: Fused) -> bool:
    """Return True if a fused kernel reads an operand through a view, so that it needs `boxes`."""
    return any(map(_is_view, form.steps))


def boxes(launch: Launch, form: Fused) -> list[Box]:
    """Return the kernels that compute a fused launch of pointwise steps, views and joined results.

    Raises:
        NotInlined: If a result must be stored, because of its layout or of the size of the kernel.
    """
    cuts = _cuts(form, form.stored)
    shape = launch.outputs[0].shape
    edges = [sorted({0, size, *cuts.get(d, ())}) for d, size in enumerate(shape)]
    parts = list(product(*[list(pairwise(each)) for each in edges]))
    if len(parts) > _MOST_BOXES:
        raise NotInlined(_last_view(form))
    kernels: dict[tuple[int, ...], _BoxKernel] = {}
    for part in parts:
        size = tuple([end - start for start, end in part])
        kernel = kernels.setdefault(size, _BoxKernel(launch, form))
        kernel.add(size, [start for start, _ in part])
    return [kernel.box() for kernel in kernels.values()]


def _is_view(step: FusedStep | FusedView) -> bool:
    return isinstance(step, FusedView) or is_join(step.launch)


def _last_view(form: Fused) -> int:
    """Return the last step that divides or moves elements: without it, the kernel is smaller."""
    return max([k for k, step in enumerate(form.steps) if _is_view(step)])


def _cuts(form: Fused, results: Iterable[int]) -> dict[int, set[int]]:
    """Return the places along each dim at which the joined results that these depend on begin and end."""
    cuts: dict[int, set[int]] = {}
    open_, seen = list(results), set(results)
    while open_:
        step = form.steps[open_.pop()]
        if isinstance(step, FusedView):
            continue
        if is_join(step.launch):
            _add_cuts_of_join(form, step, cuts)
            continue
        new = {-1 - s for s in step.sources if s < 0} - seen
        seen |= new
        open_ += new
    return cuts


def _add_cuts_of_join(form: Fused, step: FusedStep, cuts: dict[int, set[int]]) -> None:
    (dim,) = step.launch.params
    start = 0
    for source, length in zip(step.sources, _lengths(step.launch, dim), strict=True):
        inner = _cuts(form, [-1 - source]) if source < 0 else {}
        for d, places in inner.items():
            cuts.setdefault(d, set()).update([p + start * (d == dim) for p in places])
        start += length
        cuts.setdefault(dim, set()).add(start)


def _lengths(launch: Launch, dim: int) -> list[int]:
    return [x.shape[dim] for x in launch.inputs if isinstance(x, Meta)]


class _BoxKernel:
    """The kernel of boxes of one size, written step by step."""

    def __init__(self, launch: Launch, form: Fused) -> None:
        self.launch, self.form = launch, form
        self.steps: list[FusedStep] = []
        self.stored: list[int] = []
        self.outputs: list[tuple[int, Frame]] = []
        self.reads: list[tuple[int, Frame]] = []
        self._known: dict[tuple[int, Frame], int] = {}
        self._scalars = [k for k, x in enumerate(launch.inputs) if not isinstance(x, Meta)]

    def add(self, size: tuple[int, ...], start: Sequence[int]) -> None:
        """Add a box: its size, and where it begins."""
        for k, step in enumerate(self.form.stored):
            strides = self.launch.outputs[k].strides
            frame = Frame(size, strides, sum(a * b for a, b in zip(start, strides, strict=True)))
            self.outputs.append((k, frame))
            self.stored.append(self._find_step(self._value(-1 - step, frame), self.launch.outputs[k]))

    def _find_step(self, value: int, meta: Meta) -> int:
        """Return the step that computes a value. For a value that is only read, this is a new step that copies it."""
        if value < 0:
            return -1 - value
        kernel = self.launch.kernel.with_(name="copy", cuda=Expression("a"))
        self.steps.append(FusedStep(Launch(kernel, (meta,), (meta,)), (value,)))
        return len(self.steps) - 1

    def _value(self, source: int, frame: Frame) -> int:
        """Return the number of a value of the box: -1 - k for step k, or k for read k. Scalars follow the reads."""
        known = self._known.get((source, frame))
        if known is None:
            known = self._known[source, frame] = self._find(source, frame)
        return known

    def _find(self, source: int, frame: Frame) -> int:
        if source >= 0:
            return self._read(source, frame)
        step = self.form.steps[-1 - source]
        if isinstance(step, FusedView):
            offset = frame.offset + step.offset // step.meta.itemsize
            return self._value(step.source, frame._replace(offset=offset))
        out = step.launch.outputs[0]
        if prod(frame.shape) > out.numel:
            raise NotInlined(-1 - source)
        if is_join(step.launch):
            return self._value(*self._part(-1 - source, step, frame))
        if not isinstance(step.launch.kernel.cuda, Expression) or uses_index(step.launch):
            raise NotInlined(-1 - source)
        metas = [x for x in step.launch.inputs if isinstance(x, Meta)]
        found = move(out, [x.strides for x in metas], frame)
        if found is None or len(self.steps) >= _MOST_STEPS:
            raise NotInlined(-1 - source)
        frames = iter(found)
        sources = [
            self._value(s, next(frames)) if isinstance(x, Meta) else self._scalar(s)
            for x, s in zip(step.launch.inputs, step.sources, strict=True)
        ]
        self.steps.append(FusedStep(step.launch, tuple(sources)))
        return -len(self.steps)

    def _read(self, source: int, frame: Frame) -> int:
        """Return the number of a read of an input of the launch."""
        if len(self.reads) >= _MOST_READS:
            raise NotInlined(_last_view(self.form))
        self.reads.append((source, frame))
        return len(self.reads) - 1

    def _scalar(self, source: int) -> int:
        return _MOST_READS + self._scalars.index(source)

    def _part(self, number: int, step: FusedStep, frame: Frame) -> tuple[int, Frame]:
        """Return which of the joined tensors has the elements of a frame, and their places in it."""
        launch, (dim,) = step.launch, step.launch.params
        out = launch.outputs[0]
        along = tuple([int(d == dim) for d in range(out.ndim)])
        metas = [x for x in launch.inputs if isinstance(x, Meta)]
        found = move(out, [along, *[x.strides for x in metas]], frame)
        if found is None:
            raise NotInlined(number)
        index, *frames = found
        last = index.offset + sum(s * (n - 1) for s, n in zip(index.strides, frame.shape, strict=True))
        start = 0
        for source, x, at in zip(step.sources, metas, frames, strict=True):
            end = start + x.shape[dim]
            if start <= index.offset and last < end:
                return source, at._replace(offset=at.offset - start * x.strides[dim])
            start = end
        raise NotInlined(number)

    # -- the launch ---------------------------------------------------------------------------------------
    def box(self) -> Box:
        launch = self.launch
        scalars = [launch.inputs[k] for k in self._scalars]
        tensors = [k for k, x in enumerate(launch.inputs) if isinstance(x, Meta)]
        steps = [
            FusedStep(step.launch, tuple([self._number(s) for s in step.sources])) for step in self.steps
        ]
        outputs = [_part_of(launch.outputs[k], frame) for k, frame in self.outputs]
        reads = [_part_of(launch.inputs[k], frame) for k, frame in self.reads]
        places = [(k, frame.offset * launch.outputs[k].itemsize) for k, frame in self.outputs]
        places += [
            (len(launch.outputs) + tensors.index(k), frame.offset * x.itemsize)
            for (k, frame), x in zip(self.reads, reads, strict=True)
        ]
        kernel = launch.kernel.with_(cuda=Fused(tuple(steps), tuple(self.stored)))
        return Box(
            launch.with_(kernel=kernel, outputs=tuple(outputs), inputs=(*reads, *scalars)), tuple(places)
        )

    def _number(self, source: int) -> int:
        return source if source < _MOST_READS else source - _MOST_READS + len(self.reads)


def _part_of(meta: Meta | object, frame: Frame) -> Meta:
    assert isinstance(meta, Meta)
    return meta.with_(shape=frame.shape, strides=frame.strides)


def move(of: Meta, operands: Sequence[Sequence[int]], frame: Frame) -> list[Frame] | None:
    """Return where each operand has those elements that a result has at `frame`.

    Args:
        of: The result.
        operands: The strides of operands of the result's shape.
        frame: Places in the memory of the result.

    Returns None if strides cannot describe the elements' places in an operand, or if the result's layout has gaps.
    """
    if frame.strides == of.strides and frame.shape == of.shape and not frame.offset:
        return [Frame(of.shape, tuple(steps), 0) for steps in operands]
    if not is_dense(of.shape, of.strides):
        return None
    dims = merge_dims(of.shape, [of.strides, *operands])
    start = list(_digits(frame.offset, dims))
    steps = [list(_digits(s if n > 1 else 0, dims)) for n, s in zip(frame.shape, frame.strides, strict=True)]
    for i, (size, _) in enumerate(dims):
        if start[i] + sum(step[i] * (n - 1) for step, n in zip(steps, frame.shape, strict=True)) >= size:
            return None
    return [
        Frame(
            frame.shape,
            tuple([sum(step[i] * strides[k] for i, (_, strides) in enumerate(dims)) for step in steps]),
            sum(start[i] * strides[k] for i, (_, strides) in enumerate(dims)),
        )
        for k in range(1, 1 + len(operands))
    ]


def _digits(places: int, dims: Sequence[tuple[int, tuple[int, ...]]]) -> Iterator[int]:
    """Yield a number of places in the memory of a dense result as an index along each dim."""
    for _, strides in dims:
        digit, places = divmod(places, strides[0])
        yield digit

"""Chains of pointwise operators and reductions of rows as one kernel, for `torch.compile`.

The reference implementation runs those of the operators one after the other, so results are bitwise equal to those of
separate launches. Intermediate results are temporary arrays with the layout that a tensor would have, because the last
bits of NumPy's functions depend on strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flambeau.core.meta import Meta
from flambeau.driver.protocol import (
    Body,
    Expression,
    Fold,
    Fused,
    FusedStep,
    FusedView,
    Kernel,
    Launch,
    host_body,
    is_join,
)
from flambeau.ops.pointwise.pointwise_body import Array

_NAMED = 6  # operators that a kernel's name lists


def can_fuse(launch: Launch) -> bool:
    """Return True if a launch computes each element of one output from its row-major index, its random word and the
    inputs' elements at its place.
    """
    kernel = launch.kernel
    form = kernel.cuda
    return (
        isinstance(form, Expression)
        and (launch.outputs[0].plain or not (form.indexed or form.drawn))
        and (form.drawn or not kernel.draws)
        and kernel.cycles is None
        and len(launch.outputs) == 1
        and not launch.updates
    )


def can_fuse_join(launch: Launch) -> bool:
    """Return True for a `cat` that converts nothing."""
    out = launch.outputs[0]
    return is_join(launch) and all(
        isinstance(x, Meta) and x.dtype is out.dtype and x.numel > 0 for x in launch.inputs
    )


def can_fuse_rows(launch: Launch) -> bool:
    """Return True if a launch reduces contiguous rows, the elements along the last dim, to one output each."""
    form, (source, *others) = launch.kernel.cuda, launch.inputs
    if not isinstance(form, Fold) or others or len(launch.outputs) != 1 or not isinstance(source, Meta):
        return False
    return (
        form.dims(launch) == (source.ndim - 1,)
        and not form.first
        and not form.constants(launch)
        and source.plain
        and launch.outputs[0].plain
    )


def fuse(
    steps: Sequence[FusedStep | FusedView],
    inputs: Sequence[Meta | Any],
    stored: Sequence[int],
    outputs: Sequence[Meta],
    has_rows: bool = False,
) -> Launch:
    """Return one launch of several operators.

    Args:
        steps: The operators, in the order of their calls, and views of their results.
        inputs: The operands that they read: tensors' metas as broadcast to the shape, and dtypes of scalars.
        stored: The steps whose results are outputs.
        outputs: The metas of these results.
        has_rows: As in `Fused`.
    """
    form = Fused(tuple(steps), tuple(stored), has_rows)
    draws = any(isinstance(step, FusedStep) and step.launch.kernel.draws for step in steps)
    kernel = Kernel(_name(steps), _host, _flops, cuda=form, draws=draws)
    return Launch(kernel, tuple(outputs), tuple(inputs))


def _name(steps: Sequence[FusedStep | FusedView]) -> str:
    names = [step.launch.kernel.name for step in steps if isinstance(step, FusedStep)]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return f"fused({', '.join(names[:_NAMED] + more)})"


def _form(launch: Launch) -> Fused:
    form = launch.kernel.cuda
    assert isinstance(form, Fused)
    return form


def _flops(launch: Launch) -> int:
    steps = [step.launch for step in _form(launch).steps if isinstance(step, FusedStep)]
    return sum([step.kernel.flops(step) for step in steps])


def _host(launch: Launch) -> Body:
    form = _form(launch)
    output_of = {step: k for k, step in enumerate(form.stored)}
    last_uses = _last_uses(form)
    runs: list[tuple[_Run, list[int]]] = []
    for number, step in enumerate(form.steps):
        run = (
            _host_view(step)
            if isinstance(step, FusedView)
            else _host_step(launch, step, output_of.get(number))
        )
        runs.append((run, last_uses[number]))

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        results: list[Any] = []
        for run, dead in runs:
            results.append(run(outputs, inputs, results))
            for k in dead:
                results[k] = None

    return body


_Run = Callable[[list[Array], list[Any], list[Any]], Array]
"""What computes the result of a step from outputs, inputs and earlier results."""


def _host_step(launch: Launch, step: FusedStep, output: int | None) -> _Run:
    alone = step.launch.with_(capability=launch.capability)
    run, make = host_body(alone), _temporary(alone.outputs[0])
    sources = [
        (k, x.shape if isinstance(x, Meta) else None) for k, x in zip(step.sources, alone.inputs, strict=True)
    ]

    def compute(outputs: list[Array], inputs: list[Any], results: list[Any]) -> Array:
        result = make() if output is None else outputs[output]
        run([result], [inputs[k] if k >= 0 else _fit(results[-1 - k], shape) for k, shape in sources])
        return result

    return compute


def _host_view(step: FusedView) -> _Run:
    meta, item = step.meta, step.meta.itemsize
    first = step.offset // item

    def view(outputs: list[Array], inputs: list[Any], results: list[Any]) -> Array:
        whole = results[-1 - step.source]
        flat = np.lib.stride_tricks.as_strided(whole, (first + meta.span // item,), (item,))
        return np.lib.stride_tricks.as_strided(flat[first:], meta.shape, meta.byte_strides)

    return view


def _fit(result: Array, shape: tuple[int, ...] | None) -> Array:
    """Return a result as the next step reads it: those of rows are broadcast to elements."""
    return result if result.shape == shape or shape is None else np.broadcast_to(result, shape)


def _last_uses(form: Fused) -> list[list[int]]:
    """Return the results that each step is the last to use. A view uses the memory of its result."""
    last = {k: k for k in range(len(form.steps))}
    for number, step in enumerate(form.steps):
        for source in [step.source] if isinstance(step, FusedView) else step.sources:
            if source < 0:
                last[-1 - source] = number
    dead: list[list[int]] = [[] for _ in form.steps]
    for result, number in last.items():
        dead[number].append(result)
    return dead


def _temporary(meta: Meta) -> Callable[[], Array]:
    """Return a function that creates an array of a tensor's layout."""
    kind = meta.dtype.numpy
    if meta.plain:
        return lambda: np.empty(meta.shape, kind)
    return lambda: np.ndarray(meta.shape, kind, np.empty(meta.span, np.uint8), 0, meta.byte_strides)

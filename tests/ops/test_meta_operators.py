"""The meta device: every operator infers there what it computes on the CPU, in shape, strides and dtype, without data."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from flambeau.core.device import CPU, META
from flambeau.core.dtype import dtype
from flambeau.ops.op import Op
from flambeau.tensor.call import call
from flambeau.testing import operator_properties

KINDS = {"float32", "int64", "complex64"}
LAYOUTS = (
    operator_properties.plain,
    operator_properties.reversed_dims,
    operator_properties.channels_innermost,
)


def _layouts(result: Any) -> list[tuple[Any, ...]]:
    results = result if isinstance(result, tuple) else (result,)
    return [(t.meta.shape, t.meta.strides, t.meta.dtype) for t in results]


def _compare(op: Op, kind: dtype) -> list[str]:
    """Return a line for each sample whose result on the meta device differs from the CPU's."""
    found = []
    for inputs, params in op.samples(operator_properties.maker(kind, 0), kind):
        for layout in LAYOUTS:
            try:
                want = _layouts(call(op, operator_properties._laid_out(inputs, layout, CPU), params))
            except (RuntimeError, IndexError, TypeError, ValueError):
                continue
            moved = tuple([META if p is CPU else p for p in params])
            try:
                result = call(op, operator_properties._laid_out(inputs, layout, META), moved)
                have: Any = _layouts(result)
                if any(not t.is_meta for t in (result if isinstance(result, tuple) else (result,))):
                    have = "not on the meta device"
            except Exception as error:
                have = repr(error)
            if have != want:
                shapes = [getattr(x, "shape", x) for x in inputs]
                found.append(
                    f"{op.name} {kind} {layout.__name__} {shapes} {params}: {have}, on the CPU {want}"
                )
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_meta_results_are_laid_out_as_on_the_cpu(kind: str) -> None:
    faults: list[str] = []
    compared = 0
    for op, each in operator_properties.cases():
        if each.name == kind:
            compared += 1
            faults += _compare(op, each)
    worst = Counter(line.split()[0] for line in faults).most_common()
    assert not faults, f"{worst}\n" + "\n".join(faults[:20])
    assert compared > 80

"""The choice of a launch's native body, by the form of its CUDA implementation.

# Note [Native bodies and layouts]
Problem: native code and NumPy add in different orders and approximate functions differently, so their last bits differ.
Rule: an output's layout never decides between them. If native code supports a launch only with contiguous operands,
    its operands are copied. So `out=` and new tensors have the same bits, on the CPU and on virtual GPUs.
Consequences: a reduction of an input that is not contiguous is left to NumPy, whose order depends on that layout too.
    A formula whose bits are those of NumPy is left to it wherever NumPy is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flambeau.core.host_arrays import address_of
from flambeau.core.meta import Meta
from flambeau.driver.host.kernels.native import (
    added_rows,
    element_bodies,
    expression_operators,
    folds,
    lists,
    row_bodies,
    scans,
    top_elements,
)
from flambeau.driver.host.kernels.native.kernel_library import KernelLibrary, library
from flambeau.driver.protocol import Body, Expression, Fold, Launch, Lists, NativeBody, Routine, Scan
from flambeau.ops.cache_blocks import Array, contiguous


def native_body(launch: Launch) -> Body | None:
    """Return the native body of a launch; None if NumPy computes it."""
    loaded = library()
    if loaded is None:
        return None
    body, dense = _body(loaded, launch), _with_dense_operands(launch)
    if body is not None or dense is launch:
        return body
    body = _body(loaded, dense)
    return None if body is None else _through_copies(launch, dense, body)


def native_step(launch: Launch) -> Callable[..., Array] | None:
    """Return the native code of a statement of an expression: `code(*arrays)`. None if NumPy computes it.

    It has the bits of the native body of the launch, so an expression has those of its operators, one after the other.
    """
    loaded, form = library(), launch.kernel.cuda
    return (
        None
        if loaded is None or not isinstance(form, Expression)
        else expression_operators.step(loaded, launch, form)
    )


def add_rows(out: Array, dim: int, places: Array, source: Array) -> bool:
    """Call `added_rows.add_rows` with the library of the process."""
    loaded = library()
    return loaded is not None and added_rows.add_rows(loaded, out, dim, places, source)


def select_top(rows: Array, count: int, largest: bool) -> tuple[Array, Array] | None:
    """Call `top_elements.top_elements` with the library of the process."""
    loaded = library()
    return None if loaded is None else top_elements.top_elements(loaded, rows, count, largest)


def _body(library: KernelLibrary, launch: Launch) -> NativeBody | None:
    form = launch.kernel.cuda
    if isinstance(form, Expression):
        return element_bodies.body(library, launch, form)
    if isinstance(form, Lists):
        return lists.body(library, launch, form)
    if isinstance(form, Fold):
        return folds.body(library, launch, form)
    if isinstance(form, Scan):
        return scans.body(library, launch, form)
    return row_bodies.body(library, launch, form) if isinstance(form, Routine) else None


def _with_dense_operands(launch: Launch) -> Launch:
    """Return a launch with contiguous operands whose native body serves `launch` as well; `launch` if there is none.

    See Note [Native bodies and layouts].
    """
    form = launch.kernel.cuda
    if isinstance(form, Lists) or (
        isinstance(form, Expression) and element_bodies.has_numpys_bits(launch, form)
    ):
        return launch
    outputs = tuple([_dense(x) for x in launch.outputs])
    inputs = launch.inputs if isinstance(form, Fold) else tuple([_dense(x) for x in launch.inputs])
    same = outputs == launch.outputs and inputs == launch.inputs
    return launch if same else launch.with_(outputs=outputs, inputs=inputs)


def _dense(x: Any) -> Any:
    return Meta.contiguous_of(x.shape, x.dtype, x.device) if isinstance(x, Meta) and not x.contiguous else x


def _through_copies(launch: Launch, dense: Launch, body: NativeBody) -> Body:
    """Return a body of `launch` that runs the body of `dense` on contiguous copies of the operands that are not
    contiguous.
    """
    copied = [x is not y for x, y in zip(launch.operands, dense.operands, strict=True)]
    count = len(launch.outputs)

    def run(outputs: list[Array], inputs: list[Any]) -> None:
        tensors = [x for x in inputs if isinstance(x, np.ndarray)]
        results = [
            np.empty(x.shape, x.dtype) if copy else x for x, copy in zip(outputs, copied, strict=False)
        ]
        sources = [contiguous(x) if copy else x for x, copy in zip(tensors, copied[count:], strict=True)]
        scalars = [x for x in inputs if not isinstance(x, np.ndarray)]
        body.run_at([address_of(x) for x in (*results, *sources)], scalars)
        for out, result in zip(outputs, results, strict=True):
            if result is not out:
                np.copyto(out, result)

    return run

"""Formulas of lists of tensors, a block of elements at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype
from flambeau.core.meta import Meta, alike
from flambeau.driver.protocol import Body, Launch
from flambeau.ops.copy import Store, caster
from flambeau.ops.multi_tensor.foreach import Array, Arrays, computed_dtype
from flambeau.ops.op import table

BLOCK = 1 << 14  # elements that are processed together: a dozen temporaries stay in a core's cache


def foreach(launch: Launch) -> Body:
    """Return the body that applies a formula to lists of tensors."""
    record: Any = table[launch.kernel.name]
    formula, flag, (count, options) = record.formula, record.flag, launch.params
    metas = [x for x in launch.inputs if isinstance(x, Meta)]
    kind, tensors = computed_dtype(launch), len(metas) - flag
    metas = metas[:tensors]
    read = [_caster(x.dtype, kind) for x in metas]
    write = [_caster(kind, x.dtype) for x in launch.outputs[: len(launch.outputs) - flag]]
    flat = [_all_alike([*metas[m::count], *launch.outputs[m : len(write) : count]]) for m in range(count)]
    at_once = [
        not flat[m] or (metas[m].numel <= BLOCK and not any(read) and not any(write)) for m in range(count)
    ]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        scalars, last = inputs[tensors + flag :], len(outputs) - flag
        found = False
        for m in range(count):
            x, y = inputs[m:tensors:count], outputs[m:last:count]
            if flat[m]:
                x, y = [_flat(a) for a in x], [_flat(a) for a in y]
            parts = (slice(None),) if at_once[m] else _parts(y[0].size)
            for part in parts:
                taken = [_read_part(a, part, load, kind) for a, load in zip(x, read[m::count], strict=True)]
                results = formula(Arrays, options, taken, scalars)
                for target, result, store in zip(y, results, write[m::count], strict=not flag):
                    _put(target[part], result, store, kind)
                found |= flag and bool(np.any(results[-1]))
        if flag:
            outputs[-1][...] = 1 if found else inputs[tensors]

    return body


def _all_alike(metas: Sequence[Meta]) -> bool:
    """Return True if all tensors with more than one element are dense in the same order, so that memory can be read
    flat.
    """
    return all(x.numel == 1 or alike(x, metas[0]) for x in metas)


def _flat(a: Array) -> Array:
    """Return the elements of a dense array in the order of memory, as a view."""
    return a.reshape(-1) if a.flags.c_contiguous else np.ravel(a, order="K")


def _parts(size: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, size, BLOCK))


def _read_part(whole: Array, part: slice, load: Store | None, kind: dtype) -> Array:
    """Return a slice of a list's tensor, in the dtype of the computation. A tensor of one element is returned whole."""
    taken = whole[part] if whole.size > 1 else whole
    if load is None:
        return taken
    new = np.empty(taken.shape, kind.numpy)
    load(new, taken)
    return new


def _put(target: Array, result: Any, store: Store | None, kind: dtype) -> None:
    if store is None:
        target[...] = result
    else:
        store(target, np.broadcast_to(np.asarray(result, kind.numpy), target.shape))


def _caster(source: dtype, target: dtype) -> Store | None:
    return None if target is source else caster(source, target)

"""`update`: run a record over lists of tensors, in place; `norms` of a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.layout import may_self_overlap
from flambeau.ops.multi_tensor.foreach import Foreach
from flambeau.ops.multi_tensor.foreach_copy import foreach_copy, foreach_scaled
from flambeau.ops.multi_tensor.foreach_norm import foreach_norm
from flambeau.ops.op import Signature
from flambeau.runtime import current
from flambeau.runtime.hooks import launch_deferral
from flambeau.tensor import call as engine
from flambeau.tensor.tensor import Tensor

MOST = 256  # tensors in one launch, whose addresses are parameters of a kernel


def update(
    record: Foreach, lists: Sequence[Sequence[Tensor]], scalars: Sequence[float], options: Any
) -> None:
    """Update lists of tensors in place, with one launch for up to 256 tensors of each list. Autograd does not record
    it.

    Args:
        lists: Lists of equal length, of tensors on one device, each list of one dtype. The m-th tensors have equal
            shapes, or one element.

    Raises:
        RuntimeError: If that is not the case; nothing has changed then.
    """
    count = len(lists[0])
    for start in range(0, count, MOST):
        part = lists if count <= MOST else [x[start : start + MOST] for x in lists]
        changed = [t for k in record.changed(options) for t in part[k]]
        _run(record, changed, [t for x in part for t in x], scalars, (len(part[0]), options))


def update_flagged(record: Foreach, lists: Sequence[Sequence[Tensor]], flag: Tensor) -> None:
    """Update lists, and set a float32 flag of one element to 1 if the operator reports non-finite values; see
    `update`.
    """
    for start in range(0, len(lists[0]), MOST):
        part = [x[start : start + MOST] for x in lists]
        changed = [t for k in record.changed(()) for t in part[k]]
        _run(record, [*changed, flag], [*[t for x in part for t in x], flag], (), (len(part[0]), ()))


def copy(targets: Sequence[Tensor], sources: Sequence[Tensor], scale: float | None = None) -> None:
    """Copy each source, times `scale` if it is not None, to the target of equal shape. All are on one device, each list
    of one dtype.
    """
    record, scalars = (foreach_copy, ()) if scale is None else (foreach_scaled, (scale,))
    for start in range(0, len(targets), MOST):
        here, there = targets[start : start + MOST], sources[start : start + MOST]
        _run(record, here, there, scalars, (len(here), ()), tuple([t.meta for t in here]))


def norms(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    """Return the vector norms of tensors of one device and dtype, one launch for up to 256 tensors. Autograd does not
    record it.
    """
    parts = [tensors[start : start + MOST] for start in range(0, len(tensors), MOST)]
    return [engine.call(foreach_norm, part, (order,)) for part in parts]


def _run(
    record: Foreach,
    changed: Sequence[Tensor],
    tensors: Sequence[Tensor],
    scalars: Sequence[float],
    params: tuple[Any, ...],
    targets: Any = (),
) -> None:
    """Launch one update. `targets` holds the metas of changed tensors that are not operands."""
    key = (record, params, *[t.meta for t in tensors], *map(type, scalars), targets, "update")
    args = [*tensors, *scalars]
    plan = engine.plans.get(key)
    if plan is None:
        plan = engine.plans[key] = _plan(record, changed, args, params)
    launch_deferral.settle(f"{record.name} changes lists of tensors")
    stream = current.local.streams[plan.index]
    engine._launch(plan, [t.ptr for t in changed], args, stream)
    for t in changed:
        t.counter.version += 1


def _plan(
    record: Foreach, changed: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...]
) -> engine.CallPlan:
    decided = engine.signature(record, args, params)
    metas = tuple([t.meta for t in changed])
    if any(may_self_overlap(meta.shape, meta.strides) for meta in metas):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    return engine._load(record, args, Signature(metas, decided.inputs, decided.params))

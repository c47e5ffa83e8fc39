"""The reference implementation of pointwise operators: conversions around an arithmetic of NumPy arrays.

# Note [How a pointwise body computes]
The operands are converted to the common dtype, as PyTorch's iterator converts them. What NumPy cannot compute
in (half, bfloat16, complex32) is widened to float32 or complex64, computed there, and rounded once. Where
every dtype is native and the arithmetic is a ufunc, it writes straight to the output: no temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from flambeau.core.dtype import bool_, dtype
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Launch, Steps
from flambeau.ops.copy import caster
from flambeau.ops.pointwise.dtype_promotion import wide

Array = np.ndarray[Any, Any]
Compute = Callable[..., Any]
"""The arithmetic: a ufunc, or a function of arrays and NumPy scalars of one computing dtype, and of params."""
Prepare = Callable[[Any], Any]


class Lazy:
    """A pointwise function that `load(launch)` selects when a kernel is loaded, for libraries that are imported
    late.
    """

    def __init__(self, load: Callable[[Launch], Compute | Into]) -> None:
        self.load = load


class Into:
    """A pointwise function that writes its result into `out`, without a temporary or a copy.

    Attributes:
        store: The function, called as `store(*operands, *params, out=None)`.
    """

    def __init__(self, store: Compute) -> None:
        self.store = store


def load_body(
    launch: Launch, compute: Compute | Lazy | Into, natural: dtype, conditions: int, wide_scalars: bool
) -> Body:
    """Return the reference implementation of a launch. See Note [How a pointwise body computes]."""
    common, *static = launch.params
    if isinstance(compute, Lazy):
        compute = compute.load(launch)
    prepare = [
        _prepare(x, bool_ if i < conditions else common, wide_scalars) for i, x in enumerate(launch.inputs)
    ]
    out = launch.outputs[0].dtype
    native = wide(common) is common and wide(natural) is natural and natural is out
    if isinstance(compute, np.ufunc) and native and not static:
        return _direct(compute, prepare, launch.inputs)
    if isinstance(compute, Into):
        if native:
            return _storing_body(compute.store, prepare, tuple(static))
        compute = compute.store
    return _general(compute, prepare, tuple(static), _finish(natural, out))


def _direct(ufunc: np.ufunc, prepare: list[Prepare | None], inputs: Sequence[Any]) -> Body:
    """Return a reference implementation in which a NumPy ufunc writes directly into the output."""
    ready = [p is None or not isinstance(x, Meta) for p, x in zip(prepare, inputs, strict=True)]
    if all(ready) and any(isinstance(x, Meta) for x in inputs):  # a Python scalar has the dtype of the arrays
        if len(inputs) == 2:
            return lambda outputs, inputs: ufunc(inputs[0], inputs[1], out=outputs[0])
        return lambda outputs, inputs: ufunc(*inputs, out=outputs[0])

    prepared = _preparation(prepare)
    return lambda outputs, inputs: ufunc(*prepared(inputs), out=outputs[0])


def _storing_body(store: Compute, prepare: list[Prepare | None], static: tuple[Any, ...]) -> Body:
    prepared = _preparation(prepare)
    if not (static or any(prepare)):
        return lambda outputs, inputs: store(*inputs, out=outputs[0])
    return lambda outputs, inputs: store(*prepared(inputs), *static, out=outputs[0])


def _general(
    compute: Compute,
    prepare: list[Prepare | None],
    static: tuple[Any, ...],
    finish: Callable[[Array, Any], None],
) -> Body:
    prepared = _preparation(prepare)
    return lambda outputs, inputs: finish(outputs[0], compute(*prepared(inputs), *static))


def _preparation(prepare: list[Prepare | None]) -> Callable[[list[Any]], list[Any]]:
    """Return the function that prepares all inputs; None if no input needs preparation."""
    steps = [(i, p) for i, p in enumerate(prepare) if p is not None]
    if not steps:
        return lambda inputs: inputs

    def prepare_inputs(inputs: list[Any]) -> list[Any]:
        values = inputs.copy()
        for i, p in steps:
            values[i] = p(values[i])
        return values

    return prepare_inputs


def _prepare(x: Meta | dtype | type[object], common: dtype, wide_scalars: bool) -> Prepare | None:
    """Return the function that converts an input to the computing dtype; None if no conversion is needed."""
    if not isinstance(x, Meta):
        return _prepare_scalar(x, wide(common))
    steps = _tensor_steps(x, common, wide_scalars)
    return _chain((x.dtype, *steps)) if steps else None


def _tensor_steps(x: Meta, common: dtype, wide_scalars: bool) -> Steps:
    """Return the dtypes through which a tensor is converted before the arithmetic, on every device."""
    target = wide(common)
    if x.dtype is target:
        return ()
    single = x.dtype is common or common is target or (wide_scalars and not any(x.strides))
    return (target,) if single else (common, target)


def conversion_steps(
    launch: Launch, natural: dtype, conditions: int, wide_scalars: bool
) -> tuple[tuple[Steps, ...], Steps]:
    """Return the conversions of each input and of the result, for a compiler."""
    inputs: list[Steps] = []
    for i, x in enumerate(launch.inputs):
        common = bool_ if i < conditions else launch.params[0]
        if isinstance(x, Meta):
            inputs.append(_tensor_steps(x, common, wide_scalars))
        else:
            assert isinstance(x, dtype)
            target = wide(common)
            inputs.append((target,) if x is target else (target, x, target))
    computed = wide(natural)
    return tuple(inputs), (natural,) if computed is natural else (computed, natural)


def _prepare_scalar(sent: dtype | type[object], target: dtype) -> Prepare:
    assert isinstance(sent, dtype)
    make = target.numpy.type
    if sent is target:
        return make
    rounded = _chain((target, sent, target))
    return lambda value: rounded(np.asarray(value, target.numpy))


def _chain(kinds: tuple[dtype, ...]) -> Prepare:
    """Return a function that converts to each dtype of `kinds` in turn, into new arrays."""
    steps = [(caster(a, b), b.numpy) for a, b in pairwise(kinds)]

    def convert(x: Any) -> Any:
        for store, to in steps:
            new = np.empty(x.shape, to)
            store(new, x)
            x = new
        return x

    return convert


def _assign(target: Array, x: Any) -> None:
    target[...] = x


def _finish(natural: dtype, out: dtype) -> Callable[[Array, Any], None]:
    """Return the function that rounds a computed array to the result's dtype, once, and stores it."""
    computed = wide(natural).numpy
    if wide(natural) is natural is out:
        return _assign
    store = caster(natural, out)
    if wide(natural) is natural:
        return lambda target, x: store(target, np.asarray(x, computed))
    round_once = caster(wide(natural), natural)
    if natural is out:
        return lambda target, x: round_once(target, np.asarray(x, computed))

    def finish(target: Array, x: Any) -> None:
        x = np.asarray(x, computed)
        rounded = np.empty(x.shape, natural.numpy)
        round_once(rounded, x)
        store(target, rounded)

    return finish

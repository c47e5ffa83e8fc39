"""The pointwise family: one output element from the input elements at the same (broadcast) place.

`pointwise` makes the record of one operator from its arithmetic; the family supplies promotion, broadcasting,
the result's layout, conversions, and a host body that does as little as the dtypes allow. The operators
themselves are in `pointwise_arithmetic`, `pointwise_functions` and `pointwise_logic`.

# Note [How a pointwise body computes]
The operands are converted to the common dtype, as PyTorch's iterator converts them. What NumPy cannot compute
in (half, bfloat16, complex32) is widened to float32 or complex64, computed there, and rounded once. Where
every dtype is native and the arithmetic is a ufunc, it writes straight to the output: no temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import (
    COMPLEX,
    DTYPES,
    FLOATING,
    INTEGRAL,
    bfloat16,
    bool_,
    combine,
    complex32,
    complex64,
    complex128,
    dtype,
    dtype_of_scalar,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    uint16,
    uint32,
    uint64,
)  # fmt: skip
from flambeau.core.frozen import Record
from flambeau.core.layout import broadcast_shapes, expand_strides, result_strides
from flambeau.core.meta import Meta
from flambeau.driver.api import Body, Expression, Kernel, Launch, Steps
from flambeau.ops.autocast_rules import UNCHANGED, AutocastRule
from flambeau.ops.copy import caster
from flambeau.ops.op import (
    MISSING,
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    common_device,
    define,
)
from flambeau.ops.pointwise.public_forms import USUAL, PublicForms

Array = np.ndarray[Any, Any]
Compute = Callable[..., Any]
"""The arithmetic: a ufunc, or a function of arrays and NumPy scalars of one computing dtype, and of params."""
Prepare = Callable[[Any], Any]

WIDE_UNSIGNED = (uint16, uint32, uint64)
FLOAT8 = (float8_e4m3fn, float8_e5m2)
REFUSED = (*WIDE_UNSIGNED, *FLOAT8)  # most operators store and convert these, but do not compute with them
ALL = tuple(d for d in DTYPES if d not in REFUSED)
FLOATS = tuple(d for d in ALL if d.category == FLOATING)
COMPLEXES = tuple(d for d in ALL if d.category == COMPLEX)
INTEGERS = tuple(d for d in ALL if d.category == INTEGRAL)
BITS = (bool_, *INTEGERS)
REALS = (*BITS, *FLOATS)
NUMBERS = (*INTEGERS, *FLOATS)
FLOATING_OR_COMPLEX = (*FLOATS, *COMPLEXES)

WIDE = {float16: float32, bfloat16: float32, complex32: complex64} | dict.fromkeys(FLOAT8, float32)


def wide(kind: dtype) -> dtype:
    """Return the dtype that a body computes in for operands of `kind`."""
    return WIDE.get(kind, kind)


# -- promotion: from the operands' common dtype to the one computed in, and the result's ----------------


def result_type(operands: Iterable[Operand], default: dtype) -> dtype:
    """Return the dtype in which an operator on these operands computes."""
    dimensioned, zero_dim, scalars = [], [], []
    for x in operands:
        if not isinstance(x, Meta):
            scalars.append(dtype_of_scalar(x, default))
        elif x.ndim:
            dimensioned.append(x.dtype)
        else:
            zero_dim.append(x.dtype)
    return combine(dimensioned, zero_dim, scalars)


class Promotion(Record):
    """How an operator's dtypes follow from its operands and the default dtype.

    common: the dtype that it computes in. result: the result's, from that.
    """

    common: Callable[[Sequence[Operand], dtype], dtype] = result_type
    result: Callable[[dtype], dtype] = lambda kind: kind


def _to_float(operands: Sequence[Operand], default: dtype) -> dtype:
    kind = result_type(operands, default)
    return default if kind.category <= INTEGRAL else kind


def _to_double(operands: Sequence[Operand], default: dtype) -> dtype:
    complexes = [x for x in operands if x is complex or (isinstance(x, Meta) and x.dtype.is_complex)]
    return complex128 if complexes else float64


ARITHMETIC = Promotion()
TO_FLOAT = Promotion(common=_to_float)
TO_DOUBLE = Promotion(common=_to_double)
TO_BOOL = Promotion(result=lambda kind: bool_)
TO_REAL = Promotion(result=lambda kind: kind.to_real())
FLOAT_TO_REAL = Promotion(common=_to_float, result=lambda kind: kind.to_real())
TO_COMPLEX = Promotion(result=lambda kind: kind.to_complex())


# -- the record -----------------------------------------------------------------------------------------


class Pointwise(Op, kw_only=True):
    """A pointwise operator, with what its public form needs.

    arity: how many operands. scalars: positions at which the public function takes Python scalars.
    summary: one line, the docstring of its public forms. forms: the public names that are bound from the record.
    compute, promotion, conditions: as `pointwise` was given them. static: whether it takes static params.
    """

    compute: Compute | Lazy | Into
    promotion: Promotion
    conditions: int
    static: bool
    arity: int = 1
    scalars: tuple[int, ...] = ()
    summary: str = ""
    forms: PublicForms = USUAL


def pointwise(
    name: str,
    compute: Compute | Lazy | Into,
    arity: int,
    summary: str,
    *,
    cuda: str | Callable[[Launch], str],
    header: str = "",
    constants: Callable[[Sequence[Any]], Sequence[float]] = lambda static: (),
    promotion: Promotion = ARITHMETIC,
    dtypes: tuple[dtype, ...] = ALL,
    stub: str | None = None,
    check: Callable[[dtype, Sequence[Operand]], None] | None = None,
    scalars: tuple[int, ...] = (),
    promoting: slice = slice(None),
    conditions: int = 0,
    leading: int = 0,
    checked: tuple[int, ...] = (),
    checked_narrow: tuple[int, ...] = (),
    wide_scalars: bool = False,
    flops: int = 1,
    low: float = -3,
    high: float = 3,
    params: tuple[tuple[Any, ...], ...] = ((),),
    examples: tuple[tuple[Any, ...], ...] = (),
    derivative: Derivative = MISSING,
    autocast: AutocastRule = UNCHANGED,
    forms: PublicForms = USUAL,
    functions: str = "",
    listed: bool = True,
) -> Pointwise:
    """Define a pointwise operator.

    compute: `compute(*operands, *params)` on arrays of the computing dtype, see the Note above.
    cuda: the same as a C++ expression of a, b, c, ...; `constants` are numbers k0, k1, ... from the static params,
        `header` the file of driver/cuda whose functions it calls.
    promotion: how dtypes follow. `dtypes`: those that it computes in. `stub`: PyTorch's name in its refusal.
    check: raises what PyTorch raises for a common dtype, before anything else.
    promoting: the operands whose dtypes decide. `conditions`: leading operands that stay bool.
    leading: the operand whose order of dimensions the result has, where they differ.
    checked: positions of scalars that must fit the common dtype, else PyTorch's overflow error;
        `checked_narrow` only where that is an integer dtype or narrower than float32.
    scalars: positions at which scalars are to PyTorch tensors of no dimensions, which its layouts tell from numbers.
    wide_scalars: scalars are not rounded to half before use.
    derivative: see Note [Derivatives]; none where the result is bool or only integers are taken.
    low, high: the range of sample values. `params`: the sample params. `examples`: scalars after the tensors.
    forms: the public names that are bound from the record.
    functions: C++ functions that `cuda` calls. listed: whether it goes into the table of operators.
    """

    def common_of(operands: Sequence[Operand], default: dtype) -> dtype:
        common = promotion.common(operands[promoting], default)
        if check is not None:
            check(common, operands)
        if common not in dtypes:
            broadcast_shapes(
                [x.shape for x in operands if isinstance(x, Meta)]
            )  # PyTorch compares these first
            raise NotImplementedError(
                f"\"{stub or name + '_cpu'}\" not implemented for '{common.torch_name}'"
            )
        return common

    fast: dict[tuple[Any, ...], tuple[dtype, dtype, dtype, tuple[int, ...]]] = {}

    def decide(operands: Sequence[Operand], default: dtype) -> tuple[dtype, dtype, dtype, tuple[int, ...]]:
        """Return the dtypes of the arithmetic, of scalars and of the result, and the scalars that must fit."""
        common = common_of(operands, default)
        narrow = wide(common) is not common or common.category == INTEGRAL
        fit = (*checked, *checked_narrow) if narrow else checked
        return common, wide(common) if wide_scalars else common, promotion.result(common), fit

    def rule_of_equal_layouts(operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature | None:
        """Return what `rule` does where all tensors are contiguous, of one shape that is not (), on one device.

        A new shape of a call that has run before then costs a few lookups. A number at one of `scalars` is to PyTorch
        a tensor of another shape, whose rule of the layout differs where a dimension has one element or none.
        """
        first: Any = next((x for x in operands if isinstance(x, Meta)), None)
        if first is None or not (first.plain and first.shape):
            return None
        shape, device = first.shape, first.device
        kinds: list[dtype | type[object]] = []
        for i, x in enumerate(operands):
            if not isinstance(x, Meta):
                if i in scalars and min(shape) < 2:
                    return None
                kinds.append(x)
            elif x is first or (x.plain and x.shape == shape and x.device is device):
                kinds.append(x.dtype)
            else:
                return None
        default = given[-1]
        key = (default, *kinds)
        found = fast.get(key)
        if found is None:
            found = fast[key] = decide(operands, default)
        common, scalar, result, fit = found
        inputs = tuple(
            [
                x if isinstance(x, Meta) else bool_ if i < conditions else scalar
                for i, x in enumerate(operands)
            ]
        )
        out = first if first.dtype is result else Meta.of(shape, first.strides, result, device)
        return Signature((out,), inputs, (common, *given[:-1]), fit)

    def rule(operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature:
        found = rule_of_equal_layouts(operands, given)
        if found is not None:
            return found
        *static, default = given
        common, scalar, result, fit = decide(operands, default)
        device = common_device(operands)
        metas = [x for x in operands if isinstance(x, Meta)]
        shape = broadcast_shapes([m.shape for m in metas])
        inputs: list[Meta | dtype] = []
        for i, x in enumerate(operands):
            if isinstance(x, Meta) and x.device is device:
                inputs.append(x.with_(shape, expand_strides(x.shape, x.strides, shape)))
            else:
                inputs.append(bool_ if i < conditions else scalar)
        first = (
            inputs[leading : leading + 1] + inputs[:leading] + inputs[leading + 1 :] if leading else inputs
        )
        seen = [x.strides for x in first if isinstance(x, Meta)]
        counted = [x for i, x in enumerate(operands) if i in scalars or isinstance(x, Meta)]
        differ = len(seen) < len(counted) or any(m.shape != shape for m in metas)
        strides = result_strides(shape, *seen, broadcast=differ) if seen else ()
        out = Meta.of(shape, strides, result, device)
        return Signature((out,), tuple(inputs), (common, *static), fit)

    def host(launch: Launch) -> Body:
        return _body(launch, compute, promotion.result(launch.params[0]), conditions, wide_scalars)

    def takes(kinds: tuple[dtype | type, ...]) -> bool:
        """Return True if tensors of these dtypes and scalars of these types are accepted."""
        common = _common(promotion, kinds[promoting])
        if common is None or common not in dtypes:
            return False
        try:
            if check is not None:
                check(common, [_ONE[k] if isinstance(k, dtype) else k for k in kinds])
        except RuntimeError:
            return False
        return True

    def kinds(launch: Launch) -> tuple[tuple[Steps, ...], Steps]:
        return _steps(launch, promotion.result(launch.params[0]), conditions, wide_scalars)

    form = Expression(
        cuda, kinds, lambda launch: constants(launch.params[1:]), header=header, functions=functions
    )

    def samples(make: Make, kind: dtype) -> Iterable[Sample]:
        return _samples(make, kind, arity, low, high, params, examples, conditions)

    def count(launch: Launch) -> int:
        return flops * launch.outputs[0].numel

    bools, types = (bool_,) * conditions, tuple([type(x) for x in (examples[0] if examples else ())])
    others = arity - conditions - len(types)
    taken = tuple([d for d in DTYPES if takes((*bools, *(d,) * others, *types))])
    if derivative is MISSING and (promotion is TO_BOOL or all(d.category < FLOATING for d in taken)):
        derivative = NOT_DIFFERENTIABLE
    record = Pointwise(
        name, rule, Kernel(name, host, count, cuda=form), taken, samples,
        casts_output=True, flags=("default_dtype",), derivative=derivative, autocast=autocast, compute=compute,
        promotion=promotion,
        conditions=conditions, static=params != ((),), arity=arity, scalars=scalars, summary=summary,
        forms=forms,
    )  # fmt: skip
    return define(record) if listed else record  # type: ignore[return-value]


_ONE = {d: Meta.contiguous_of((1,), d, CPU) for d in DTYPES}


@cache
def _common(promotion: Promotion, kinds: tuple[dtype | type, ...]) -> dtype | None:
    """Return the common dtype of tensors of these dtypes and scalars of these types; None if there is none."""
    try:
        return promotion.common([_ONE[k] if isinstance(k, dtype) else k for k in kinds], float32)
    except RuntimeError:
        return None


def _samples(
    make: Make,
    kind: dtype,
    arity: int,
    low: float,
    high: float,
    params: Sequence[Any],
    examples: Sequence[Any],
    conditions: int,
) -> Iterable[Sample]:
    """Same shapes, broadcast, 0-dim and empty operands; the first with every choice of params."""

    def operands(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
        tensors = arity - (len(examples[0]) if examples else 0)
        made = [make(*shapes[i % len(shapes)], low=low, high=high) for i in range(tensors)]
        return tuple(x != 0 if i < conditions else x for i, x in enumerate(made))

    for static in params:
        for scalars in examples or ((),):
            yield (*operands((3, 4)), *scalars), static
    last = (*examples[0],) if examples else ()
    for shapes in [((3, 1), (4,)), ((),), ((0, 2),), ((2, 3), ())]:
        yield (*operands(*shapes), *last), params[0]


# -- the body -------------------------------------------------------------------------------------------


class Lazy:
    """Arithmetic decided when a kernel is loaded, `load(launch)`: of a library imported only then, or by device."""

    def __init__(self, load: Callable[[Launch], Compute | Into]) -> None:
        self.load = load


class Into:
    """Arithmetic that stores into an array itself, `store(*operands, *params, out=None)`: no temporary and no copy."""

    def __init__(self, store: Compute) -> None:
        self.store = store


def _body(
    launch: Launch, compute: Compute | Lazy | Into, natural: dtype, conditions: int, wide_scalars: bool
) -> Body:
    """See Note [How a pointwise body computes]."""
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
            return _stored(compute.store, prepare, tuple(static))
        compute = compute.store
    return _general(compute, prepare, tuple(static), _finish(natural, out))


def _direct(ufunc: np.ufunc, prepare: list[Prepare | None], inputs: Sequence[Any]) -> Body:
    """Return a ufunc that writes its output itself."""
    ready = [p is None or not isinstance(x, Meta) for p, x in zip(prepare, inputs, strict=True)]
    if all(ready) and any(isinstance(x, Meta) for x in inputs):  # a Python scalar takes an array's dtype
        if len(inputs) == 2:
            return lambda outputs, inputs: ufunc(inputs[0], inputs[1], out=outputs[0])
        return lambda outputs, inputs: ufunc(*inputs, out=outputs[0])

    prepared = _preparation(prepare)
    return lambda outputs, inputs: ufunc(*prepared(inputs), out=outputs[0])


def _stored(store: Compute, prepare: list[Prepare | None], static: tuple[Any, ...]) -> Body:
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
    """All inputs, those prepared that need it."""
    steps = [(i, p) for i, p in enumerate(prepare) if p is not None]
    if not steps:
        return lambda inputs: inputs

    def prepared(inputs: list[Any]) -> list[Any]:
        values = inputs.copy()
        for i, p in steps:
            values[i] = p(values[i])
        return values

    return prepared


def _prepare(x: Meta | dtype | type[object], common: dtype, wide_scalars: bool) -> Prepare | None:
    """How an input becomes an array, or a NumPy scalar, of the computing dtype; None where it is one."""
    if not isinstance(x, Meta):
        return _prepare_scalar(x, wide(common))
    steps = _tensor_steps(x, common, wide_scalars)
    return _chain((x.dtype, *steps)) if steps else None


def _tensor_steps(x: Meta, common: dtype, wide_scalars: bool) -> Steps:
    """Return the dtypes that a tensor is converted through before the arithmetic, on every device."""
    target = wide(common)
    if x.dtype is target:
        return ()
    single = x.dtype is common or common is target or (wide_scalars and not any(x.strides))
    return (target,) if single else (common, target)


def _steps(
    launch: Launch, natural: dtype, conditions: int, wide_scalars: bool
) -> tuple[tuple[Steps, ...], Steps]:
    """Return the steps of each input and of the result: what `_prepare` and `_finish` do, for a compiler."""
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
    """Conversion through each of `kinds` in turn, into new arrays."""
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
    """How a computed array is rounded once to the result's dtype and stored as the output's."""
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

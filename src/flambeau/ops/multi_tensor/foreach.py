"""The foreach family: elementwise operators over lists of tensors.

An operator takes lists of equal length and computes the m-th result from the lists' m-th tensors, for all m in one
launch. An optimizer updates every parameter with its states in this way.

# Note [One formula, three readings]
The arithmetic is a formula: a function of values with operators. Called with arrays it is the reference implementation;
called with names it generates C++ statements (`trace_formula`) for the CUDA implementation; called with tensors it is
an ordinary differentiable program (`optim`). Values that are not tensors are Python floats, or doubles in C++, until
they are combined with a tensor's element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flambeau.core.dtype import dtype, float64
from flambeau.core.frozen import Record
from flambeau.core.layout import dense_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, HostRoutine, Kernel, Launch, Lists
from flambeau.ops.op import (
    NOT_DIFFERENTIABLE,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    as_function,
    common_device,
    define,
)
from flambeau.ops.pointwise.compute_dtype import to_computing
from flambeau.ops.pointwise.dtype_promotion import FLOATS, wide
from flambeau.ops.work import element_work

Array = np.ndarray[Any, Any]
Options = tuple[Any, ...]
Formula = Callable[[Any, Any, Sequence[Any], Sequence[Any]], Sequence[Any]]
"""`formula(functions, options, tensors, scalars)`: the new value of each list that changes."""


class Foreach(Op):
    """An operator over lists. Its operands are all tensors, list by list, then scalars; its params are (tensors per
    list, options).

    Attributes:
        changed: Function of the options that returns the lists whose new values are the outputs.
        flag: True if the last list is a single number, which becomes 1 if the formula's last result is true for any
            element.
        sample: Function of `make` and options that returns sample operands and params.
    """

    formula: Formula = lambda functions, options, x, s: ()
    changed: Callable[[Any], tuple[int, ...]] = lambda options: (0,)
    flag: bool = False
    sample: Callable[[Make, Any], Sample] = lambda make, options: ((), ())


class ForeachDefinition(Record):
    """The definition of an operator over lists, as its author writes it.

    Attributes:
        name: The operator's name.
        formula: The arithmetic, see Note [One formula, three readings].
        lists: Function of the options that returns the number of lists.
        scalars: Function of the options that returns sample scalars.
        changed, flag: See `Foreach`.
        options: Sample options.
        positive: Function of the options that returns the lists without negative numbers in samples.
        single: Function of the options that returns how many lists, the last ones, have tensors of one element.
        workspace: See `Kernel.workspace`.
    """

    name: str
    formula: Formula
    lists: Callable[[Any], int]
    scalars: Callable[[Any], Sequence[float]]
    changed: Callable[[Any], tuple[int, ...]] = lambda options: (0,)
    options: Sequence[Any] = ((),)
    flag: bool = False
    positive: Callable[[Any], tuple[int, ...]] = lambda options: ()
    single: Callable[[Any], int] = lambda options: 0
    workspace: Callable[[Launch], tuple[int, ...]] = lambda launch: ()

    def operator(self) -> Foreach:
        """Return the operator, after adding it to the table of operators."""
        form = Lists(
            lambda launch: launch.params[0], self._text, lambda launch: computed_dtype(launch).name, self.flag
        )
        kernel = Kernel(
            self.name, self._body, self._flops, cuda=form, work=element_work.many_tensors,
            workspace=self.workspace, fast=HostRoutine("foreach:foreach"),
        )  # fmt: skip
        record = Foreach(
            self.name, self._infer, kernel, FLOATS, self._samples,
            derivative=NOT_DIFFERENTIABLE, formula=self.formula, changed=self.changed, flag=self.flag,
            sample=self._sample,
        )  # fmt: skip
        define(record)
        return record

    def _infer(self, operands: Sequence[Operand], params: tuple[Any, ...]) -> Signature:
        count, chosen = params
        several = self.lists(chosen)
        metas = _check_lists(operands[: several * count], several, count)
        inputs: list[Meta | dtype] = [*metas]
        outputs = [_like(metas[k * count + m]) for k in self.changed(chosen) for m in range(count)]
        rest = list(operands[several * count :])
        if self.flag:
            number = rest.pop(0)
            assert isinstance(number, Meta)
            inputs.append(number)
            outputs.append(number)
        inputs += [float64] * len(rest)
        common_device(operands)
        return Signature(tuple(outputs), tuple(inputs), params)

    def _body(self, launch: Launch) -> Body:
        count, chosen = launch.params
        return _body(launch, self.formula, count, chosen, self.lists(chosen), self.flag)

    def _text(self, launch: Launch) -> tuple[str, tuple[str, ...]]:
        several = self.lists(launch.params[1])
        total = len(launch.inputs) - several * launch.params[0] - self.flag
        return trace_formula(self.formula, launch.params[1], several, total)

    def _flops(self, launch: Launch) -> int:
        return self._text(launch)[0].count(";") * sum(m.numel for m in launch.outputs)

    def _samples(self, make: Make, kind: dtype) -> Iterable[Sample]:
        return (self._sample(make, chosen) for chosen in self.options)

    def _sample(self, make: Make, chosen: Any) -> Sample:
        shapes = ((3, 4), (5,), (), (2, 0))
        tensors = []
        several = self.lists(chosen)
        for k in range(several):
            low = 0.25 if k in self.positive(chosen) else -3
            is_single = k >= several - self.single(chosen)
            tensors += [make(*(() if is_single else shape), low=low, high=3) for shape in shapes]
        number = [np.zeros((), np.float32)] if self.flag else []
        return (*tensors, *number, *self.scalars(chosen)), (len(shapes), chosen)


foreach = as_function(ForeachDefinition)
"""Define an operator over lists and return it. The arguments are the fields of `ForeachDefinition`."""


def computed_dtype(launch: Launch) -> dtype:
    """Return the dtype of computation: that of the first list, or float32 for narrower dtypes."""
    return wide(launch.outputs[0].dtype)


def _check_lists(operands: Sequence[Operand], several: int, count: int) -> list[Meta]:
    """Return the layouts of all tensors. Check that those at equal positions have equal shapes, or one element."""
    if not count or len(operands) != several * count:
        raise RuntimeError("Tensor list must have at least one tensor.")
    metas = [x for x in operands if isinstance(x, Meta)]
    for m in range(count):
        first = metas[m]
        for x in metas[m::count]:
            if x.shape != first.shape and x.numel != 1:
                raise RuntimeError(
                    f"The size of tensor a {list(first.shape)} must match the size of tensor b {list(x.shape)}"
                )
        if first.dtype not in FLOATS:
            raise NotImplementedError(f"\"foreach\" not implemented for '{first.dtype.torch_name}'")
    return metas


def _like(x: Meta) -> Meta:
    return x.with_(strides=dense_strides(x.shape, x.strides))


# -- the host body ------------------------------------------------------------------------------------------


class Arrays:
    """The functions that formulas call, for arrays."""

    sqrt = staticmethod(np.sqrt)
    abs = staticmethod(np.abs)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)
    where = staticmethod(np.where)
    isfinite = staticmethod(np.isfinite)


def _body(launch: Launch, formula: Formula, count: int, options: Any, several: int, flag: bool) -> Body:
    kind, tensors = computed_dtype(launch), several * count
    converts = [to_computing(kind, x.dtype) for x in launch.inputs[:tensors] if isinstance(x, Meta)]

    def body(outputs: list[Array], inputs: list[Any]) -> None:
        x = [convert(a) for convert, a in zip(converts, inputs, strict=False)]
        scalars, last = inputs[tensors + flag :], len(outputs) - flag
        found = False
        for m in range(count):
            results = formula(Arrays, options, x[m::count], scalars)
            for target, result in zip(outputs[m:last:count], results, strict=not flag):
                target[...] = result
            found |= flag and bool(np.any(results[-1]))
        if flag:
            outputs[-1][...] = 1 if found else inputs[tensors]

    return body


# -- the C++ reading ----------------------------------------------------------------------------------------


class Name:
    """The name of a C++ value, and its kind: an element ("T"), a number that all elements share ("double"), or
    "bool".
    """

    __slots__ = ("kind", "text", "trace")

    def __init__(self, trace: FormulaTrace, text: str, kind: str) -> None:
        self.trace, self.text, self.kind = trace, text, kind

    def __add__(self, other: Any) -> Name:
        return self.trace.operation("+", self, other)

    def __radd__(self, other: Any) -> Name:
        return self.trace.operation("+", other, self)

    def __sub__(self, other: Any) -> Name:
        return self.trace.operation("-", self, other)

    def __rsub__(self, other: Any) -> Name:
        return self.trace.operation("-", other, self)

    def __mul__(self, other: Any) -> Name:
        return self.trace.operation("*", self, other)

    def __rmul__(self, other: Any) -> Name:
        return self.trace.operation("*", other, self)

    def __truediv__(self, other: Any) -> Name:
        return self.trace.operation("/", self, other)

    def __rtruediv__(self, other: Any) -> Name:
        return self.trace.operation("/", other, self)

    def __neg__(self) -> Name:
        return self.trace.keep(self.kind, f"-{self.text}")

    def __gt__(self, other: Any) -> Name:
        return self.trace.operation(">", self, other, "bool")

    def __lt__(self, other: Any) -> Name:
        return self.trace.operation("<", self, other, "bool")

    def __invert__(self) -> Name:
        return self.trace.keep("bool", f"!{self.text}")


class FormulaTrace:
    """The functions that formulas call, for names: each operation adds one C++ statement."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def keep(self, kind: str, text: str) -> Name:
        name = f"t{len(self.lines)}"
        self.lines.append(f"const {kind} {name} = {text};")
        return Name(self, name, kind)

    def operation(self, sign: str, a: Any, b: Any, kind: str = "") -> Name:
        common = "T" if "T" in (_kind(a), _kind(b)) else "double"
        return self.keep(kind or common, f"{_as(common, a)} {sign} {_as(common, b)}")

    def sqrt(self, x: Any) -> Name:
        return self._call("sqrt_", x)

    def abs(self, x: Any) -> Name:
        return self._call("absolute", x)

    def maximum(self, a: Any, b: Any) -> Name:
        return self._call("greater<T>", a, b)

    def minimum(self, a: Any, b: Any) -> Name:
        return self._call("lesser<T>", a, b)

    def where(self, condition: Name, a: Any, b: Any) -> Name:
        return self.keep("T", f"{condition.text} ? {_as('T', a)} : {_as('T', b)}")

    def isfinite(self, x: Name) -> Name:
        return self.keep("bool", f"is_finite({x.text})")

    def _call(self, function: str, *values: Any) -> Name:
        return self.keep("T", f"{function}({', '.join([_as('T', x) for x in values])})")


def _kind(x: Any) -> str:
    return x.kind if isinstance(x, Name) else "double"


def _as(kind: str, x: Any) -> str:
    text = x.text if isinstance(x, Name) else repr(float(x))
    return text if _kind(x) == kind else f"({kind}){text}"


def trace_formula(formula: Formula, options: Any, lists: int, scalars: int) -> tuple[str, tuple[str, ...]]:
    """Return C++ statements over elements x0, x1, ... and numbers s0, s1, ..., and an expression for each result."""
    trace = FormulaTrace()
    x = [Name(trace, f"x{k}", "T") for k in range(lists)]
    s = [Name(trace, f"s{k}", "double") for k in range(scalars)]
    results = formula(trace, options, x, s)
    return "\n".join(trace.lines), tuple([_as(_kind(r) if _kind(r) == "bool" else "T", r) for r in results])

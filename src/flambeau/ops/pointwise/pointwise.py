"""The pointwise family: each output element depends on the input elements at the same (broadcast) index.

The author of an operator writes a `PointwiseDefinition`, from which `pointwise` creates the operator. The family
supplies dtype promotion, broadcasting and the result's layout (`Inference`), conversions and the reference
implementation (`pointwise_body`), and samples. The operators themselves are in `pointwise_arithmetic`,
`pointwise_functions` and `pointwise_logic`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Literal, NamedTuple

from flambeau.core.device import CPU
from flambeau.core.dtype import DTYPES, FLOATING, INTEGRAL, bool_, dtype, float32
from flambeau.core.frozen import Record
from flambeau.core.layout import broadcast_shapes, expand_strides, result_strides
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Body, Expression, Kernel, Launch, Steps, Work, stream_work
from flambeau.ops.autocast_rules import UNCHANGED, AutocastRule
from flambeau.ops.op import (
    MISSING,
    NOT_DIFFERENTIABLE,
    Derivative,
    Make,
    Op,
    Operand,
    Sample,
    Signature,
    as_function,
    common_device,
    define,
)
from flambeau.ops.pointwise.dtype_promotion import ALL, ARITHMETIC, TO_BOOL, Promotion, wide
from flambeau.ops.pointwise.pointwise_body import Compute, Into, Lazy, conversion_steps, load_body
from flambeau.ops.pointwise.public_forms import USUAL, PublicForms

Kinds = tuple[dtype | type, ...]
"""For each operand, the dtype of a tensor or the type of a Python scalar."""
SparseForm = Literal["", "values", "linear"]


class Pointwise(Op, kw_only=True):
    """A pointwise operator with the data that its public functions need.

    Attributes:
        compute, promotion, conditions, arity, scalars, summary, forms, sparse: The values of its
            `PointwiseDefinition`.
        tensors: The number of operands, from the first, that are tensors; scalars follow.
        static: True if it takes static params.
    """

    compute: Compute | Lazy | Into
    promotion: Promotion
    conditions: int
    static: bool
    arity: int = 1
    tensors: int = 1
    scalars: tuple[int, ...] = ()
    summary: str = ""
    forms: PublicForms = USUAL
    sparse: SparseForm = ""

    def joint_formula(self, needs: Sequence[bool]) -> Any:
        """Return one formula for the gradients of these inputs, which runs one kernel; None if there is none."""
        kernels = import_module("flambeau.ops.pointwise.gradient_kernels")  # loaded with the first gradient
        return kernels.joint_formula(self, needs)


class PointwiseDefinition(Record):
    """The definition of a pointwise operator, as its author writes it.

    Attributes:
        name: PyTorch's public name.
        compute: The arithmetic, `compute(*operands, *params)` on arrays of the computing dtype.
            See Note [How a pointwise body computes].
        arity: The number of operands.
        summary: One line, the docstring of its public forms.

        cuda: The arithmetic as a C++ expression of a, b, c, ... and of the constants k0, k1, ...
        header: The file of driver/cuda/include whose functions `cuda` calls.
        functions: Further C++ functions that `cuda` calls.
        constants: The numbers k0, k1, ... from the static params.
        flops: Floating-point operations for each element.

        promotion: The rule by which its dtypes follow from the operands.
        dtypes: The dtypes that it computes in.
        stub: The name that PyTorch's error gives for other dtypes, if it is not `<name>_cpu`.
        check: Raises what PyTorch raises for a common dtype, before anything else.
        promoting: The operands whose dtypes decide.
        conditions: The number of leading operands that stay bool.
        leading: The operand whose order of dimensions the result has, where they differ.

        scalars: Positions at which PyTorch has tensors without dimensions, whose effect on the result's layout
            differs from that of numbers. The public function takes Python scalars there.
        checked: Positions of scalars that must fit the common dtype, else PyTorch's overflow error.
        checked_narrow: Further positions, where that is an integer dtype or narrower than float32.
        wide_scalars: True if scalars are not rounded to half precision before use.

        low, high: The range of sample values.
        params: The sample params.
        examples: Sample scalars, which follow the tensors.

        derivative: See Note [Derivatives]; none where the result is bool or only integers are accepted.
        autocast: The dtypes to which autocast casts its inputs.
        work: See `Kernel.work`.
        recorded_in_place: See `Op`.
        forms: The public names that are bound from the operator.
        sparse: The part of a sparse tensor that it computes. "values": the values, after equal indices are added up,
            because it maps zero to zero; "linear": the values as they are; "": see tensor/sparse/elementwise.py.
        listed: True if it is put in the table of operators.
    """

    name: str
    compute: Compute | Lazy | Into
    arity: int
    summary: str

    cuda: str | Callable[[Launch], str]
    header: str = ""
    functions: str = ""
    constants: Callable[[Sequence[Any]], Sequence[float]] = lambda static: ()
    flops: int = 1

    promotion: Promotion = ARITHMETIC
    dtypes: tuple[dtype, ...] = ALL
    stub: str | None = None
    check: Callable[[dtype, Sequence[Operand]], None] | None = None
    promoting: slice = slice(None)
    conditions: int = 0
    leading: int = 0

    scalars: tuple[int, ...] = ()
    checked: tuple[int, ...] = ()
    checked_narrow: tuple[int, ...] = ()
    wide_scalars: bool = False

    low: float = -3
    high: float = 3
    params: tuple[tuple[Any, ...], ...] = ((),)
    examples: tuple[tuple[Any, ...], ...] = ()

    derivative: Derivative = MISSING
    autocast: AutocastRule = UNCHANGED
    work: Callable[[Launch], Work] = stream_work
    recorded_in_place: bool = True
    forms: PublicForms = USUAL
    sparse: SparseForm = ""
    listed: bool = True

    def operator(self) -> Pointwise:
        """Return the operator, after adding it to the table of operators if it is `listed`."""
        dtypes, derivative = self._first_dtypes(), self.derivative
        if derivative is MISSING and (
            self.promotion is TO_BOOL or all(d.category < FLOATING for d in dtypes)
        ):
            derivative = NOT_DIFFERENTIABLE
        form = Expression(
            self.cuda, self._steps, self._constants, header=self.header, functions=self.functions
        )
        kernel = Kernel(self.name, self._body, self._flops, cuda=form, work=self.work)
        record = Pointwise(
            self.name, Inference(self).infer, kernel, dtypes, self._samples, casts_output=True,
            flags=("default_dtype",), derivative=derivative, autocast=self.autocast, compute=self.compute,
            promotion=self.promotion, conditions=self.conditions, static=self.params != ((),), arity=self.arity,
            tensors=self.arity - len(self.examples[0] if self.examples else ()), scalars=self.scalars,
            summary=self.summary, forms=self.forms, sparse=self.sparse, recorded_in_place=self.recorded_in_place,
        )  # fmt: skip
        if self.listed:
            define(record)
        return record

    def common_dtype(self, operands: Sequence[Operand], default: dtype) -> dtype:
        """Return the dtype that the operator computes in.

        Raises:
            NotImplementedError: If it does not compute in the operands' common dtype.
        """
        common = self.promotion.common(operands[self.promoting], default)
        if self.check is not None:
            self.check(common, operands)
        if common not in self.dtypes:
            broadcast_shapes(
                [x.shape for x in operands if isinstance(x, Meta)]
            )  # PyTorch compares these first
            raise NotImplementedError(
                f"\"{self.stub or self.name + '_cpu'}\" not implemented for '{common.torch_name}'"
            )
        return common

    def _first_dtypes(self) -> tuple[dtype, ...]:
        """Return the dtypes that the operands, other than conditions and scalars, may all have."""
        scalars = tuple([type(x) for x in self.examples[0]]) if self.examples else ()
        tensors = self.arity - self.conditions - len(scalars)
        return tuple(
            [d for d in DTYPES if self._accepts((bool_,) * self.conditions + (d,) * tensors + scalars)]
        )

    def _accepts(self, kinds: Kinds) -> bool:
        common = _common_dtype(self.promotion, kinds[self.promoting])
        if common is None or common not in self.dtypes:
            return False
        try:
            if self.check is not None:
                self.check(common, _operands_of(kinds))
        except RuntimeError:
            return False
        return True

    def _body(self, launch: Launch) -> Body:
        natural = self.promotion.result(launch.params[0])
        return load_body(launch, self.compute, natural, self.conditions, self.wide_scalars)

    def _steps(self, launch: Launch) -> tuple[tuple[Steps, ...], Steps]:
        natural = self.promotion.result(launch.params[0])
        return conversion_steps(launch, natural, self.conditions, self.wide_scalars)

    def _constants(self, launch: Launch) -> Sequence[float]:
        return self.constants(launch.params[1:])

    def _flops(self, launch: Launch) -> int:
        return self.flops * launch.outputs[0].numel

    def _samples(self, make: Make, kind: dtype) -> Iterable[Sample]:
        """Yield operands of equal shapes with every choice of params, then broadcast, 0-dim and empty operands."""
        examples = self.examples or ((),)

        def operands(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
            count = self.arity - len(examples[0])
            tensors = [make(*shapes[i % len(shapes)], low=self.low, high=self.high) for i in range(count)]
            return tuple(x != 0 if i < self.conditions else x for i, x in enumerate(tensors))

        for static in self.params:
            for scalars in examples:
                yield (*operands((3, 4)), *scalars), static
        for shapes in [((3, 1), (4,)), ((),), ((0, 2),), ((2, 3), ())]:
            yield (*operands(*shapes), *examples[0]), self.params[0]


pointwise = as_function(PointwiseDefinition)
"""Define a pointwise operator and return it. The arguments are the fields of `PointwiseDefinition`."""


_ONE = {d: Meta.contiguous_of((1,), d, CPU) for d in DTYPES}


def _operands_of(kinds: Kinds) -> list[Operand]:
    return [_ONE[kind] if isinstance(kind, dtype) else kind for kind in kinds]


@cache
def _common_dtype(promotion: Promotion, kinds: Kinds) -> dtype | None:
    """Return the dtype in which an operator computes for operands of these kinds; None if it supports none."""
    try:
        return promotion.common(_operands_of(kinds), float32)
    except RuntimeError:
        return None


class Decision(NamedTuple):
    """The dtypes of a call of a pointwise operator.

    Attributes:
        common: The dtype of the arithmetic.
        scalar: The dtype as which scalars are passed.
        result: The dtype of the result.
        checked: Positions of scalars that must fit the common dtype.
    """

    common: dtype
    scalar: dtype
    result: dtype
    checked: tuple[int, ...]


class Inference:
    """The inference of a pointwise operator: dtype, shape and strides of its result."""

    __slots__ = ("_conditions", "_decisions", "_definition", "_leading", "_scalars")

    def __init__(self, definition: PointwiseDefinition) -> None:
        self._definition = definition
        self._conditions, self._scalars = definition.conditions, definition.scalars
        self._leading = definition.leading
        self._decisions: dict[tuple[Any, ...], Decision] = {}

    def infer(self, operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature:
        """Return the signature of a call. The last of the params `given` is the default dtype."""
        return self._infer_equal_layouts(operands, given) or self._infer_layouts(operands, given)

    def _decide(self, operands: Sequence[Operand], default: dtype) -> Decision:
        definition = self._definition
        common = definition.common_dtype(operands, default)
        computing, checked = wide(common), definition.checked
        if computing is not common or common.category == INTEGRAL:
            checked += definition.checked_narrow
        scalar = computing if definition.wide_scalars else common
        return Decision(common, scalar, definition.promotion.result(common), checked)

    def _infer_equal_layouts(self, operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature | None:
        """Return the signature if all tensors are contiguous, of one shape that is not (), on one device.

        A new shape of a call that has run before then costs a few lookups. A number at one of `scalars` is to PyTorch
        a tensor of another shape. Then the layout follows another rule if a dimension has one element or none.
        """
        first: Any = next((x for x in operands if isinstance(x, Meta)), None)
        if first is None or not (first.plain and first.shape):
            return None
        shape, device = first.shape, first.device
        kinds: list[dtype | type[object]] = []
        for i, x in enumerate(operands):
            if not isinstance(x, Meta):
                if i in self._scalars and min(shape) < 2:
                    return None
                kinds.append(x)
            elif x is first or (x.plain and x.shape == shape and x.device is device):
                kinds.append(x.dtype)
            else:
                return None
        default = given[-1]
        key = (default, *kinds)
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decisions[key] = self._decide(operands, default)
        common, scalar, result, checked = decision
        conditions = self._conditions
        inputs = tuple(
            [
                x if isinstance(x, Meta) else bool_ if i < conditions else scalar
                for i, x in enumerate(operands)
            ]
        )
        out = first if first.dtype is result else Meta.of(shape, first.strides, result, device)
        return Signature((out,), inputs, (common, *given[:-1]), checked)

    def _infer_layouts(self, operands: Sequence[Operand], given: tuple[Any, ...]) -> Signature:
        *static, default = given
        common, scalar, result, checked = self._decide(operands, default)
        device = common_device(operands)
        shape = broadcast_shapes([x.shape for x in operands if isinstance(x, Meta)])
        inputs: list[Meta | dtype] = []
        for i, x in enumerate(operands):
            if isinstance(x, Meta) and x.device is device:
                inputs.append(x.with_(shape, expand_strides(x.shape, x.strides, shape)))
            else:
                inputs.append(bool_ if i < self._conditions else scalar)
        out = Meta.of(shape, self._result_strides(operands, inputs, shape), result, device)
        return Signature((out,), tuple(inputs), (common, *static), checked)

    def _result_strides(
        self, operands: Sequence[Operand], inputs: Sequence[Meta | dtype], shape: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Return the strides of a result of `shape`; `inputs` are the operands, broadcast to it."""
        leading = self._leading
        ordered = [inputs[leading], *inputs[:leading], *inputs[leading + 1 :]]
        strides = [x.strides for x in ordered if isinstance(x, Meta)]
        if not strides:
            return ()
        counted = [x for i, x in enumerate(operands) if i in self._scalars or isinstance(x, Meta)]
        differ = len(strides) < len(counted) or any(x.shape != shape for x in operands if isinstance(x, Meta))
        return result_strides(shape, *strides, broadcast=differ)

"""`GradientKernels`: a pointwise operator's gradients as one kernel, where their formulas are several operators.

The formulas run once on the nodes of an expression. Their results are expressions too, and so make one operator,
which is differentiable in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import FLOATING, bool_
from flambeau.ops.op import INPUTS, names_of
from flambeau.ops.pointwise.expression import (
    Applied,
    GradientOperators,
    Input,
    Node,
    Number,
    symbolic,
    topological_order,
)
from flambeau.ops.pointwise.pointwise import Pointwise
from flambeau.ops.pointwise.pointwise_functions import conj_physical
from flambeau.ops.pointwise.pointwise_logic import where

_KNOWN = ("grad", "out", *INPUTS)


def joint_formula(record: Pointwise, needs: Sequence[bool]) -> GradientKernels | None:
    """Return the formula of these inputs' gradients as one kernel. Returns None if at most one operator computes them,
    or if a formula does more than apply pointwise operators.
    """
    if record.static:
        return None
    derivative = record.derivative
    known: dict[str, Any] = {name: Input(at) for at, name in enumerate(_KNOWN)}
    known |= {name: known[name] != 0 for name in INPUTS[: record.conditions]}
    known |= {"call": symbolic, "params": ()}
    slopes: dict[int, Node] = {}
    passed: set[int] = set()  # inputs that receive the output's gradient unchanged
    for i, (formula, needed) in enumerate(zip(derivative.formulas, needs, strict=False)):
        if formula is None or not needed:
            continue
        try:
            slope = formula(*[known[name] for name in names_of(formula)])
        except (KeyError, NotImplementedError, TypeError):  # the formula uses what nodes do not support
            return None
        if not isinstance(slope, Node):
            return None
        if slope is known["grad"]:
            passed.add(i)
        else:
            slopes[i] = slope
    steps = [
        x
        for x in topological_order(*slopes.values())
        if isinstance(x, Applied) and x.record is not conj_physical
    ]
    return GradientKernels(record, slopes, passed) if len(steps) > 1 else None


class GradientKernels:
    """The formula that computes several inputs' gradients in one kernel. `names`: the values it needs; see Note
    [Derivatives].
    """

    def __init__(self, record: Pointwise, slopes: dict[int, Node], passed: set[int]) -> None:
        self._passed = passed
        self._formulas: dict[int, Any] = {i: record.derivative.formulas[i] for i in slopes}
        used = {name for formula in self._formulas.values() for name in names_of(formula)}
        self._values = [known for known in _KNOWN if known in used - {"grad"}]
        self._any_order = not any(map(_is_masked, topological_order(*slopes.values())))
        # A number at another position may have a separate formula.
        self._numbers = set(INPUTS[record.tensors :])
        self.names = ("needs", "grad", "call", "params", *self._values)
        place = {_KNOWN.index(name): at for at, name in enumerate(("grad", *self._values))}
        self.kernels = GradientOperators(f"{record.name}_backward", slopes, place)

    def __call__(
        self, needs: Sequence[bool], grad: Any, call: Any, params: tuple[Any, ...], *values: Any
    ) -> list[Any]:
        found = [grad if needed and i in self._passed else None for i, needed in enumerate(needs)]
        wanted = [i for i in self._formulas if needs[i]]
        if self._fits(grad, values):
            for i, result in self.kernels.compute(wanted, call, (grad, *values)):
                found[i] = result
            return found
        known = {"grad": grad, "call": call, "params": params} | dict(zip(self._values, values, strict=True))
        for i in wanted:
            found[i] = self._formulas[i](*[known[name] for name in names_of(self._formulas[i])])
        return found

    def _fits(self, grad: Any, values: Sequence[Any]) -> bool:
        """Return True if the kernel computes the formulas' results: all have one real dtype, and the order of the
        operands does not determine the order of dimensions.
        """
        kind, metas = grad.meta.dtype, [grad.meta]
        if kind.category != FLOATING:
            return False
        for name, x in zip(self._values, values, strict=True):
            if isinstance(x, bool | int | float | complex):
                if name not in self._numbers or isinstance(x, complex):
                    return False
            elif x.meta.dtype is kind or x.meta.dtype is bool_:
                metas.append(x.meta)
            else:
                return False
        if any(meta.sparse for meta in metas):
            return False
        first = metas[0]
        return all(meta.plain or not any(meta.strides) for meta in metas) or (
            self._any_order
            and 0 not in first.strides
            and all(meta.strides == first.strides and meta.shape == first.shape for meta in metas)
        )


def _is_masked(node: Node) -> bool:
    """Return True for `masked_fill`, whose result is contiguous whatever its operands are."""
    return isinstance(node, Applied) and node.record is where and isinstance(node.args[1], Number)

"""`RecordedCall`: the node of an operator's call. `SavedSpec`: the values that its derivative needs."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from flambeau.ops.op import INPUTS, MISSING, Derivative, Op, names_of, table
from flambeau.tape.autograd_node import Node
from flambeau.tape.mode import mode
from flambeau.tensor import dispatch, interception
from flambeau.tensor.autograd.grad_validation import callers, fit_gradient, zeros_of
from flambeau.tensor.autograd.saved import FREED, SavedTensor

if TYPE_CHECKING:
    from flambeau.tensor.autograd.recording import RecordPlan


class RecordedCall(Node):
    """The node of an operator's call. Each operator has a subclass, so that the node has PyTorch's name.

    Attributes:
        record_plan: The decisions that were made for the call beforehand.
        saved_spec: The values that its formulas need.
        saved: These values, in the order of `saved_spec.saved_names`; None after they were freed.
    """

    __slots__ = ("record_plan", "saved", "saved_spec")

    record: Any
    saved: list[Any] | None
    record_plan: RecordPlan
    saved_spec: SavedSpec

    def release(self, finished: Container[Node]) -> None:
        if self.saved_spec.saved_names:
            self.saved = None

    def gradients(self, grads: Sequence[Any], requested: Sequence[bool] | None = None) -> Sequence[Any]:
        use, metas = self.saved_spec, self.record_plan.metas
        values = self.formula_arguments(grads, requested)
        input_grads: list[Any]
        if use.joint_formula is None or (use.is_fused and interception.count and dispatch.is_shown(grads)):
            input_grads = [None] * len(metas)
            for i, formula, pick in use.formulas:
                if requested is None or requested[i]:
                    grad = formula(*pick(values))
                    input_grads[i] = (
                        grad if grad is None or grad.meta is metas[i] else fit_gradient(grad, metas[i])
                    )
            return input_grads
        input_grads = list(use.joint_formula(*use.pick(values)))
        input_grads += [None] * (len(metas) - len(input_grads))
        return [
            None if edge is None else fit_gradient(g, meta)
            for g, edge, meta in zip(input_grads, self.edges, metas, strict=False)
        ]

    def gradients_for(self, requested: Sequence[bool], grads: Sequence[Any]) -> Sequence[Any]:
        return self.gradients(grads, requested)

    def formula_arguments(self, grads: Sequence[Any], requested: Sequence[bool] | None) -> list[Any]:
        """Return the values that formulas may use, in the order of `_AT_BACKWARD` and `saved_names`."""
        use, taped, saved = self.saved_spec, self.record_plan, self.saved
        if saved is None:
            raise RuntimeError(FREED)
        if use.missing is not None:
            raise RuntimeError(use.missing)
        first, every, needs = grads[0], None, use.needs
        if first is None and use.needs_grad:
            first = zeros_of(self.outputs[0])
        if use.needs_grads:
            pairs = zip(grads, self.outputs, strict=True)
            every = tuple([zeros_of(meta) if g is None else g for g, meta in pairs])
        if requested is not None:
            needs = tuple([n and a for n, a in zip(needs, requested, strict=False)])
        values = [first, every, grads, taped.params, taped.metas, needs, callers[0]]
        if saved:
            detached = not mode.recording
            for x in saved:
                if isinstance(x, SavedTensor):
                    x = x.unpack_detached(self) if detached else x.unpack(self)
                values.append(x)
            if use.needs_outs:
                values[-1] = tuple(
                    [x.unpack_detached(self) if detached else x.unpack(self) for x in values[-1]]
                )
        return values

    def __getattr__(self, name: str) -> Any:
        """Return a saved value under PyTorch's name; None if it was not saved, because only formulas of gradients that
        are not needed use it.

        Raises:
            AttributeError: If no formula needs it.
            RuntimeError: If it was freed, or changed in place.
        """
        requested = _names_of_saved(self).get(name)
        if requested is None:
            raise AttributeError(f"'{self.name()}' object has no attribute '{name}'", name=name, obj=self)
        if requested not in self.saved_spec.saved_names:
            return None
        if self.saved is None:
            raise RuntimeError(FREED)
        found = self.saved[self.saved_spec.saved_names.index(requested)]
        return found.unpack(self) if isinstance(found, SavedTensor) else found

    def __dir__(self) -> list[str]:
        """Return the attributes, with PyTorch's names of saved values, which programs that draw graphs list."""
        return sorted({*super().__dir__(), *_names_of_saved(self)})


_USUALLY = {"_saved_self": "a", "_saved_other": "b", "_saved_result": "out"}
_POWER = {"_saved_self": "a", "_saved_exponent": "b"}
_PRODUCT = {"_saved_self": "a", "_saved_mat2": "b"}
_SAVED_AS = {
    "PowBackward0": _POWER,
    "PowBackward1": {**_POWER, "_saved_result": "out"},
    "MmBackward0": _PRODUCT,
    "BmmBackward0": _PRODUCT,
    "AddmmBackward0": {"_saved_mat1": "b", "_saved_mat2": "c"},
    "MvBackward0": {"_saved_self": "a", "_saved_vec": "b"},
}


def _names_of_saved(node: RecordedCall) -> dict[str, str]:
    """Return PyTorch's names of the values that formulas need, with the names of the formulas' parameters."""
    names, parameters = _SAVED_AS.get(node.name(), _USUALLY), _parameters_of(node.record.derivative)
    return {name: value for name, value in names.items() if value in parameters}


class SavedSpec:
    """The values that a derivative needs for one set of inputs that require a gradient.

    Attributes:
        formulas: (input, formula, function that selects its arguments) of these inputs.
        joint_formula, pick: In place of `formulas`, one formula for all inputs, and the function that selects its
            arguments from the values of `_AT_BACKWARD` followed by those of `saved_names`.
        saved_names: Names of the saved values: inputs first, then outputs.
        input_positions: Positions of the inputs that are saved.
        outputs: True if an output is saved.
        needs_outs: True if all outputs are saved as one value, the last.
        needs: For each input, True if it requires a gradient.
        needs_grad: True if formulas use the first output's gradient, which is zeros if none arrived.
        needs_grads: True if formulas use the gradients of all outputs, zeros where none arrived.
        is_fused: True if the joint formula is a kernel that computes what the formulas compute.
        missing: The error text if the derivative is not implemented.
    """

    __slots__ = (
        "formulas",
        "input_positions",
        "is_fused",
        "joint_formula",
        "missing",
        "needs",
        "needs_grad",
        "needs_grads",
        "needs_outs",
        "outputs",
        "pick",
        "saved_names",
    )  # fmt: skip

    def __init__(self, record: Op, needs: tuple[bool, ...], erases: bool = False) -> None:
        derivative = record.derivative
        if erases:
            needs = needs[:-1]
        self.needs = needs
        self.missing = _missing_derivative(record) if derivative is MISSING and any(needs) else None
        self.joint_formula = derivative.whole if any(needs) else None
        # its needs depend on which inputs require a gradient
        bind_needs = getattr(self.joint_formula, "bind_needs", None)
        if bind_needs is not None:
            self.joint_formula = bind_needs(needs)
        self.is_fused = False
        if self.joint_formula is None and not erases and any(needs) and hasattr(record, "joint_formula"):
            self.joint_formula = record.joint_formula(needs)
            self.is_fused = self.joint_formula is not None
        names = () if self.joint_formula is None else names_of(self.joint_formula)
        formulas = [
            (i, formula, names_of(formula))
            for i, (formula, needed) in enumerate(zip(derivative.formulas, needs, strict=False))
            if formula is not None and needed
        ]
        if erases:
            formulas.append((len(needs), _zeros_of_last, names_of(_zeros_of_last)))
        requested = dict.fromkeys(names + tuple([name for _, _, each in formulas for name in each]))
        inputs = [name for name in requested if name in _PLACES]
        self.input_positions = [_PLACES[name] for name in inputs]
        self.saved_names = inputs + [name for name in _OUTPUTS if name in requested]
        self.outputs = len(self.saved_names) > len(inputs)
        self.needs_outs = "outs" in requested
        self.needs_grad, self.needs_grads = "grad" in requested, "grads" in requested
        known = [*_AT_BACKWARD, *self.saved_names]
        self.formulas = [(i, formula, _value_getter(known, each)) for i, formula, each in formulas]
        self.pick = _value_getter(known, names)


def _zeros_of_last(metas: Sequence[Any]) -> Any:
    return zeros_of(metas[-1])


_AT_BACKWARD = (
    "grad",
    "grads",
    "given",
    "params",
    "metas",
    "needs",
    "call",
)  # values known without being saved


def _value_getter(known: list[str], names: tuple[str, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """Return a function that picks the values of `names` out of a sequence of all `known` values."""
    places = [known.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))  # `itemgetter` of one place gives no sequence


def _missing_derivative(record: Op) -> str:
    if table.get(record.name) is record:
        return f"derivative for torch.{record.name} is not implemented in Flambeau"
    return (
        f"the user kernel '{record.name}' has no derivative: torch.cuda.elementwise(..., differentiable=True) makes "
        "one, torch.cuda.jiterator does not"
    )


_OUTPUTS = ("out", "out1", "out2", "outs")


def _parameters_of(derivative: Derivative) -> set[str]:
    formulas = [f for f in (derivative.whole, *derivative.formulas) if f is not None]
    return {name for formula in formulas for name in names_of(formula)}


_PLACES = {letter: i for i, letter in enumerate(INPUTS)}

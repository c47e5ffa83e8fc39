"""`RecordedCall`: what an operator's call leaves on the tape. `Use`: what its derivative asks for."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from flambeau.ops.op import INPUTS, MISSING, Derivative, Op, names_of, table
from flambeau.tape.mode import mode
from flambeau.tape.node import Node
from flambeau.tensor.autograd.grad_validation import callers, fitted, zeros_of
from flambeau.tensor.autograd.saved import FREED, Saved

if TYPE_CHECKING:
    from flambeau.tensor.autograd.recording import Taped


class RecordedCall(Node):
    """A node of an operator's call; each operator has a class of its own, so that it has PyTorch's name.

    taped: what is known of the call beforehand. use: what its formulas ask for. saved: that, in the order of
    `use.kept`; None once it was freed.
    """

    __slots__ = ("saved", "taped", "use")

    record: Any
    saved: list[Any] | None
    taped: Taped
    use: Use

    def release(self, walked: Container[Node]) -> None:
        if self.use.kept:
            self.saved = None

    def gradients(self, grads: Sequence[Any], asked: Sequence[bool] | None = None) -> Sequence[Any]:
        use, metas = self.use, self.taped.metas
        known = self.known(grads, asked)
        given: list[Any]
        if use.whole is None:
            given = [None] * len(metas)
            for i, formula, pick in use.formulas:
                if asked is None or asked[i]:
                    grad = formula(*pick(known))
                    given[i] = grad if grad is None or grad.meta is metas[i] else fitted(grad, metas[i])
            return given
        given = list(use.whole(*use.pick(known)))
        given += [None] * (len(metas) - len(given))
        return [
            None if edge is None else fitted(g, meta)
            for g, edge, meta in zip(given, self.edges, metas, strict=False)
        ]

    def gradients_for(self, asked: Sequence[bool], grads: Sequence[Any]) -> Sequence[Any]:
        return self.gradients(grads, asked)

    def known(self, grads: Sequence[Any], asked: Sequence[bool] | None) -> list[Any]:
        """What formulas may ask for, in the order of `_AT_WALK` and `use.kept`."""
        use, taped, saved = self.use, self.taped, self.saved
        if saved is None:
            raise RuntimeError(FREED)
        if use.missing is not None:
            raise RuntimeError(use.missing)
        first, every, needs = grads[0], None, use.needs
        if first is None and use.first:
            first = zeros_of(self.outputs[0])
        if use.every:
            pairs = zip(grads, self.outputs, strict=True)
            every = tuple([zeros_of(meta) if g is None else g for g, meta in pairs])
        if asked is not None:
            needs = tuple([n and a for n, a in zip(needs, asked, strict=False)])
        known = [first, every, grads, taped.params, taped.metas, needs, callers[0]]
        if saved:
            bare = not mode.recording
            for x in saved:
                if isinstance(x, Saved):
                    x = x.shown(self) if bare else x.unpack(self)
                known.append(x)
            if use.outs:
                known[-1] = tuple([x.shown(self) if bare else x.unpack(self) for x in known[-1]])
        return known

    def __getattr__(self, name: str) -> Any:
        """What was saved, under PyTorch's names; None if only other gradients need it.

        Raises AttributeError: no formula needs it. RuntimeError: it was freed, or changed in place.
        """
        names = _SAVED_AS.get(self.name(), _USUALLY)
        asked = names.get(name)
        if asked is None or asked not in _asked_by(self.record.derivative):
            raise AttributeError(f"'{self.name()}' object has no attribute '{name}'", name=name, obj=self)
        if asked not in self.use.kept:
            return None
        if self.saved is None:
            raise RuntimeError(FREED)
        found = self.saved[self.use.kept.index(asked)]
        return found.unpack(self) if isinstance(found, Saved) else found


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


class Use:
    """What a derivative needs where some of the inputs require a gradient: decided once for each set of them.

    formulas: (input, formula, what picks its arguments) of those inputs; or `whole`, one for all, and its `pick`:
        out of what is known `_AT_WALK`, followed by what is `kept`.
    inputs: positions of the inputs that are kept. outputs: whether any output is; outs: all, as one, the last.
    A node that keeps nothing may be walked again. needs: which inputs require a gradient.
    first: whether the first output's gradient must be there, of zeros if none came; every: all outputs'.
    missing: what to say if nobody has written its derivative.
    With `erases` the last input is what the call overwrites: its gradient is zeros, whatever the record says.
    """

    __slots__ = (
        "every", "first", "formulas", "inputs", "kept", "missing", "needs", "outputs", "outs", "pick", "whole",
    )  # fmt: skip

    def __init__(self, record: Op, needs: tuple[bool, ...], erases: bool = False) -> None:
        derivative = record.derivative
        if erases:
            needs = needs[:-1]
        self.needs = needs
        self.missing = _missing(record) if derivative is MISSING and any(needs) else None
        self.whole = derivative.whole if any(needs) else None
        bound = getattr(self.whole, "bound", None)  # what it asks for depends on who needs a gradient
        if bound is not None:
            self.whole = bound(needs)
        names = () if self.whole is None else names_of(self.whole)
        formulas = [
            (i, formula, names_of(formula))
            for i, (formula, needed) in enumerate(zip(derivative.formulas, needs, strict=False))
            if formula is not None and needed
        ]
        if erases:
            formulas.append((len(needs), _erased, names_of(_erased)))
        asked = dict.fromkeys(names + tuple([name for _, _, each in formulas for name in each]))
        inputs = [name for name in asked if name in _PLACES]
        self.inputs = [_PLACES[name] for name in inputs]
        self.kept = inputs + [name for name in _OUTPUTS if name in asked]
        self.outputs = len(self.kept) > len(inputs)
        self.outs = "outs" in asked
        self.first, self.every = "grad" in asked, "grads" in asked
        known = [*_AT_WALK, *self.kept]
        self.formulas = [(i, formula, _picker(known, each)) for i, formula, each in formulas]
        self.pick = _picker(known, names)


def _erased(metas: Sequence[Any]) -> Any:
    return zeros_of(metas[-1])


_AT_WALK = ("grad", "grads", "given", "params", "metas", "needs", "call")  # what is known without being saved


def _picker(known: list[str], names: tuple[str, ...]) -> Callable[[list[Any]], Sequence[Any]]:
    """What picks the values of these names out of those of all that are known."""
    places = [known.index(name) for name in names]
    if len(places) > 1:
        return itemgetter(*places)
    first = places[0] if places else 0
    return itemgetter(slice(first, first + len(places)))  # `itemgetter` of one place gives no sequence


def _missing(record: Op) -> str:
    if table.get(record.name) is record:
        return f"derivative for torch.{record.name} is not implemented in Flambeau"
    return (
        f"the user kernel '{record.name}' has no derivative: torch.cuda.elementwise(..., differentiable=True) makes "
        "one, torch.cuda.jiterator does not"
    )


_OUTPUTS = ("out", "out1", "out2", "outs")


def _asked_by(derivative: Derivative) -> set[str]:
    formulas = [f for f in (derivative.whole, *derivative.formulas) if f is not None]
    return {name for formula in formulas for name in names_of(formula)}


_PLACES = {letter: i for i, letter in enumerate(INPUTS)}

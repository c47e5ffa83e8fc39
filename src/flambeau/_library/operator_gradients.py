"""Calls of a program's operators in the autograd graph: the formula of `register_autograd`, or a node that refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from flambeau._library.user_operators import Operator, dispatch_below_autograd
from flambeau.autograd.function import Function
from flambeau.autograd.grad_mode import no_grad
from flambeau.tape.mode import mode
from flambeau.tensor.arguments.nested_tensors import tensors_in
from flambeau.tensor.tensor import Tensor

Formula = Callable[..., Any]


def record_by_formula(
    operator: Operator, backward: Formula | None, setup_context: Formula | None
) -> Callable[[list[Any], dict[str, Any]], Any]:
    """Return the function that runs an operator and records a node with a formula.

    Args:
        operator: The operator.
        backward: Returns gradients of the inputs for gradients of the results; without it backward raises.
        setup_context: Keeps what `backward` needs.
    """
    schema = operator.schema
    name = f"GeneratedBackwardFor_{schema.name.replace('::', '_')}_{schema.overload_name or 'default'}"
    text = str(schema).partition("(")[0].replace("::", ".") + ("" if schema.overload_name else ".default")

    def run_backward(ctx: Any, *grads: Any) -> Any:
        if backward is None:
            raise RuntimeError(
                f"Trying to backward through {text} but no autograd formula was registered. Please use "
                "register_autograd to add one."
            )
        call: _RecordedCall = ctx._flambeau_call
        found = backward(ctx, *call.group_results(grads))
        return (None, *call.flatten_gradients(found, name))

    def run_forward(ctx: Any, call: _RecordedCall, *flat: Any) -> Any:
        with no_grad(), dispatch_below_autograd():
            results = operator.run_below_autograd(call.positional, call.keywords)
        ctx._flambeau_call = call
        ctx.needs_input_grad = call.group_needs(operator, ctx.needs_input_grad[1:])
        call.note_results(results)
        if setup_context is not None:
            more = (call.keywords,) if call.keywords else ()
            setup_context(ctx, tuple(call.positional), *more, results)
        call.clear()
        return tuple(call.flat_results(results))

    function = type(
        name, (Function,), {"forward": staticmethod(run_forward), "backward": staticmethod(run_backward)}
    )

    def record(positional: list[Any], keywords: dict[str, Any]) -> Any:
        tensors = list(tensors_in([*positional, *keywords.values()]))
        if not (mode.recording and any(t.requires_grad for t in tensors)):
            with dispatch_below_autograd():
                return operator.run_below_autograd(positional, keywords)
        call = _RecordedCall(positional, keywords)
        return call.regroup_results(function.apply(call, *call.flat))  # type: ignore[attr-defined]

    return record


def refuse_backward(operator: Operator) -> Callable[[list[Any], dict[str, Any]], Any]:
    """Return the function that runs an operator without a formula, whose results warn in backward."""
    name = operator.schema.name

    def warn(ctx: Any, *grads: Any) -> Any:
        warnings.warn(
            f"{name}: an autograd kernel was not registered to the Autograd key(s) but we are trying to backprop "
            "through it. This may lead to silently incorrect behavior.",
            UserWarning,
            stacklevel=2,
        )
        return None

    return record_by_formula(operator, warn, None)


class _RecordedCall:
    """One recorded call: its arguments as lists and flat, and the form of its results.

    Attributes:
        groups: The length of each positional argument that is a list of tensors; None for the others.
        flat: The positional arguments, lists of tensors spread.
    """

    def __init__(self, positional: list[Any], keywords: dict[str, Any]) -> None:
        self.positional, self.keywords = positional, keywords
        self.groups = [len(v) if _is_tensors(v) else None for v in positional]
        self.flat: list[Any] = []
        for value, group in zip(positional, self.groups, strict=True):
            self.flat.extend([value] if group is None else value)
        self._kind: type | None = None
        self._sizes: list[int | None] = []

    def clear(self) -> None:
        """Drop the arguments: the context keeps those that backward needs."""
        self.positional, self.flat = [], []

    def group_needs(self, operator: Operator, flat: Sequence[bool]) -> tuple[Any, ...]:
        """Return whether each argument that the kernel was given requires a gradient, in PyTorch's form."""
        return tuple(_regroup(self.groups, flat)[: operator.count_shown(self.positional)])

    def note_results(self, results: Any) -> None:
        """Record the form of results."""
        self._kind = type(results) if isinstance(results, list | tuple) else None
        self._sizes = [
            len(r) if isinstance(r, list) else None for r in (results if self._kind is tuple else ())
        ]

    def flat_results(self, results: Any) -> list[Any]:
        """Return results as one list."""
        if self._kind is None:
            return [results]
        return [r for item in results for r in (item if isinstance(item, list) else [item])]

    def regroup_results(self, flat: tuple[Any, ...]) -> Any:
        """Return what the operator returned, from the results of the node."""
        if self._kind is None:
            return flat[0]
        return list(flat) if self._kind is list else tuple(_regroup(self._sizes, flat))

    def group_results(self, grads: tuple[Any, ...]) -> list[Any]:
        """Return gradients of results in the form that the program's backward takes."""
        if self._kind is list:
            return [list(grads)]
        return list(grads) if self._kind is None else _regroup(self._sizes, grads)

    def flatten_gradients(self, found: Any, name: str) -> list[Any]:
        """Return the gradients of all inputs as one list.

        Raises:
            RuntimeError: If their number is wrong.
        """
        if found is None:
            return [None] * sum(1 if group is None else group for group in self.groups)
        found = found if isinstance(found, tuple | list) else (found,)
        if len(found) != len(self.groups):
            raise RuntimeError(
                f"function {name}Backward returned an incorrect number of gradients (expected {len(self.groups)}, "
                f"got {len(found)})"
            )
        flat: list[Any] = []
        for gradient, group in zip(found, self.groups, strict=True):
            if group is None:
                flat.append(gradient)
            else:
                flat.extend([None] * group if gradient is None else gradient)
        return flat


def _is_tensors(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, Tensor) for item in value)


def _regroup(groups: Sequence[int | None], flat: Sequence[Any]) -> list[Any]:
    items = iter(flat)
    return [next(items) if group is None else [next(items) for _ in range(group)] for group in groups]

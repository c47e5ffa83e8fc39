"""Functions that are composed of operators but recorded as one node with its own derivative."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flambeau.core.frozen import Record
from flambeau.ops.op import Derivative
from flambeau.tape.mode import mode, recording
from flambeau.tensor import forward_mode, interception
from flambeau.tensor.autograd.autograd_meta import requires_grad
from flambeau.tensor.autograd.recording import record_result
from flambeau.tensor.tensor import Tensor


class Composite(Record):
    """The description of a composite function that autograd records as one node. `name` determines the node's name.

    It is needed where the derivatives of the single operators lose information: a pseudo-inverse is differentiable even
    if the singular vectors in its computation are not. It is also used where PyTorch has one node.
    """

    name: str
    derivative: Derivative
    recorded_in_place = True  # see `Op`


def wants_node(args: Sequence[Any]) -> bool:
    """Return True if a call of these would be recorded now."""
    return mode.recording and any(isinstance(a, Tensor) and requires_grad(a) for a in args)


def record_composite(
    composite: Any, args: Sequence[Any], run: Callable[[], Tensor], params: tuple[Any, ...] = ()
) -> Tensor:
    """Record `run(*args)` as one node. Its derivative formulas receive `params`."""
    with recording(False):
        found = run()
    record_result(composite, params, args, (found,))
    if interception.count:
        forward_mode.save_input_tangents(found, args)
    return found

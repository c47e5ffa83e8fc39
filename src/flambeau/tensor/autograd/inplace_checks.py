"""The rules for recorded changes in place: which tensors may change, and the errors for the others."""

from __future__ import annotations

from flambeau.tape.autograd_node import Leaf
from flambeau.tape.mode import mode
from flambeau.tensor.autograd.node_classes import RecordedShape
from flambeau.tensor.autograd.saved import operation_name
from flambeau.tensor.tensor import CUSTOM, INFERENCE, NO_GRAD, SEVERAL, AutogradMeta, Tensor


def require_changeable(target: Tensor) -> None:
    """Raise RuntimeError if a recorded in-place change of `target` is not allowed, because it is a leaf or a certain
    view.
    """
    history = target.history
    if history is None or not mode.recording:
        return
    base = history.base
    if base is not None:
        if history.restriction is not None:
            raise RuntimeError(explain_refusal(history, "is being"))
        if _is_view_of_leaf(history):
            raise RuntimeError(
                "a view of a leaf Variable that requires grad is being used in an in-place operation."
            )
    if isinstance(history.node, Leaf):
        raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")


def _is_view_of_leaf(history: AutogradMeta) -> bool:
    """Return True if a view, a view it was derived from, or its base is a leaf."""
    assert history.base is not None
    node = history.node
    while isinstance(node, RecordedShape) and node.edges[0] is not None:
        node = node.edges[0][0]
    before = history.base.history
    return isinstance(node, Leaf) or (before is not None and isinstance(before.node, Leaf))


def refuse_inference(target: Tensor) -> None:
    """Raise RuntimeError if an inference tensor would be changed in place outside of `inference_mode`."""
    if target.memory.version < 0 and not mode.inference:
        raise RuntimeError(
            "Inplace update to inference tensor outside InferenceMode is not allowed.You can make a clone to get a "
            "normal tensor before doing inplace update.See https://github.com/pytorch/rfcs/pull/17 for more details."
        )


def explain_refusal(history: AutogradMeta, what: str) -> str:
    """Return PyTorch's text why a view may not be changed in place while operations are recorded."""
    node, restriction = history.node, history.restriction
    of = "" if node is None else f"Output {history.index} of {operation_name(node)} is a view"
    if node is None or restriction in (NO_GRAD, INFERENCE):
        where = "inference mode" if restriction == INFERENCE else "no_grad mode"
        after = "in normal mode" if restriction == INFERENCE else "with grad mode enabled"
        prefix = f"{of} of a view which was created in" if of else "A view was created in"
        message = f"{prefix} {where} and {what} modified inplace {after}."
    else:
        message = f"{of} and {what} modified inplace."
    return message + _REASONS[restriction or NO_GRAD]


_CLARIFY = (
    " Given that this use case is ambiguous and error-prone, it is forbidden. You can clarify your code by moving both "
    "the view and the inplace either both inside the {0} block (if you don't want the inplace to be tracked) or both "
    "outside (if you want the inplace to be tracked)."
)
_REASONS = {
    NO_GRAD: _CLARIFY.format("no_grad"),
    INFERENCE: _CLARIFY.format("inference_mode"),
    SEVERAL: " This view is the output of a function that returns multiple views. Such functions do not allow the "
    "output views to be modified inplace. You should replace the inplace operation by an out-of-place one.",
    CUSTOM: " This view was created inside a custom Function (or because an input was returned as-is) and the "
    "autograd logic to handle view+inplace would override the custom backward associated with the custom Function, "
    "leading to incorrect gradients. This behavior is forbidden. You can fix this by cloning the output of the custom "
    "Function.",
}

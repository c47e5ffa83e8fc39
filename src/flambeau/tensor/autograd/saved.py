"""`SavedTensor`: a tensor that a node saved for its formulas.

# Note [What is saved]
A saved tensor holds not the tensor itself but its parts, its node and the count of its version counter. A node that
held its own output would keep itself alive. On use the count is compared: a tensor that was changed in place since
raises.
"""

from __future__ import annotations

import re
from typing import Any

from flambeau.core.dtype import FLOATING
from flambeau.core.meta import Meta
from flambeau.tape.autograd_node import Edge, Leaf, Node
from flambeau.tape.mode import mode, recording
from flambeau.tensor import dispatch, interception
from flambeau.tensor.storage import Storage, is_pending
from flambeau.tensor.tensor import AutogradMeta, Counter, Tensor, make, make_deferred, new_object


class SavedTensor:
    """A tensor that a node saved: see Note [What is saved]. `save` creates it.

    Attributes:
        node, index: The node and output number of the tensor. A node of None stands for the saving node, or with index
            -1 for none.
    """

    __slots__ = ("counter", "index", "memory", "meta", "node", "offset", "ptr", "version")

    counter: Counter
    memory: Storage
    meta: Meta
    node: Node | None
    index: int
    ptr: int
    offset: int  # `deferred_offset` of the tensor
    version: int

    def __getattr__(self, name: str) -> Any:
        if name == "ptr":
            self.ptr: int = self.memory.ptr + self.offset  # of a result that was pending when it was saved
            return self.ptr
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    def unpack(self, node: Node | None) -> Tensor:
        """Return the saved tensor. Raises RuntimeError if it was changed in place since."""
        t = self.unpack_detached(node)
        source = self.source(node)
        if source is not None and t.meta.dtype.category >= FLOATING:
            t.history = AutogradMeta(source, self.index)
        return t

    def source(self, node: Node | None) -> Node | None:
        """Return the node whose output the tensor is; `node` is the node that saved it."""
        return node if self.node is None and self.index >= 0 else self.node

    def unpack_detached(self, node: Node | None) -> Tensor:
        """Return the saved tensor, detached from the autograd graph."""
        if self.counter.version != self.version:
            raise RuntimeError(_describe_change(self, self.source(node), self.index))
        if is_pending(self.memory):
            t = make_deferred(self.memory, self.meta, self.offset)
        else:
            t = make(self.meta, self.memory, self.ptr)
        t.counter = self.counter
        if interception.count and self.node is None and self.index >= 0 and dispatch.is_shown():
            return dispatch.show("detach", t)
        return t


class SavedInstance(SavedTensor):
    """A saved tensor that keeps the object itself, because dispatch handlers may identify tensors by object."""

    __slots__ = ("instance",)

    def __init__(self, t: Tensor, edge: Edge, own: int) -> None:
        self.instance, self.counter, self.version = t, t.counter, t.counter.version
        self.meta, self.memory, self.ptr = t.meta, t.memory, t.ptr
        self.node, self.index = (None, own) if edge is None else edge

    def unpack(self, node: Node | None) -> Tensor:
        t = self.unpack_detached(node)
        if self.node is None and self.index >= 0 and node is not None and t.meta.dtype.category >= FLOATING:
            t.history = AutogradMeta(node, self.index)
        return t

    def unpack_detached(self, node: Node | None) -> Tensor:
        if self.counter.version != self.version:
            raise RuntimeError(_describe_change(self, self.source(node), self.index))
        if self.node is None and self.index >= 0:
            return dispatch.show("detach", self.instance)
        return self.instance


class PackedTensor(SavedTensor):
    """A saved tensor that a program's pack hook has replaced."""

    __slots__ = ("hooked", "unpack_hook")

    def __init__(self, t: Tensor, bare: bool) -> None:
        pack, self.unpack_hook = mode.pack_hooks[-1]
        version = t.counter.version
        with recording(False):
            is_instance = t.__class__ in dispatch.classes
            self.hooked = pack(make(t.meta, t.memory, t.ptr) if bare and not is_instance else t)
        if t.counter.version != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook "
                "cannot be modified by in-place operations as this can lead to unexpected side-effects. Please open an "
                "issue if you need to perform in-place operations on the input to a pack hook."
            )

    def unpack_detached(self, node: Node | None) -> Tensor:
        with recording(False):
            t = self.unpack_hook(self.hooked)
        if not isinstance(t, Tensor):
            raise TypeError(
                f"Output of saved tensor unpack_hook expected to be a Tensor but got result of type {type(t).__name__}"
            )
        return t if t.__class__ in dispatch.classes else make(t.meta, t.memory, t.ptr)


def save(t: Tensor, edge: Edge = None, own: int = -1) -> SavedTensor:
    """Save `t` for a node. `edge` is the edge of `t`; if `t` is an output of the node, `own` is its number instead.

    Raises RuntimeError for a tensor made in `inference_mode`.
    """
    memory = t.memory
    if interception.count:
        if own >= 0 and t.history is not None and dispatch.is_shown((t,)):
            t = dispatch.show("detach", t)  # as PyTorch does with an output that its own node saves
        if (dispatch.local.modes or t.__class__ in dispatch.classes) and not mode.pack_hooks:
            return SavedInstance(t, edge, own)
    if memory.version < 0:
        raise RuntimeError(NOT_SAVED)
    if mode.pack_hooks:
        saved: SavedTensor = PackedTensor(t, own >= 0)
    else:
        saved = new_object(SavedTensor)
        saved.meta, saved.memory = t.meta, memory
        if is_pending(memory):
            saved.offset = t.deferred_offset
        else:
            saved.ptr = t.ptr
        saved.counter = counter = t.counter
        saved.version = counter.version
    saved.node, saved.index = (None, own) if edge is None else edge
    return saved


NOT_SAVED = (
    "Inference tensors cannot be saved for backward. Please do not use Tensors created in inference mode in "
    "computation tracked by autograd. To work around this, you can make a clone to get a normal tensor and use it in "
    "autograd, or use `torch.no_grad()` instead of `torch.inference_mode()`."
)


def operation_name(node: Node) -> str:
    """Return a node's name in messages: the operation whose gradients it computes."""
    return re.sub(r"Backward\d*$", "", node.name())


def _describe_change(saved: SavedTensor, source: Node | None, index: int | None) -> str:
    meta = saved.meta
    kind = f"{'torch.cuda' if meta.device.type == 'cuda' else 'torch'}.{meta.dtype.torch_name}Tensor"
    of = (
        ""
        if source is None or isinstance(source, Leaf)
        else f", which is output {index} of {operation_name(source)},"
    )
    return (
        f"one of the variables needed for gradient computation has been modified by an inplace operation: "
        f"[{kind} {list(meta.shape)}]{of} is at version {saved.counter.version}; expected version {saved.version} "
        "instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
        "torch.autograd.set_detect_anomaly(True, check_nan=False)."
    )


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been "
    "freed). Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify "
    "retain_graph=True if you need to backward through the graph a second time or if you need to access saved tensors "
    "after calling backward."
)

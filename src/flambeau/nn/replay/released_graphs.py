"""Autograd graphs of results that a replay returns again: graphs that keep no saved tensor.

# Note [Graphs without saved tensors]
Problem: A training step returns its loss, whose graph backward has freed. Eager code makes new nodes in each call.
Rule: Nodes that keep no tensor compute gradients from gradients, layouts and parameters alone. So a replay gives its
results copies of the captured nodes. Backward through a copy raises at the first freed node, as in eager code, and
runs if no node saved anything.
Why: The nodes of one call may get hooks, and belong to the stream of that call.
Consequences: A replay copies the nodes of its results only; `CopiedEdges` copy further ones when something reads them.
Leaves and nodes that were recorded before the call are referred to, because guards compare the tensors' histories.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, overload

from flambeau.runtime import current
from flambeau.runtime.streams.stream import Stream
from flambeau.tape.autograd_node import LEAF_SEQUENCE, Edge, Leaf, Node, reserve_sequences
from flambeau.tensor.autograd.autograd_meta import edge_of
from flambeau.tensor.autograd.in_place import CopySlices, NotImplementedNode
from flambeau.tensor.autograd.node_classes import RecordedShape
from flambeau.tensor.autograd.recorded_call import RecordedCall
from flambeau.tensor.autograd.saved import SavedTensor
from flambeau.tensor.tensor import Tensor, new_object

_COPIED = (RecordedCall, RecordedShape, CopySlices, NotImplementedNode)
_OWN_SLOTS = ("__weakref__", "edges", "node_hooks", "sequence", "stream")  # each copy gets other ones

# A node of a graph: the number of its form, a node from before the call, or the tensor of a leaf.
NodeReference = int | Node | Tensor


class LiveGraph(Exception):
    """The error raised for an autograd graph that a replay cannot copy. Its text is the reason."""


class _NodeForm(NamedTuple):
    """The common parts of the copies of a captured node.

    Attributes:
        kind: Its class.
        values: Slot -> value, of slots that refer to no other node.
        inner: Slot -> node, of the others.
        edges: The references of its edges, with the numbers of outputs.
        order: Its position among the graph's nodes in the order of recording.
    """

    kind: type[Node]
    values: dict[str, Any]
    inner: dict[str, NodeReference]
    edges: tuple[tuple[NodeReference, int] | None, ...]
    order: int


class ReleasedGraph:
    """The autograd graph of a captured call's results, of which each run gets a copy.

    Args:
        begin: The sequence number at which the call began.
        tensors: The tensors that guards compare.
    """

    def __init__(self, begin: int, tensors: Iterable[Tensor]) -> None:
        self._begin = begin
        self._leaves = {
            t.history.node: t for t in tensors if t.history is not None and t.history.base is None
        }
        self._numbers: dict[Node, int] = {}
        self._forms: list[_NodeForm] = []

    def add(self, node: Node) -> NodeReference:
        """Add a node and what its edges lead to. Return the reference to it.

        Raises:
            LiveGraph: If a replay cannot make another such graph.
        """
        pending = [node]
        while pending:
            latest = pending.pop()
            if latest in self._numbers or not self._is_copied(latest):
                continue
            _require_copyable(latest)
            self._numbers[latest] = len(self._numbers)
            pending += [edge[0] for edge in latest.edges if edge is not None]
            pending += _inner_nodes(latest).values()
        return self._refer(node)

    def finish(self) -> None:
        """Keep forms of the added nodes in place of the nodes."""
        orders = {node: k for k, node in enumerate(sorted(self._numbers, key=lambda node: node.sequence))}
        self._forms = [self._describe(node, orders[node]) for node in self._numbers]
        self._leaves, self._numbers = {}, {}

    def copy(self) -> GraphCopy:
        """Return the graph of a run that was launched on the current streams."""
        return GraphCopy(self._forms)

    def _is_copied(self, node: Node) -> bool:
        if node.sequence == LEAF_SEQUENCE and node not in self._leaves:
            raise LiveGraph("its graph leads to a leaf that no guard reaches")
        return self._begin <= node.sequence < LEAF_SEQUENCE

    def _refer(self, node: Node) -> NodeReference:
        return self._leaves[node] if node.sequence == LEAF_SEQUENCE else self._numbers.get(node, node)

    def _describe(self, node: Node, order: int) -> _NodeForm:
        inner = _inner_nodes(node)
        values = {name: getattr(node, name) for name in _slots_of(type(node)) if name not in inner}
        edges = [None if edge is None else (self._refer(edge[0]), edge[1]) for edge in node.edges]
        references = {name: self._refer(each) for name, each in inner.items()}
        return _NodeForm(type(node), values, references, tuple(edges), order)


class GraphCopy:
    """The nodes of one run. Those that nothing has read yet do not exist.

    Args:
        forms: The forms of the captured nodes.
    """

    __slots__ = ("_copies", "_first", "_forms", "_streams")

    def __init__(self, forms: Sequence[_NodeForm]) -> None:
        self._forms = forms
        self._first = reserve_sequences(len(forms)) if forms else 0
        self._streams: list[Stream] = list(current.local.streams)
        self._copies: dict[int, Callable[[], Node | None]] = {}  # number -> weak reference to the node

    def node(self, reference: NodeReference) -> Node:
        """Return the node of this run that a reference stands for."""
        if isinstance(reference, Node):
            return reference
        if isinstance(reference, Tensor):
            return _leaf_of(reference)
        found = self._copies.get(reference)
        node = None if found is None else found()
        return self._copy(reference) if node is None else node

    def _copy(self, number: int) -> Node:
        form = self._forms[number]
        node: Any = new_object(form.kind)
        for name, value in form.values.items():
            setattr(node, name, value)
        for name, reference in form.inner.items():
            setattr(node, name, self.node(reference))
        node.edges = CopiedEdges(self, form.edges)
        node.node_hooks, node.sequence = None, self._first + form.order
        node.stream = self._streams[node.index]
        self._copies[number] = weakref.ref(node)
        return node


class CopiedEdges(Sequence[Edge]):
    """The edges of a copied node. The first use copies the nodes that they lead to.

    Args:
        graph: The graph of the run.
        forms: References of the edges, with the numbers of outputs.
    """

    __slots__ = ("_edges", "_forms", "_graph")

    def __init__(self, graph: GraphCopy, forms: Sequence[tuple[NodeReference, int] | None]) -> None:
        self._graph, self._forms = graph, forms
        self._edges: tuple[Edge, ...] | None = None

    def __len__(self) -> int:
        return len(self._forms)

    @overload
    def __getitem__(self, at: int) -> Edge: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Edge]: ...
    def __getitem__(self, at: int | slice) -> Edge | Sequence[Edge]:
        if self._edges is None:
            graph = self._graph
            self._edges = tuple([None if f is None else (graph.node(f[0]), f[1]) for f in self._forms])
        return self._edges[at]


def _require_copyable(node: Node) -> None:
    """Raise LiveGraph if a node keeps tensors or hooks, or if it does not belong to an operator."""
    if not isinstance(node, _COPIED):
        raise LiveGraph(f"its graph has the node {node.name()}, which is not an operator's")
    hooks = node.node_hooks
    if hooks is not None and any(
        [hooks.tensor_hooks, hooks.retain_grad_hooks, hooks.pre, hooks.post, hooks.metadata]
    ):
        raise LiveGraph(f"its graph has hooks at {node.name()}")
    if isinstance(node, RecordedCall) and any(map(_is_saved, node.saved or ())):
        raise LiveGraph(f"it can still be differentiated, because {node.name()} keeps saved tensors")


def _is_saved(value: Any) -> bool:
    """Return True for a saved tensor, or several of them."""
    if isinstance(value, list | tuple):
        return any(map(_is_saved, value))
    return isinstance(value, SavedTensor | Tensor)


def _slots_of(kind: type[Node]) -> list[str]:
    names = [name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ())]
    return [name for name in names if name not in _OWN_SLOTS]


def _inner_nodes(node: Node) -> dict[str, Node]:
    """Return the nodes that slots other than `edges` refer to."""
    values = {name: getattr(node, name) for name in _slots_of(type(node))}
    return {name: value for name, value in values.items() if isinstance(value, Node)}


def _leaf_of(t: Tensor) -> Node:
    """Return the node of a leaf, also if the tensor requires no gradient since."""
    edge = edge_of(t)
    if edge is not None:
        return edge[0]
    leaf: Leaf = t.history.former_leaf  # type: ignore[union-attr]
    return leaf

"""The results of a captured call: which memory they are in, and tensors over it for each replay.

# Note [Results of graphs]
Problem: A graph writes each result to one address. A result of an earlier run would show the values of a later one.
Rule: Each run returns new tensors, whose storages (`GraphStorage`) refer to the graph's memory. The next run first
expires those of the run before: each use of their address then raises PyTorch's error.
Consequences: Tensors cache addresses, so all tensors over an expired storage are looked up. The known results explain
the references to it, mostly; only if there are more does the garbage collector search for views.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from flambeau.core.callsite import Site, caller, place
from flambeau.core.dtype import uint8
from flambeau.core.errors import RaceError
from flambeau.core.meta import Meta
from flambeau.nn.replay.nesting import flatten, name_leaves, rebuild
from flambeau.nn.replay.released_graphs import GraphCopy, LiveGraph, NodeReference, ReleasedGraph
from flambeau.tensor.autograd.autograd_meta import edge_of, requires_grad
from flambeau.tensor.autograd.saved import SavedTensor
from flambeau.tensor.storage import GraphStorage, Storage, graph_storage
from flambeau.tensor.storage_resize import holders
from flambeau.tensor.tensor import AutogradMeta, Tensor, ViewMeta, make, make_view, new_object
from flambeau.tensor.tensor_core import NO_STREAM

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None))
_OWN_REFERENCES = 2  # of a storage in `_Run.expire`: its variable, and the argument of `getrefcount`


class GraphMemory:
    """A storage in the pool of a graph, which keeps it allocated.

    Attributes:
        storage: The storage that the capture allocated.
        is_used_elsewhere: True if another stream may use it, so that the next run must wait for the device.
    """

    __slots__ = ("__weakref__", "is_used_elsewhere", "keep", "storage")

    def __init__(self, storage: Storage, keep: object) -> None:
        self.storage, self.keep = storage, keep
        self.is_used_elsewhere = False


class _Expired:
    """The `call` of an expired storage: it raises PyTorch's error."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def issue(self, memory: object) -> None:
        raise RuntimeError(
            "Error: accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run. Stack trace: "
            f"{place(self._site)}, the call that returned it. To prevent overwriting, clone the tensor outside of "
            "torch.compile() or call torch.compiler.cudagraph_mark_step_begin() before each model invocation."
        )


class _GradForm(NamedTuple):
    """The place in the autograd graph of a result that requires grad.

    Attributes:
        node: The reference to the node whose output it is; None for a view that has none.
        index: The number of that output.
        base: The number of the tensor that it is a view of; None if it is no view.
        steps, restriction: As in `ViewMeta`.
        lag: How many writes the version counter has seen since the view was made.
    """

    node: NodeReference | None
    index: int
    base: int | None
    steps: Any
    restriction: str | None
    lag: int


class _ResultPlace(NamedTuple):
    """Where a result lies.

    Attributes:
        kind: "pool", "argument" (a view of one), "known" (a view of other memory), "itself" (an argument), or
            "constant".
        index: Number of the memory of the pool, or of the argument.
        offset: Bytes from the start of that memory, or from the argument's address.
        value: The meta of a tensor, or the constant.
        grad_form: How it lies in the autograd graph; None if it requires no gradient.
        of: The guarded tensor whose memory a known view shares.
    """

    kind: str
    index: int
    offset: int
    value: Any
    grad_form: _GradForm | None = None
    of: Any = None


class Results:
    """The structure of the values that a captured call returned and assigned, and the tensors of the latest run.

    Args:
        value: What the call returned.
        assigned: The tensors that it assigned.
        arguments: The values of its arguments.
        known: The tensors that guards compare.
        graph: The autograd graph, to which the nodes of results are added.
        pool: What keeps the memory of the pool.

    Attributes:
        memories: The memory in the pool that results lie in.
        refusal: Why the results cannot be returned again; "" if they can.
    """

    def __init__(
        self,
        value: Any,
        assigned: Sequence[Tensor],
        arguments: Sequence[Any],
        known: Sequence[Tensor],
        graph: ReleasedGraph,
        pool: Any,
    ) -> None:
        leaves: list[Any] = []
        self._nesting = flatten(value, leaves)
        self._arguments, self._graph, self._pool = arguments, graph, pool
        self._known = {id(t.memory): t for t in known}
        self._known_tensors = {id(t) for t in known}
        self.memories: list[GraphMemory] = []
        self._memory_numbers: dict[int, int] = {}  # id of a storage -> number of its memory
        self._numbers: dict[int, int] = {}  # id of a result -> number of its place
        self.refusal = ""
        self._places: list[_ResultPlace] = []  # those of bases before those of their views
        names = name_leaves(self._nesting)
        self._returned = [
            self._add(leaf, f"its result{name}") for leaf, name in zip(leaves, names, strict=True)
        ]
        self._assigned = [self._add(t, "a tensor that it stores") for t in assigned]
        if any(requires_grad(t) for t in assigned):
            self.refusal = "it stores a tensor that requires grad"
        stored = [self._places[number] for number in self._assigned]
        self._lasting = frozenset([place.index for place in stored if place.kind == "pool"])
        self._run = _Run(caller(), 0)
        graph.finish()

    def guarded_storages(self) -> set[int]:
        """Return the ids of the storages of guarded tensors that results refer to."""
        return {
            id(t.memory) for place in self._places for t in (place.value, place.of) if isinstance(t, Tensor)
        }

    def _add(self, leaf: Any, name: str) -> int:
        """Return the number of a result's place. Equal numbers stand for one object."""
        number = self._numbers.get(id(leaf))
        if number is None:
            place = self._locate(leaf, name)
            number = self._numbers[id(leaf)] = len(self._places)
            self._places.append(place)
        return number

    def _locate(self, leaf: Any, name: str) -> _ResultPlace:
        if not isinstance(leaf, Tensor):
            if type(leaf) not in _CONSTANTS:
                self.refusal = f"it returns an object of the class {type(leaf).__name__}"
            return _ResultPlace("constant", 0, 0, leaf)
        for k, argument in enumerate(self._arguments):
            if leaf is argument:
                return _ResultPlace("itself", k, 0, None)
        if id(leaf) in self._known_tensors:
            return _ResultPlace("constant", 0, 0, leaf)
        grad_form = self._find_grad_form(leaf, name)
        for k, argument in enumerate(self._arguments):
            if isinstance(argument, Tensor) and argument.memory is leaf.memory:
                return _ResultPlace("argument", k, leaf.ptr - argument.ptr, leaf.meta, grad_form)
        known = self._known.get(id(leaf.memory))
        if known is not None and grad_form is not None:
            return _ResultPlace("known", 0, leaf.ptr - known.ptr, leaf.meta, grad_form, known)
        if known is not None:
            return _ResultPlace("constant", 0, 0, leaf)
        if type(leaf) is not Tensor or leaf.device.type != "cuda":
            self.refusal = f"it returns a {type(leaf).__name__} on {leaf.device}"
        memory = leaf.memory
        number = self._memory_numbers.setdefault(id(memory), len(self.memories))
        if number == len(self.memories):
            self.memories.append(GraphMemory(memory, self._pool))
        return _ResultPlace("pool", number, leaf.ptr - memory.ptr, leaf.meta, grad_form)

    def _find_grad_form(self, leaf: Tensor, name: str) -> _GradForm | None:
        """Return how a result lies in the autograd graph, and add its node to the graph."""
        history = leaf.history
        if history is None or not requires_grad(leaf):
            return None
        try:
            edge = edge_of(leaf)
            node = None if edge is None else self._graph.add(edge[0])
        except LiveGraph as error:
            self.refusal = f"{name} requires grad: {error}"
            return None
        except RaceError:
            raise
        except RuntimeError:
            self.refusal = f"{name} is a view whose base was changed in place"
            return None
        if isinstance(node, Tensor):
            self.refusal = f"{name} is a leaf"
            return None
        base = None if history.base is None else self._add(history.base, name)
        return _GradForm(
            node,
            history.index,
            base,
            history.steps,
            history.restriction,
            leaf.counter.version - history.version,
        )

    def release(self) -> None:
        """Drop the objects of the captured call, which replays do not need."""
        self._arguments, self._known, self._numbers = (), {}, {}

    # -- runs -----------------------------------------------------------------------------------------
    def must_wait(self) -> bool:
        """Return True, once, if another stream may use results of an earlier run."""
        shared = [memory for memory in self.memories if memory.is_used_elsewhere]
        for memory in shared:
            memory.is_used_elsewhere = False
        return bool(shared)

    def expire(self) -> None:
        """Let all results of the latest run raise when they are used. What it assigned lasts until the next run."""
        self._run.expire(self._lasting)

    def expire_assigned(self) -> None:
        """Let everything of the latest run raise when it is used."""
        self._run.expire(frozenset())

    def build(self, arguments: Sequence[Any], stream: int) -> tuple[Any, list[Tensor]]:
        """Return the results of a run that was just launched, and the assigned tensors."""
        run = self._run = _Run(caller(), len(self.memories))
        storages = [graph_storage(memory, memory.storage, stream) for memory in self.memories]
        run.storages = [weakref.ref(storage) for storage in storages]
        graph = self._graph.copy()
        made: list[Any] = []
        for where in self._places:
            t = self._make(where, arguments, storages, run)
            if where.grad_form is not None:
                t.history = _make_history(t, where.grad_form, graph, made)
            made.append(t)
        returned = [made[number] for number in self._returned]
        return rebuild(self._nesting, returned), [made[number] for number in self._assigned]

    def _make(
        self, where: _ResultPlace, arguments: Sequence[Any], storages: Sequence[Storage], run: _Run
    ) -> Any:
        kind, index, offset, value, _, of = where
        if kind == "pool":
            storage = storages[index]
            t = make(value, storage, storage.ptr + offset)
            run.tensors[index].append(weakref.ref(t))
            return t
        if kind == "constant":
            return value
        if kind == "itself":
            return arguments[index]
        return make_view(arguments[index] if kind == "argument" else of, value, offset)


def _make_history(t: Tensor, form: _GradForm, graph: GraphCopy, made: Sequence[Tensor]) -> AutogradMeta:
    """Return the autograd state of a result of a run.

    Args:
        t: The result.
        form: How the captured result lay in the graph.
        graph: The graph of the run.
        made: The tensors of the run so far.
    """
    node = None if form.node is None else graph.node(form.node)
    if form.base is None:
        return AutogradMeta(node, form.index)
    history = new_object(ViewMeta)
    history.node, history.index, history.restriction = node, form.index, form.restriction
    history.base, history.steps = made[form.base], form.steps
    of = history.base.history
    history.base_node = None if of is None or form.restriction is not None else of.node
    history.version = t.counter.version - form.lag
    return history


class _Run:
    """The tensors that one run of a graph returned.

    Attributes:
        storages: The storage over each memory of the graph.
        tensors: The tensors of each storage.
    """

    def __init__(self, site: Site, count: int) -> None:
        self._site = site
        self.storages: list[Callable[[], GraphStorage | None]] = []
        self.tensors: list[list[Callable[[], Tensor | None]]] = [[] for _ in range(count)]

    def expire(self, lasting: frozenset[int]) -> None:
        """Expire all storages except those with the numbers `lasting`."""
        for number, reference in enumerate(self.storages):
            storage = None if number in lasting else reference()
            if storage is not None and storage.call is None:
                self._expire_storage(storage, self.tensors[number])

    def _expire_storage(self, storage: GraphStorage, results: Sequence[Callable[[], Tensor | None]]) -> None:
        over: list[Any] = [t for ref in results if (t := ref()) is not None and t.memory is storage]
        if getrefcount(storage) > _OWN_REFERENCES + 2 * len(over) + 1:  # 1: the caller's variable
            probe = make(Meta.contiguous_of((0,), uint8, storage.device), storage, storage.ptr)
            over = [t for t in holders(probe)[0] if t is not probe]
        for t in over:
            _forget_address(t, t.ptr - storage.ptr)
        storage.call = _Expired(self._site)
        storage.stream = NO_STREAM  # so that calls ask the storage
        del storage.ptr


def _forget_address(t: Tensor | SavedTensor, offset: int) -> None:
    if isinstance(t, SavedTensor):
        t.offset = offset
    else:
        t.deferred_offset = offset
    del t.ptr

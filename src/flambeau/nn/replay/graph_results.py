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
from flambeau.core.meta import Meta
from flambeau.nn.replay.nesting import flatten, rebuild
from flambeau.tensor.autograd.saved import SavedTensor
from flambeau.tensor.storage import GraphStorage, Storage, graph_storage
from flambeau.tensor.storage_resize import holders
from flambeau.tensor.tensor import Tensor, make
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


class _ResultPlace(NamedTuple):
    """Where a result lies.

    Attributes:
        kind: "pool", "argument" (a view of one), "itself" (an argument), or "constant".
        index: Number of the memory of the pool, or of the argument.
        offset: Bytes from the start of that memory, or from the argument's address.
        value: The meta of a tensor, or the constant.
    """

    kind: str
    index: int
    offset: int
    value: Any


class Results:
    """The form of what a captured call returned and assigned, and the tensors of the latest run.

    Attributes:
        memories: The memory in the pool that results lie in.
        refusal: Why the results cannot be returned again; "" if they can.
    """

    def __init__(
        self,
        value: Any,
        assigned: Sequence[Tensor],
        arguments: Sequence[Any],
        known: dict[int, Storage],
        pool: Any,
    ) -> None:
        leaves: list[Any] = []
        self._nesting = flatten(value, leaves)
        self._arguments, self._known, self._keep = arguments, known, pool
        self.memories: list[GraphMemory] = []
        self._numbers: dict[int, int] = {}  # id of a storage -> number of its memory
        self.refusal = ""
        self._places = [self._locate(leaf, pool) for leaf in leaves]
        self._assigned = [self._locate(t, pool) for t in assigned]
        self._lasting = frozenset([place.index for place in self._assigned if place.kind == "pool"])
        self._run = _Run(caller(), 0)

    def _locate(self, leaf: Any, pool: Any) -> _ResultPlace:
        if not isinstance(leaf, Tensor):
            if type(leaf) not in _CONSTANTS:
                self.refusal = f"it returns an object of the class {type(leaf).__name__}"
            return _ResultPlace("constant", 0, 0, leaf)
        for k, argument in enumerate(self._arguments):
            if isinstance(argument, Tensor) and argument.memory is leaf.memory:
                if leaf is argument:
                    return _ResultPlace("itself", k, 0, None)
                return _ResultPlace("argument", k, leaf.ptr - argument.ptr, leaf.meta)
        if id(leaf.memory) in self._known:
            return _ResultPlace("constant", 0, 0, leaf)
        if type(leaf) is not Tensor or leaf.device.type != "cuda":
            self.refusal = f"it returns a {type(leaf).__name__} on {leaf.device}"
        elif leaf.requires_grad:
            self.refusal = "it returns a tensor that requires grad"
        memory = leaf.memory
        number = self._numbers.setdefault(id(memory), len(self.memories))
        if number == len(self.memories):
            self.memories.append(GraphMemory(memory, pool))
        return _ResultPlace("pool", number, leaf.ptr - memory.ptr, leaf.meta)

    def release(self) -> None:
        """Drop the objects of the captured call, which replays do not need."""
        self._arguments, self._known = (), {}

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
        leaves = [self._make(place, arguments, storages, run) for place in self._places]
        assigned = [self._make(place, arguments, storages, run) for place in self._assigned]
        return rebuild(self._nesting, leaves), assigned

    def _make(
        self, where: _ResultPlace, arguments: Sequence[Any], storages: Sequence[Storage], run: _Run
    ) -> Any:
        kind, index, offset, value = where
        if kind == "pool":
            storage = storages[index]
            t = make(value, storage, storage.ptr + offset)
            run.tensors[index].append(weakref.ref(t))
            return t
        if kind == "constant":
            return value
        argument = arguments[index]
        if kind == "itself":
            return argument
        t = make(value, argument.memory, argument.ptr + offset)
        t.counter = argument.counter
        return t


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
        """Expire the storages but those with the numbers `lasting`."""
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

"""Arguments whose address changes from call to call: static tensors that a graph reads in their place.

# Note [Static arguments]
Problem: A graph reads the addresses of its capture, and a program often passes each batch at another one.
Rule: While a call is captured, such an argument has the memory of a static tensor. Afterwards it has its own again,
and so have views of it. Each replay first copies the argument into the static tensor, and if the function writes into
the argument, copies the result back.
Why: The function sees the object that the program passed, so what it stores or returns is the same as in eager code.
Consequences: A launch that accesses the argument's own memory through another tensor leaves the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from flambeau.core.layout import is_dense
from flambeau.runtime import current
from flambeau.tensor.call import empty
from flambeau.tensor.storage import Storage
from flambeau.tensor.storage_resize import holders
from flambeau.tensor.tensor import Tensor

_REFERENCES = (
    3  # to the storage of a static tensor: its `memory` and `counter`, and the argument of `getrefcount`
)


class _Copied(NamedTuple):
    """An argument that a static tensor stands for.

    Attributes:
        index: Its number.
        static: The static tensor.
        memory, ptr: Its own memory at the capture.
    """

    index: int
    static: Tensor
    memory: Storage
    ptr: int


class StaticArguments:
    """The arguments of a graph, some of which are replaced by static tensors.

    Args:
        leaves: The arguments of the captured call.
        moving: The numbers of those whose address changes.
        others: The function's other tensors.
    """

    def __init__(self, leaves: Sequence[Any], moving: set[int], others: Sequence[Tensor]) -> None:
        self._leaves = leaves
        memories = [
            *[t.memory for t in others],
            *{id(x): x.memory for x in leaves if isinstance(x, Tensor)}.values(),
        ]
        tensors = {id(x): k for k, x in reversed(list(enumerate(leaves))) if isinstance(x, Tensor)}
        self._first = {k: tensors[id(x)] for k, x in enumerate(leaves) if isinstance(x, Tensor)}
        self._copied: list[_Copied] = []
        self._fixed: list[tuple[int, int]] = []  # number, address
        self._writes: list[
            tuple[int, int]
        ] = []  # number, change of the version; of arguments that are written
        self._written: list[Storage] = []  # memory of other tensors that is written
        for k in sorted(set(self._first.values())):
            x = leaves[k]
            if k in moving and _can_be_copied(x) and sum([m is x.memory for m in memories]) == 1:
                self._copied.append(_Copied(k, empty(x.meta), x.memory, x.ptr))
            else:
                self._fixed.append((k, x.ptr))
        counters = {
            id(leaves[k].counter): k for k in sorted(tensors.values(), reverse=True)
        }  # views share one
        for t in others:
            counters.pop(id(t.counter), None)
        self._versions = {k: leaves[k].counter.version for k in counters.values()}
        self._is_swapped = False

    @property
    def storages(self) -> list[Storage]:
        """Return the memory of the static tensors."""
        return [one.static.memory for one in self._copied]

    # -- the capture ----------------------------------------------------------------------------------
    def swap(self) -> None:
        """Give the arguments the memory of their static tensors. See Note [Static arguments]."""
        self._is_swapped = True
        for index, static, _, _ in self._copied:
            x = self._leaves[index]
            x.memory, x.ptr = static.memory, static.ptr

    def restore(self) -> None:
        """Give the arguments their own memory back, and all tensors that view them."""
        if not self._is_swapped:
            return
        self._is_swapped = False
        for index, static, memory, ptr in self._copied:
            x = self._leaves[index]
            x.memory, x.ptr = memory, ptr
            if getrefcount(static.memory) > _REFERENCES:
                for view in holders(static)[0]:
                    if view is not static:
                        view.memory = memory
                        view.ptr += ptr - static.ptr

    def is_hidden(self, ptr: int, nbytes: int) -> bool:
        """Return True if memory is an argument's own while a static tensor stands for that."""
        return self._is_swapped and any(
            ptr < one.ptr + one.static.meta.span and one.ptr < ptr + nbytes for one in self._copied
        )

    def note_writes(self, written: Sequence[Storage]) -> None:
        """Store which arguments the captured call wrote into, and which other memory."""
        changes = [(k, self._leaves[k].counter.version - before) for k, before in self._versions.items()]
        self._writes = [(k, change) for k, change in changes if change]
        self._written = list(written)

    def release(self) -> None:
        """Drop the arguments of the capture, which replays do not need."""
        self._leaves = ()
        self._copied = [one._replace(memory=one.static.memory) for one in self._copied]

    # -- replays --------------------------------------------------------------------------------------
    def find_moved(self, leaves: Sequence[Any]) -> list[int]:
        """Return the numbers of the arguments that have another address than the graph accesses."""
        return [k for k, ptr in self._fixed if leaves[k].ptr != ptr]

    def fits(self, leaves: Sequence[Any]) -> bool:
        """Return True if the same tensors are passed several times, and copies hide no write."""
        if any(leaves[k] is not leaves[first] for k, first in self._first.items()):
            return False
        if not self._copied or not (self._writes or self._written):
            return True
        memories = [leaves[k].memory for k in set(self._first.values())] + self._written
        return all(sum([m is leaves[one.index].memory for m in memories]) == 1 for one in self._copied)

    def names_of(self, leaves: Sequence[Any]) -> dict[int, tuple[int, int]]:
        """Return the address and bytes of the static tensor for the address of each argument that has one."""
        return {leaves[k].ptr: (static.ptr, static.meta.span) for k, static, _, _ in self._copied}

    def copy_in(self, leaves: Sequence[Any]) -> None:
        """Copy the arguments into the static tensors, on the current stream."""
        for index, static, _, _ in self._copied:
            _copy(static, leaves[index])

    def copy_back(self, leaves: Sequence[Any] | None = None) -> None:
        """Copy the static tensors that the function wrote to the arguments, by default to the captured ones."""
        leaves = self._leaves if leaves is None else leaves
        for index, static, _, _ in self._copied:
            if any(k == index for k, _ in self._writes):
                _copy(leaves[index], static)

    def count_writes(self, leaves: Sequence[Any]) -> None:
        """Count a replay's writes as in-place changes of the arguments."""
        for k, change in self._writes:
            leaves[k].counter.version += change


def _can_be_copied(x: Tensor) -> bool:
    meta = x.meta
    return (
        type(x) is Tensor
        and x.device.type == "cuda"
        and meta.span > 0
        and is_dense(meta.shape, meta.strides)
        and x.history is None
    )


def _copy(target: Tensor, source: Tensor) -> None:
    context = source.memory.context
    stream = current.local.streams[context.index]
    source.memory.used_on(stream.handle)
    target.memory.used_on(stream.handle)
    context.driver.copy(target.ptr, source.ptr, source.meta.span, stream.handle)
    stream.queue.busy = True

"""Memory as allocators hand it out and take it back, told to profilers. Owner of who is told.

While somebody is, allocators have ways of their own, and so have the plans of calls (Note [The plan cache]);
otherwise an allocation costs what it costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from flambeau.core.flags import flags
from flambeau.runtime.context import Block, Context

if TYPE_CHECKING:
    from flambeau.runtime.streams.accelerator_stream import Stream


class Witness(Protocol):
    """It is told in the thread that asked. `on_free` may come at any time, from a destructor."""

    def on_allocate(self, context: Context, block: Block, nbytes: int, to_launch: bool, /) -> None:
        """`nbytes` were asked for and more than 0; `to_launch`: for this thread's next launch, which writes them."""

    def on_free(self, context: Context, block: Block, /) -> None:
        """A block of more than 0 bytes comes back."""


_witnesses: tuple[Witness, ...] = ()
_told: dict[Any, _Told] = {}  # by allocator


def subscribe(witness: Witness, contexts: Sequence[Context]) -> None:
    """Tell `witness` of the memory of these contexts from now on."""
    global _witnesses
    _witnesses = (*_witnesses, witness)
    for context in contexts:
        allocator = context.allocator
        if allocator not in _told:
            _told[allocator] = _Told(context, allocator)
    flags.witnessed = True


def unsubscribe(witness: Witness) -> None:
    """Tell it no more."""
    global _witnesses
    _witnesses = tuple([other for other in _witnesses if other is not witness])
    if _witnesses:
        return
    flags.witnessed = False
    while _told:
        _told.popitem()[1].end()


class _Told:
    """An allocator whose own ways of allocating and freeing are hidden by ways that tell, until `end`."""

    def __init__(self, context: Context, allocator: Any) -> None:
        self._allocator = allocator
        self._kept = allocator.allocate, allocator.allocate_output
        allocator.allocate, allocator.allocate_output = [
            _allocating(context, way, to_launch)
            for way, to_launch in zip(self._kept, (False, True), strict=True)
        ]
        allocator.wrap_free(partial(_freeing, context))

    def end(self) -> None:
        self._allocator.wrap_free(None)
        self._allocator.allocate, self._allocator.allocate_output = self._kept


def _allocating(
    context: Context, allocate: Callable[[int, Stream], Block], to_launch: bool
) -> Callable[[int, Stream], Block]:
    """Plans keep it when nobody is told any more: who is, it looks up."""

    def allocate_and_tell(nbytes: int, stream: Stream) -> Block:
        block = allocate(nbytes, stream)
        if nbytes:
            for witness in _witnesses:
                witness.on_allocate(context, block, nbytes, to_launch)
        return block

    return allocate_and_tell


def _freeing(context: Context, free: Callable[[Block], None]) -> Callable[[Block], None]:
    def tell_and_free(block: Block) -> None:
        if block.size:
            for witness in _witnesses:
                witness.on_free(context, block)
        free(block)

    return tell_and_free

"""`Liveness`: check that the memory a graph reads or writes is still allocated as it was during its capture.

A launch of a graph uses the addresses that were recorded. Memory that was allocated during the capture belongs to
the graph. The program must keep all other memory alive. While a graph is checked, allocators report frees and
launches of its capture report their operands, which costs time.
"""

from __future__ import annotations

from collections.abc import Sequence

from flambeau.core.callsite import Site, caller, place
from flambeau.driver.protocol import Executable
from flambeau.runtime.device_context import AllocatedBlock, Context
from flambeau.runtime.hooks import launch_hooks, memory_hooks
from flambeau.runtime.memory.private_pool import PrivatePool

_SHOWN = 5


class Liveness:
    """The check of one graph's memory, from the beginning of its capture until `stop`.

    `part` is the private pool that the graph allocates from.
    """

    def __init__(self, context: Context, part: PrivatePool) -> None:
        self._context = context
        self._part = part
        self._used: dict[int, tuple[str, Site]] = {}  # address -> first operator that used it, call site
        self._own: list[tuple[int, int]] = []  # (address, bytes) allocated during the capture
        self._dead: dict[int, Site] = {}  # address -> call site of the free
        launch_hooks.subscribe(self)
        memory_hooks.subscribe(self, [context])

    def capture_ended(self) -> None:
        """Stop recording operands, because the capture has ended."""
        launch_hooks.unsubscribe(self)

    def stop(self) -> None:
        """Stop the check, because the graph was destroyed."""
        launch_hooks.unsubscribe(self)
        memory_hooks.unsubscribe(self)

    def check(self) -> None:
        """Raise RuntimeError if memory that a launch would use was freed."""
        if not self._dead:
            return
        lines = [f"CUDA graph replay detected {len(self._dead)} dead tensor(s)."]
        for number, (ptr, freed) in enumerate(list(self._dead.items())[:_SHOWN], 1):
            name, used = self._used[ptr]
            lines.append(f"Dead tensor #{number} (data_ptr={ptr:#x}):")
            lines.append(f"  captured by '{name}' at {place(used)}, freed at {place(freed)}")
        if len(self._dead) > _SHOWN:
            lines.append(f"  ... and {len(self._dead) - _SHOWN} more")
        lines.append("A graph uses the addresses of its capture: keep such tensors as long as the graph.")
        raise RuntimeError("\n".join(lines))

    # -- launches, while it is captured -------------------------------------------------------------------
    def before(self, exe: Executable, stream: int, ptrs: Sequence[int]) -> None:
        if not self._context.driver.capture_active(stream):
            return
        for ptr in ptrs:
            if ptr and ptr not in self._used and not any(begin <= ptr < end for begin, end in self._own):
                self._used[ptr] = exe.launch.kernel.name, caller()

    def after(self, exe: Executable, stream: int) -> None:
        pass

    def on_scope_begin(self, name: str) -> None:
        pass

    def on_scope_end(self) -> None:
        pass

    # -- memory -------------------------------------------------------------------------------------------
    def on_allocate(self, context: Context, block: AllocatedBlock, nbytes: int, to_launch: bool) -> None:
        if _part_of(block) is self._part:
            self._own.append((block.ptr, block.ptr + block.size))

    def on_free(self, context: Context, block: AllocatedBlock) -> None:
        """Record the free of memory that the graph uses. The graph's own pool keeps its memory."""
        if context is not self._context or _part_of(block) is self._part:
            return
        for ptr in [ptr for ptr in self._used if block.ptr <= ptr < block.ptr + block.size]:
            self._dead.setdefault(ptr, caller())


def _part_of(block: AllocatedBlock) -> PrivatePool | None:
    pool = getattr(block, "pool", None)  # CPU memory has no pool
    return None if pool is None else pool.private

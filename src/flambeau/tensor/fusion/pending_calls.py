"""Calls of pointwise operators that are collected, and how a group of them is issued.

# Note [Issuing a group]
Problem: Of the calls in a group, only results that something refers to are needed, and all of the group's inputs must
live until its kernel is enqueued. Eager code may have freed some of them before it allocated the last results.
Rule: Calls that no live result depends on are dropped. The others become one kernel, unless eager code would have
needed less memory: then they are launched one after the other, and memory is freed after its last use.
Why: The memory that a program needs must not grow because it is compiled.
Consequences: `_peak` computes a lower bound of what eager code had allocated. It holds because an allocation without a
launch (`torch.empty`) settles: each input existed when the first call was made. If the program holds all inputs, both
need the same memory, so a group that was fused before is launched without an analysis.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from flambeau.core.callsite import Site
from flambeau.core.meta import Meta
from flambeau.driver.api import Launch, Launcher
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.fusion import fused_plans, fusion_log
from flambeau.tensor.fusion.fused_plans import FusedCall, Recipe
from flambeau.tensor.fusion.issue_site import run_at
from flambeau.tensor.storage import DeferredStorage, Storage, defer_storage, is_pending
from flambeau.tensor.tensor import Tensor, make_deferred

_MOST_CALLS, _MOST_INPUTS = 32, 16  # of a group, which bounds the parameters and registers of a kernel
_UNIT = 512  # bytes to which the allocator rounds
_HELD = 3  # references to a storage in `_is_dead` that are not the program's


class GroupInput(NamedTuple):
    """An operand that exists: a tensor's memory as a call reads it, or a number that is passed by value."""

    operand: Any  # Meta, or the dtype of the number
    storage: Storage | None
    value: Any  # address or number


class PendingCall:
    """A call of a pointwise operator that is not launched yet.

    Attributes:
        group: The group that the call belongs to.
        launch: The launch of the operator alone.
        plan: The plan of the call, which launches it alone.
        position: Its place in the group.
        sources: For each input, the number of an input of the group, or -1 - k for the result of call k.
        storage: A weak reference to the storage of the result.
        site: Where the program made the call; None if nothing asks for it.
    """

    __slots__ = ("group", "launch", "plan", "position", "site", "sources", "storage")

    storage: weakref.ref[DeferredStorage]

    def __init__(
        self, group: PendingGroup, launch: Launch, plan: Any, sources: tuple[int, ...], site: Any
    ) -> None:
        self.group, self.launch, self.plan, self.sources, self.site = group, launch, plan, sources, site
        self.position = len(group.calls)

    def issue(self, memory: DeferredStorage) -> None:
        """Issue the group, because something reads the result's address. Raises what made an earlier attempt fail."""
        group = self.group
        with launch_deferral.lock:
            if launch_deferral.pending is group:
                group.issue("a result is read")
        if is_pending(memory):
            raise RuntimeError(
                "the memory of this tensor was never allocated, because the launch that computes it failed: "
                f"{group.failure}"
            ) from group.failure


class PendingGroup:
    """Calls on one stream and of one shape, in the order of the program. Each reads inputs and earlier results.

    Attributes:
        context, stream, shape: What all calls have in common.
        is_logged: True if the log of groups is on.
        asks_sites: True if somebody asks where the program made the calls.
        calls, inputs: The calls, and the operands that exist already. Empty once the group is issued.
        failure: The error of the attempt to issue it.
    """

    def __init__(self, context: Any, stream: Stream, shape: tuple[int, ...]) -> None:
        self.context, self.stream, self.shape = context, stream, shape
        self.calls: list[PendingCall] = []
        self.inputs: list[GroupInput] = []
        self.failure: BaseException | None = None
        self.is_logged = fusion_log.is_on()
        self.asks_sites = self.is_logged or context.driver.runs_bodies
        self._storages: dict[int, Storage] = {}
        self._places: dict[tuple[int, Meta], int] = {}

    def accepts(self, context: Any, stream: Stream, shape: tuple[int, ...]) -> str:
        """Return "" if the next call belongs to this group, else why it does not."""
        if context is not self.context or stream is not self.stream:
            return "the next call is on another stream"
        if shape != self.shape:
            return "the next call has another shape"
        if len(self.calls) >= _MOST_CALLS or len(self.inputs) >= _MOST_INPUTS:
            return "the group is full"
        return ""

    def add(
        self, launch: Launch, plan: Any, args: Sequence[Any], numbers: Sequence[Any], site: Site | None
    ) -> Tensor:
        """Add a call and return the tensor of its result. `numbers` are the operands passed by value."""
        if numbers:
            values = iter(numbers)
            operands = zip(launch.inputs, args, strict=True)
            sources = tuple(
                [
                    self._source(x, a) if isinstance(x, Meta) else self._source_of(x, next(values))
                    for x, a in operands
                ]
            )
        else:
            sources = tuple(map(self._source, launch.inputs, args))
        call = PendingCall(self, launch, plan, sources, site)
        self.calls.append(call)
        memory = defer_storage(call, plan.nbytes, self.context, self.stream.handle)
        call.storage = weakref.ref(memory)
        self.stream.queue.busy = True
        return make_deferred(memory, plan.output)

    def _source_of(self, dtype: Any, number: Any) -> int:
        """Add an operand that is passed by value, and return its number."""
        self.inputs.append(GroupInput(dtype, None, number))
        return len(self.inputs) - 1

    def _source(self, operand: Any, arg: Any) -> int:
        """Return the number of a tensor; add it to the inputs if it is new."""
        memory = arg.memory
        if is_pending(memory) and memory.call.group is self:
            position: int = memory.call.position
            return -1 - position
        key = (arg.ptr, operand)
        place = self._places.get(key)
        if place is None:
            place = self._places[key] = len(self.inputs)
            self.inputs.append(GroupInput(operand, memory, arg.ptr))
            self._storages[id(memory)] = memory
        return place

    # -- issuing --------------------------------------------------------------------------------------
    def issue(self, why: str) -> None:
        """Launch what live results need. See Note [Issuing a group]."""
        launch_deferral.replace(None)
        live = {k: memory for k, call in enumerate(self.calls) if (memory := call.storage()) is not None}
        try:
            self._issue(live, why)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self.calls, self.inputs, self._storages = [], [], {}  # no reference cycle delays freeing memory

    def _issue(self, live: dict[int, DeferredStorage], why: str) -> None:
        handle = self.stream.handle
        for storage in self._storages.values():
            storage.used_on(handle)
        key = self._key(live)
        fused = None if self.is_logged else fused_plans.recall(key)
        if fused is None or self.dead_storages():
            self._issue_anew(_Needed(self, live), key, why)
        else:
            self._launch_fused(fused, live)
        self.stream.queue.busy = True

    def _key(self, live: dict[int, DeferredStorage]) -> tuple[Any, ...]:
        """Return what decides which kernel a group needs, unless only the group keeps one of its inputs alive.

        The plans determine the launches, and with the sources the operands and which of them are equal.
        """
        plans, sources = [c.plan for c in self.calls], [c.sources for c in self.calls]
        return self.context, tuple(plans), tuple(sources), tuple(live)

    def _issue_anew(self, needed: _Needed, key: tuple[Any, ...], why: str) -> None:
        """Analyze a group and launch it. What is fused is remembered."""
        alone = "" if len(needed.order) > 1 else "one call alone"
        if not alone and needed.fused_nbytes() > needed.peak():
            alone = "separate kernels need less memory"
        launcher = None if alone else fused_plans.find(self.context, needed.recipe())
        if launcher is None:
            self._launch_each(needed)
        else:
            fused = needed.fused_call(launcher)
            fused_plans.remember(key, fused)
            self._launch_fused(fused, needed.live)
        if self.is_logged and needed.order:
            fusion_log.write(self.context, needed.recipe(), needed.sites(), why, alone, launcher is not None)

    def _launch_fused(self, fused: FusedCall, live: dict[int, DeferredStorage]) -> None:
        context, stream, calls, inputs = self.context, self.stream, self.calls, self.inputs
        blocks: list[Any] = []
        try:
            for k in live:
                plan = calls[k].plan
                blocks.append(plan.allocate(plan.nbytes, stream))
            ptrs = [block.ptr for block in blocks] + [inputs[k].value for k in fused.tensors]
            scalars = [inputs[k].value for k in fused.numbers]
            run_at(calls[fused.last].site, fused.launch, ptrs, scalars, stream.handle)
        except BaseException:
            for block in blocks:
                context.allocator.free(block)
            raise
        for memory, block in zip(live.values(), blocks, strict=True):
            memory.receive(block)

    def _launch_each(self, needed: _Needed) -> None:
        """Launch the calls one after the other. Memory is freed after its last use."""
        blocks: dict[int, Any] = {}
        try:
            for k in needed.order:
                call = self.calls[k]
                blocks[k] = block = call.plan.allocate(call.plan.nbytes, self.stream)
                operands = list(zip(call.launch.inputs, call.sources, strict=True))
                ptrs = [block.ptr, *[self._address(blocks, s) for x, s in operands if isinstance(x, Meta)]]
                scalars = [self.inputs[s].value for x, s in operands if not isinstance(x, Meta)]
                run_at(call.site, call.plan.launch, ptrs, scalars, self.stream.handle)
                if k in needed.live:
                    needed.live[k].receive(blocks[k])
                self._free_after(needed, k, blocks)
        except BaseException:
            for k, block in blocks.items():
                if k not in needed.live or is_pending(needed.live[k]):
                    self.context.allocator.free(block)
            raise

    def _address(self, blocks: dict[int, Any], source: int) -> int:
        address: int = self.inputs[source].value if source >= 0 else blocks[-1 - source].ptr
        return address

    def _free_after(self, needed: _Needed, k: int, blocks: dict[int, Any]) -> None:
        """Free what call `k` is the last to use."""
        for source in needed.last_uses(k):
            if source < 0:
                if -1 - source not in needed.live:
                    self.context.allocator.free(blocks.pop(-1 - source))
            elif (storage := self.inputs[source].storage) is not None:
                self.inputs[source] = self.inputs[source]._replace(storage=None)
                if not any(x.storage is storage for x in self.inputs):
                    del self._storages[id(storage)]

    def dead_storages(self) -> list[Storage]:
        """Return the inputs' memory that only this group refers to."""
        held = {id(s): sum([x.storage is s for x in self.inputs]) for s in self._storages.values()}
        return [s for s in self._storages.values() if getrefcount(s) <= _HELD + held[id(s)]]

    def nbytes_of_inputs(self) -> int:
        return sum([_round_up(s.nbytes) for s in self._storages.values()])


class _Needed:
    """The calls of a group that live results depend on.

    Attributes:
        live: Position of a call -> the storage of its result, which something refers to.
        order: Positions of the calls that are needed.
        inputs: Positions of the inputs that they read.
        stored: Positions of the calls whose results are stored.
    """

    def __init__(self, group: PendingGroup, live: dict[int, DeferredStorage]) -> None:
        self.group, self.live = group, live
        used = set(live)
        for k in range(len(group.calls) - 1, -1, -1):
            if k in used:
                used.update([-1 - s for s in group.calls[k].sources if s < 0])
        self.order, self.stored = sorted(used), sorted(live)
        sources = [s for k in self.order for s in group.calls[k].sources]
        self.inputs = sorted({s for s in sources if s >= 0})
        self._last = {s: k for k in self.order for s in group.calls[k].sources}

    def last_uses(self, k: int) -> list[int]:
        """Return the sources that call `k` is the last to read."""
        return [s for s in dict.fromkeys(self.group.calls[k].sources) if self._last[s] == k]

    def sites(self) -> list[Site | None]:
        return [self.group.calls[k].site for k in self.order]

    def recipe(self) -> Recipe:
        """Return what the kernel of these calls depends on."""
        calls, inputs = self.group.calls, self.group.inputs
        place = {k: n for n, k in enumerate(self.inputs)}
        number = {-1 - k: -1 - n for n, k in enumerate(self.order)}
        steps = [
            (calls[k].launch, tuple([place[s] if s >= 0 else number[s] for s in calls[k].sources]))
            for k in self.order
        ]
        stored = tuple([self.order.index(k) for k in self.stored])
        return Recipe(tuple(steps), tuple([inputs[k].operand for k in self.inputs]), stored)

    def fused_call(self, launcher: Launcher) -> FusedCall:
        """Return how `launcher` is called with the operands of a group of this form."""
        inputs = self.group.inputs
        tensors = tuple([k for k in self.inputs if inputs[k].storage is not None])
        numbers = tuple([k for k in self.inputs if inputs[k].storage is None])
        return FusedCall(launcher, tensors, numbers, self.order[-1])

    def fused_nbytes(self) -> int:
        """Return the bytes of the inputs and of the stored results, which a fused kernel needs together."""
        return self.group.nbytes_of_inputs() + sum([self._nbytes(k) for k in self.stored])

    def _nbytes(self, k: int) -> int:
        return _round_up(self.group.calls[k].plan.nbytes)

    def peak(self) -> int:
        """Return the bytes that eager code had allocated at least at one of the calls. See Note [Issuing a group]."""
        group = self.group
        dead = {id(s): s for s in group.dead_storages()}
        total = group.nbytes_of_inputs()
        if not dead:
            return total + sum([self._nbytes(k) for k in self.stored])
        last_of_storage = dict.fromkeys(dead, -1)
        for k, call in enumerate(group.calls):
            for s in call.sources:
                if s >= 0 and id(group.inputs[s].storage) in dead:
                    last_of_storage[id(group.inputs[s].storage)] = k
        return max(self._eager_nbytes(total, dead, last_of_storage))

    def _eager_nbytes(self, total: int, dead: dict[int, Storage], last: dict[int, int]) -> Iterator[int]:
        """Yield the bytes that eager code had allocated at least, at each call."""
        calls = self.group.calls
        for k in range(len(calls)):
            freed = sum([_round_up(s.nbytes) for key, s in dead.items() if last[key] < k])
            used_later = [j for j in self.order if self._last.get(-1 - j, j) >= k or j in self.live]
            yield total - freed + sum([self._nbytes(j) for j in used_later if j <= k])


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT

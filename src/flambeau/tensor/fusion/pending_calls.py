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

# Note [Writes in a group]
Problem: In-place operators overwrite memory that other calls of the group read.
Rule: A later call that reads the same elements in the same layout reads the result of the write. A group accesses
written memory in one layout only; another access issues the group first. The kernel stores the last write.
Why: Each thread of the kernel then reads an element before it writes it, and no other thread accesses that element.
Consequences: Writes into memory that exists are always needed. A result that is overwritten while it is pending keeps
its memory, which all writes share, and only its last value is stored.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getrefcount
from typing import Any, NamedTuple

from flambeau.core.callsite import Site
from flambeau.core.errors import OutOfMemoryError
from flambeau.core.meta import Meta
from flambeau.driver.api import Fold, Launch, Launcher
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.fusion import fused_plans, fusion_log
from flambeau.tensor.fusion.fused_plans import FusedCall, Recipe
from flambeau.tensor.fusion.issue_site import run_at
from flambeau.tensor.storage import DeferredStorage, Storage, defer_storage, is_pending
from flambeau.tensor.tensor import Tensor, make_deferred

_MOST_CALLS, _MOST_INPUTS = 32, 16  # of a group, which bounds the parameters and registers of a kernel
_MOST_REDUCTIONS = 4  # of a group, which bounds the shared memory of a kernel
_UNIT = 512  # bytes to which the allocator rounds
_HELD = 3  # references to a storage in `dead_storages` that are not the program's


class GroupInput(NamedTuple):
    """An operand that exists: a tensor's memory as a call reads it, or a number that is passed by value."""

    operand: Any  # Meta, or the dtype of the number
    storage: Storage | None
    value: Any  # address or number


def _no_storage() -> None:
    """Return None as a dead weak reference does: nothing refers to the result of a call."""


class GroupRows(NamedTuple):
    """Rows that reductions of a group reduce.

    Attributes:
        of: The shape of the elements.
        shape: The shape of the results.
        itemsize: Bytes of an element, which decide how many threads reduce a row.
    """

    of: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int


def is_reduction(launch: Launch) -> bool:
    """Return True if a launch that may be collected is a reduction."""
    return isinstance(launch.kernel.cuda, Fold)


def rows_of(launch: Launch) -> GroupRows:
    """Return the rows that a reduction reduces."""
    source = launch.inputs[0]
    assert isinstance(source, Meta)
    return GroupRows(source.shape, launch.outputs[0].shape, source.itemsize)


class PendingCall:
    """A call of a pointwise operator that is not launched yet.

    Attributes:
        group: The group that the call belongs to.
        launch: The launch of the operator alone.
        plan: The plan of the call, which launches it alone.
        position: Its place in the group.
        sources: For each input, the number of an input of the group, or -1 - k for the result of call k.
        target: The memory that receives the result: the number of an input, or -1 - k for the memory of call k.
        storage: A weak reference to the storage whose contents the result is; not one that exists already.
        site: Where the program made the call; None if nothing asks for it.
    """

    __slots__ = ("group", "launch", "plan", "position", "site", "sources", "storage", "target")

    storage: Callable[[], DeferredStorage | None]

    def __init__(
        self, group: PendingGroup, launch: Launch, plan: Any, sources: tuple[int, ...], site: Any
    ) -> None:
        self.group, self.launch, self.plan, self.sources, self.site = group, launch, plan, sources, site
        self.position = len(group.calls)
        self.target = -1 - self.position
        self.storage = _no_storage

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

    Reductions of rows, the elements along the last dim, belong to the group as well, and calls of the shape of their
    results.

    Attributes:
        context, stream, shape: What all calls have in common.
        rows: The rows that are reduced; None if there is no reduction.
        is_logged: True if the log of groups is on.
        asks_sites: True if somebody asks where the program made the calls.
        calls, inputs: The calls, and the operands that exist already. Empty once the group is issued.
        writers: The number of an input that is overwritten -> the position of the last call that does it.
        failure: The error of the attempt to issue it.
    """

    def __init__(self, context: Any, stream: Stream, shape: tuple[int, ...]) -> None:
        self.context, self.stream, self.shape = context, stream, shape
        self.rows: GroupRows | None = None
        self.calls: list[PendingCall] = []
        self.inputs: list[GroupInput] = []
        self.writers: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.is_logged = fusion_log.is_on()
        self.asks_sites = self.is_logged or context.driver.runs_bodies
        self._storages: dict[int, Storage] = {}
        self._places: dict[tuple[int, Meta], int] = {}

    def accepts(self, launch: Launch, args: Sequence[Any]) -> str:
        """Return "" if the next call on this stream belongs to this group, else why it does not."""
        if len(self.calls) >= _MOST_CALLS or len(self.inputs) >= _MOST_INPUTS:
            return "the group is full"
        if is_reduction(launch):
            return self._accepts_reduction(launch, args[0])
        shape = launch.outputs[0].shape
        if shape == self.shape:
            aligned = self.rows is None or len(self.rows.shape) == len(shape) or not self._reads_rows(args)
            return "" if aligned else "the results of rows are broadcast along other dims"
        if self.rows is None or shape != self.rows.shape:
            return "the next call has another shape"
        return ""

    def _accepts_reduction(self, launch: Launch, arg: Tensor) -> str:
        rows = rows_of(launch)
        if launch.inputs[0] is not arg.meta or rows.of != self.shape:
            return "the next call has another shape"
        if self.rows not in (None, rows):
            return "the next call reduces other rows"
        if sum([is_reduction(call.launch) for call in self.calls]) >= _MOST_REDUCTIONS:
            return "the group is full"
        if self._computes(arg.memory):
            return ""
        place = self._places.get((arg.ptr, arg.meta))
        return "the next call reduces what the group writes" if place in self.writers else ""

    def _reads_rows(self, args: Sequence[Any]) -> bool:
        """Return True if an argument is the result of a reduction in this group, or computed from it."""
        return any(
            isinstance(a, Tensor) and self._computes(a.memory) and a.meta.shape != self.shape for a in args
        )

    def conflicts(self, launch: Launch, args: Sequence[Any], target: Tensor | None) -> str:
        """Return "" unless a call would break the rule of Note [Writes in a group], else why it does."""
        if target is None and not self.writers:
            return ""
        reads = {
            (a.ptr, x)
            for x, a in zip(launch.inputs, args, strict=True)
            if isinstance(x, Meta) and not self._computes(a.memory)
        }
        if any(_overlaps(reads, self._operand(place)) for place in self.writers):
            return "the next call reads what the group writes in another layout"
        if target is not None and not self._computes(target.memory):
            accesses = reads.union(
                [self._operand(k) for k, x in enumerate(self.inputs) if x.storage is not None]
            )
            if _overlaps(accesses, (target.ptr, target.meta)):
                return "the next call writes what the group reads in another layout"
        return ""

    def _computes(self, memory: Storage) -> bool:
        """Return True if a call of this group computes the contents of a storage."""
        return is_pending(memory) and memory.call.group is self

    def _operand(self, place: int) -> tuple[int, Meta]:
        operand = self.inputs[place]
        return operand.value, operand.operand

    def add(
        self, launch: Launch, plan: Any, args: Sequence[Any], numbers: Sequence[Any], site: Site | None
    ) -> Tensor:
        """Add a call and return the tensor of its result. `numbers` are the operands passed by value."""
        call = self._append(launch, plan, args, numbers, site)
        memory = defer_storage(call, plan.nbytes, self.context, self.stream.handle)
        call.storage = weakref.ref(memory)
        return make_deferred(memory, plan.output)

    def add_into(
        self,
        launch: Launch,
        plan: Any,
        args: Sequence[Any],
        numbers: Sequence[Any],
        site: Site | None,
        target: Tensor,
    ) -> None:
        """Add a call that writes into `target`. See Note [Writes in a group]."""
        call = self._append(launch, plan, args, numbers, site)
        memory = target.memory
        if self._computes(memory):
            assert isinstance(memory, DeferredStorage)
            former = memory.call
            call.target, call.storage, memory.call = former.target, former.storage, call
            former.storage = _no_storage
        else:
            call.target = self._place(target.ptr, target.meta, memory)
            self.writers[call.target] = call.position

    def _append(
        self, launch: Launch, plan: Any, args: Sequence[Any], numbers: Sequence[Any], site: Site | None
    ) -> PendingCall:
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
        if self.rows is None and is_reduction(launch):
            self.rows = rows_of(launch)
        self.stream.queue.busy = True
        return call

    def _source_of(self, dtype: Any, number: Any) -> int:
        """Add an operand that is passed by value, and return its number."""
        self.inputs.append(GroupInput(dtype, None, number))
        return len(self.inputs) - 1

    def _source(self, operand: Any, arg: Any) -> int:
        """Return the value of a tensor as in `PendingCall.sources`."""
        memory = arg.memory
        if self._computes(memory):
            position: int = memory.call.position
            return -1 - position
        place = self._place(arg.ptr, operand, memory)
        return -1 - self.writers[place] if place in self.writers else place

    def _place(self, ptr: int, operand: Meta, memory: Storage) -> int:
        """Return the number of a tensor that exists; add it to the inputs if it is new."""
        place = self._places.get((ptr, operand))
        if place is None:
            place = self._places[ptr, operand] = len(self.inputs)
            self.inputs.append(GroupInput(operand, memory, ptr))
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
            self.writers = {}

    def _issue(self, live: dict[int, DeferredStorage], why: str) -> None:
        handle = self.stream.handle
        for storage in self._storages.values():
            storage.used_on(handle)
        key = self._key(live)
        fused = None if self.is_logged else fused_plans.recall(key)
        if fused is None or self.dead_storages():
            self._issue_anew(_Needed(self, live), key, why)
        elif not self._launch_fused(fused, live):
            self._launch_each(_Needed(self, live))
        self.stream.queue.busy = True

    def _key(self, live: dict[int, DeferredStorage]) -> tuple[Any, ...]:
        """Return what decides which kernel a group needs, unless only the group keeps one of its inputs alive.

        The plans determine the launches, and with the sources the operands and which of them are equal.
        """
        plans, uses = [c.plan for c in self.calls], [(c.sources, c.target) for c in self.calls]
        return self.context, tuple(plans), tuple(uses), tuple(live)

    def _issue_anew(self, needed: _Needed, key: tuple[Any, ...], why: str) -> None:
        """Analyze a group and launch it. What is fused is remembered."""
        alone = "" if len(needed.order) > 1 else "one call alone"
        if not alone and needed.fused_nbytes() > needed.peak():
            alone = "separate kernels need less memory"
        launcher = None if alone else fused_plans.find(self.context, needed.recipe())
        is_fused = False
        if launcher is not None:
            fused = needed.fused_call(launcher)
            fused_plans.remember(key, fused)
            is_fused = self._launch_fused(fused, needed.live)
            alone = "" if is_fused else "there is not enough memory for all results"
        if not is_fused:
            self._launch_each(needed)
        if self.is_logged and needed.order:
            fusion_log.write(self.context, needed.recipe(), needed.sites(), why, alone, is_fused)

    def _launch_fused(self, fused: FusedCall, live: dict[int, DeferredStorage]) -> bool:
        """Launch one kernel. Return False, with nothing launched, if there is not enough memory for its results."""
        context, stream, calls, inputs = self.context, self.stream, self.calls, self.inputs
        blocks: dict[int, Any] = {}
        ptrs: list[int] = []
        try:
            for k in fused.stored:
                target = calls[k].target
                if target < 0:
                    plan = calls[-1 - target].plan
                    block = blocks[k] = plan.allocate(plan.nbytes, stream)
                    ptrs.append(block.ptr)
                else:
                    ptrs.append(inputs[target].value)
            ptrs += [inputs[k].value for k in fused.tensors]
            scalars = [inputs[k].value for k in fused.numbers]
            run_at(calls[fused.last].site, fused.launch, ptrs, scalars, stream.handle)
        except BaseException as error:
            for block in blocks.values():
                context.allocator.free(block)
            if isinstance(error, OutOfMemoryError):
                return False
            raise
        for k, memory in live.items():
            memory.receive(blocks[k])
        return True

    def _launch_each(self, needed: _Needed) -> None:
        """Launch the calls one after the other. Memory is freed after its last use.

        If there is not enough memory for a result, the calls that do not depend on it are launched as well, and then
        the error is raised: the program has made these calls, so what they write must not be lost.
        """
        blocks: dict[int, Any] = {}  # call's target -> block
        live = {self.calls[k].target: memory for k, memory in needed.live.items()}
        lost: set[int] = set()  # results as in `PendingCall.sources`
        failure: OutOfMemoryError | None = None
        try:
            for k in needed.order:
                call = self.calls[k]
                try:
                    if lost.isdisjoint(call.sources):
                        self._launch_one(call, blocks)
                        if k in needed.live:
                            needed.live[k].receive(blocks[call.target])
                    else:
                        lost.add(-1 - k)
                except OutOfMemoryError as error:
                    failure = failure or error
                    lost.add(-1 - k)
                self._free_after(needed, k, blocks, live)
            if failure is not None:
                raise failure
        except BaseException:
            for target, block in blocks.items():
                if target not in live or is_pending(live[target]):
                    self.context.allocator.free(block)
            raise

    def _launch_one(self, call: PendingCall, blocks: dict[int, Any]) -> None:
        """Launch one call. `blocks` has the memory of earlier results, and receives that of this one."""
        if call.target < 0 and call.target not in blocks:
            plan = self.calls[-1 - call.target].plan
            blocks[call.target] = plan.allocate(plan.nbytes, self.stream)
        operands = list(zip(call.launch.inputs, call.sources, strict=True))
        places = [call.target, *[self.memory_of(s) for x, s in operands if isinstance(x, Meta)]]
        ptrs = [self.inputs[m].value if m >= 0 else blocks[m].ptr for m in places]
        scalars = [self.inputs[s].value for x, s in operands if not isinstance(x, Meta)]
        run_at(call.site, call.plan.launch, ptrs, scalars, self.stream.handle)

    def memory_of(self, source: int) -> int:
        """Return the memory of a value when calls are launched one by one: the number of an input, or -1 - k for the
        memory that was allocated for the result of call k.
        """
        return source if source >= 0 else self.calls[-1 - source].target

    def accesses(self, k: int) -> list[int]:
        """Return the memory that call `k` reads or writes when it is launched alone, each as in `memory_of`."""
        call = self.calls[k]
        return list(dict.fromkeys([*map(self.memory_of, call.sources), call.target]))

    def _free_after(
        self, needed: _Needed, k: int, blocks: dict[int, Any], live: dict[int, DeferredStorage]
    ) -> None:
        """Free what call `k` is the last to use."""
        for memory in needed.last_accesses(k):
            if memory < 0:
                if memory not in live and memory in blocks:
                    self.context.allocator.free(blocks.pop(memory))
            elif (storage := self.inputs[memory].storage) is not None:
                self.inputs[memory] = self.inputs[memory]._replace(storage=None)
                if not any(x.storage is storage for x in self.inputs):
                    del self._storages[id(storage)]

    def dead_storages(self) -> list[Storage]:
        """Return the inputs' memory that only this group refers to."""
        held = {id(s): sum([x.storage is s for x in self.inputs]) for s in self._storages.values()}
        return [s for s in self._storages.values() if getrefcount(s) <= _HELD + held[id(s)]]

    def nbytes_of_inputs(self) -> int:
        return sum([_round_up(s.nbytes) for s in self._storages.values()])


class _Needed:
    """The calls of a group that live results and written memory depend on.

    Attributes:
        live: Position of a call -> the storage of its result, which something refers to.
        order: Positions of the calls that are needed.
        inputs: Positions of the inputs that they read.
        stored: Positions of the calls whose results are stored.
    """

    def __init__(self, group: PendingGroup, live: dict[int, DeferredStorage]) -> None:
        self.group, self.live = group, live
        self.stored = sorted({*live, *group.writers.values()})
        used = set(self.stored)
        for k in range(len(group.calls) - 1, -1, -1):
            if k in used:
                used.update([-1 - s for s in group.calls[k].sources if s < 0])
        self.order = sorted(used)
        sources = [s for k in self.order for s in group.calls[k].sources]
        self.inputs = sorted({s for s in sources if s >= 0})
        self._last_read = {s: k for k in self.order for s in group.calls[k].sources}
        self._last_access = {memory: k for k in self.order for memory in group.accesses(k)}

    def last_accesses(self, k: int) -> list[int]:
        """Return the memory that call `k` is the last to access."""
        return [memory for memory in self.group.accesses(k) if self._last_access[memory] == k]

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
        return Recipe(tuple(steps), tuple([inputs[k].operand for k in self.inputs]), stored, self._has_rows())

    def _has_rows(self) -> bool:
        """Return True if the needed calls are more than pointwise calls of one shape."""
        launches = [self.group.calls[k].launch for k in self.order]
        shapes = {launch.outputs[0].shape for launch in launches}
        return len(shapes) > 1 or any(is_reduction(launch) for launch in launches)

    def fused_call(self, launcher: Launcher) -> FusedCall:
        """Return how `launcher` is called with the operands of a group of this form."""
        inputs = self.group.inputs
        tensors = tuple([k for k in self.inputs if inputs[k].storage is not None])
        numbers = tuple([k for k in self.inputs if inputs[k].storage is None])
        return FusedCall(launcher, tuple(self.stored), tensors, numbers, self.order[-1])

    def fused_nbytes(self) -> int:
        """Return the bytes of the inputs and of the new results, which a fused kernel needs together."""
        return self.group.nbytes_of_inputs() + self._nbytes(self.live)

    def _nbytes(self, calls: Iterable[int]) -> int:
        """Return the bytes of the memory that these calls write, without that of the inputs."""
        targets = {self.group.calls[k].target for k in calls}
        return sum([_round_up(self.group.calls[-1 - t].plan.nbytes) for t in targets if t < 0])

    def peak(self) -> int:
        """Return the bytes that eager code had allocated at least at one of the calls. See Note [Issuing a group]."""
        group = self.group
        dead = {id(s): s for s in group.dead_storages()}
        total = group.nbytes_of_inputs()
        if not dead:
            return total + self._nbytes(self.live)
        last_of_storage = dict.fromkeys(dead, -1)
        for k in range(len(group.calls)):
            for memory in group.accesses(k):
                if memory >= 0 and id(group.inputs[memory].storage) in dead:
                    last_of_storage[id(group.inputs[memory].storage)] = k
        return max(self._eager_nbytes(total, dead, last_of_storage))

    def _eager_nbytes(self, total: int, dead: dict[int, Storage], last: dict[int, int]) -> Iterator[int]:
        """Yield the bytes that eager code had allocated at least, at each call."""
        for k in range(len(self.group.calls)):
            freed = sum([_round_up(s.nbytes) for key, s in dead.items() if last[key] < k])
            used_later = [j for j in self.order if self._last_read.get(-1 - j, j) >= k or j in self.live]
            yield total - freed + self._nbytes([j for j in used_later if j <= k])


def _overlaps(operands: Iterable[tuple[int, Meta]], with_: tuple[int, Meta]) -> bool:
    """Return True if an operand shares memory with another one, and is not the same elements in the same layout."""
    start, meta = with_
    end = start + meta.span
    return any(ptr < end and start < ptr + x.span and (ptr, x) != with_ for ptr, x in operands)


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT

"""Calls of pointwise operators that are collected, and how a group of them is issued.

# Note [Writes in a group]
Problem: In-place operators overwrite memory that other calls of the group read.
Rule: A later call that reads the same elements in the same layout reads the result of the write. A group accesses
written memory in one layout only; another access issues the group first. The kernel stores the last write.
Why: Each thread of the kernel then reads an element before it writes it, and no other thread accesses that element.
Consequences: Writes into memory that exists are always needed. A result that is overwritten while it is pending keeps
its memory, which all writes share, and only its last value is stored. A group that writes into memory that exists has
one kernel, so it has no views of results and no calls of another shape.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from sys import getrefcount
from types import CodeType
from typing import Any, NamedTuple

from flambeau.core.callsite import Site, line_of
from flambeau.core.errors import OutOfMemoryError
from flambeau.core.flags import flags
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Expression, Fold, Launch, holds_rows, is_join
from flambeau.runtime.hooks import launch_deferral
from flambeau.runtime.streams.stream import Stream
from flambeau.tensor.fusion import fused_plans, fusion_log
from flambeau.tensor.fusion.fused_plans import FusedPart
from flambeau.tensor.fusion.group_operands import VIEWS, GroupInput, PendingView
from flambeau.tensor.fusion.needed_calls import NeededCalls
from flambeau.tensor.storage import DeferredStorage, Storage, defer_storage, is_pending
from flambeau.tensor.tensor import Tensor, make_deferred

_MOST_CALLS, _MOST_INPUTS = 32, 16  # of a group, which bounds the parameters and registers of a kernel
_MOST_REDUCTIONS = 4  # of a group, which bounds the shared memory of a kernel
_HELD = 3  # references to a storage in `dead_storages` that are not the program's


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


def _is_pointwise(launch: Launch) -> bool:
    return launch.kernel.cuda.__class__ is Expression


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
        sources: For each input, the number of an input of the group, -1 - k for the result of call k, or VIEWS + k for
            view k.
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
    """Calls on one stream, in the order of the program. Each reads inputs, earlier results, and views of these.

    A call of a shape that is new to the group reads what the group reads or computes. Each shape is a kernel, but
    reductions of rows, the elements along the last dim, and calls of the shape of their results are in the kernel of
    the elements.

    Attributes:
        context, stream: What all calls have in common.
        shapes: The shapes of the results, and of the elements that are reduced.
        rows: The rows that are reduced; None if there is no reduction.
        has_held_rows, has_join: True if a call holds rows in registers, as softmax does, or is a `cat`.
        is_logged: True if the log of groups is on.
        asks_sites: True if somebody asks where the program made the calls.
        calls, inputs, views: The calls, the operands that exist already, and the views of results. Empty once the
            group is issued.
        writers: The number of an input that is overwritten -> the position of the last call that does it.
        failure: The error of the attempt to issue it.
    """

    def __init__(self, context: Any, stream: Stream, shape: tuple[int, ...]) -> None:
        self.context, self.stream = context, stream
        self.shapes = {shape}
        self.rows: GroupRows | None = None
        self.has_held_rows = self.has_join = False
        self.calls: list[PendingCall] = []
        self.inputs: list[GroupInput] = []
        self.views: list[PendingView] = []
        self.writers: dict[int, int] = {}
        self.failure: BaseException | None = None
        self.is_logged = fusion_log.is_on()
        self.asks_sites = self.is_logged or context.driver.runs_bodies or flags.recorded
        self._storages: dict[int, Storage] = {}
        self._places: dict[tuple[int, Meta], int] = {}

    def accepts(self, launch: Launch, args: Sequence[Any]) -> str:
        """Return "" if the next call on this stream belongs to this group, else why it does not."""
        if len(self.calls) >= _MOST_CALLS or len(self.inputs) >= _MOST_INPUTS:
            return "the group is full"
        if _is_pointwise(launch) and launch.outputs[0].shape in self.shapes and not self.writers:
            return ""
        reduces = is_reduction(launch)
        if why := _refuses_rows(self, launch, args):
            return why
        shape = rows_of(launch).of if reduces else launch.outputs[0].shape
        if shape not in self.shapes and (self.writers or not self._is_related(args)):
            return "the next call has another shape"
        if self.writers and (is_join(launch) or self._reads_views(launch, args)):
            return "the next call reads a view of a result after a write"
        return self._accepts_reduction(launch, args[0]) if reduces else ""

    def _accepts_reduction(self, launch: Launch, arg: Tensor) -> str:
        rows = rows_of(launch)
        if launch.inputs[0] is not arg.meta:
            return "the next call has another shape"
        if self.rows not in (None, rows):
            return "the next call reduces other rows"
        if sum([is_reduction(call.launch) for call in self.calls]) >= _MOST_REDUCTIONS:
            return "the group is full"
        if self._computes(arg.memory):
            return ""
        place = self._places.get((arg.ptr, arg.meta))
        return "the next call reduces what the group writes" if place in self.writers else ""

    def _is_related(self, args: Sequence[Any]) -> bool:
        """Return True if an argument is computed by this group, or in memory that it reads."""
        memories = [a.memory for a in args if isinstance(a, Tensor)]
        return any(self._computes(memory) or id(memory) in self._storages for memory in memories)

    def _reads_views(self, launch: Launch, args: Sequence[Any]) -> bool:
        """Return True if a call reads a view of a result of this group, or a row that its rows share."""
        shares = holds_rows(launch)
        return any(
            isinstance(x, Meta)
            and self._computes(a.memory)
            and (not self._is_whole(a, x) or (shares and not _has_shape(x, launch.outputs[0].shape)))
            for x, a in zip(launch.inputs, args, strict=True)
        )

    def _is_whole(self, t: Tensor, operand: Meta) -> bool:
        """Return True if a call reads each element of a result at its own place, or a row's result for each element of
        the row.
        """
        out, rows = t.memory.call.launch.outputs[0], self.rows  # type: ignore[attr-defined]
        if t.meta is not out or t.deferred_offset:
            return False
        if operand.shape == out.shape:
            return True
        return rows is not None and (operand.shape, out.shape) == rows[:2] and len(rows.of) == len(rows.shape)

    def is_mixed(self) -> bool:
        """Return True if the group may need several kernels."""
        if self.views or self.has_join:
            return True
        return len(self.shapes) > 1 and len({self.domain(shape) for shape in self.shapes}) > 1

    def domain(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the elements in the kernel that computes a result."""
        rows = self.rows
        return shape if rows is None or shape != rows.shape else rows.of

    def conflicts(self, launch: Launch, args: Sequence[Any], target: Tensor | None) -> str:
        """Return "" unless a call would break the rule of Note [Writes in a group], else why it does."""
        if not self.writers if target is None else self._is_known(launch, args, target):
            return ""
        if target is not None and self._computes(target.memory):
            if not self._is_whole(target, target.meta):
                return "the next call writes into a view of a result"
        elif target is not None and self.is_mixed():
            return "the next call writes into memory"
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

    def _is_known(self, launch: Launch, args: Sequence[Any], target: Tensor) -> bool:
        """Return True if the group writes `target`, and the call reads nothing that the group does not access yet."""
        places = self._places
        if self._computes(target.memory) or places.get((target.ptr, target.meta)) not in self.writers:
            return False
        return all(
            self._computes(a.memory) or (a.ptr, x) in places
            for x, a in zip(launch.inputs, args, strict=True)
            if x.__class__ is Meta
        )

    def _computes(self, memory: Storage) -> bool:
        """Return True if a call of this group computes the contents of a storage."""
        return memory.__class__ is DeferredStorage and memory.call is not None and memory.call.group is self

    def _operand(self, place: int) -> tuple[int, Meta]:
        operand = self.inputs[place]
        return operand.value, operand.operand

    def add(
        self, launch: Launch, plan: Any, args: Sequence[Any], numbers: Sequence[Any], site: Site | None
    ) -> Tensor:
        """Add a call and return the tensor of its result. `numbers` are the operands passed by value."""
        call = self._append(launch, plan, args, numbers, site)
        memory = defer_storage(call, plan.nbytes, self.context)
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
        elif holds_rows(launch):
            shape = launch.outputs[0].shape
            read = [self._source if _has_shape(x, shape) else self._source_beside for x in launch.inputs]
            sources = tuple([find(x, a) for find, x, a in zip(read, launch.inputs, args, strict=True)])
        else:
            sources = tuple(map(self._source, launch.inputs, args))
        call = PendingCall(self, launch, plan, sources, site)
        self.calls.append(call)
        self.shapes.add(launch.outputs[0].shape)
        if not _is_pointwise(launch):
            _note_rows(self, launch)
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
            call: PendingCall = memory.call
            if arg.meta is operand is call.launch.outputs[0] and not arg.deferred_offset:
                return -1 - call.position
            is_whole = self._is_whole(arg, operand)
            return -1 - call.position if is_whole else self._view(call.position, operand, arg.deferred_offset)
        place = self._place(arg.ptr, operand, memory)
        return -1 - self.writers[place] if place in self.writers else place

    def _source_beside(self, operand: Any, arg: Any) -> int:
        """Return the value of a row that all rows of a call share, such as a weight: as a view, if it is a result."""
        memory = arg.memory
        if self._computes(memory):
            return self._view(memory.call.position, operand, arg.deferred_offset)
        return self._source(operand, arg)

    def _view(self, position: int, operand: Meta, offset: int) -> int:
        """Return the source for a view of the result of a call."""
        view = PendingView(-1 - position, operand, offset)
        if view not in self.views:
            self.views.append(view)
        return VIEWS + self.views.index(view)

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
        """Launch the calls on which live results depend. See Note [Issuing a group]."""
        launch_deferral.replace(None)
        live = {k: memory for k, call in enumerate(self.calls) if (memory := call.storage()) is not None}
        try:
            self._issue(live, why)
        except BaseException as error:
            self.failure = error
            raise
        finally:
            # so that no reference cycle delays freeing memory
            self.calls, self.inputs, self.views, self._storages = [], [], [], {}
            self.writers = {}

    def _issue(self, live: dict[int, DeferredStorage], why: str) -> None:
        handle = self.stream.handle
        _use_inputs(self._storages.values(), handle)
        if len(self.calls) == 1 and not self.is_logged:
            _launch_alone(self, live)
        else:
            key = self._key(live)
            fused = None if self.is_logged else fused_plans.recall(key)
            if fused is None:
                self._issue_anew(NeededCalls(self, live), key, why)
            elif not self._launch_fused(fused, live):
                self._launch_each(NeededCalls(self, live))
        self.stream.queue.busy = True

    def _key(self, live: dict[int, DeferredStorage]) -> tuple[Any, ...]:
        """Return what decides which kernels a group needs.

        The plans determine the launches, and with the sources the operands and which of them are equal.
        """
        plans, uses = [c.plan for c in self.calls], [(c.sources, c.target) for c in self.calls]
        return self.context, tuple(plans), tuple(uses), tuple(self.views), tuple(live), _dead_memory_of(self)

    def _issue_anew(self, needed: NeededCalls, key: tuple[Any, ...], why: str) -> None:
        """Analyze a group and launch it. What is fused is remembered."""
        parts, alone = needed.parts()
        launchers = [part.launcher(self.context) for part in parts]
        is_fused = False
        if parts and None not in launchers:
            fused = tuple([part.prepare(run) for part, run in zip(parts, launchers, strict=True) if run])
            fused_plans.remember(key, fused)
            is_fused = self._launch_fused(fused, needed.live)
            alone = "" if is_fused else "there is not enough memory for all results"
        if not is_fused:
            self._launch_each(needed)
        if self.is_logged and needed.order:
            for order in [part.order for part in parts] if is_fused else [needed.order]:
                fusion_log.write(self.context, [self.calls[k] for k in order], why, alone, is_fused)

    def _launch_fused(self, parts: Sequence[FusedPart], live: dict[int, DeferredStorage]) -> bool:
        """Launch the kernels of a group. Return False if there is not enough memory for all results; nothing is written
        then, because a group that writes has one kernel.
        """
        blocks: dict[int, Any] = {}
        try:
            for part in parts:
                self._launch_part(part, blocks)
        except OutOfMemoryError:
            self._free(blocks)
            return False
        except BaseException:
            self._free(blocks)
            raise
        for k, memory in live.items():
            memory.receive(blocks[k])
        return True

    def _launch_part(self, part: FusedPart, blocks: dict[int, Any]) -> None:
        """Launch a kernel. `blocks` has the results of earlier kernels, and receives those of this one."""
        stream, calls, inputs = self.stream, self.calls, self.inputs
        ptrs: list[int] = []
        for k in part.stored:
            target = calls[k].target
            if target < 0:
                plan = calls[-1 - target].plan
                block = blocks[k] = plan.allocate(plan.nbytes, stream)
                ptrs.append(block.ptr)
            else:
                ptrs.append(inputs[target].value)
        ptrs += [inputs[k].value if k >= 0 else blocks[-1 - k].ptr + offset for k, offset in part.tensors]
        scalars = [inputs[k].value for k in part.numbers]
        run_at(calls[part.last].site, part.launch, ptrs, scalars, stream.handle)
        self._free({k: blocks.pop(k) for k in part.freed})

    def _free(self, blocks: dict[int, Any]) -> None:
        for block in blocks.values():
            self.context.allocator.free(block)

    def _launch_each(self, needed: NeededCalls) -> None:
        """Launch the calls one after the other. Memory is freed after its last use.

        If there is not enough memory for a result, the calls that do not depend on it are launched as well, and then
        the error is raised: the program has made these calls, so what they write must not be lost.
        """
        blocks: dict[int, Any] = {}  # call's target -> block
        live = {self.calls[k].target: memory for k, memory in needed.live.items()}
        _release_unused(self, needed.order)
        lost: set[int] = set()  # results as in `PendingCall.sources`
        failure: OutOfMemoryError | None = None
        try:
            for k in needed.order:
                call = self.calls[k]
                try:
                    if lost.isdisjoint(map(self.base, call.sources)):
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
        sources = [call.target, *[s for x, s in operands if isinstance(x, Meta)]]
        ptrs = [self._address(s, blocks) for s in sources]
        scalars = [self.inputs[s].value for x, s in operands if not isinstance(x, Meta)]
        run_at(call.site, call.plan.launch, ptrs, scalars, self.stream.handle)

    def _address(self, source: int, blocks: dict[int, Any]) -> int:
        """Return the address of a value when calls are launched one by one."""
        memory = self.memory_of(source)
        address: int = self.inputs[memory].value if memory >= 0 else blocks[memory].ptr
        return address if source < VIEWS else address + self.views[source - VIEWS].offset

    def base(self, source: int) -> int:
        """Return the source of which a view is a part; any other source itself."""
        return source if source < VIEWS else self.views[source - VIEWS].source

    def memory_of(self, source: int) -> int:
        """Return the memory of a value if calls are launched one by one: the number of an input, or -1 - k for the
        memory of the result of call k.
        """
        source = self.base(source)
        return source if source >= 0 else self.calls[-1 - source].target

    def accesses(self, k: int) -> list[int]:
        """Return the memory that call `k` reads or writes when it is launched alone, each as in `memory_of`."""
        call = self.calls[k]
        return list(dict.fromkeys([*map(self.memory_of, call.sources), call.target]))

    def _free_after(
        self, needed: NeededCalls, k: int, blocks: dict[int, Any], live: dict[int, DeferredStorage]
    ) -> None:
        """Free what call `k` is the last to use."""
        for memory in needed.last_accesses(k):
            if memory < 0:
                if memory not in live and memory in blocks:
                    self.context.allocator.free(blocks.pop(memory))
            else:
                _release_input(self, memory)

    def dead_storages(self) -> list[Storage]:
        """Return the inputs' memory that only this group refers to."""
        held = {id(s): sum([x.storage is s for x in self.inputs]) for s in self._storages.values()}
        return [s for s in self._storages.values() if getrefcount(s) <= _HELD + held[id(s)]]

    def sizes_of_inputs(self) -> list[int]:
        return [s.nbytes for s in self._storages.values()]


def _use_inputs(storages: Iterable[Storage], stream: int) -> None:
    """Notify the allocator that a stream uses inputs. A loop in the caller would keep the last one alive."""
    for storage in storages:
        storage.used_on(stream)


def _release_input(group: PendingGroup, place: int) -> None:
    """Do not keep the memory of an input alive any longer."""
    storage = group.inputs[place].storage
    if storage is not None:
        group.inputs[place] = group.inputs[place]._replace(storage=None)
        if not any(x.storage is storage for x in group.inputs):
            del group._storages[id(storage)]


def _release_unused(group: PendingGroup, order: Sequence[int]) -> None:
    """Release the inputs that only dropped calls read. `order` has the positions of the others."""
    used = {memory for k in order for memory in group.accesses(k)}
    for place in range(len(group.inputs)):
        if place not in used:
            _release_input(group, place)


def _note_rows(group: PendingGroup, launch: Launch) -> None:
    """Note that a call of a group is a `cat`, or divides rows among threads."""
    group.has_held_rows = group.has_held_rows or holds_rows(launch)
    group.has_join = group.has_join or is_join(launch)
    if group.rows is None and is_reduction(launch):
        group.rows = rows_of(launch)
        group.shapes.add(group.rows.of)


def _refuses_rows(group: PendingGroup, launch: Launch, args: Sequence[Any]) -> str:
    """Return "" unless a call divides rows otherwise than a group, or would let it need more memory; else why."""
    holds = holds_rows(launch)
    if (group.has_held_rows and (holds or is_reduction(launch))) or (group.rows and holds):
        return "the next call divides rows among other threads"
    return "one kernel would need more memory" if holds and _holds_memory(group, args[0]) else ""


def _holds_memory(group: PendingGroup, arg: Tensor) -> bool:
    """Return True if a group keeps inputs that eager code frees, and something refers to results other than `arg`."""
    results = [memory for call in group.calls if (memory := call.storage()) is not None]
    return any(memory is not arg.memory for memory in results) and bool(group.dead_storages())


def _has_shape(operand: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(operand, Meta) and operand.shape == shape


def _launch_alone(group: PendingGroup, live: dict[int, DeferredStorage]) -> None:
    """Launch the only call of a group if something needs its result."""
    (call,) = group.calls
    if not live and call.target < 0:
        return
    blocks: dict[int, Any] = {}
    try:
        group._launch_one(call, blocks)
    except BaseException:
        group._free(blocks)
        raise
    for memory in live.values():
        memory.receive(blocks[call.target])


def _dead_memory_of(group: PendingGroup) -> tuple[Any, ...]:
    """Return what decides whether eager code would have needed less memory than a group: () if it cannot have."""
    dead, storages = group.dead_storages(), group._storages
    if not dead:
        return ()
    numbers = {key: n for n, key in enumerate(storages)}
    of_inputs = [numbers.get(id(x.storage)) for x in group.inputs]
    return tuple(of_inputs), tuple(group.sizes_of_inputs()), tuple([numbers[id(s)] for s in dead])


def _overlaps(operands: Iterable[tuple[int, Meta]], with_: tuple[int, Meta]) -> bool:
    """Return True if an operand shares memory with another one, and is not the same elements in the same layout."""
    start, meta = with_
    end = start + meta.span
    return any(ptr < end and start < ptr + x.span and (ptr, x) != with_ for ptr, x in operands)


def run_at(site: Site | None, function: Callable[..., Any], *args: Any) -> None:
    """Call `function(*args)` from a frame at `site`; without a site, from here.

    Observers find the line of a launch by the innermost frame of the program. A deferred launch is issued at a later
    line than the call that it belongs to.
    """
    if site is None:
        function(*args)
        return
    exec(
        _code_at(site[0].co_filename, line_of(site), site[0].co_name),
        {"launch": _launch, "values": (function, args)},
    )


def _launch(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call a launcher from two frames of this package: observers pass over as many as a call of `unary` adds."""
    _forward(function, args)


def _forward(function: Callable[..., Any], args: Sequence[Any]) -> None:
    function(*args)


@lru_cache(maxsize=4096)
def _code_at(filename: str, line: int, name: str) -> CodeType:
    """Return code that calls `launch(*values)` at a line of a file."""
    text = "\n" * (line - 1) + "launch(*values)"
    return compile(text, filename, "exec").replace(co_name=name, co_qualname=name)

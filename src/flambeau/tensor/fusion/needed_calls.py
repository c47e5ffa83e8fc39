"""Which calls of a group are needed, which kernels compute them, and how much memory that takes.

# Note [Issuing a group]
Problem: Of the calls in a group, only results that something refers to are needed, and all of the group's inputs must
live until its kernel is enqueued. Eager code may have freed some of them before it allocated the last results.
Rule: Calls that no live result depends on are dropped. The others become one kernel for each shape, unless eager code
would have needed less memory: then they are launched one after the other, and memory is freed after its last use.
Why: The memory that a program needs must not grow because it is compiled.
Consequences: `peak` computes a lower bound of what eager code had allocated. It holds because an allocation without a
launch (`torch.empty`) settles: each input existed when the first call was made. If the program holds all inputs, both
need the same memory. A group that was fused before is launched without an analysis if as much of its memory is dead.

# Note [Kernels of a group]
Problem: A kernel has one shape. Its elements are computed from inputs and from views of results, which may be results
of another shape.
Rule: A result that is stored is read from memory by later kernels. Others are computed again where a view of them is
read, if their layout allows it (Note [Views in fused kernels] in driver/fused_boxes.py); else they are stored in
temporary memory by a kernel before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from flambeau.core.meta import Meta
from flambeau.driver.fused_boxes import NotInlined, boxes, has_views
from flambeau.driver.protocol import Fold, Fused, FusedView, Launcher, has_held_rows, is_join, uses_index
from flambeau.tensor.fusion import fused_plans
from flambeau.tensor.fusion.fused_plans import FusedPart, Recipe
from flambeau.tensor.fusion.group_operands import VIEWS
from flambeau.tensor.storage import DeferredStorage, Storage

if TYPE_CHECKING:
    from flambeau.tensor.fusion.pending_calls import PendingGroup

_UNIT = 512  # bytes to which the allocator rounds


class NeededCalls:
    """The calls of a group that live results and written memory depend on.

    Attributes:
        live: Position of a call -> the storage of its result, which something refers to.
        order: Positions of the calls that are needed.
        stored: Positions of the calls whose results are stored.
        temporary: Those of them that only later kernels of the group read.
    """

    def __init__(self, group: PendingGroup, live: dict[int, DeferredStorage]) -> None:
        self.group, self.live = group, live
        self.stored = {*live, *group.writers.values()}
        self.temporary: set[int] = set()
        used = set(self.stored)
        for k in range(len(group.calls) - 1, -1, -1):
            if k in used:
                used.update([-1 - s for s in self.sources(k) if s < 0])
        self.order = sorted(used)
        self._last_read = {s: k for k in self.order for s in self.sources(k)}
        self._last_access = {memory: k for k in self.order for memory in group.accesses(k)}

    def sources(self, k: int) -> list[int]:
        """Return the sources that a call reads, as in `PendingCall.sources`, with results in place of their views."""
        return list(map(self.group.base, self.group.calls[k].sources))

    def last_accesses(self, k: int) -> list[int]:
        """Return the memory that call `k` is the last to access."""
        return [memory for memory in self.group.accesses(k) if self._last_access[memory] == k]

    # -- kernels --------------------------------------------------------------------------------------
    def parts(self) -> tuple[list[KernelPart], str]:
        """Return the kernels in their order; or [] and the reason why the calls are launched one by one."""
        if len(self.order) <= 1:
            return [], "one call alone"
        while True:
            parts = self._divide()
            missing = next((k for part in parts if (k := part.not_inlined()) is not None), None)
            if missing is None:
                break
            if missing in self.stored:
                return [], "its views need too large a kernel"
            self.stored.add(missing)
            self.temporary.add(missing)
        if self._fused_nbytes() > self._peak():
            return [], "separate kernels need less memory"
        return parts, ""

    def _divide(self) -> list[KernelPart]:
        """Divide the stored results into kernels: as few for each shape as their order allows."""
        if not self.group.is_mixed():
            return [KernelPart(self, sorted(self.stored))]
        parts: list[KernelPart] = []
        place: dict[int, int] = {}
        for k in sorted(self.stored):
            domain = self._domain(k)
            first = max([place[j] + (not together) for j, together in self._stored_sources(k)], default=0)
            fitting = [n for n in range(first, len(parts)) if parts[n].domain == domain]
            if fitting:
                place[k] = fitting[-1]
                parts[fitting[-1]].stored.append(k)
            else:
                place[k] = len(parts)
                parts.append(KernelPart(self, [k], domain))
        for k in self.temporary:
            readers = [n for n, part in enumerate(parts) if k in part.reads]
            parts[max(readers, default=place[k])].freed.append(k)
        return parts

    def _domain(self, k: int) -> Any:
        """Return what calls in one kernel have in common."""
        launch = self.group.calls[k].launch
        domain = self.group.domain(launch.outputs[0].shape)
        group = self.group
        has_rows, moves = group.has_held_rows or group.rows is not None, group.has_join or bool(group.views)
        return has_rows and is_join(launch), moves and uses_index(launch), domain

    def _stored_sources(self, k: int) -> Iterator[tuple[int, bool]]:
        """Yield the stored results that a call depends on, and whether one kernel can compute them and the call."""
        calls, domain = self.group.calls, self._domain(k)
        open_, seen = [(k, True)], {(k, True)}
        while open_:
            m, together = open_.pop()
            for s in calls[m].sources:
                source = self.group.base(s)
                if source >= 0:
                    continue
                j = -1 - source
                near = together and s < VIEWS and not is_join(calls[m].launch) and self._domain(j) == domain
                if j in self.stored:
                    yield j, near
                elif (j, near) not in seen:
                    seen.add((j, near))
                    open_.append((j, near))

    # -- memory -----------------------------------------------------------------------------------------
    def _fused_nbytes(self) -> int:
        """Return the bytes of the inputs and of the new results, which fused kernels need together."""
        return self._nbytes_of_inputs() + self._nbytes([*self.live, *self.temporary])

    def _nbytes_of_inputs(self) -> int:
        return sum(map(_round_up, self.group.sizes_of_inputs()))

    def _nbytes(self, calls: Iterable[int]) -> int:
        """Return the bytes of the memory that these calls write, without that of the inputs."""
        targets = {self.group.calls[k].target for k in calls}
        return sum([_round_up(self.group.calls[-1 - t].plan.nbytes) for t in targets if t < 0])

    def _peak(self) -> int:
        """Return the bytes that eager code had allocated at least at one of the calls. See Note [Issuing a group]."""
        group = self.group
        dead = {id(s): s for s in group.dead_storages()}
        total = self._nbytes_of_inputs()
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


class KernelPart:
    """One kernel of a group.

    Attributes:
        stored: Positions of the calls whose results it stores.
        domain: What its calls have in common; None for the only kernel of a group.
        freed: Positions of calls whose temporary results it is the last to read.
    """

    def __init__(self, needed: NeededCalls, stored: list[int], domain: Any = None) -> None:
        self.needed, self.stored, self.domain = needed, stored, domain
        self.freed: list[int] = []

    @cached_property
    def order(self) -> list[int]:
        """Return the positions of the calls that it computes."""
        found, open_ = set(self.stored), list(self.stored)
        while open_:
            sources = {-1 - s for s in self.needed.sources(open_.pop()) if s < 0}
            new = sources - found - (self.needed.stored - set(self.stored))
            found |= new
            open_ += new
        return sorted(found)

    @property
    def reads(self) -> set[int]:
        """Return the positions of the stored results that the kernel reads from memory."""
        return {-1 - s for k in self.order for s in self.needed.sources(k) if s < 0}.difference(self.order)

    @cached_property
    def _operands(self) -> _Operands:
        return _Operands(self)

    @property
    def recipe(self) -> Recipe:
        """Return the key of the kernel: everything on which its code depends."""
        operands = self._operands
        stored = tuple([operands.numbers[k] for k in self.stored])
        return Recipe(tuple(operands.steps), tuple(operands.inputs), stored, self._has_rows())

    def _has_rows(self) -> bool:
        """Return True if the calls are more than pointwise calls of one shape."""
        group = self.needed.group
        launches = [group.calls[k].launch for k in self.order]
        if self.domain is not None and (group.rows is None or self.domain != (False, False, group.rows.of)):
            return False
        shapes = {launch.outputs[0].shape for launch in launches}
        return len(shapes) > 1 or any(isinstance(launch.kernel.cuda, Fold) for launch in launches)

    def not_inlined(self) -> int | None:
        """Return the position of a call whose result must be stored before this kernel runs; None if there is none."""
        if self.domain is None or len(self.order) == 1:
            return None
        step = _find_not_inlined(self.recipe)
        return None if step is None else self._operands.positions[step]

    def launcher(self, context: Any) -> Launcher | None:
        """Return what launches it; None if it is not compiled."""
        if len(self.order) == 1:
            alone: Launcher = self.needed.group.calls[self.order[0]].plan.launch
            return alone
        return fused_plans.find(context, self.recipe)

    def prepare(self, launcher: Launcher) -> FusedPart:
        """Return how `launcher` is called with the operands of a group of this form."""
        operands = self._operands
        tensors, numbers = operands.tensors, operands.scalars
        if len(self.order) == 1:
            call = self.needed.group.calls[self.order[0]]
            pairs = list(zip(call.launch.inputs, call.sources, strict=True))
            tensors = [operands.address(s) for x, s in pairs if isinstance(x, Meta)]
            numbers = [s for x, s in pairs if not isinstance(x, Meta)]
        return FusedPart(
            launcher, tuple(self.stored), tuple(tensors), tuple(numbers), self.order[-1], tuple(self.freed)
        )


class _Operands:
    """The steps of a kernel, and the operands that they read.

    Attributes:
        steps: The launch of each call and its sources, and views of results, as `Recipe.steps`.
        positions: The position of the call of each step; for a view, that of the result.
        numbers: Position of a call -> its step.
        inputs: The operands of the kernel: metas, and dtypes of numbers.
        tensors: For each meta, the source as in `PendingCall.sources`, without views, and the bytes from its address.
        scalars: For each number, its source.
    """

    def __init__(self, part: KernelPart) -> None:
        self._group = part.needed.group
        self.steps: list[Any] = []
        self.positions: list[int] = []
        self.numbers: dict[int, int] = {}
        self.inputs: list[Any] = []
        self.tensors: list[tuple[int, int]] = []
        self.scalars: list[int] = []
        self._views: dict[int, int] = {}
        self._places: dict[Any, int] = {}
        for k in part.order:
            call = self._group.calls[k]
            pairs = zip(call.launch.inputs, call.sources, strict=True)
            sources = tuple([self._source(operand, s) for operand, s in pairs])
            self.numbers[k] = self._append((call.launch, sources), k)

    def _append(self, step: Any, position: int) -> int:
        self.steps.append(step)
        self.positions.append(position)
        return len(self.steps) - 1

    def _source(self, operand: Any, source: int) -> int:
        """Return the source of a step."""
        base = self._group.base(source)
        number = self.numbers.get(-1 - base) if base < 0 else None
        if number is None:
            return self._place(operand, source)
        if source < VIEWS:
            return -1 - number
        if source not in self._views:
            view = self._group.views[source - VIEWS]
            self._views[source] = self._append(FusedView(-1 - number, view.operand, view.offset), -1 - base)
        return -1 - self._views[source]

    def _place(self, operand: Any, source: int) -> int:
        """Return the number of an operand in memory, or of one that is passed by value."""
        key = source, operand
        if key not in self._places:
            self._places[key] = len(self.inputs)
            self.inputs.append(operand)
            if isinstance(operand, Meta):
                self.tensors.append(self.address(source))
            else:
                self.scalars.append(source)
        return self._places[key]

    def address(self, source: int) -> tuple[int, int]:
        """Return a source without views, and the bytes from its address."""
        offset = self._group.views[source - VIEWS].offset if source >= VIEWS else 0
        return self._group.base(source), offset


@lru_cache(maxsize=4096)
def _find_not_inlined(recipe: Recipe) -> int | None:
    """Return the step of a kernel whose result must be stored before; None if there is none."""
    launch = recipe.launch()
    form = launch.kernel.cuda
    assert isinstance(form, Fused)
    if not has_views(form):
        return None
    if form.has_rows or has_held_rows(form):
        return next(
            k for k, step in enumerate(form.steps) if isinstance(step, FusedView) or is_join(step.launch)
        )
    try:
        boxes(launch, form)
    except NotInlined as error:
        return error.step
    return None


def _round_up(nbytes: int) -> int:
    return -(-nbytes // _UNIT) * _UNIT

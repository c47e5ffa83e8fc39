"""Fixes: the code that orders the two accesses of a race, in the program's own names.

# Note [Where a fix goes] 0. In a loop or loader that prefetches, the line that keeps the overlap: see Note
[Prefetching]. 1. Else lines before the statement of the second access, or of a call that leads to it,
if both streams have names. 2. Else a line after the first access: the block that selects its stream shows
the stream's name. 3. Else the block of the first access stores its stream in a variable, and 1 uses that.
4. Else `torch.cuda.synchronize()` before the second access, which orders everything and costs more.

A fix is certain if its lines run after each first access and before each second one, as far as the
program's text and stack show. The first certain one is used; if none is certain, the first. If the first
access is not in a test, a certain fix in a test is the last choice: it would repair that test and no other caller.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from flambeau.core.callsite import Site, is_inside, line_place, place, program_frame
from flambeau.observe.clocks import LogicalThread
from flambeau.observe.reporting.operands import tensor_name
from flambeau.observe.reporting.prefetching import find_emptying, places_before_issue
from flambeau.observe.reporting.program_names import (
    StreamName,
    cuda_module,
    default_name,
    event_name,
    has_value,
    own_name,
    root_of,
    stream_of,
    target_of,
    work_on,
)
from flambeau.observe.reporting.scopes import FrameScope, is_own_file, live_scopes
from flambeau.observe.reporting.source_file import first_line, last_name, source_file
from flambeau.observe.reporting.spots import SourceSpot, insertion, is_comprehension, is_simple, spot_of
from flambeau.observe.reports import Edit

_CALLS = ("wait_stream", "record_stream", "synchronize", "wait")
_MANY = 16  # frames of the stack that are examined
_ROOMS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
# packages of Flambeau that select streams, or call the program, while they run
_SELECT_STREAMS = ("tape", "nn/parallel", "data", "cuda/graph", "distributed")
_CALL_PROGRAM = (*_SELECT_STREAMS, "nn/modules", "optim", "autograd", "func", "utils", "testing")
_LEAVE = (ast.Return, ast.Break, ast.Continue, ast.Raise, ast.Yield, ast.YieldFrom)

Select = Callable[[], tuple[int, tuple[int, ...]]]
"""A function that returns the current device, and the handles of each device's current stream."""


class Code(NamedTuple):
    """The lines of a fix, to insert into the program.

    Attributes:
        where: Their place, as "Before program.py:7 insert".
        lines: The lines, without indentation.
        edits: The insertions by file.
        certain: See Note [Where a fix goes].
        hint: Further advice.
    """

    where: str
    lines: tuple[str, ...]
    edits: tuple[Edit, ...]
    certain: bool
    hint: str = ""

    @property
    def call(self) -> str:
        """Return the method that the last line calls."""
        return next(call for call in _CALLS if f".{call}(" in self.lines[-1])


class Proposer:
    """A finder of fixes on the program's stack, used while a race is reported. It holds frames.

    Args:
        select: Returns the current streams.
        second: The call site of the second access: now, or earlier if the race was decided later.
    """

    def __init__(self, select: Select | None, second: Site) -> None:
        frame = program_frame()
        innermost: Site = (frame.f_code, frame.f_lasti)
        rooms = _rooms_called()
        self._device, self._current = select() if select is not None else (0, ())
        self._is_live = innermost == second
        if self._is_live:
            scopes = list(islice(live_scopes(), _MANY))
            self._is_direct = not any(room.startswith(_CALL_PROGRAM) for room in rooms)
            if any(room.startswith(_SELECT_STREAMS) for room in rooms):
                self._current = ()  # the package may have selected them, not the program
        else:
            scopes = [next((s for s in live_scopes(second) if s.site == second), FrameScope(None, second))]
            self._is_direct, self._device = True, -1  # the current device is not known
        self._places = [_FrameSpot(s, s.spot) for s in scopes if s.spot]
        self._is_innermost = bool(self._places) and self._places[0].scope is scopes[0]
        self._has_text = source_file(second[0]) is not None

    # -- fixes ----------------------------------------------------------------------------------------------
    def wait_stream(
        self, first: Site, earlier: LogicalThread, later: LogicalThread, produces: bool = False
    ) -> Code | None:
        """Return code that makes stream `later` wait for stream `earlier`, to run between `first` and the present
        statement.

        Args:
            produces: True if the first access writes what the second one uses, so that it may prefetch it.
        """
        seconds = [found.spot for found in self._places]
        if produces and (code := _before_issue(first, earlier, later, seconds)) is not None:
            return code
        found = list(self._waits(first, earlier, later))
        certain = [code for code in found if code.certain]
        if not _is_test(first[0].co_filename):
            certain.sort(key=_edits_a_test)
        return next(iter(certain or found), None)

    def _waits(self, first: Site, earlier: LogicalThread, later: LogicalThread) -> Iterator[Code]:
        """Yield fixes in the order of Note [Where a fix goes]."""
        for depth, (scope, spot) in self._candidates(first, earlier):
            waiter = self._waiter(depth, later)
            awaited = own_name(scope, earlier, first) or default_name(
                spot.source, earlier, self._index(depth, earlier)
            )
            if waiter and awaited:
                yield self._before(depth, first, earlier, _wait_lines(waiter, awaited))
        others = _after_first, self._bind_stream, self._device_synchronized
        yield from filter(None, [way(first, earlier, later) for way in others])

    def synchronize(
        self, first: Site, earlier: LogicalThread, is_event: Callable[[Any], bool] | None = None
    ) -> Code | None:
        """Return code that makes the host wait for stream `earlier` before the present statement.

        Args:
            is_event: Returns True for Event objects that suffice, because later work of the stream need not be waited
                for.
        """
        for depth, (scope, _) in self._candidates(first, earlier):
            if is_event is not None and (event := event_name(scope, is_event)):
                return self._before(depth, first, earlier, (f"{event}.synchronize()",))
            if awaited := self._waiter(depth, earlier):
                return self._before(depth, first, earlier, (f"{awaited.text}.synchronize()",))
        return self._device_synchronized(first, earlier, earlier)

    def wait_work(self, first: Site, earlier: LogicalThread) -> Code | None:
        """Return code that waits for the work of the collective at `first`, if a variable holds the work."""
        begin = spot_of(first)
        target = target_of(begin) if begin is not None else None
        for depth, (scope, _) in self._candidates(first, earlier):
            found = list(scope.names_of(work_on(earlier)))
            containers = {text.rpartition("[")[0] for text in found}
            if target in found or len(found) == 1:
                return self._before(
                    depth, first, earlier, (f"{target if target in found else found[0]}.wait()",)
                )
            if len(containers) == 1 and containers != {""}:
                return self._before(
                    depth, first, earlier, (f"for work in {containers.pop()}:", "    work.wait()")
                )
        return _before_clearing(begin) or self._device_synchronized(first, earlier, earlier)

    # -- places -----------------------------------------------------------------------------------------------
    def _candidates(self, first: Site, earlier: LogicalThread) -> Iterator[tuple[int, _FrameSpot]]:
        """Yield places for lines before the running statement, innermost first; see Note [Where a fix goes]."""
        for depth, found in enumerate(self._places):
            if (depth == 0 and self._has_text) or self._is_certain(depth, first, earlier):
                yield depth, found

    def _before(
        self, depth: int, first: Site, earlier: LogicalThread, lines: tuple[str, ...], hint: str = ""
    ) -> Code:
        return _insert_before(self._places[depth].spot, lines, self._is_certain(depth, first, earlier), hint)

    def _is_certain(self, depth: int, first: Site, earlier: LogicalThread) -> bool:
        """Return True if the first access was always issued before the statement at stack depth `depth` began."""
        if self._places[depth].spot.is_repeated_header:
            return False
        ran = [each.ran_before(first, earlier) for each in self._places[depth:]]
        if depth == 0 and self._is_innermost and self._is_direct:
            return ran[0] is not False and not self._places[0].may_issue(first)
        return True in ran

    def _bind_stream(self, first: Site, earlier: LogicalThread, later: LogicalThread) -> Code | None:
        """Return code that stores the unnamed stream of the first access in a variable, and waits for it."""
        begin = spot_of(first)
        _, stream = _selected_at(begin)
        for depth, (scope, spot) in enumerate(self._places):
            # the name refers to another stream now
            if begin is None or stream is None or is_simple(stream):
                return None
            if scope.site[0] is not first[0] or stream.lineno >= spot.line:
                continue
            waiter = self._waiter(depth, later)
            if waiter is None or earlier.ordinal == 0:
                return None
            path, name = begin.source.path, f"side_{earlier.ordinal}"
            lines = (f"{waiter.text}.wait_stream({name})",)
            where = (
                f"Keep the stream of {line_place(path, stream.lineno)} in a variable, "
                f"({name} := {ast.unparse(stream)}), and before {line_place(path, spot.line)} insert"
            )
            certain = self._is_certain(depth, first, earlier) and spot.loop_with(begin) is None
            return Code(
                where, lines, (*begin.around(stream, f"({name} := ", ")"), spot.before(*lines)), certain
            )
        return None

    def _device_synchronized(self, first: Site, earlier: LogicalThread, later: LogicalThread) -> Code | None:
        for depth, (_, spot) in self._candidates(first, earlier):
            cuda = cuda_module(spot.source)
            if cuda is not None:
                hint = f"This waits for the whole device, because {_nameless(first, earlier)}."
                line = f"{cuda}.synchronize({self._index(depth, earlier)})"
                return self._before(depth, first, earlier, (line,), hint)
        return None

    # -- names ------------------------------------------------------------------------------------------------
    def _waiter(self, depth: int, agent: LogicalThread) -> StreamName | None:
        """Return the expression for the stream that must wait, which always exists for the current stream."""
        scope, spot = self._places[depth]
        cuda, found = cuda_module(spot.source), own_name(scope, agent, scope.site)
        index = self._index(depth, agent)
        if found is None and cuda and self._is_current(depth, agent):
            return StreamName(f"{cuda}.current_stream({index})")
        return found or default_name(spot.source, agent, index)

    def _index(self, depth: int, agent: LogicalThread) -> str:
        """Return the index that a fix writes for a stream's device: "" if that device is current there.

        The fix stands before the statement of frame `depth`. Without an index every rank runs it on its own device.
        """
        selects = any(inner.spot.selects_device for inner in self._places[:depth])
        return "" if agent.device == self._device and not selects else str(agent.device)

    def _is_current(self, depth: int, agent: LogicalThread) -> bool:
        """Return True if `agent`, a stream, is the current stream where a statement of the program begins.

        `depth` is the number of the statement's frame, counted from the innermost one.
        """
        if agent.grouped or not self._is_live:
            # A collective begins after the current stream's work; other commands were enqueued on that
            # stream.
            return True
        if agent.handle not in self._current:
            return False
        return not any(any(inner.spot.selections()) for inner in self._places[:depth])


class _FrameSpot(NamedTuple):
    """A frame of the program with its position in the program's text."""

    scope: FrameScope
    spot: SourceSpot

    def ran_before(self, first: Site, earlier: LogicalThread) -> bool | None:
        """Return True if the first access, on stream `earlier`, ran before the frame's statement began.

        None if the text of the frame's function is ambiguous.
        """
        code, offset = self.scope.site
        if first[0] is code and first[1] >= offset:
            return True  # the first access ran in an earlier iteration, or in an earlier call
        if first[0] is code or (is_comprehension(first[0]) and first[0] in code.co_consts):
            begin = spot_of(first)
            return begin is not None and begin.statement is not self.spot.statement
        call = earlier_call(self.scope, first[0], earlier)
        if call is None:
            return None
        # if it is the running call itself, an earlier iteration made it
        return call.statement is not self.spot.statement or call.node is self.spot.node

    def may_issue(self, first: Site) -> bool:
        """Return True if functions that the frame's statement calls may issue the first access in its turn."""
        begin = spot_of(first)
        sources = {self.spot.source, *([begin.source] if begin is not None else [])}
        called, seen = [self.spot.statement], set[str]()
        while called:
            names = {last_name(n.func) for n in ast.walk(called.pop()) if isinstance(n, ast.Call)} - seen
            seen |= names
            called += [
                function for source in sources for name in names for function in source.functions(name)
            ]
        return first[0].co_name in seen


def _edits_a_test(code: Code) -> bool:
    return any(_is_test(edit.path) for edit in code.edits)


def _is_test(path: str) -> bool:
    """Return True for the names of files that pytest collects tests from, and of its fixtures."""
    name = os.path.basename(path)
    return name.startswith("test_") or name.endswith("_test.py") or name == "conftest.py"


def record_stream(first: Site, user: LogicalThread, operand: int, allocated: Site | None) -> Code | None:
    """Return code that announces to the allocator the stream that uses a tensor at `first`.

    Args:
        operand: The position of the tensor among the operator's inputs.
        allocated: The call site of its allocation.
    """
    spot = spot_of(first)
    if spot is None or not is_own_file(spot.source.path):
        return None
    tensor = tensor_name(spot, first, operand, allocated)
    cuda = cuda_module(spot.source)
    if tensor is None or cuda is None:
        return None
    _, stream = _selected_at(spot)
    if stream is None:
        text = f"{cuda}.current_stream({user.device or ''})"
    elif user.ordinal == 0:
        text = f"{cuda}.default_stream()"  # the block that selects it makes its device current
    else:
        text = ast.unparse(stream) if is_simple(stream) else f"{cuda}.current_stream()"
    return _insert_before(spot, (f"{tensor}.record_stream({text})",))


def synchronize_after(first: Site, earlier: LogicalThread, hint: str) -> Code | None:
    """Return code that makes the host wait for stream `earlier` right after the statement of the first access."""
    spot = spot_of(first)
    cuda = cuda_module(spot.source) if spot is not None else None
    if spot is None or cuda is None or not is_own_file(spot.source.path) or spot.statement.end_lineno is None:
        return None
    if isinstance(spot.statement, (*_LEAVE, ast.If, ast.For, ast.While)):
        return None
    _, stream = _selected_at(spot)
    text = f"{cuda}.current_stream({earlier.device or ''})"
    if stream is not None and is_simple(stream) and earlier.ordinal:
        text = ast.unparse(stream)
    lines = (f"{text}.synchronize()",)
    edit = insertion(spot.source, spot.statement.end_lineno + 1, spot.statement, lines)
    where = f"After {line_place(spot.source.path, spot.statement.end_lineno)} insert"
    return Code(where, lines, (edit,), True, hint)


def capture_wait(first: Site, second: Site) -> Code | None:
    """Return a wait within a graph capture: the stream of the second access waits for the stream of the first one."""
    begin, spot = spot_of(first), spot_of(second)
    if begin is None or spot is None or first[0] is not second[0] or not is_own_file(spot.source.path):
        return None
    cuda = cuda_module(spot.source)
    earlier, later = ([stream for _, stream in each.selections()] for each in (begin, spot))
    if cuda and later and earlier == later[1:] and is_simple(later[0]):  # in a block within the first one's
        block, _ = next(spot.selections())
        lines = (f"{ast.unparse(later[0])}.wait_stream({cuda}.current_stream())",)
        return _insert_before(SourceSpot(spot.source, block, block), lines)
    if cuda and earlier and is_simple(earlier[0]):
        return _insert_before(spot, (f"{cuda}.current_stream().wait_stream({ast.unparse(earlier[0])})",))
    return None


def _after_first(first: Site, earlier: LogicalThread, later: LogicalThread) -> Code | None:
    """Return a wait after the block that selects the stream of the first access, for a default stream."""
    spot = spot_of(first)
    block, stream = _selected_at(spot)
    if spot is None or block is None or stream is None or block.end_lineno is None:
        return None
    lines = _default_wait_lines(spot, stream, earlier, later)
    if not lines or any(isinstance(node, _LEAVE) for node in ast.walk(block)):
        return None  # control flow might not reach a line after it
    edit = insertion(spot.source, block.end_lineno + 1, block, lines)
    return Code(f"After {line_place(spot.source.path, block.end_lineno)} insert", lines, (edit,), True)


def _before_issue(
    first: Site, earlier: LogicalThread, later: LogicalThread, seconds: list[SourceSpot]
) -> Code | None:
    """Return a wait of a default stream in a loop or loader that prefetches; see Note [Prefetching]."""
    spot = spot_of(first)
    block, stream = _selected_at(spot)
    if spot is None or block is None or stream is None:
        return None
    lines = _default_wait_lines(spot, stream, earlier, later)
    places = places_before_issue(spot, block, stream, seconds) if lines else []
    if not places:
        return None
    at = [SourceSpot(spot.source, place, place) for place in places]
    where = " and before ".join(line_place(spot.source.path, each.line) for each in at)
    return Code(f"Before {where} insert", lines, tuple(each.before(*lines) for each in at), True)


def _before_clearing(begin: SourceSpot | None) -> Code | None:
    """Return code that waits for the works of a list before the line that empties the list."""
    if begin is None or not is_own_file(begin.source.path):
        return None
    found = find_emptying(begin)
    if found is None:
        return None
    works, statement = found
    spot = SourceSpot(begin.source, statement, statement)
    return _insert_before(spot, (f"for work in {works}:", "    work.wait()"), certain=False)


def _default_wait_lines(
    spot: SourceSpot, stream: ast.expr, earlier: LogicalThread, later: LogicalThread
) -> tuple[str, ...]:
    """Return the line that makes a default stream wait for a stream that a position of its class or function names; ()
    without one.
    """
    cuda = cuda_module(spot.source)
    if later.ordinal or not earlier.ordinal or not is_own_file(spot.source.path):
        return ()
    if cuda is None or not is_simple(stream):
        return ()
    text, same = ast.unparse(stream), earlier.device == later.device
    # on each device that executes the line
    waiting = f"{cuda}.default_stream({f'{text}.device' if same else later.device})"
    return (f"{waiting}.wait_stream({text})",)


def _insert_before(spot: SourceSpot, lines: tuple[str, ...], certain: bool = True, hint: str = "") -> Code:
    """Return code to insert before the statement at a position in the program's text."""
    where = f"Before {line_place(spot.source.path, spot.line)} insert"
    return Code(where, lines, (spot.before(*lines),), certain, hint)


def _selected_at(spot: SourceSpot | None) -> tuple[ast.stmt, ast.expr] | tuple[None, None]:
    """Return the innermost `with` statement around a position that selects a stream, and the stream; or (None,
    None).
    """
    return next(spot.selections(), (None, None)) if spot is not None else (None, None)


def _nameless(first: Site, earlier: LogicalThread) -> str:
    """Return why no line waits for a stream alone, and what to change so that one can."""
    if earlier.grouped:
        return (
            f"no variable there holds the work that began at {place(first)}: keep the work and call its wait() to wait "
            "for it alone"
        )
    created = f", created at {place(earlier.site)}," if earlier.site else ""
    return f"{earlier}{created} has no name there{_elsewhere(spot_of(first))}"


def _elsewhere(first: SourceSpot | None) -> str:
    """Return a hint about a stream that has no name at its last use: how the first access's line names it."""
    _, stream = _selected_at(first)
    if first is None or stream is None or not is_simple(stream):
        return ": keep it in a variable to wait for it alone"
    text, cuda = ast.unparse(stream), cuda_module(first.source)
    called = f"{line_place(first.source.path, stream.lineno)} calls it {text}"
    exits = _exits(first, root_of(text))
    if not exits or cuda is None:
        return f"; {called}. To wait for it alone, wait where it has that name"
    places = " and ".join(line_place(first.source.path, line) for line in exits)
    return (
        f"; {called}. To wait for it alone, insert instead before {places}: "
        f"{cuda}.current_stream().wait_stream({text})"
    )


def _exits(first: SourceSpot, name: str) -> list[int]:
    """Return the lines at which an iterator gives its items to the code that races with it.

    Args:
        first: The first access.
        name: The variable with which the stream's name begins there: "self", or a local one of a generator.
    """
    around = first.class_of if name == "self" else first.function
    if around is None:
        return []
    found = {}
    for node in ast.walk(around):
        spot = SourceSpot(first.source, node, first.statement)
        gives = isinstance(node, ast.Yield) or (
            isinstance(node, ast.Return) and node.value is not None and _is_next(spot.function)
        )
        statement = first.source.statement_of(node) if gives else None
        if statement is not None:
            found[first_line(statement)] = statement
    return sorted(found)


def _is_next(function: ast.AST) -> bool:
    return isinstance(function, ast.FunctionDef) and function.name == "__next__"


def _wait_lines(waiter: StreamName, awaited: StreamName) -> tuple[str, ...]:
    """Return the lines of the wait: a loop if the waiting stream is another element of a container in each
    iteration.
    """
    if waiter.varies and awaited.container and awaited.container == waiter.container:
        name = "other" if waiter.text != "other" else "another"
        return f"for {name} in {awaited.container}:", f"    {waiter.text}.wait_stream({name})"
    return (f"{waiter.text}.wait_stream({awaited.text})",)


def _rooms_called() -> list[str]:
    """Return the files of the package, as relative paths, whose functions the program's present call runs."""
    rooms = []
    frame = sys._getframe(1)
    while frame.f_back is not None and is_inside(frame.f_code):
        path = os.path.abspath(frame.f_code.co_filename)
        if path.startswith(_ROOMS):
            rooms.append(path.removeprefix(_ROOMS))
        frame = frame.f_back
    return rooms


def earlier_call(scope: FrameScope, code: CodeType, agent: LogicalThread) -> SourceSpot | None:
    """Return the call in a frame's function that ran `code` with a stream; None if the text allows several answers.

    It is the only call by the function's name. If there are several, it is the only one with the stream as
    an argument, or in a block that selects the stream.
    """
    if scope.spot is None or code.co_name.startswith("<"):
        return None
    calls = [
        SourceSpot(scope.spot.source, node, statement)
        for node in scope.spot.source.calls.get(code.co_name, ())
        if scope.spot.source.is_within(node, scope.spot.function)
        if (statement := scope.spot.source.statement_of(node)) is not None
    ]
    if len(calls) > 1:
        calls = [call for call in calls if _has_stream(scope, call, agent)]
    return calls[0] if len(calls) == 1 else None


def _has_stream(scope: FrameScope, call: SourceSpot, agent: LogicalThread) -> bool:
    assert isinstance(call.node, ast.Call)
    arguments = [*call.node.args, *[keyword.value for keyword in call.node.keywords]]
    selected = [stream for _, stream in call.selections()][:1]
    wanted = stream_of(agent)
    if any(is_simple(node) and has_value(scope, node, wanted) for node in (*arguments, *selected)):
        return True
    return agent.ordinal == 0 and not selected and not any(_is_stream(scope, node) for node in arguments)


def _is_stream(scope: FrameScope, node: ast.expr) -> bool:
    return is_simple(node) and has_value(scope, node, lambda value: hasattr(type(value), "wait_stream"))

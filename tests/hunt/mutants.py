"""Mutants of Flambeau's own code: each call that orders streams, or keeps memory for them, left out in turn.

`find` reads the source of the rooms that make streams wait; what it looks for is a statement that is nothing but a call
of one of `METHODS` or `FUNCTIONS`. A mutant computes the receiver and the arguments, and does not call. It is put into the functions
that live in this process, and taken out again.
"""

from __future__ import annotations

import ast
import copy
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, FunctionType

import flambeau

SOURCE = Path(flambeau.__file__).parent
ROOMS = (
    "cuda/nccl.py", "cuda/streams.py", "data", "distributed/backends/nccl_backend.py", "distributed/future.py",
    "distributed/collectives/messages.py", "distributed/ddp/reducer.py", "distributed/work.py",
    "nn/parallel/_functions.py", "nn/parallel/comm.py", "nn/parallel/data_parallel.py", "runtime/memory/allocator.py",
    "runtime/streams/accelerator_event.py", "runtime/devices/peers.py", "runtime/memory/pinned.py", "runtime/streams/accelerator_stream.py", "runtime/memory/pending_frees.py", "tape",
    "tensor",
)  # fmt: skip
METHODS = {
    "_defer_free", "after", "device_sync", "event_record", "event_sync", "record", "record_copy", "record_event",
    "record_stream", "record_use", "record_use_at", "share", "stream_sync", "stream_wait", "synchronize", "used_on", "wait", "wait_event", "wait_stream",
}  # fmt: skip
FUNCTIONS = {"_wait", "make_stream_wait"}
# `StreamClocks` only knows what may be reused early: forgetting it loses an opportunity. `_sharing()` is about processes, a
# `EventLog` records what was, a store lets processes meet.
NO_ORDER = ("orders", "_sharing()", "_event_log", "store")


Functions = tuple[tuple[str, int], ...]  # names and first lines


@dataclass(frozen=True)
class Mutant:
    """A call that is left out. Its name has no line number, so that it outlives changes elsewhere in the file."""

    file: str  # relative to the package
    functions: Functions  # from the outermost to the one that calls
    line: int
    text: str
    count: int  # of the same text in the same function before it

    def __str__(self) -> str:
        number = f" ({self.count + 1})" if self.count else ""
        return f"{self.file}: {'.'.join(name for name, _ in self.functions)}: {self.text}{number}"

    @property
    def path(self) -> str:
        return str(SOURCE / self.file)


@cache
def find() -> tuple[Mutant, ...]:
    """All mutants of the rooms."""
    paths = [SOURCE / room for room in ROOMS]
    files = [file for path in paths for file in ([path] if path.suffix else sorted(path.rglob("*.py")))]
    return tuple([mutant for file in files for mutant in _of(file)])


def _of(path: Path) -> Iterator[Mutant]:
    file, seen = path.relative_to(SOURCE).as_posix(), {}
    for functions, statement in _statements(_tree(str(path)), ()):
        text = ast.unparse(statement)
        key = functions, text
        yield Mutant(file, functions, statement.lineno, text, seen.setdefault(key, 0))
        seen[key] += 1


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(), path)


def _statements(node: ast.AST, functions: Functions) -> Iterator[tuple[Functions, ast.Expr]]:
    for child in ast.iter_child_nodes(node):
        inside = functions
        if isinstance(child, ast.FunctionDef):
            first = min([child.lineno, *[d.lineno for d in child.decorator_list]])
            inside = (*functions, (child.name, first))
        if functions and isinstance(child, ast.Expr) and _orders(child.value):
            yield functions, child
        yield from _statements(child, inside)


def _orders(call: ast.expr) -> bool:
    if not isinstance(call, ast.Call):
        return False
    receiver = call.func
    if isinstance(receiver, ast.Name):
        return receiver.id in FUNCTIONS
    if not isinstance(receiver, ast.Attribute) or ast.unparse(receiver.value).endswith(NO_ORDER):
        return False
    return receiver.attr in METHODS


class _LeaveOut(ast.NodeTransformer):
    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        call = node.value
        if node.lineno != self._mutant.line or not isinstance(call, ast.Call):
            return node
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call.func
        parts = [receiver, *call.args, *[k.value for k in call.keywords]]
        return ast.copy_location(ast.Expr(ast.copy_location(ast.Tuple(parts, ast.Load()), call)), node)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


@cache
def _functions() -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of the package that live here, by file, name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()  # conftest.py has frozen what was imported: `get_objects` does not tell of that
    for thing in gc.get_objects():
        if issubclass(type(thing), FunctionType) and thing.__code__.co_filename.startswith(str(SOURCE)):
            code = thing.__code__
            found.setdefault((code.co_filename, code.co_name, code.co_firstlineno), []).append(thing)
    gc.freeze()
    return found


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """Inside, the call is left out wherever its function is used."""
    tree = _LeaveOut(mutant).visit(copy.deepcopy(_tree(mutant.path)))
    module = compile(tree, mutant.path, "exec", dont_inherit=True)
    mutated = {(code.co_name, code.co_firstlineno): code for code in _codes(module)}
    changed: list[tuple[FunctionType, CodeType]] = []
    for key in mutant.functions:
        for function in _functions().get((mutant.path, *key), []):
            changed.append((function, function.__code__))
            function.__code__ = mutated[key]
    assert changed, f"no function lives here that {mutant} could change"
    try:
        yield
    finally:
        for function, code in changed:
            function.__code__ = code


@contextmanager
def reached() -> Iterator[set[Mutant]]:
    """Yield the set of mutants whose calls run inside the block."""
    found: set[Mutant] = set()
    watched: dict[str, dict[int, Mutant]] = {}
    for mutant in find():
        watched.setdefault(mutant.path, {})[mutant.line] = mutant

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        lines = watched.get(frame.f_code.co_filename)
        if lines is None:
            return None
        if event == "line" and frame.f_lineno in lines:
            found.add(lines[frame.f_lineno])
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]

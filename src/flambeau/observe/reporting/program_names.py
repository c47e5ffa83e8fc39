"""The program's names for its streams, its work and `torch.cuda` at one place in its text."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flambeau.core.callsite import Site
from flambeau.observe.clocks import LogicalThread
from flambeau.observe.reporting.scopes import FrameScope, attributes, has_method
from flambeau.observe.reporting.source_file import SourceFile
from flambeau.observe.reporting.spots import FOR, SourceSpot, is_simple, spot_of

_PACKAGES = ("torch", "flambeau")


class StreamName(NamedTuple):
    """An expression for a stream.

    Attributes:
        container: The expression of a list that holds the stream; "" if there is none.
        varies: True if the expression is another stream in each iteration of a loop.
    """

    text: str
    container: str = ""
    varies: bool = False


def own_name(scope: FrameScope, agent: LogicalThread, used: Site) -> StreamName | None:
    """Return the program's own expression for a stream in a scope.

    Args:
        used: The call site where the stream was current.
    """
    if scope.spot is None or (agent.ordinal == 0 and not scope.is_live):
        return None
    if not scope.is_live:
        return _name_in_text(scope.spot, scope.site, agent, used)
    wanted = stream_of(agent)
    for _, stream in scope.spot.selections():
        if is_simple(stream) and has_value(scope, stream, wanted):
            return StreamName(ast.unparse(stream), _container(scope, wanted), _varies(scope, stream))
    stale = _stale_targets(scope)
    text = next((text for text in scope.names_of(wanted) if root_of(text) not in stale), None)
    if text is None:
        return None
    return StreamName(text, _container(scope, wanted), _varies(scope, ast.parse(text, mode="eval").body))


def _name_in_text(spot: SourceSpot, site: Site, agent: LogicalThread, used: Site) -> StreamName | None:
    """Return the expression for a stream at a position whose function has ended, from the program's text alone."""
    at_use = spot_of(used) if used[0] is site[0] else None
    selected = [stream for _, stream in at_use.selections()][:1] if at_use is not None else []
    names = [ast.unparse(stream) for stream in selected if is_simple(stream)]
    creation = spot_of(agent.site)
    if agent.site is not None and creation is not None and (target := target_of(creation)) is not None:
        own, function = agent.site[0] is site[0], agent.site[0].co_name
        is_global = function == "<module>" and root_of(target) not in site[0].co_varnames
        is_attribute = root_of(target) == "self" and creation.class_of == spot.class_of is not None
        names += [target] if own or is_global or is_attribute else []
    return next((StreamName(name) for name in names if spot.is_bound(root_of(name), site[0])), None)


def target_of(spot: SourceSpot) -> str | None:
    """Return the variable that receives the value of the expression at this position."""
    for inner, around in spot.within_function():
        if isinstance(around, ast.Assign) and len(around.targets) == 1:
            target = around.targets[0]
            if (
                isinstance(target, ast.Tuple)
                and isinstance(around.value, ast.Tuple)
                and spot.node in around.value.elts
            ):
                target = target.elts[around.value.elts.index(spot.node)]
            elif inner is not around.value or spot.node is not inner:
                return None
            return ast.unparse(target) if is_simple(target) else None
        if isinstance(around, ast.stmt):
            return None
    return None


def default_name(source: SourceFile, agent: LogicalThread, index: str) -> StreamName | None:
    """Return the expression for a default stream, such as `torch.cuda.default_stream()`."""
    cuda = cuda_module(source)
    is_default = agent.ordinal == 0 and not agent.captured
    return StreamName(f"{cuda}.default_stream({index})") if cuda and is_default else None


def cuda_module(source: SourceFile) -> str | None:
    """Return how a source file writes `torch.cuda`, such as `t.cuda` after `import torch as t`.

    Returns None if the file imports neither `torch` nor `torch.cuda`.
    """
    found: list[str] = []
    for node in source.imports:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root, _, rest = alias.name.partition(".")
                if root in _PACKAGES and alias.asname is None:
                    found.append(f"{root}.cuda")
                elif root in _PACKAGES and rest in ("", "cuda"):
                    found.append(f"{alias.asname}{'' if rest else '.cuda'}")
        elif node.module in _PACKAGES:
            found += [alias.asname or "cuda" for alias in node.names if alias.name == "cuda"]
    found = found or [f"{name}.cuda" for name in source.names_torch]
    return min(found, key=lambda name: not name.startswith("torch"), default=None)


def root_of(text: str) -> str:
    """Return the variable with which an expression begins."""
    return re.split(r"[.\[]", text, maxsplit=1)[0]


def stream_of(agent: LogicalThread) -> Callable[[Any], bool]:
    """Return a predicate that is True for the program's Stream objects of a logical thread."""

    def is_stream(value: Any) -> bool:
        if not has_method(value, "wait_stream"):
            return False
        found = attributes(value)
        return found.get("handle") == agent.handle and found.get("device_index") == agent.device

    return is_stream


def work_on(agent: LogicalThread) -> Callable[[Any], bool]:
    """Return a predicate that is True for the work objects of collectives on a stream."""
    is_stream = stream_of(agent)

    def is_work(value: Any) -> bool:
        return has_method(value, "block_current_stream") and is_stream(attributes(value).get("_stream"))

    return is_work


def event_after(
    last: tuple[LogicalThread, int], records: Mapping[int, tuple[LogicalThread, int, object]]
) -> Callable[[Any], bool]:
    """Return a predicate that is True for Event objects whose record follows a command, but not all its stream's work.

    Args:
        last: The command's logical thread and number.
        records: Event handle -> logical thread and number of its present record.
    """

    def is_after(value: Any) -> bool:
        mark = attributes(value).get("_mark") if has_method(value, "elapsed_time") else None
        thread, number = records.get(attributes(mark).get("handle", 0), (None, 0, None))[:2]
        return thread is last[0] and last[1] < number < last[0].time

    return is_after


def event_name(scope: FrameScope, wanted: Callable[[Any], bool]) -> str | None:
    """Return how the scope's function writes an event that it records or waits for; None if `wanted` accepts none."""
    if scope.spot is None or not scope.is_live:
        return None
    source = scope.spot.source
    calls = [*source.calls.get("record", ()), *source.calls.get("synchronize", ())]
    nodes = [c.func.value for c in calls if isinstance(c.func, ast.Attribute)]
    nodes += [
        a for name in ("record_event", "wait_event") for c in source.calls.get(name, ()) for a in c.args
    ]
    for node in nodes:
        if is_simple(node) and source.is_within(node, scope.spot.function) and has_value(scope, node, wanted):
            names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
            if all(scope.spot.is_bound(name, scope.site[0]) for name in names):
                return ast.unparse(node)
    return None


def has_value(scope: FrameScope, node: ast.expr, wanted: Callable[[Any], bool]) -> bool:
    """Return True if a simple expression has a value in a scope and `wanted` accepts it."""
    try:
        return wanted(scope.value_of(node))
    except (LookupError, ValueError, TypeError):
        return False


def _container(scope: FrameScope, wanted: Callable[[Any], bool]) -> str:
    """Return the list or tuple of the scope that holds a stream; "" if there is none."""
    return next((text.rpartition("[")[0] for text in scope.names_of(wanted) if text.endswith("]")), "")


def _varies(scope: FrameScope, node: ast.expr) -> bool:
    """Return True if a loop around the scope's statement changes the value of an expression."""
    assert scope.spot is not None
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return any(names & _targets(loop) for loop in scope.spot.parents())


def _stale_targets(scope: FrameScope) -> set[str]:
    """Return the variables of loops that do not contain the scope's statement: they hold values of other iterations."""
    assert scope.spot is not None
    around = set(scope.spot.parents())
    stale: set[str] = set()
    fresh: set[str] = set()
    for loop in scope.spot.source.loops:
        if scope.spot.source.is_within(loop, scope.spot.function):
            (fresh if loop in around else stale).update(_targets(loop))
    return stale - fresh


def _targets(loop: ast.AST) -> set[str]:
    if not isinstance(loop, FOR):
        return set()
    return {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}

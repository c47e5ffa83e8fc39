"""The call of a function that led to a race's first access, whose frame has ended by the time of the report."""

from __future__ import annotations

import ast
from types import CodeType

from flambeau.observe.clocks import LogicalThread
from flambeau.observe.reporting.names import has_value, stream_of
from flambeau.observe.reporting.scopes import FrameScope
from flambeau.observe.reporting.spots import SourceSpot, is_simple


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

"""`torch._dynamo.explain`: what of a function is captured, and why something is not."""

from __future__ import annotations

from collections.abc import Callable
from traceback import FrameSummary
from typing import Any, NamedTuple

from flambeau.core.callsite import line_of
from flambeau.nn.compilation import find_innermost
from flambeau.nn.replay.recorded_capture import CaptureBreak
from flambeau.nn.replay.replayed_function import ReplayedFunction


class GraphCompileReason(NamedTuple):
    """Why a call was not captured.

    Attributes:
        reason: The reason.
        user_stack: The line of the program; empty if there is none.
        graph_break: True if the function left a capture there.
    """

    reason: str
    user_stack: list[FrameSummary]
    graph_break: bool = True


class ExplainOutput:
    """The result of `explain`. As a string it is a report with PyTorch's headings.

    Attributes:
        graphs: The captured CUDA graphs, or the GraphModules of a backend.
        graph_count: Their number.
        graph_break_count: The number of reasons.
        break_reasons: Why calls were not captured.
        op_count: The number of launches or operators in all graphs.
        ops_per_graph: Their names, for each graph.
        out_guards: What replays compare: how the program reaches each value.
        compile_times: The empty string.
    """

    compile_times = ""

    def __init__(self, function: Any) -> None:
        found = function.describe()
        self.graphs = [each.graph for each in found]
        self.graph_count = len(found)
        self.break_reasons = [_describe(refusal) for refusal in function.breaks]
        self.graph_break_count = len(self.break_reasons)
        self.ops_per_graph = [list(each.operations) for each in found]
        self.op_count = sum(map(len, self.ops_per_graph))
        self.out_guards = [name for each in found for name in each.guards]

    def __str__(self) -> str:
        lines = [
            f"Graph Count: {self.graph_count}",
            f"Graph Break Count: {self.graph_break_count}",
            f"Op Count: {self.op_count}",
            "Break Reasons:",
        ]
        for number, (reason, stack, _) in enumerate(self.break_reasons, 1):
            lines += [f"  Break Reason {number}:", f"    Reason: {reason}", "    User Stack:"]
            lines += [f"      {frame}" for frame in stack]
        lines.append("Ops per Graph:")
        for number, names in enumerate(self.ops_per_graph, 1):
            lines += [f"  Ops {number}:", *[f"    {name}" for name in names]]
        return "\n".join([*lines, "Out Guards:", *[f"  {name}" for name in self.out_guards], ""])


def _describe(refusal: CaptureBreak) -> GraphCompileReason:
    if refusal.site is None:
        return GraphCompileReason(refusal.why, [], False)
    code = refusal.site[0]
    return GraphCompileReason(
        refusal.why, [FrameSummary(code.co_filename, line_of(refusal.site), code.co_name)]
    )


def explain(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExplainOutput:
    """Call a function once with its own backend, or twice, for the warm-up and the capture of a CUDA graph.

    Returns a report of what happened.
    """
    compiled = getattr(function, "_flambeau_compiled", None)
    if compiled is not None and not isinstance(compiled, ReplayedFunction):
        compiled(*args, **kwargs)
        return ExplainOutput(compiled)
    replayed = ReplayedFunction(find_innermost(function))
    for _ in range(2):
        replayed(*args, **kwargs)
    return ExplainOutput(replayed)

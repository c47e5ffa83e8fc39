"""`OperatorLog`: the operators that a checkpointed function ran, for the errors of `checkpoint(debug=True)`."""

from __future__ import annotations

from typing import Any

from flambeau.core.callsite import place, program_site
from flambeau.utils._python_dispatch import TorchDispatchMode


class OperatorLog(TorchDispatchMode):
    """A mode that notes each operator and the program's line that ran it.

    Attributes:
        lines: One text for each operator, in the order of their runs.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __enter__(self) -> OperatorLog:
        self.lines.clear()
        super().__enter__()
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if str(func) != "aten.detach.default":  # the recomputation calls it for each tensor that it keeps
            self.lines.append(f"{func} at {place(program_site())}")
        return func(*args, **(kwargs or {}))


def describe_difference(first: OperatorLog, second: OperatorLog) -> str:
    """Return the operators of both runs of a function, and where they begin to differ."""
    same = next(
        (i for i, pair in enumerate(zip(first.lines, second.lines, strict=False)) if pair[0] != pair[1]),
        min(len(first.lines), len(second.lines)),
    )
    parts = ["debug=True: operators of the first run and of the recomputation:"]
    for title, log in (("first run", first), ("recomputation", second)):
        parts += [f"  {title}:", *[f"    {i + 1}. {line}" for i, line in enumerate(log.lines)]]
    if same == max(len(first.lines), len(second.lines)):
        parts.append("Both ran the same operators: compare the shapes of their inputs.")
    else:
        parts.append(f"They differ from operator {same + 1} on.")
    return "\n".join(parts)

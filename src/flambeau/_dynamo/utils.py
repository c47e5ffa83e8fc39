"""torch._dynamo.utils: counters of PyTorch's compiler, which stay empty, and predicates."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from flambeau.core.public_names import explain_absent_names

__all__ = ["compile_times", "counters", "graph_break_reasons", "guard_failures", "is_compile_supported"]

counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
guard_failures: defaultdict[Any, list[Any]] = defaultdict(list)
graph_break_reasons: list[Any] = []


def is_compile_supported(device_type: str) -> bool:
    """Return False, because Flambeau has no compiler for any device."""
    return False


def compile_times(repr: str = "str", aggregate: bool = False) -> Any:
    """Return the times that compilation took, which are none.

    Args:
        repr: "str" for a table, "csv" for names and values.
        aggregate: In PyTorch, whether the times of one function are added.
    """
    if repr == "str":
        return "TorchDynamo compilation metrics:\nFunction    Runtimes (s)\n----------  --------------"
    return ([], []) if repr == "csv" else None


explain_absent_names(globals(), "torch._dynamo.utils")

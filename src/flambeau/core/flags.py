"""`flags`: the typed switches of a process. Set through `torch.backends` and the like.

They are read in one place, `tensor/call.py`, and travel from there in each launch's params. A switch
that changes plans starts another plan cache (see Note [The plan cache]), so the warm path never reads one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.dtype import dtype, float32


class Flags:
    """All switches with their defaults. Setting one notifies the subscribers if its value changed."""

    __slots__ = (
        "_subscribers", "attention", "attention_order", "attention_reduced", "bfloat16_reductions", "cudnn_allow_tf32",
        "cudnn_benchmark", "cudnn_benchmark_limit", "cudnn_deterministic", "cudnn_enabled",
        "default_dtype", "deterministic", "deterministic_warn_only", "fill_uninitialized",
        "float16_accumulation", "float16_reductions",
        "float32_matmul_precision", "launch_blocking",
        "matmul_allow_tf32", "memory_subscribed", "mha_fastpath", "portable_random", "precisions", "profiled",
        "recorded", "rnn_allow_tf32", "sync_debug_mode", "warn_always",
    )  # fmt: skip

    _subscribers: list[Callable[[], None]]
    matmul_allow_tf32: bool
    float32_matmul_precision: str  # the value that programs read; products use matmul_allow_tf32
    # this and the next two are only read by programs: all sums are computed in float32
    float16_reductions: tuple[bool, bool]
    bfloat16_reductions: tuple[bool, bool]
    float16_accumulation: bool
    cudnn_allow_tf32: bool  # for convolutions
    rnn_allow_tf32: bool  # for recurrent layers
    # the settings of the last three as programs wrote them: see backends/matmul_flags.py
    precisions: tuple[str, ...]
    cudnn_enabled: bool
    cudnn_benchmark: bool
    cudnn_benchmark_limit: int
    cudnn_deterministic: bool
    deterministic: bool
    deterministic_warn_only: bool
    fill_uninitialized: bool  # only under deterministic algorithms
    default_dtype: dtype
    launch_blocking: bool
    sync_debug_mode: int  # 1: warn of operations that wait for a device; 2: raise an error for them
    profiled: bool  # True if profilers subscribe to launches
    memory_subscribed: bool  # True if profilers subscribe to memory events
    recorded: bool  # True while the launches of a compiled function are captured and recorded
    attention: frozenset[int]  # the numbers of torch.nn.attention's backends that may be used
    attention_order: tuple[int, ...]  # the order in which they are tried
    attention_reduced: bool  # True if attention by matrix products may sum in 16 bits
    mha_fastpath: bool  # only read by programs
    portable_random: bool  # in which grid CUDA generators draw travels in each launch's params

    warn_always: bool  # only read by programs: every call warns, as far as Python's filters let it

    def __init__(self) -> None:
        put = object.__setattr__
        put(self, "_subscribers", [])
        put(self, "matmul_allow_tf32", True)  # the documentation's default (SPEC C01)
        put(self, "float32_matmul_precision", "high")
        put(self, "float16_reductions", (True, True))
        put(self, "bfloat16_reductions", (True, True))
        put(self, "float16_accumulation", False)
        put(self, "cudnn_allow_tf32", True)
        put(self, "rnn_allow_tf32", True)
        put(self, "precisions", ("none",) * 5)
        put(self, "cudnn_enabled", True)
        put(self, "cudnn_benchmark", False)
        put(self, "cudnn_benchmark_limit", 10)
        put(self, "cudnn_deterministic", False)
        put(self, "deterministic", False)
        put(self, "deterministic_warn_only", False)
        put(self, "fill_uninitialized", True)
        put(self, "default_dtype", float32)
        put(self, "launch_blocking", False)
        put(self, "sync_debug_mode", 0)
        put(self, "warn_always", False)
        put(self, "profiled", False)
        put(self, "memory_subscribed", False)
        put(self, "recorded", False)
        put(self, "mha_fastpath", True)
        put(self, "portable_random", False)
        put(self, "attention", frozenset(range(5)))
        put(self, "attention_order", (1, 2, 0, 3, 4))
        put(self, "attention_reduced", False)

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, name) == value:
            return
        object.__setattr__(self, name, value)
        for changed in self._subscribers:
            changed()

    def subscribe(self, changed: Callable[[], None]) -> None:
        """Call `changed()` after each change of a switch."""
        self._subscribers.append(changed)

    def key(self) -> tuple[Any, ...]:
        """Return the values that plans depend on."""
        return (
            self.matmul_allow_tf32, self.cudnn_allow_tf32, self.rnn_allow_tf32, self.cudnn_enabled, self.deterministic,
            self.default_dtype, self.launch_blocking, self.profiled, self.memory_subscribed,
            self.recorded,
        )  # fmt: skip


flags = Flags()

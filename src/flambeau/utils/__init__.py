"""torch.utils: data loading and exchange with other libraries, each imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flambeau.core.public_names import lacking

_lacking = lacking("torch.utils")
_MODULES = (
    "_contextlib", "_foreach_utils", "_ordered_set", "_python_dispatch", "_pytree", "_triton", "checkpoint",
    "cpp_extension", "data", "deterministic", "dlpack", "flop_counter", "hooks", "model_zoo", "module_tracker", "weak",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "swap_tensors":
        return import_module("flambeau.utils._swap_tensors").swap_tensors
    return import_module(f"flambeau.utils.{name}") if name in _MODULES else _lacking(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "swap_tensors"})

"""`Outcome`: what a run of a program gave, in a form that two runs can be compared by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import flambeau as torch
from flambeau.core.memory import array_at


@dataclass(frozen=True, slots=True)
class Outcome:
    """The value that a program returned, frozen to bytes, or the error that it raised as `Type: text`."""

    value: Any = None
    error: str | None = None

    def __str__(self) -> str:
        return f"raises {self.error}" if self.error else f"gives {shown(self.value)}"


def frozen(value: Any) -> Any:
    """A value that equals another one's where both hold the same bits.

    Tensors and arrays become (dtype, shape, bytes). Raises TypeError for what cannot be compared between runs.
    """
    if isinstance(value, torch.Tensor):
        there = value.detach().cpu().resolve_conj().contiguous()
        array = array_at(there.data_ptr(), there.meta.shape, there.meta.dtype.numpy, there.meta.byte_strides)
        return "tensor", str(there.dtype), tuple(there.shape), array.tobytes()
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple([frozen(v) for v in value])
    if isinstance(value, Mapping):
        return tuple([(frozen(k), frozen(v)) for k, v in value.items()])
    if value is None or isinstance(value, str | bytes | bool | int | complex | np.generic):
        return value
    if isinstance(value, float):
        return value.hex()
    raise TypeError(
        f"explore compares what the function returns in each order, and cannot compare {type(value).__name__}; "
        "return tensors, arrays, numbers, strings, or lists, tuples and dicts of them"
    )


def shown(value: Any) -> str:
    """A frozen value for a report: the first elements of a tensor, not its bytes."""
    if isinstance(value, tuple) and len(value) == 4 and value[0] == "tensor":
        kind = getattr(torch, value[1].removeprefix("torch."))
        first = np.frombuffer(value[3], kind.numpy)[:4].tolist()
        return f"{value[1].removeprefix('torch.')}{list(value[2])} of {', '.join(map(str, first))} ..."
    if isinstance(value, tuple):
        return "(" + ", ".join(map(shown, value)) + ")"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."

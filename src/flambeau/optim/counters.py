"""`Counters`: the numbers that optimizers keep beside each parameter, as CPU tensors of one element.

PyTorch's format wants them to be tensors. A step reads and writes them for each parameter, so their memory is
looked up once and then used as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.memory import array_at
from flambeau.tensor.tensor import Tensor

Window = np.ndarray[Any, Any]


class Counters:
    """Windows on counters by parameter. They are renewed where a state holds other tensors than before."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[list[Tensor], list[Window]]] = {}

    def windows(self, p: Tensor, state: dict[str, Any], names: Sequence[str]) -> list[Window]:
        """The memory of a parameter's counters. Those that a checkpoint brought to a device come to the CPU."""
        kept = self._kept.get(id(p))
        if kept is not None:
            tensors, found = kept
            if all([t is state[name] for t, name in zip(tensors, names, strict=True)]):  # noqa: C419 (faster than a generator)
                return found
        for name in names:
            if state[name].device is not CPU:
                state[name] = state[name].cpu()
        tensors = [state[name] for name in names]
        found = [array_at(t.ptr, (), t.meta.dtype.numpy) for t in tensors]
        self._kept[id(p)] = tensors, found
        return found

    def write(self, p: Tensor, values: Sequence[float]) -> None:
        """Store the counters of a parameter whose windows were asked for."""
        for t, window, value in zip(*self._kept[id(p)], values, strict=True):
            window[()] = value
            t.counter.version += 1

"""`Counters`: the step counters of optimizers, one for each parameter, as CPU tensors of one element.

PyTorch's checkpoints require tensors. A step reads and writes the counters of each parameter, so their addresses are
looked up once and then cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.host_arrays import array_at
from flambeau.tensor.tensor import Tensor

Window = np.ndarray[Any, Any]
Cells = tuple[list[Tensor], list[Window]]  # counters, and the memory of each


class Counters:
    """The step counters of parameters. Their addresses are read again if a state holds other tensors than before."""

    def __init__(self) -> None:
        self._kept: dict[int, Cells] = {}

    def of(self, p: Tensor, state: dict[str, Any], names: Sequence[str]) -> Cells:
        """Return the counters of a parameter. Counters that a checkpoint put on a device are moved to the CPU."""
        kept = self._kept.get(id(p))
        if kept is not None and all(map(is_, kept[0], map(state.get, names))):
            return kept
        for name in names:
            if state[name].device is not CPU:
                state[name] = state[name].cpu()
        tensors = [state[name] for name in names]
        found = self._kept[id(p)] = tensors, [array_at(t.ptr, (), t.meta.dtype.numpy) for t in tensors]
        return found


def read(cells: Cells) -> tuple[float, ...]:
    return tuple(map(float, cells[1]))


def write(cells: Cells, values: Sequence[float]) -> None:
    tensors, windows = cells
    for i, value in enumerate(values):
        windows[i][()] = value
        tensors[i].counter.version += 1

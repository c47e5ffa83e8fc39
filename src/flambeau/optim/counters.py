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

Cell = tuple[Tensor, np.ndarray[Any, Any]]  # a counter, and its memory


class Counters:
    """The counters of parameters. They are looked up anew where a state holds other tensors than before."""

    def __init__(self) -> None:
        self._kept: dict[int, list[Cell]] = {}

    def of(self, p: Tensor, state: dict[str, Any], names: Sequence[str]) -> list[Cell]:
        """Those of a parameter. What a checkpoint brought to a device comes to the CPU."""
        kept = self._kept.get(id(p))
        if kept is not None:
            for (counter, _), name in zip(kept, names, strict=True):
                if counter is not state[name]:
                    break
            else:
                return kept
        for name in names:
            if state[name].device is not CPU:
                state[name] = state[name].cpu()
        found = [(t, array_at(t.ptr, (), t.meta.dtype.numpy)) for t in [state[name] for name in names]]
        self._kept[id(p)] = found
        return found


def read(cells: list[Cell]) -> tuple[float, ...]:
    return tuple([float(window) for _, window in cells])


def write(cells: list[Cell], values: Sequence[float]) -> None:
    for (counter, window), value in zip(cells, values, strict=True):
        window[()] = value
        counter.counter.version += 1

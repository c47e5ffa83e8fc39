"""The current device, the current stream of each device and the default device, per thread. Owner of that state.

`local.streams[index]` is the current stream of CUDA device `index`; `local.streams[-1]`, the last, is the
CPU's, so that the launch path reads a stream the same way for every device. Before devices are opened the
CPU's is the only one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from flambeau.core.device import CPU, device

if TYPE_CHECKING:
    from flambeau.runtime.device_context import Context
    from flambeau.runtime.streams.stream import Stream


class Selection(threading.local):
    """The devices and streams that one thread has selected; device 0 and the default streams at first."""

    def __init__(self, defaults: Sequence[Stream]) -> None:
        self.device = 0
        self.streams = list(defaults)


class Default(threading.local):
    """One thread's default device for new tensors.

    Attributes:
        device: The device of new tensors.
        fallback: The device of the default tensor type.
        selected: The device, if the program selected it; functions that convert data then also move tensors to it.
        left: Values of `selected` in the enclosing `with` blocks.
    """

    def __init__(self) -> None:
        self.device = self.fallback = CPU
        self.selected: device | None = None
        self.left: list[device | None] = []

    def select(self, where: device | None) -> None:
        """Make a device the default; None returns to the one of the default tensor type."""
        self.selected = where
        self.device = where or self.fallback

    def set_fallback(self, where: device) -> None:
        """Set the device of the default tensor type."""
        self.fallback = where
        self.select(self.selected)


default = Default()
local: Selection = Selection(())
_open: Callable[[int], Context]


def use(selection: Selection) -> None:
    """Reset the selection of every thread, because a machine was opened, left or closed."""
    global local
    local = selection


def opened_by(open_context: Callable[[int], Context]) -> None:
    """Register the function that opens a device on first use. `runtime/system.py` calls this once."""
    global _open
    _open = open_context


def context_at(index: int) -> Context:
    """Return the context of CUDA device `index`, opened on first use.

    Raises:
        RuntimeError: If there is no such device.
    """
    streams = local.streams
    if 0 <= index < len(streams) - 1:
        return streams[index].context
    return _open(index)


def stream_at(index: int) -> Stream:
    """Return the current stream of CUDA device `index`, whose machine is opened on first use."""
    if not 0 <= index < len(local.streams) - 1:
        _open(index)
    return local.streams[index]


def index_of(where: Any, optional: bool = False) -> int:
    """Return the CUDA index that a public `device` argument names. Negative ints are returned unchanged.

    `optional` allows None and "cuda" without an index: they mean the current device. Raises ValueError, with
    PyTorch's texts, for anything else.
    """
    if isinstance(where, int):
        return where
    if isinstance(where, str):
        where = device(where)
    if isinstance(where, device):
        if where.type != "cuda":
            raise ValueError(f"Expected a cuda device, but got: {where}")
        if where.index is not None:
            return where.index
    elif where is not None:
        guarded = getattr(where, "idx", None)  # a torch.cuda.device guard has the index
        if isinstance(guarded, int):
            return guarded
        optional = False
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{where}")
    return local.device

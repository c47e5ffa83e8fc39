"""torch.cuda: argument normalizing over runtime, no logic."""

from __future__ import annotations

from typing import Any

from flambeau.cuda.devices import (
    OutOfMemoryError,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_device,
)
from flambeau.cuda.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _sleep,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"module 'torch.cuda' has no attribute '{name}': Flambeau lacks it (PyTorch may have it)")

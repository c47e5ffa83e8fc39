"""torch.cuda._utils: the private function that libraries take from there."""

from __future__ import annotations

from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.runtime import current

explain_absent_names(globals(), "torch.cuda._utils")


def _get_device_index(device: Any, optional: bool = False, allow_cpu: bool = False) -> int:
    """Return the index of a CUDA device.

    Args:
        device: A torch.device, str, int or None.
        optional: True if None and devices without an index stand for the current device.
        allow_cpu: True if the CPU is allowed, whose index is -1.

    Raises:
        ValueError: If the device is not CUDA's, or has no index and `optional` is False.
    """
    if allow_cpu and str(device).partition(":")[0] == "cpu":
        return -1
    return current.index_of(device, optional=optional)

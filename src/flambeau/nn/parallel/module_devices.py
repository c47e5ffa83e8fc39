"""The device of a module's parameters, and the device to which its inputs are moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flambeau.core.device import device as Device
from flambeau.runtime import current


class ModulePlacement(NamedTuple):
    """The placement of a module.

    Attributes:
        device: The device of the parameters; the first of several.
        several: True if parameters are on several devices.
        device_ids, output: Devices to which inputs and outputs are moved; None to leave them.
    """

    device: Device
    several: bool
    device_ids: list[int] | None
    output: int | None


def placement_of(params: Sequence[Any], device_ids: Any, output_device: Any) -> ModulePlacement:
    """Return the device placement of parameters, checked against the program's arguments.

    Raises:
        ValueError: If it does not fit.
    """
    if device_ids is not None and len(device_ids) > 1:
        raise ValueError("device_ids can only be None or contain a single element.")
    devices = {p.device for p in params}
    kinds = {where.type for where in devices}
    if len(kinds) != 1:
        raise ValueError(
            "DistributedDataParallel's input module must be on the same type of devices, but input module "
            f"parameters locate in {kinds}."
        )
    several = len(devices) > 1
    if not device_ids or kinds == {"cpu"} or several:
        if device_ids or output_device:
            raise ValueError(
                "DistributedDataParallel device_ids and output_device arguments only work with "
                "single-device/multiple-device GPU modules or CPU modules, but got device_ids "
                f"{device_ids}, output_device {output_device}, and module parameters {devices}."
            )
        return ModulePlacement(params[0].device, several, None, None)
    chosen = device_ids[0] if output_device is None else output_device
    ids = [current.index_of(where, optional=True) for where in device_ids]
    return ModulePlacement(params[0].device, several, ids, current.index_of(chosen, optional=True))

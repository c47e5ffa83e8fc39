"""`torch.utils._foreach_utils`: groups of tensors for functions of lists, as optimizers of other packages use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.tensor import Tensor
from flambeau.tensor.tensor_groups import group_by_device_and_dtype

explain_absent_names(globals(), "torch.utils._foreach_utils")
_group_tensors_by_device_and_dtype = group_by_device_and_dtype


def _get_foreach_kernels_supported_devices() -> list[str]:
    """Return the types of devices on which functions of lists launch few kernels."""
    return ["cuda"]


def _get_fused_kernels_supported_devices() -> list[str]:
    """Return the types of devices on which optimizers have a fused step."""
    return ["cuda", "cpu"]


def _device_has_foreach_support(device: Any) -> bool:
    """Return True if functions of lists launch few kernels on a device."""
    return device.type in (*_get_foreach_kernels_supported_devices(), "cpu")


def _has_foreach_support(tensors: Sequence[Any], device: Any) -> bool:
    """Return True if functions of lists take these tensors on a device."""
    return _device_has_foreach_support(device) and all(t is None or type(t) is Tensor for t in tensors)

"""torch.utils.dlpack: exchange of tensors with other libraries, over the same memory."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.tensor.exchange.dlpack import from_dlpack
from flambeau.tensor.tensor import Tensor

__all__ = ["DLDeviceType", "from_dlpack", "to_dlpack"]


class DLDeviceType(IntEnum):
    """The numbers of DLPack for kinds of devices, the first of the two that `Tensor.__dlpack_device__` returns."""

    kDLCPU = 1  # noqa: N815 (DLPack's names)
    kDLCUDA = 2  # noqa: N815
    kDLCUDAHost = 3  # noqa: N815
    kDLOpenCL = 4  # noqa: N815
    kDLVulkan = 7  # noqa: N815
    kDLMetal = 8  # noqa: N815
    kDLVPI = 9  # noqa: N815
    kDLROCM = 10  # noqa: N815
    kDLROCMHost = 11  # noqa: N815
    kDLExtDev = 12  # noqa: N815
    kDLCUDAManaged = 13  # noqa: N815
    kDLOneAPI = 14  # noqa: N815
    kDLWebGPU = 15  # noqa: N815
    kDLHexagon = 16  # noqa: N815
    kDLMAIA = 17  # noqa: N815


def to_dlpack(tensor: Tensor) -> Any:
    """Return a DLPack capsule of a tensor, over its memory."""
    return tensor.__dlpack__()


explain_absent_names(globals(), "torch.utils.dlpack")

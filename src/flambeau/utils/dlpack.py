"""torch.utils.dlpack: exchange of tensors with other libraries, over the same memory."""

from __future__ import annotations

from typing import Any

from flambeau.core.names import lacking
from flambeau.tensor.exchange.dlpack import from_dlpack
from flambeau.tensor.tensor import Tensor

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(tensor: Tensor) -> Any:
    """A DLPack capsule of a tensor, over its memory."""
    return tensor.__dlpack__()


__getattr__ = lacking("torch.utils.dlpack")

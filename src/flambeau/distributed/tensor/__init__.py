"""torch.distributed.tensor: placements are plain values; other names raise NotSupportedError when used.

Flambeau has no tensors that are sharded over a mesh. Libraries import these names for `isinstance(x, DTensor)`.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import Any as _Any

from flambeau.core.absent import absent_class as _absent_class
from flambeau.core.absent import absent_function as _absent_function
from flambeau.core.public_names import lacking as _lacking
from flambeau.distributed.tensor.placement_types import Partial, Placement, Replicate, Shard

__all__ = [
    "DTensor", "Partial", "Placement", "Replicate", "Shard", "distribute_module", "distribute_tensor", "empty", "full",
    "ones", "rand", "randn", "zeros",
]  # fmt: skip

_HERE = "torch.distributed.tensor"
_ADVICE = "Use plain tensors with the collectives of torch.distributed, or DistributedDataParallel."
_absent = _lacking(_HERE)

DTensor = _absent_class(_HERE, "DTensor", _ADVICE)
distribute_module = _absent_function(_HERE, "distribute_module", _ADVICE)
distribute_tensor = _absent_function(_HERE, "distribute_tensor", _ADVICE)
empty = _absent_function(_HERE, "empty", _ADVICE)
full = _absent_function(_HERE, "full", _ADVICE)
ones = _absent_function(_HERE, "ones", _ADVICE)
rand = _absent_function(_HERE, "rand", _ADVICE)
randn = _absent_function(_HERE, "randn", _ADVICE)
zeros = _absent_function(_HERE, "zeros", _ADVICE)


def __getattr__(name: str) -> _Any:
    if name in ("_utils", "experimental", "parallel", "placement_types"):
        return _import_module(f"flambeau.distributed.tensor.{name}")
    return _absent(name)

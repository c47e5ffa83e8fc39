"""torch.distributed.tensor.experimental: names that can be imported; using one raises NotSupportedError.

Flambeau has no tensors that are sharded over a mesh.
"""

from __future__ import annotations

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = ["context_parallel", "implicit_replication", "local_map", "register_sharding"]

_HERE = "torch.distributed.tensor.experimental"
_ADVICE = "Use plain tensors with the collectives of torch.distributed."
explain_absent_names(globals(), _HERE)

context_parallel = absent_function(_HERE, "context_parallel", _ADVICE)
implicit_replication = absent_function(_HERE, "implicit_replication", _ADVICE)
local_map = absent_function(_HERE, "local_map", _ADVICE)
register_sharding = absent_function(_HERE, "register_sharding", _ADVICE)

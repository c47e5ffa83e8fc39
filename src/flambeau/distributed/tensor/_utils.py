"""torch.distributed.tensor._utils: names that can be imported; using one raises NotSupportedError.

Flambeau has no tensors that are sharded over a mesh.
"""

from __future__ import annotations

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

_HERE = "torch.distributed.tensor._utils"
_ADVICE = "Use plain tensors with the collectives of torch.distributed."
explain_absent_names(globals(), _HERE)

compute_global_tensor_info = absent_function(_HERE, "compute_global_tensor_info", _ADVICE)
compute_local_shape_and_global_offset = absent_function(
    _HERE, "compute_local_shape_and_global_offset", _ADVICE
)

"""torch.distributed.fsdp.sharded_grad_scaler: a name that can be imported; using it raises NotSupportedError.

Flambeau has no sharded gradients.
"""

from __future__ import annotations

from flambeau.amp.grad_scaler import GradScaler
from flambeau.core.absent import absent_class
from flambeau.core.public_names import explain_absent_names

_HERE = "torch.distributed.fsdp.sharded_grad_scaler"
explain_absent_names(globals(), _HERE)

ShardedGradScaler = absent_class(_HERE, "ShardedGradScaler", "Use torch.amp.GradScaler.", GradScaler)

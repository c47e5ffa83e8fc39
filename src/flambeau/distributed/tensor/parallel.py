"""torch.distributed.tensor.parallel: names that can be imported; using one raises NotSupportedError.

Flambeau does not divide a module over ranks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__path__ = ()  # its submodules are in core/absent_modules/names.txt
__all__ = [
    "ColwiseParallel", "ParallelStyle", "PrepareModuleInput", "PrepareModuleInputOutput", "PrepareModuleOutput",
    "RowwiseParallel", "SequenceParallel", "loss_parallel", "parallelize_module",
]  # fmt: skip

_HERE = "torch.distributed.tensor.parallel"
_ADVICE = (
    "Use DistributedDataParallel, or divide the module by hand with the collectives of torch.distributed."
)
explain_absent_names(globals(), _HERE)

ParallelStyle = absent_class(_HERE, "ParallelStyle", _ADVICE)
ColwiseParallel = absent_class(_HERE, "ColwiseParallel", _ADVICE, ParallelStyle)
PrepareModuleInput = absent_class(_HERE, "PrepareModuleInput", _ADVICE, ParallelStyle)
PrepareModuleInputOutput = absent_class(_HERE, "PrepareModuleInputOutput", _ADVICE, ParallelStyle)
PrepareModuleOutput = absent_class(_HERE, "PrepareModuleOutput", _ADVICE, ParallelStyle)
RowwiseParallel = absent_class(_HERE, "RowwiseParallel", _ADVICE, ParallelStyle)
SequenceParallel = absent_class(_HERE, "SequenceParallel", _ADVICE, ParallelStyle)
loss_parallel = absent_function(_HERE, "loss_parallel", _ADVICE)
parallelize_module = absent_function(_HERE, "parallelize_module", _ADVICE)

"""torch.distributed.checkpoint.format_utils: names that can be imported; using one raises NotSupportedError.

Flambeau does not write one checkpoint from several ranks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_class, absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "BroadcastingTorchSaveReader", "DynamicMetaLoadPlanner", "_EmptyStateDictLoadPlanner", "_load_state_dict",
    "dcp_to_torch_save", "torch_save_to_dcp",
]  # fmt: skip

_HERE = "torch.distributed.checkpoint.format_utils"
_ADVICE = "Use torch.save and torch.load, one file a rank or from rank 0."
explain_absent_names(globals(), _HERE)

BroadcastingTorchSaveReader = absent_class(_HERE, "BroadcastingTorchSaveReader", _ADVICE)
DynamicMetaLoadPlanner = absent_class(_HERE, "DynamicMetaLoadPlanner", _ADVICE)
_EmptyStateDictLoadPlanner = absent_class(_HERE, "_EmptyStateDictLoadPlanner", _ADVICE)
_load_state_dict = absent_function(_HERE, "_load_state_dict", _ADVICE)
dcp_to_torch_save = absent_function(_HERE, "dcp_to_torch_save", _ADVICE)
torch_save_to_dcp = absent_function(_HERE, "torch_save_to_dcp", _ADVICE)

"""torch.distributed.checkpoint.state_dict_saver: names that can be imported; using one raises NotSupportedError.

Flambeau does not write one checkpoint from several ranks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "async_save", "save", "save_state_dict",
]  # fmt: skip

_HERE = "torch.distributed.checkpoint.state_dict_saver"
_ADVICE = "Use torch.save and torch.load, one file a rank or from rank 0."
explain_absent_names(globals(), _HERE)

async_save = absent_function(_HERE, "async_save", _ADVICE)
save = absent_function(_HERE, "save", _ADVICE)
save_state_dict = absent_function(_HERE, "save_state_dict", _ADVICE)

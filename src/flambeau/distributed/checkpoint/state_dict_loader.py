"""torch.distributed.checkpoint.state_dict_loader: names that can be imported; using one raises NotSupportedError.

Flambeau does not write one checkpoint from several ranks.
"""

from __future__ import annotations

from flambeau.core.absent import absent_function
from flambeau.core.public_names import explain_absent_names

__all__ = [
    "_load_state_dict", "load", "load_state_dict",
]  # fmt: skip

_HERE = "torch.distributed.checkpoint.state_dict_loader"
_ADVICE = "Use torch.save and torch.load, one file a rank or from rank 0."
explain_absent_names(globals(), _HERE)

_load_state_dict = absent_function(_HERE, "_load_state_dict", _ADVICE)
load = absent_function(_HERE, "load", _ADVICE)
load_state_dict = absent_function(_HERE, "load_state_dict", _ADVICE)

"""torch.distributed.checkpoint.state_dict: names that can be imported; its functions raise NotSupportedError.

Flambeau has no sharded modules.
"""

from __future__ import annotations

from dataclasses import dataclass

from flambeau.core.absent import absent_function
from flambeau.core.names import explain_absent_names

__all__ = [
    "StateDictOptions",
    "get_model_state_dict", "get_optimizer_state_dict", "get_state_dict", "set_model_state_dict",
    "set_optimizer_state_dict", "set_state_dict",
]  # fmt: skip

_HERE = "torch.distributed.checkpoint.state_dict"
_ADVICE = "Use the module's and the optimizer's state_dict() and load_state_dict()."
explain_absent_names(globals(), _HERE)

get_model_state_dict = absent_function(_HERE, "get_model_state_dict", _ADVICE)
get_optimizer_state_dict = absent_function(_HERE, "get_optimizer_state_dict", _ADVICE)
get_state_dict = absent_function(_HERE, "get_state_dict", _ADVICE)
set_model_state_dict = absent_function(_HERE, "set_model_state_dict", _ADVICE)
set_optimizer_state_dict = absent_function(_HERE, "set_optimizer_state_dict", _ADVICE)
set_state_dict = absent_function(_HERE, "set_state_dict", _ADVICE)


@dataclass
class StateDictOptions:
    """The options of the functions of this module."""

    full_state_dict: bool = False
    cpu_offload: bool = False
    ignore_frozen_params: bool = False
    keep_submodule_prefixes: bool = True
    strict: bool = True
    broadcast_from_rank0: bool = False
    flatten_optimizer_state_dict: bool = False
    dsd_fqn_modifiers: str = "_fqn_modifiers"

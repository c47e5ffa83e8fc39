"""torch.utils.model_zoo: the old place of `torch.hub.load_state_dict_from_url`."""

from __future__ import annotations

from flambeau.core.public_names import explain_absent_names
from flambeau.serialization.hub import load_state_dict_from_url

__all__ = ["load_state_dict_from_url", "load_url"]
explain_absent_names(globals(), "torch.utils.model_zoo")

load_url = load_state_dict_from_url

"""torch.utils.model_zoo: the old place of `torch.hub.load_state_dict_from_url`."""

from __future__ import annotations

from flambeau.core.names import lacking
from flambeau.serialization.hub import load_state_dict_from_url

__all__ = ["load_state_dict_from_url", "load_url"]
__getattr__ = lacking("torch.utils.model_zoo")

load_url = load_state_dict_from_url

"""torch.hub: models that a folder's hubconf.py defines, and files of parameters downloaded to a cache."""

from __future__ import annotations

from flambeau.core.names import explain_absent_names
from flambeau.serialization.hub import HASH_REGEX as HASH_REGEX
from flambeau.serialization.hub import (
    download_url_to_file,
    get_dir,
    help,
    list,
    load,
    load_state_dict_from_url,
    set_dir,
)

__all__ = ["download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url", "set_dir"]
explain_absent_names(globals(), "torch.hub")

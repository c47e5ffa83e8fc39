"""torch.hub: models that a folder's hubconf.py defines, and files of parameters downloaded to a cache."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlparse as urlparse

from flambeau.core.public_names import lacking
from flambeau.serialization.hub import HASH_REGEX as HASH_REGEX
from flambeau.serialization.hub import _get_torch_home as _get_torch_home
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
_lacking = lacking("torch.hub")


def __getattr__(name: str) -> Any:
    """Return tqdm's progress bar, which is imported at its first use."""
    return import_module("tqdm").tqdm if name == "tqdm" else _lacking(name)

"""The public test kit; `torch.testing`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flambeau.core.names import lacking

_LATER = {"assert_close": "flambeau.testing.closeness"}  # it imports all of Flambeau
_absent = lacking("torch.testing")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        return _absent(name)
    found = globals()[name] = getattr(import_module(_LATER[name]), name)
    return found

"""torch.serialization: checkpoints. `torch.save` and `torch.load` are its."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from flambeau.core.device import device
from flambeau.core.names import explain_absent_names
from flambeau.serialization.checkpoint import get_unsafe_globals_in_checkpoint, load, save
from flambeau.serialization.places import default_restore_location, location_tag
from flambeau.serialization.safety import (
    add_safe_globals,
    clear_safe_globals,
    get_safe_globals,
    safe_globals,
)

__all__ = [
    "DEFAULT_PROTOCOL", "MAP_LOCATION", "add_safe_globals", "clear_safe_globals", "default_restore_location",
    "get_safe_globals", "get_unsafe_globals_in_checkpoint", "load", "location_tag", "safe_globals", "save",
]  # fmt: skip

DEFAULT_PROTOCOL = 2
MAP_LOCATION: TypeAlias = Callable[[Any, str], Any] | device | str | dict[str, str] | None

explain_absent_names(globals(), "torch.serialization")

"""torch.storage: classes of storages."""

from __future__ import annotations

import io
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.serialization import load
from flambeau.tensor.storages import TypedStorage, UntypedStorage

__all__ = ["TypedStorage", "UntypedStorage"]

explain_absent_names(globals(), "torch.storage")


def _load_from_bytes(b: bytes) -> Any:
    """Return the storage that a pickle contains; pickles call this function by name."""
    return load(io.BytesIO(b), weights_only=False)

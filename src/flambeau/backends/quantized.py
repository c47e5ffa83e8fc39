"""`torch.backends.quantized`: engines of quantized operators, of which Flambeau has none."""

from __future__ import annotations

import sys

from flambeau.backends.flagged import FlaggedModule


class _Quantized(FlaggedModule):
    @property
    def engine(self) -> str:
        """Return "none". Setting another engine raises RuntimeError."""
        return "none"

    @engine.setter
    def engine(self, name: str) -> None:
        if name != "none":
            raise RuntimeError(f"quantized engine {name} is not supported: Flambeau has no quantized tensors")

    @property
    def supported_engines(self) -> list[str]:
        """Return the names of engines: none."""
        return []


sys.modules[__name__].__class__ = _Quantized

"""torch.signal: window functions, in `windows`."""

from flambeau.signal import windows

__all__ = ["windows"]

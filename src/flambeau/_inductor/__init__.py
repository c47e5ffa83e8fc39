"""torch._inductor: settings of PyTorch's default compiler, which Flambeau does not have."""

from __future__ import annotations

from flambeau._inductor import config
from flambeau.core.public_names import explain_absent_names
from flambeau.nn.compile_options import list_mode_options
from flambeau.nn.compiler_settings import settings_of

__all__ = ["config", "list_mode_options", "list_options"]


def list_options() -> list[str]:
    """Return the names of the settings that `torch.compile(options=...)` accepts."""
    return list(settings_of("torch._inductor.config").copy())


explain_absent_names(globals(), "torch._inductor")

"""torch._inductor.config: settings of PyTorch's default compiler, which have no effect."""

from __future__ import annotations

import sys

from flambeau.nn.compiler_settings import SettingsModule, settings_of

_settings = settings_of("torch._inductor.config")
sys.modules[__name__].__class__ = SettingsModule

"""torch.compiler.config: settings of PyTorch's compiler, which programs set and read and which have no effect."""

from __future__ import annotations

import sys

from flambeau.nn.compiler_settings import SettingsModule, settings_of

_settings = settings_of("torch.compiler.config")
sys.modules[__name__].__class__ = SettingsModule

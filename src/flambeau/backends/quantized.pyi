# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.backends.quantized."""


from typing import Any

from flambeau.backends.flagged import FlaggedModule as FlaggedModule

engine: Any
supported_engines: Any

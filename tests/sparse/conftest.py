"""Puts this folder on the path, for the modules that its tests share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parent))

"""Annotations of public arguments that Python has no type for: see Note [Arguments of wrong types] in mistakes.py."""

from __future__ import annotations

from typing import Any

IntOrTuple = Any
"""An int, or several: dimensions, sizes of a kernel."""
IntTuple = Any
"""Several ints."""
TensorList = Any
"""A tuple or list of tensors."""
Number = Any
"""A number that may be complex."""

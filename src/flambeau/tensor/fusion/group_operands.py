"""Operands of a group: tensors and numbers that exist, and views of pending results."""

from __future__ import annotations

from typing import Any, NamedTuple

from flambeau.core.meta import Meta
from flambeau.tensor.storage import Storage


class GroupInput(NamedTuple):
    """An operand that exists: a tensor's memory as a call reads it, or a number that is passed by value."""

    operand: Any  # Meta, or the dtype of the number
    storage: Storage | None
    value: Any  # address or number


class PendingView(NamedTuple):
    """A part of a pending result, or its elements in another layout, as calls of the group read it.

    Attributes:
        source: -1 - k for the result of call k.
        operand: The layout in the memory of that result.
        offset: The bytes from its first element.
    """

    source: int
    operand: Meta
    offset: int


VIEWS = 1 << 16
"""VIEWS + k as a source of a call stands for view k of the group."""

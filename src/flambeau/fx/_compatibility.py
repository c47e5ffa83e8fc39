"""torch.fx._compatibility: the decorator that marks functions of torch.fx as stable or not."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from flambeau.core.public_names import explain_absent_names

T = TypeVar("T")
explain_absent_names(globals(), "torch.fx._compatibility")


def compatibility(is_backward_compatible: bool) -> Callable[[T], T]:
    """Return a decorator that notes in a docstring whether later releases keep the function.

    Args:
        is_backward_compatible: True if they do.
    """
    note = (
        ".. note::\n    Backwards-compatibility for this API is guaranteed.\n"
        if is_backward_compatible
        else ".. warning::\n    This API is experimental and is *NOT* backward-compatible.\n"
    )

    def mark(function: T) -> T:
        function.__doc__ = f"{function.__doc__ or ''}\n\n{note}"
        return function

    return mark

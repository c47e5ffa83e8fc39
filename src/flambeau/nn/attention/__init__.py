"""torch.nn.attention: the backends that attention may use. See Note [Attention backends]."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from flambeau.core.flags import flags
from flambeau.nn.functional import attention_choice as choice

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(Enum):
    """PyTorch's kernels. Flambeau has one kernel for FLASH_ATTENTION and EFFICIENT_ATTENTION; MATH is matrix
    products.
    """

    ERROR = -1
    MATH = choice.MATH
    FLASH_ATTENTION = choice.FLASH
    EFFICIENT_ATTENTION = choice.EFFICIENT
    CUDNN_ATTENTION = choice.CUDNN
    OVERRIDEABLE = 4

    def __int__(self) -> int:
        return int(self.value)


@contextmanager
def sdpa_kernel(
    backends: Sequence[SDPBackend] | SDPBackend, set_priority: bool = False
) -> Iterator[dict[str, Any]]:
    """Return a context manager in which attention uses only these backends; with `set_priority`, in the order of the
    list.

    A call that none of them supports raises RuntimeError.
    """
    if not isinstance(backends, (list, SDPBackend)):
        raise AssertionError(
            "Backend must be an instance of SDPBackend or a list of SDPBackend instances, got "
            f"{type(backends).__name__}"
        )
    wanted = list(
        dict.fromkeys([int(b) for b in ([backends] if isinstance(backends, SDPBackend) else backends)])
    )
    before = flags.attention, flags.attention_order
    try:
        flags.attention = frozenset(wanted) & choice.EVERY
        if set_priority:
            rest = [way for way in flags.attention_order if way not in wanted]
            flags.attention_order = (*[way for way in wanted if way in choice.EVERY], *rest)
        yield {}
    finally:
        flags.attention, flags.attention_order = before

"""`Delayed`: parameters whose gradients are reduced together, when another parameter's gradient has been
accumulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flambeau.core.dtype import float32
from flambeau.distributed.ddp.replicas import _broadcast_coalesced, reduce_in_place
from flambeau.tape.mode import mode, recording
from flambeau.tensor.functions.creation import zeros


class Delayed:
    """Parameters whose gradients are parts of one buffer. The constructor copies rank 0's values of `params` to all
    ranks.

    Args:
        owner: The object whose current process group reduces them.
        signal: The other parameter.
    """

    def __init__(self, owner: Any, params: Sequence[Any], signal: Any, nbytes: int) -> None:
        self._owner, self._params = owner, params
        _broadcast_coalesced(owner.process_group, [p.detach() for p in params], nbytes)
        sizes = [p.numel() for p in params]
        self._buffer = zeros(sum(sizes), dtype=float32, device=params[0].device)
        self._views = [part.view(p.shape) for p, part in zip(params, self._buffer.split(sizes), strict=True)]
        signal.register_hook(self._reduce)

    def _reduce(self, grad: Any) -> Any:
        group = self._owner.process_group
        self._buffer.div_(group.size())
        work = reduce_in_place(group, self._buffer, async_op=True)
        mode.engine.final_callbacks.append(work.wait)
        return grad

    def clear(self) -> None:
        """Let gradients that were set to None add up in the buffer again, from zero."""
        with recording(False):
            for p, view in zip(self._params, self._views, strict=True):
                if p.grad is None:
                    p.grad = view.zero_()

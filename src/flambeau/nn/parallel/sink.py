"""A node behind the outputs of a module, by which its owner hears that backward begins."""

from __future__ import annotations

import weakref
from typing import Any

from flambeau.autograd.function import Function
from flambeau.nn.parallel.containers import flattened
from flambeau.tape.mode import mode
from flambeau.tensor.tensor import Tensor


def through_sink(owner: Any, output: Any) -> Any:
    """The output behind such a node, also what of it the loss does not use."""
    members, rebuild = flattened(output)
    passed = _Sink.apply(weakref.ref(owner), *members)
    kept = [
        member if isinstance(member, Tensor) and member.grad_fn is None else new
        for member, new in zip(members, passed, strict=True)
    ]
    return rebuild(kept)


class _Sink(Function):
    """Outputs as they are; backward, gradients as they are, None for those that nobody used."""

    @staticmethod
    def forward(ctx: Any, owner: Any, *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.owner = owner
        if not owner()._ddp_sink_clone:
            return inputs
        return tuple([x.clone() if isinstance(x, Tensor) else x for x in inputs])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        reducer = ctx.owner().reducer
        if reducer.static and not reducer.seen:
            mode.walk.endings.append(reducer._delay_all_reduce)
        return None, *grads

"""An autograd node after the outputs of a module, which notifies its owner when backward begins."""

from __future__ import annotations

import weakref
from typing import Any

from flambeau.autograd.function import Function
from flambeau.nn.parallel.containers import flatten_members
from flambeau.tape.mode import mode
from flambeau.tensor.tensor import Tensor


def through_sink(owner: Any, output: Any) -> Any:
    """Return a module's output with all its tensors passed through one sink node, also those that no loss uses."""
    members, rebuild = flatten_members(output)
    passed = iter(_Sink.apply(weakref.ref(owner), *[m for m in members if isinstance(m, Tensor)]))

    def new(member: Any) -> Any:
        if not isinstance(member, Tensor):
            return member
        behind = next(passed)
        return member if member.grad_fn is None else behind

    return rebuild([new(member) for member in members])


class _Sink(Function):
    """The autograd node that passes outputs and gradients on unchanged. The gradient of an unused output is None."""

    @staticmethod
    def forward(ctx: Any, owner: Any, *inputs: Any) -> Any:
        ctx.set_materialize_grads(False)
        ctx.owner = owner
        if not owner()._ddp_sink_clone:
            return inputs
        return tuple([x.clone() for x in inputs])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        reducer = ctx.owner().reducer
        if reducer.static and not reducer.seen:
            mode.engine.final_callbacks.append(reducer._delay_all_reduce)
        return None, *grads

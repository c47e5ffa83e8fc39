"""Modules without state, as functorch made them before `torch.func.functional_call`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from flambeau.nn.modules.module import Module
from flambeau.nn.utils.stateless import call_with
from flambeau.tensor.tensor import Tensor


class FunctionalModuleWithBuffers(Module):
    """A module whose parameters and buffers are arguments of each call: `f(params, buffers, *args, **kwargs)`.

    Args:
        stateless_model: The module.
        param_names: Names of the parameters, in the order of a call.
        buffer_names: Names of the buffers, in the order of a call.
    """

    def __init__(
        self, stateless_model: Module, param_names: Sequence[str], buffer_names: Sequence[str]
    ) -> None:
        super().__init__()
        self.stateless_model = stateless_model
        self.param_names, self.buffer_names = tuple(param_names), tuple(buffer_names)

    def forward(self, params: Sequence[Tensor], buffers: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:
        """Call the module with other tensors as its parameters and buffers."""
        names = (*self.param_names, *self.buffer_names)
        tensors = dict(zip(names, (*params, *buffers), strict=True))
        return call_with(self.stateless_model, tensors, args, kwargs, tie_weights=True, strict=False)


class FunctionalModule(FunctionalModuleWithBuffers):
    """A module without buffers whose parameters are the first argument of each call: `f(params, *args, **kwargs)`.

    Args:
        stateless_model: The module.
        param_names: Names of the parameters, in the order of a call.
    """

    def __init__(self, stateless_model: Module, param_names: Sequence[str]) -> None:
        super().__init__(stateless_model, param_names, ())

    def forward(self, params: Sequence[Tensor], *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Call the module with tensors in the place of its parameters."""
        return super().forward(params, (), *args, **kwargs)


def make_functional_with_buffers(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModuleWithBuffers, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return a module as a function of its parameters and buffers, the parameters, and the buffers.

    Args:
        model: The module.
        disable_autograd_tracking: Return parameters that require no gradient.
    """
    params, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for param in params.values() if disable_autograd_tracking else ():
        param.requires_grad_(False)
    stateless = copy.deepcopy(model).to("meta")
    return (
        FunctionalModuleWithBuffers(stateless, [*params], [*buffers]),
        (*params.values(),),
        (*buffers.values(),),
    )


def make_functional(
    model: Module, disable_autograd_tracking: bool = False
) -> tuple[FunctionalModule, tuple[Tensor, ...]]:
    """Return a module as a function of its parameters, and the parameters.

    Args:
        model: The module.
        disable_autograd_tracking: Return parameters that require no gradient.

    Raises:
        RuntimeError: If the module has buffers.
    """
    function, params, buffers = make_functional_with_buffers(model, disable_autograd_tracking)
    if buffers:
        raise RuntimeError(
            "make_functional(model): `model` has buffers. Please use make_functional_with_buffers(model) instead."
        )
    return FunctionalModule(function.stateless_model, function.param_names), params

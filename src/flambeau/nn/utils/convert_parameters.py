"""Conversion of parameters to one vector, and of a vector to parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau.nn.modules.utils import typename
from flambeau.tensor.arguments.public import functions
from flambeau.tensor.tensor import Tensor


def parameters_to_vector(parameters: Iterable[Tensor]) -> Tensor:
    """Return the elements of all parameters in one vector.

    Raises:
        TypeError: If they are on different devices.
    """
    listed = list(parameters)
    _check_device(listed)
    vector: Tensor = functions["cat"]([p.view(-1) for p in listed])
    return vector


def vector_to_parameters(vec: Any, parameters: Iterable[Tensor]) -> None:
    """Make the parameters views of consecutive parts of a vector.

    Raises:
        TypeError: If the value is not a tensor, or parameters on different devices.
    """
    if not isinstance(vec, Tensor):
        raise TypeError(f"expected torch.Tensor, but got: {typename(vec)}")
    listed = list(parameters)
    _check_device(listed)
    at = 0
    for param in listed:
        count = param.numel()
        param.data = vec[at : at + count].view_as(param).data
        at += count


def _check_device(parameters: list[Tensor]) -> None:
    for each in parameters:
        if not isinstance(each, Tensor):
            raise TypeError(f"expected an iterable of Tensors, but one element is {typename(each)}")
    if len({p.device for p in parameters}) > 1:
        raise TypeError("Found two parameters on different devices, this is currently not supported.")

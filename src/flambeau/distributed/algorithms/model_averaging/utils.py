"""torch.distributed.algorithms.model_averaging.utils: the mean of parameters over the ranks of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau.autograd.grad_mode import no_grad
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.ddp.replicas import reduce_in_place
from flambeau.distributed.world import NON_GROUP_MEMBER, world
from flambeau.ops.shape.joining import cat
from flambeau.tensor.call import call
from flambeau.tensor.tensor import Tensor

__all__ = ["average_parameters", "average_parameters_or_parameter_groups", "get_params_to_average"]

explain_absent_names(globals(), "torch.distributed.algorithms.model_averaging.utils")


def average_parameters(params: Iterable[Any], process_group: Any) -> None:
    """Replace parameters by their mean over a group, in one message.

    Parameters of several dtypes are summed in their common dtype. The call allocates as much memory as the parameters
    have.

    Args:
        process_group: The group; None for all ranks. Ranks outside of the group do nothing.

    Raises:
        ValueError: If there are no parameters.
    """
    if process_group == NON_GROUP_MEMBER:
        return
    group = world().require_default() if process_group is None else process_group
    listed = list(params)
    if not listed:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    with no_grad():
        flat = call(cat, tuple([p.reshape(-1) for p in listed]), (0,))
        flat /= group.size()
        reduce_in_place(group, flat)
        for p, part in zip(listed, flat.split([p.numel() for p in listed]), strict=True):
            p.copy_(part.view(p.shape))


def get_params_to_average(params: Iterable[Any]) -> list[Any]:
    """Return the parameters that have a gradient, from a list of parameters or an optimizer's groups.

    Raises:
        NotImplementedError: If the value is neither a tensor nor a group.
    """
    found: list[Any] = []
    for given in params:
        if not isinstance(given, Tensor | dict):
            raise NotImplementedError(f"Parameter input of type {type(given)} is not supported")
        found += given["params"] if isinstance(given, dict) else [given]
    return [p for p in found if p.grad is not None]


def average_parameters_or_parameter_groups(params: Iterable[Any], process_group: Any) -> None:
    """Average those parameters that have a gradient; see `average_parameters`."""
    average_parameters(get_params_to_average(params), process_group)

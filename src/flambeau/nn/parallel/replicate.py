"""`replicate`: a module on several GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module
from flambeau.nn.parallel import comm
from flambeau.nn.parallel._functions import Broadcast
from flambeau.runtime import current
from flambeau.tensor.tensor import Tensor

__all__ = ["replicate"]

explain_absent_names(globals(), "torch.nn.parallel.replicate")

T = TypeVar("T", bound=Module)


def replicate(network: T, devices: Sequence[Any], detach: bool = False) -> list[T]:
    """Copy `network` to several GPUs. Its parameters and buffers must be on one GPU.

    A replica's parameters are copies in the autograd graph, stored as plain attributes: gradients are summed into those
    of `network`. On the GPU of `network`, parameters and buffers share its memory, so in-place changes affect it.

    Args:
        devices: torch.device, str or int.
        detach: Copy without recording for autograd.

    Raises:
        RuntimeError: If a lazy module has not run yet.
        AssertionError: If a parameter is on the CPU.
    """
    indices = [current.index_of(where, optional=True) for where in devices]
    modules = list(network.modules())
    bare = [{module: module._replicate_for_data_parallel() for module in modules} for _ in indices]
    copies = _copies(network, indices, detach)
    for replicas, copy_of in zip(bare, copies, strict=True):
        for module, replica in replicas.items():
            _furnish(replica, module, replicas, copy_of)
    return [replicas[network] for replicas in bare]


def _copies(network: Module, indices: Sequence[int], detach: bool) -> list[dict[int, Tensor]]:
    """Return, for each device, the copies of the network's tensors by the `id` of the original."""
    buffers = list(network.buffers())
    plain = [b for b in buffers if detach or not b.requires_grad]  # copied without recording for autograd
    traced = [*network.parameters(), *[b for b in buffers if not detach and b.requires_grad]]
    found: list[dict[int, Tensor]] = [{} for _ in indices]
    for tensors, copies in (
        (plain, _broadcast(plain, indices, True)),
        (traced, _broadcast(traced, indices, detach)),
    ):
        for here, parts in zip(found, copies, strict=False):
            here.update(zip(map(id, tensors), parts, strict=True))
    return found


def _broadcast(tensors: Sequence[Tensor], indices: Sequence[int], detach: bool) -> Iterable[Sequence[Tensor]]:
    """Return the copies of all tensors: a sequence for each device."""
    if not tensors or not indices:
        return ()
    if detach:
        return comm.broadcast_coalesced(tensors, indices)
    flat = Broadcast.apply(indices, *tensors)
    count = len(tensors)
    return [flat[i : i + count] for i in range(0, len(flat), count)]


def _furnish(
    replica: Any, module: Module, replicas: Mapping[Module, Module], copy_of: Mapping[int, Tensor]
) -> None:
    """Assign submodules, parameters and buffers to a replica by `setattr`, which modules may override."""
    for key, child in module._modules.items():
        if child is not None:
            setattr(replica, key, replicas[child])
    for key, param in module._parameters.items():
        if param is None:
            replica._parameters[key] = None
        else:
            setattr(replica, key, copy_of[id(param)])
    for key, buffer in module._buffers.items():
        if buffer is not None:
            setattr(replica, key, copy_of[id(buffer)])

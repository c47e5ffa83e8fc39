"""The backends of PyTorch's backend names, for each kind of device.

`nccl` is NCCL on real GPUs and its model on virtual GPUs. `mpi` is MPI. `gloo` is MPI if all ranks can join it, else
TCP; it copies CUDA tensors through the host. For ranks that are threads, and in groups of one rank, `gloo` and `mpi`
copy memory directly. A backend that is not available raises by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.distributed.backends.backend import Backend, Place
from flambeau.distributed.backends.nccl_backend import DeviceBackend
from flambeau.distributed.backends.rank_server import serve_meetings
from flambeau.distributed.backends.staged_backend import StagedBackend
from flambeau.distributed.backends.thread_backend import Hub, ThreadBackend
from flambeau.runtime import system


def make(word: str, device_type: str, place: Place, hub: Hub | None, host: Callable[[], Backend]) -> Backend:
    """Return the backend of a group for one kind of device.

    Args:
        word: PyTorch's name of the backend.
        device_type: The kind of device whose tensors it moves.
        place: This rank's place in the group.
        hub: The local coordinator of ranks that are threads; None if ranks are processes.
        host: Function that returns the group's backend for CPU tensors.

    Raises:
        NotSupportedError: If the name or the device has no backend.
        RuntimeError: If the backend cannot be used here.
    """
    if word == "nccl" and device_type == "cuda":
        return DeviceBackend(place)
    if word in ("gloo", "mpi") and device_type == "cpu":
        if hub is not None or place.size == 1:
            return ThreadBackend(place, hub or Hub(), word)
        return _between_processes(word, place)
    if word == "gloo" and device_type == "cuda":
        return StagedBackend(place, host())
    if word == "mpi" and device_type == "cuda":
        raise NotSupportedError(
            "Flambeau's mpi serves CPU tensors only; for CUDA tensors choose nccl or gloo, or 'cpu:mpi,cuda:nccl'"
        )
    raise NotSupportedError(
        f"Flambeau has no backend '{word}' for {device_type} tensors: there are nccl, gloo and mpi"
    )


def _between_processes(word: str, place: Place) -> Backend:
    backend: Backend
    if word == "mpi" or import_module("flambeau.distributed.backends.mpi_world").has_joined():
        backend = import_module("flambeau.distributed.backends.mpi_backend").MpiBackend(place)
    else:
        tcp = import_module("flambeau.distributed.backends.tcp_backend")
        backend = tcp.TcpBackend(place, tcp.transport())
    backend.name = word
    return backend


def prepare(devices: Mapping[str, str], everybody: Place, hub: Hub | None) -> None:
    """Choose a transport of CPU tensors for a group on all ranks, if it may need one. All ranks call this."""
    words = {"gloo", "mpi"} & {*devices.values()}
    if not words or everybody.size == 1 or hub is not None:
        return
    mpi = import_module("flambeau.distributed.backends.mpi_world")
    if not mpi.join(everybody.store, everybody.rank, everybody.size, everybody.timeout) and "gloo" in words:
        import_module("flambeau.distributed.backends.tcp_backend").prepare(everybody)


def prepare_gpus(devices: Mapping[str, str], everybody: Place, hub: Hub | None, served: Any) -> Any:
    """Connect the virtual GPUs of ranks in separate processes. All ranks call this with the former result."""
    alone = everybody.size == 1 or hub is not None
    if devices.get("cuda") != "nccl" or alone or system.machine_settings().driver != "virtual":
        return served
    return serve_meetings(everybody.store, everybody.rank, everybody.size, served)


def meets_early(devices: Mapping[str, str], place: Place, hub: Hub | None) -> bool:
    """Return True if a group's members create its CPU backend together with the group.

    All members are present at that time. Later, one might send to another while a third is busy.
    """
    words = {"gloo", "mpi"} & {*devices.values()}
    if not words or hub is not None or place.size == 1:
        return False
    if "gloo" in words:
        return True
    found: bool = import_module("flambeau.distributed.backends.mpi_world").has_joined()
    return found


def check(word: str) -> None:
    """Raise PyTorch's error for a backend that is not available."""
    if word == "nccl" and not is_nccl_available():
        raise RuntimeError(
            "Distributed package doesn't have NCCL built in: there is no CUDA device, real or virtual"
        )
    if word in ("ucc", "xccl"):
        raise RuntimeError(f"Distributed package doesn't have {word.upper()} built in")
    if word not in ("undefined", "nccl", "gloo", "mpi"):
        raise NotSupportedError(f"Flambeau has no backend '{word}': there are nccl, gloo and mpi")


def is_nccl_available() -> bool:
    """Return True if the backend "nccl" is available, which is the case wherever there are real or virtual CUDA
    devices.
    """
    return system.is_available()


def is_mpi_available() -> bool:
    """Return True if an MPI library can be loaded. The extra "mpi" installs one."""
    return find_spec("mpi4py") is not None


def is_gloo_available() -> bool:
    """Return True: "gloo" needs no further packages."""
    return True


def is_ucc_available() -> bool:
    return False


def is_xccl_available() -> bool:
    return False

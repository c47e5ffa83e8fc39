"""Which engine stands behind PyTorch's word for a backend, on which kind of device.

`nccl` is NCCL on real GPUs and its model on virtual ones. `gloo` and `mpi` are MPI for CPU tensors; between ranks that
are threads, and in groups of one, memory itself. Nothing falls back: what is not there is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.distributed.backends.backend import Backend, Place
from flambeau.distributed.backends.nccl_backend import DeviceBackend
from flambeau.distributed.backends.rank_server import serve_meetings
from flambeau.distributed.backends.thread_backend import Hub, ThreadBackend
from flambeau.runtime import system


def make(word: str, device_type: str, place: Place, hub: Hub | None) -> Backend:
    """The engine of a group. `hub`: where ranks that are threads meet; None: ranks are processes.

    Raises NotSupportedError: there is none; RuntimeError: it cannot be had here.
    """
    if word == "nccl" and device_type == "cuda":
        return DeviceBackend(place)
    if word in ("gloo", "mpi") and device_type == "cpu":
        if hub is not None or place.size == 1:
            return ThreadBackend(place, hub or Hub(), word)
        engine: Backend = import_module("flambeau.distributed.backends.mpi_backend").MpiBackend(place)
        engine.name = word
        return engine
    if word in ("gloo", "mpi"):
        raise NotSupportedError(
            f"Flambeau's {word} serves CPU tensors alone; for CUDA tensors choose nccl, or 'cpu:{word},cuda:nccl'"
        )
    raise NotSupportedError(
        f"Flambeau has no backend '{word}' for {device_type} tensors: there are nccl, gloo and mpi"
    )


def prepare(devices: Mapping[str, str], everybody: Place, hub: Hub | None) -> None:
    """Let all ranks join MPI where a group may need it: its members alone could not, later. All ranks call."""
    if devices.get("cpu") in ("gloo", "mpi") and everybody.size > 1 and hub is None:
        world = import_module("flambeau.distributed.backends.mpi_world")
        if world.available():
            world.join(everybody.store, everybody.rank, everybody.size, everybody.timeout)


def prepare_gpus(devices: Mapping[str, str], everybody: Place, hub: Hub | None, served: Any) -> Any:
    """Let virtual GPUs of ranks that are processes meet. All ranks call, with what it returned before."""
    alone = everybody.size == 1 or hub is not None
    if devices.get("cuda") != "nccl" or alone or system.wish().driver != "virtual":
        return served
    return serve_meetings(everybody.store, everybody.rank, everybody.size, served)


def meets_early(devices: Mapping[str, str], place: Place, hub: Hub | None) -> bool:
    """Whether a group's members make its engine of CPU tensors together with the group.

    They are all there then; later one might send to another while a third does something else.
    """
    if devices.get("cpu") not in ("gloo", "mpi") or hub is not None or place.size == 1:
        return False
    found: bool = import_module("flambeau.distributed.backends.mpi_world").has_joined()
    return found


def check(word: str) -> None:
    """Raise as PyTorch does where a backend is not there at all."""
    if word == "nccl" and not is_nccl_available():
        raise RuntimeError(
            "Distributed package doesn't have NCCL built in: there is no CUDA device, real or virtual"
        )
    if word in ("ucc", "xccl"):
        raise RuntimeError(f"Distributed package doesn't have {word.upper()} built in")
    if word not in ("undefined", "nccl", "gloo", "mpi"):
        raise NotSupportedError(f"Flambeau has no backend '{word}': there are nccl, gloo and mpi")


def is_nccl_available() -> bool:
    """Whether "nccl" can be asked for: wherever there are CUDA devices, virtual ones too."""
    return system.is_available()


def is_mpi_available() -> bool:
    """Whether an MPI can be loaded: the extra "mpi" brings one."""
    return find_spec("mpi4py") is not None


def is_gloo_available() -> bool:
    """True: CPU tensors go through MPI, or through memory where ranks are threads or there is one."""
    return True


def is_ucc_available() -> bool:
    return False


def is_xccl_available() -> bool:
    return False

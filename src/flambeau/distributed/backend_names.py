"""`Backend`: PyTorch's names of backends, and the devices of each."""

from __future__ import annotations

import enum
import warnings
from typing import Any


class Backend(str):
    """A backend's name in lower case: `Backend("NCCL") == "nccl" == Backend.NCCL`."""

    __module__ = "flambeau.distributed"
    __slots__ = ()

    UNDEFINED = "undefined"
    GLOO = "gloo"
    NCCL = "nccl"
    UCC = "ucc"
    MPI = "mpi"
    XCCL = "xccl"
    FAKE = "fake"
    backend_list = (UNDEFINED, GLOO, NCCL, XCCL, UCC, MPI, FAKE)
    default_device_backend_map = {"cpu": GLOO, "cuda": NCCL}
    backend_capability = {
        GLOO: ["cpu", "cuda"], NCCL: ["cuda"], XCCL: ["xpu"], UCC: ["cpu", "cuda"], MPI: ["cpu", "cuda"],
        FAKE: ["cpu", "cuda"],
    }  # fmt: skip

    def __new__(cls, name: Any) -> Backend:
        if not isinstance(name, str):
            raise ValueError("Backend constructor parameter must be string-ish")
        return super().__new__(cls, name.lower())


class NamedNumber(enum.IntEnum):
    """Integers that print as names, like PyTorch's enumerations: `RedOpType.SUM`."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class BackendType(NamedNumber):
    """PyTorch's numbers of backends."""

    UNDEFINED = 0
    GLOO = 1
    NCCL = 2
    UCC = 3
    MPI = 4
    XCCL = 5
    CUSTOM = 6


class BackendConfig:
    """The backend of each kind of device, from one name or from pairs such as "cpu:gloo,cuda:nccl".

    Raises:
        ValueError: If the text has another form.
    """

    __module__ = "flambeau.distributed"

    def __init__(self, backend: str) -> None:
        word = str(backend).lower()
        self.device_backend_map = {device: Backend(name) for device, name in devices_of(word).items()}

    def __repr__(self) -> str:
        return ",".join(f"{device}:{name}" for device, name in self.device_backend_map.items())

    def get_device_backend_map(self) -> dict[str, Backend]:
        """Return the map from kinds of devices to backends."""
        return self.device_backend_map


def devices_of(backend: str) -> dict[str, str]:
    """Return the backend of each kind of device, from one word or from pairs "cpu:gloo,cuda:nccl".

    An unknown word serves CPU and CUDA, with a warning.

    Raises:
        ValueError: For a pair that is none, a device twice.
    """
    if backend == Backend.UNDEFINED:
        return dict(Backend.default_device_backend_map)
    if ":" not in backend:
        if backend not in Backend.backend_list:
            warnings.warn(
                f"Device capability of {backend} unknown, assuming `cpu` and `cuda`. You can specify it in "
                "`device:backend` format in `init_process_group` call.",
                stacklevel=4,
            )
        return dict.fromkeys(Backend.backend_capability.get(backend, ("cpu", "cuda")), backend)
    found: dict[str, str] = {}
    for pair in backend.split(","):
        parts = pair.split(":")
        if len(parts) != 2:
            raise ValueError(f"Invalid device:backend pairing: {pair}. {_FORMAT.format(backend)}")
        if parts[0] in found:
            raise ValueError(
                f"Duplicate device type {parts[0]} in backend string: {backend}. {_FORMAT.format(backend)}"
            )
        found[parts[0]] = parts[1]
    return found


_FORMAT = (
    "The custom backend string argument is invalid: {}. It must be in the format "
    "\"<device_type1>:<backend1>,<device_type2>:<backend2>...\". e.g. 'cpu:gloo,cuda:nccl'"
)

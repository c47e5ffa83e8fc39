"""`torch.cuda`'s functions on devices."""

from __future__ import annotations

from typing import Any

from flambeau.core.errors import OutOfMemoryError
from flambeau.core.flags import flags
from flambeau.driver.protocol import DeviceProperties
from flambeau.runtime import current, system
from flambeau.runtime.streams.guards import device, device_of
from flambeau.runtime.system import device_count, init, is_available, is_initialized

__all__ = [
    "OutOfMemoryError",
    "can_device_access_peer",
    "current_blas_handle",
    "current_device",
    "current_solver_handle",
    "device",
    "device_count",
    "device_of",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_sync_debug_mode",
    "init",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_tf32_supported",
    "set_device",
    "set_sync_debug_mode",
]  # fmt: skip


def current_device() -> int:
    """Return the index of the currently selected device. Initializes CUDA."""
    system.init()
    return current.local.device


def set_device(device: Any) -> None:
    """Select a device (torch.device, int or str). Negative ints change nothing.

    Better: `with torch.cuda.device(...)`.

    Raises:
        RuntimeError: If there is no such device.
    """
    index = current.index_of(device)
    if index >= 0:
        current.context_at(index)
        current.local.device = index


def get_device_name(device: Any = None) -> str | None:
    """Return a device's name. None for a negative int. AssertionError: no such device.

    Differs from PyTorch: its documentation calls a negative int a no-op, and its code raises.
    """
    properties = _optional_properties(device)
    return None if properties is None else properties.name


def get_device_capability(device: Any = None) -> tuple[int, int] | None:
    """Return a device's compute capability, (major, minor). None for a negative int. AssertionError: no such device.

    Differs from PyTorch: its documentation calls a negative int a no-op, and its code raises.
    """
    properties = _optional_properties(device)
    return None if properties is None else (properties.major, properties.minor)


def get_device_properties(device: Any = None) -> _CudaDeviceProperties:
    """Return the properties of a device (torch.device, int or str; default: the current device).

    Raises:
        AssertionError: If there is no such device.
    """
    return _properties(current.index_of(device, optional=True))


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return True if a device can reach another's memory directly.

    Raises:
        AssertionError: If there is no such device.
    """
    init()
    index, peer = current.index_of(device, optional=True), current.index_of(peer_device)
    if not 0 <= index < device_count():
        raise AssertionError(_invalid("device", index))
    if not 0 <= peer < device_count():
        raise AssertionError(_invalid("peer device", peer))
    context, other = current.context_at(index), current.context_at(peer)
    return context.driver.peer_can(context.driver_index, other.driver_index)


def get_arch_list() -> list[str]:
    """Return the architectures that code is made for: those of the visible devices. Empty without any."""
    if not is_available():
        return []
    capabilities = {get_device_capability(i) for i in range(device_count())}
    return [f"sm_{major}{minor}" for major, minor in sorted(c for c in capabilities if c is not None)]


def get_gencode_flags() -> str:
    """Return NVCC's flags for the architectures of `get_arch_list`."""
    versions = [arch.removeprefix("sm_") for arch in get_arch_list()]
    return " ".join([f"-gencode compute=compute_{v},code=sm_{v}" for v in versions])


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True if the current device has bfloat16: in hardware from capability 8.0 on, else by emulation."""
    return is_available() and (including_emulation or get_device_properties().major >= 8)


def is_tf32_supported() -> bool:
    """Return True if the current device has TF32: from capability 8.0 on."""
    return is_available() and get_device_properties().major >= 8


def set_sync_debug_mode(debug_mode: Any) -> None:
    """Set the reaction to an operation that makes the host wait: "default" or 0, "warn" or 1, "error" or 2.

    These are copies between host and device that block, `item()` and the like, and `Stream.synchronize`;
    `torch.cuda.synchronize` and `Event.synchronize`, whose purpose it is, are not.

    Raises:
        RuntimeError: For any other mode.
    """
    if isinstance(debug_mode, str):
        if debug_mode not in _SYNC_MODES:
            raise RuntimeError("invalid value of debug_mode, expected one of `default`, `warn`, `error`")
        debug_mode = _SYNC_MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1 or 2, but got {debug_mode!r}")
    flags.sync_debug_mode = int(debug_mode)


_SYNC_MODES = ("default", "warn", "error")


def get_sync_debug_mode() -> int:
    """Return 0, 1 or 2: default, warn or error."""
    return flags.sync_debug_mode


def current_blas_handle() -> int:
    """Return a cublasHandle_t of the current device for the program's calls. Its work runs on the current stream.

    Raises:
        NotSupportedError: If virtual GPUs have none.
    """
    init()
    stream = current.stream_at(current.local.device)
    return stream.context.driver.library_handle("cublas", stream.handle)


def current_solver_handle() -> int:
    """Work like `current_blas_handle`, a cusolverDnHandle_t."""
    init()
    stream = current.stream_at(current.local.device)
    return stream.context.driver.library_handle("cusolver", stream.handle)


class _CudaDeviceProperties:
    """The properties of a device. Sizes in bytes, clock in kHz."""

    __slots__ = ("_of",)

    def __init__(self, properties: DeviceProperties) -> None:
        self._of = properties

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._of._fields:
            raise AttributeError(
                f"'_CudaDeviceProperties' object has no attribute '{name}' in Flambeau (PyTorch may have it)"
            )
        return getattr(self._of, name)

    def __dir__(self) -> list[str]:
        return sorted(self._of._fields)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _CudaDeviceProperties) and self._of == other._of

    def __hash__(self) -> int:
        return hash(self._of)

    def __repr__(self) -> str:
        p = self._of
        return (
            f"_CudaDeviceProperties(name='{p.name}', major={p.major}, minor={p.minor}, "
            f"total_memory={p.total_memory // 2**20}MB, multi_processor_count={p.multi_processor_count}, "
            f"uuid={p.uuid}, pci_bus_id={p.pci_bus_id}, pci_device_id={p.pci_device_id}, "
            f"pci_domain_id={p.pci_domain_id}, L2_cache_size={p.L2_cache_size // 2**20}MB)"
        )


def _optional_properties(device: Any) -> _CudaDeviceProperties | None:
    index = current.index_of(device, optional=True)
    return None if index < 0 else _properties(index)


def _properties(index: int) -> _CudaDeviceProperties:
    init()
    if not 0 <= index < device_count():
        raise AssertionError(_invalid("device", index))
    context = current.context_at(index)
    return _CudaDeviceProperties(context.driver.device_properties(context.driver_index))


def _invalid(what: str, index: int) -> str:
    return f"Invalid {what} id: {index}; there are {device_count()} devices"

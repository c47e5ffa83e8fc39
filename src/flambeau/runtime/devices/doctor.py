"""`examine`: the devices of this process, the reason for their choice, and their memory. `doctor` returns it as
text.
"""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import combinations
from typing import Any

from flambeau.core.errors import NotSupportedError
from flambeau.core.flags import flags
from flambeau.driver.driver_registry import cudnn_version, driver_versions, nccl_version, why_no_gpu
from flambeau.driver.protocol import native_library
from flambeau.runtime import system
from flambeau.runtime.device_context import Context
from flambeau.runtime.devices import configuration, library_plans, peers
from flambeau.runtime.devices.machine import visible_by_default
from flambeau.runtime.memory.allocator_statistics import format_size

_PACKAGES = (
    "flambeau", "numpy", "ml_dtypes", "scipy", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cublas",
    "nvidia-cufft", "nvidia-cusolver", "nvidia-cudnn-cu13", "nvidia-nccl-cu13", "nvtx",
)  # fmt: skip
_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)
_UNSET = "unset it, or name those to use, such as CUDA_VISIBLE_DEVICES=0"


def examine(try_peers: bool = False) -> dict[str, Any]:
    """Return the contents of `doctor` as dictionaries and lists; sizes in bytes.

    Without `try_peers` nothing is initialized and nothing changes. With it CUDA is initialized, and every pair of
    devices copies a test pattern (see Note [The canary of peer copies]).

    Raises:
        ValueError: For a malformed environment variable.
    """
    settings = system.machine_settings()
    if try_peers and system.is_available():
        system.init()
    contexts = system.contexts() if system.is_initialized() else []
    if try_peers:
        for giver, taker in combinations(contexts, 2):
            peers.direct(giver, taker, look=True)
    return {
        "versions": _versions(),
        "driver": settings.driver,
        "profile": settings.profile if settings.driver == "virtual" else None,
        "why_no_real_gpu": why_no_gpu(),
        "environment": {n: v for n, v in os.environ.items() if n in _VARIABLES or n.startswith("FLAMBEAU_")},
        "run_would_open": visible_by_default() if settings.driver == "none" else None,
        "kernel_cache": _kernel_cache(),
        "native_kernels": dict(zip(("library", "why_none"), native_library(), strict=True)),
        "visible": system.device_count() if settings.driver != "none" else 0,
        "initialized": bool(contexts),
        "initialized_at": system.started_at(),
        "process": os.getpid(),
        "forked": system.is_forked(),
        "devices": [_device(context) for context in contexts],
        "peers": [
            {"pair": (a.index, b.index), "access": _access(a, b), "copies": peers.state(a, b)}
            for a, b in combinations(contexts, 2)
        ],
        "tf32": {"matmul": flags.matmul_allow_tf32, "cudnn": flags.cudnn_allow_tf32, "rnn": flags.rnn_allow_tf32},
        "pinned_bytes": system.pinned_allocator().reserved_bytes if contexts else 0,
    }  # fmt: skip


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    driver, cuda = driver_versions()
    return found | {
        "NVIDIA driver": driver,
        "CUDA of the driver": cuda,
        "cuDNN library": _version_text(cudnn_version()),
        "NCCL library": _version_text(_nccl_version()),
    }


def _nccl_version() -> int | None:
    try:
        return nccl_version()
    except NotSupportedError:
        return None


def _version_text(number: int | None) -> str | None:
    """Return a library's version number as text; 91002 becomes "9.10.2"."""
    return None if number is None else f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def _access(a: Context, b: Context) -> bool:
    return a.driver.peer_can(a.driver_index, b.driver_index)


def _device(context: Context) -> dict[str, Any]:
    """Return the memory of a device, as nvidia-smi shows it, and the memory that the allocator holds."""
    driver, index = context.driver, context.driver_index
    properties = driver.device_properties(index)
    free, total = driver.mem_info(index)
    allocator: Any = context.allocator
    try:
        processes: dict[int, int] | None = dict(driver.mem_processes(index))
    except NotSupportedError:
        processes = None
    return {
        "index": context.index,
        "driver_index": index,
        "name": properties.name,
        "capability": (properties.major, properties.minor),
        "total": total,
        "used": total - free,
        "reserved": allocator.reserved_bytes(),
        "allocated": allocator.allocated_bytes(),
        "processes": processes,
        "plans": library_plans.cache_of(context).size,
        "plans_at_most": library_plans.cache_of(context).max_size,
    }


def doctor(try_peers: bool = False) -> str:
    """Return the state of devices and libraries as text: versions, devices and why they were chosen, memory, peers,
    flags.

    Args:
        try_peers: Initialize CUDA, and let every pair of devices copy a test pattern.
    """
    found = examine(try_peers)
    lines = ["Versions: " + ", ".join(f"{n} {v}" for n, v in found["versions"].items() if v is not None)]
    missing = [n for n, v in found["versions"].items() if v is None]
    lines += [f"Not installed: {', '.join(missing)}"] if missing else []
    lines += [f"Real GPUs: {found['why_no_real_gpu'] or 'can be used'}"]
    lines += [_devices_line(found), _state_line(found)]
    lines += _advice(found)
    for device in found["devices"]:
        lines += _memory_lines(device, found["process"])
    for pair in found["peers"]:
        one, other = pair["pair"]
        reach = "reach each other" if pair["access"] else "do not reach each other"
        lines.append(f"Peers cuda:{one} and cuda:{other} {reach}; copies: {pair['copies']}")
    on = {True: "on", False: "off"}
    tf32 = {kind: on[allowed] for kind, allowed in found["tf32"].items()}
    layers = "" if tf32["rnn"] == tf32["cudnn"] else f", its recurrent layers {tf32['rnn']}"
    lines.append(f"TF32: matrix products {tf32['matmul']}, cuDNN {tf32['cudnn']}{layers}")
    lines.append(_kernel_cache_line(found["kernel_cache"]))
    native = found["native_kernels"]
    lines.append(f"CPU and virtual GPUs: {native['library'] or 'computed with NumPy; ' + native['why_none']}")
    lines.append(f"Pinned host memory: {format_size(found['pinned_bytes'])}")
    return "\n".join(lines)


def _devices_line(found: dict[str, Any]) -> str:
    kind = {"virtual": f"virtual {found['profile']}", "cuda": "real GPUs", "none": "no GPUs"}[found["driver"]]
    why = ", ".join(f"{name}={value!r}" for name, value in found["environment"].items())
    return f"Devices: {found['visible']} ({kind}); environment: {why or 'no variable selects devices'}"


def _advice(found: dict[str, Any]) -> list[str]:
    """Return what to do if no device is visible."""
    if found["visible"]:
        return []
    if found["driver"] == "none":
        count, profile = found["run_would_open"], configuration.PROFILE
        if not count:
            return [f"`flambeau run program.py` would open no GPU; CUDA_VISIBLE_DEVICES hides all: {_UNSET}"]
        return [
            f"`flambeau run program.py` would open {count} virtual GPU{'' if count == 1 else 's'} ({profile}); "
            "`import flambeau` alone opens none: set FLAMBEAU_VIRTUAL_DEVICES, or call flambeau.virtual()"
        ]
    if found["driver"] == "virtual" and system.machine_settings().devices == 0:
        return [
            "FLAMBEAU_VIRTUAL_DEVICES=0 means that CUDA is not available: unset it, or set the number of devices"
        ]
    if is_hidden():
        return [f"CUDA_VISIBLE_DEVICES hides all devices: {_UNSET}"]
    return ["FLAMBEAU_DRIVER=cuda requires real GPUs: unset it to use virtual ones"]


def is_hidden() -> bool:
    """Return True if CUDA_VISIBLE_DEVICES names no device."""
    text = configuration.visible_text()
    return text is not None and not visible_by_default()


def _kernel_cache() -> dict[str, Any] | None:
    """Return the folder of compiled kernels with their number and size; None if kernels are not stored."""
    folder = configuration.kernel_cache()
    if folder is None:
        return None
    sizes = []
    with suppress(OSError):  # the file does not exist yet
        sizes = [file.stat().st_size for file in folder.glob("*.cubin")]
    there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    return {
        "folder": str(folder),
        "kernels": len(sizes),
        "bytes": sum(sizes),
        "writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def _kernel_cache_line(cache: dict[str, Any] | None) -> str:
    if cache is None:
        return "Kernel cache: off; each process compiles its CUDA kernels"
    folder = cache["folder"]
    if not cache["writable"]:
        return f"Kernel cache: {folder} cannot be written; set FLAMBEAU_KERNEL_CACHE to a folder that can be"
    return f"Kernel cache: {cache['kernels']} kernels, {format_size(cache['bytes'])}, in {folder}"


def _state_line(found: dict[str, Any]) -> str:
    if found["forked"]:
        return "CUDA: this process was forked from one that had initialized it; start processes by 'spawn'"
    if not found["initialized"]:
        return "CUDA: not initialized yet; this process may fork"
    where = f" at {found['initialized_at']}" if found["initialized_at"] else ""
    return f"CUDA: initialized by process {found['process']}{where}; forked children cannot use it, spawned ones can"


def _memory_lines(device: dict[str, Any], process: int) -> list[str]:
    major, minor = device["capability"]
    title = f"cuda:{device['index']}: {device['name']}, capability {major}.{minor}"
    if device["driver_index"] != device["index"]:
        title += f" (the machine's device {device['driver_index']})"
    reserved, allocated = device["reserved"], device["allocated"]
    outside = device["used"] - reserved
    lines = [
        title,
        f"  memory: {format_size(device['used'])} of {format_size(device['total'])} in use, as nvidia-smi shows: "
        f"{format_size(allocated)} in tensors, {format_size(reserved - allocated)} cached, "
        f"{format_size(outside)} outside the allocator (contexts, other processes)",
        f"  FFT plans: {device['plans']} of {device['plans_at_most']}",
    ]
    for pid, nbytes in (device["processes"] or {}).items():
        mine = " (this one)" if pid == process else ""
        lines.append(f"  process {pid}{mine}: {format_size(nbytes)}")
    return lines

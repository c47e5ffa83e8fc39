"""torch.cpu: the functions of `torch.cuda` for the CPU, where every call is done when it returns."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.cpu import amp

__all__ = [
    "Event", "Stream", "StreamContext", "current_device", "current_stream", "device_count", "get_capabilities",
    "is_available", "is_initialized", "set_device", "stream", "synchronize",
]  # fmt: skip

# PyTorch's names of instruction sets on x86, and Linux' flags where these differ.
_X86 = (
    "sse", "sse2", "sse3", "ssse3", "sse4_1", "sse4_2", "sse4a", "avx", "avx2", "avx_vnni", "avx512_f",
    "avx512_cd", "avx512_dq", "avx512_bw", "avx512_vl", "avx512_ifma", "avx512_vbmi", "avx512_vbmi2",
    "avx512_bitalg", "avx512_vpopcntdq", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx512_vp2intersect",
    "avx512_4vnniw", "avx512_4fmaps", "avx10_1", "avx10_2", "avx_vnni_int8", "avx_vnni_int16", "avx_ne_convert",
    "amx_bf16", "amx_tile", "amx_int8", "amx_fp16", "fma3", "fma4", "f16c", "bmi", "bmi2", "popcnt", "lzcnt",
    "aes", "sha", "clflush", "clflushopt", "clwb",
)  # fmt: skip
_FLAGS = {"sse3": "pni", "lzcnt": "abm", "sha": "sha_ni", "fma3": "fma", "bmi": "bmi1"}
_FLAGS |= {f"avx512_{part}": f"avx512{part}" for part in ("f", "cd", "dq", "bw", "vl", "ifma", "vbmi")}


def is_available() -> bool:
    """Return True."""
    return True


def is_initialized() -> bool:
    """Return True."""
    return True


def device_count() -> int:
    """Return 1."""
    return 1


def current_device() -> str:
    """Return "cpu"."""
    return "cpu"


def set_device(device: Any) -> None:
    """Do nothing, because there is one CPU device.

    Args:
        device: Any device.
    """


def synchronize(device: Any = None) -> None:
    """Do nothing, because every call on the CPU is done when it returns.

    Args:
        device: Any device.
    """


class Stream:
    """The order of calls on the CPU.

    Args:
        priority: Not used.
    """

    def __init__(self, priority: int = -1) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        """Do nothing, because calls are ordered already."""

    def record_event(self) -> None:
        """Do nothing, because calls are ordered already."""

    def wait_event(self, event: Any) -> None:
        """Do nothing, because calls are ordered already."""


class Event:
    """A point in the order of calls on the CPU, which is always reached."""

    def query(self) -> bool:
        """Return True."""
        return True

    def record(self, stream: Any = None) -> None:
        """Do nothing, because calls are ordered already."""

    def synchronize(self) -> None:
        """Do nothing, because every call is done when it returns."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing, because calls are ordered already."""


_default = Stream()


class _StreamInUse:
    """The stream that `StreamContext` selected."""

    stream = _default


def current_stream(device: Any = None) -> Stream:
    """Return the stream that `StreamContext` selected, or the default one.

    Args:
        device: Any device.
    """
    return _StreamInUse.stream


class StreamContext:
    """A context manager that selects a stream; None changes nothing.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream
        self.prev_stream = _default

    def __enter__(self) -> None:
        if self.stream is not None:
            self.prev_stream, _StreamInUse.stream = _StreamInUse.stream, self.stream

    def __exit__(self, *exception: object) -> None:
        if self.stream is not None:
            _StreamInUse.stream = self.prev_stream


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager that selects a stream.

    Args:
        stream: The stream; None changes nothing.
    """
    return StreamContext(stream)


def get_capabilities() -> Mapping[str, Any]:
    """Return the architecture, the number of logical cores and, on Linux, the instruction sets of this CPU."""
    found: dict[str, Any] = {"architecture": os.uname().machine, "num_logical_cores": os.cpu_count() or 1}
    cpuinfo = Path("/proc/cpuinfo")
    if found["architecture"] == "x86_64" and cpuinfo.exists():
        flags = set(re.findall(r"^flags\s*:(.*)$", cpuinfo.read_text(), re.M)[0].split())
        found |= {name: _FLAGS.get(name, name) in flags for name in _X86}
    return MappingProxyType(found)


explain_absent_names(globals(), "torch.cpu")

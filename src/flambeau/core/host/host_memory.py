"""`available`: the memory that this process may still take from the host. `require_space`: a check of its address
space. `require_pages`, `out_of_cpu_memory`: what an operator on the CPU needs, and the error if the host lacks it.

Linux reports how much is left without swapping (`MemAvailable`), and control groups limit containers. A process may
have a limit of address space (RLIMIT_AS, `ulimit -v`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

import numpy as np

from flambeau.core.errors import HostMemoryError

Folder = str | os.PathLike[str]
UNASKED = 1 << 28
"""Bytes that may be taken before the operating system is queried."""
_libc = ctypes.CDLL(None)
_SPACE = 1 << 27  # bytes that a kernel's libraries may map; OpenBLAS waits forever if it cannot map memory
_SHORTAGES = ("failed to map segment", "annot allocate memory", "can't start new thread")


def address_space_left(system: Folder = "/") -> int | None:
    """Return the number of bytes that this process may still map; None if it has no limit or the system does not report
    it.
    """
    try:
        import resource
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    pages = [] if limit == resource.RLIM_INFINITY else _text(f"{system}/proc/self/statm").split()
    return max(limit - int(pages[0]) * mmap.PAGESIZE, 0) if pages else None


def require_space(what: str) -> None:
    """Raise HostMemoryError if this process has too little address space left to load libraries.

    Args:
        what: The kernel or library to be loaded, for the error.
    """
    left = address_space_left()
    if left is not None and left < _SPACE:
        raise HostMemoryError(
            f"{what} needs {_SPACE:,} bytes of address space for its libraries, and this process has {left:,} left of "
            "its limit (RLIMIT_AS). This is a limit of the host, not of a GPU. Fix: raise the limit (ulimit -v), or "
            "take a smaller problem."
        )


def is_shortage(error: BaseException) -> bool:
    """Return True for an error of a host that has no memory, address space or threads left."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    return isinstance(error, ImportError | RuntimeError) and any(text in str(error) for text in _SHORTAGES)


def out_of_cpu_memory(nbytes: int) -> RuntimeError:
    """Return the error of PyTorch's CPU allocator, which programs recognize by its words."""
    return RuntimeError(
        f"[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried to allocate {nbytes} "
        "bytes. Error code 12 (Cannot allocate memory)"
    )


def require_pages(nbytes: int, *targets: tuple[int, int]) -> None:
    """Raise the error of PyTorch's CPU allocator if the host lacks memory that is about to be committed.

    Linux allocates addresses without pages, and kills processes when no page is left.

    Args:
        nbytes: Bytes of temporary arrays.
        targets: Address and size of the arrays that are about to be written.
    """
    left = available()
    if left is None:
        return
    needed = nbytes + sum(count_without_page(*target) for target in targets)
    if needed > left and needed > left + swap_left():
        raise out_of_cpu_memory(needed)


def count_without_page(ptr: int, nbytes: int) -> int:
    """Return the bytes of the pages of this memory that are not committed."""
    first = ptr // mmap.PAGESIZE * mmap.PAGESIZE
    pages = np.zeros(-(-(ptr + nbytes - first) // mmap.PAGESIZE), np.uint8)
    size = ctypes.c_size_t(ptr + nbytes - first)
    if _libc.mincore(ctypes.c_void_p(first), size, pages.ctypes.data_as(ctypes.c_void_p)):
        return nbytes
    return int((pages & 1 == 0).sum()) * mmap.PAGESIZE


def available(system: Folder = "/") -> int | None:
    """Return the bytes that the host has left for this process; None if the system does not report it.

    Args:
        system: The folder that holds `proc` and `sys`.
    """
    found = [size for size in (_left_of_host(system), _left_of_groups(system)) if size is not None]
    return min(found) if found else None


def swap_left(system: Folder = "/") -> int:
    """Return the bytes of memory that the host can still move to its disks."""
    return _fields(f"{system}/proc/meminfo").get("SwapFree:", 0) << 10


def _left_of_host(system: Folder) -> int | None:
    kib = _fields(f"{system}/proc/meminfo").get("MemAvailable:")
    return None if kib is None else kib << 10


def _left_of_groups(system: Folder) -> int | None:
    """Return the least memory that a control group of this process, or one above it, has left."""
    root = f"{system}/sys/fs/cgroup"
    found = []
    for line in _text(f"{system}/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":  # the unified hierarchy
            limit, usage, cache, top = "memory.max", "memory.current", "inactive_file", root
        elif "memory" in controllers.split(","):
            limit, usage, cache = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            top = f"{root}/memory"
        else:
            continue
        for folder in _groups(top, path):
            most, used = _text(f"{folder}/{limit}").strip(), _text(f"{folder}/{usage}").strip()
            if most.isdigit() and used.isdigit():  # "max" is no limit
                # cached file pages, which the system can reclaim
                idle = _fields(f"{folder}/memory.stat").get(cache, 0)
                found.append(max(int(most) - int(used) + idle, 0))
    return min(found) if found else None


def _groups(top: str, path: str) -> list[str]:
    """Return the folders of a control group and of its parents. Inside a container the group's path may not exist."""
    parts = [part for part in path.split("/") if part]
    return [top, *["/".join([top, *parts[:n]]) for n in range(len(parts), 0, -1)]]


def _fields(file: str) -> dict[str, int]:
    """Return the numbers of a file whose lines begin with a name and a number."""
    found = {}
    for line in _text(file).splitlines():
        name, number, *_ = [*line.split(), "", ""]
        if number.isdigit():
            found[name] = int(number)
    return found


def _text(file: str) -> str:
    try:
        with open(file) as text:
            return text.read()
    except OSError:
        return ""

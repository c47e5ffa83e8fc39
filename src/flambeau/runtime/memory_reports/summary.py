"""The table that `torch.cuda.memory_summary` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_WIDTH = 75
_SIZES = (
    ("allocated_bytes", "Allocated memory"), ("active_bytes", "Active memory"),
    ("requested_bytes", "Requested memory"), ("reserved_bytes", "GPU reserved memory"),
    ("inactive_split_bytes", "Non-releasable memory"),
)  # fmt: skip
_COUNTS = (
    ("allocation", "Allocations"), ("active", "Active allocs"), ("segment", "GPU reserved segments"),
    ("inactive_split", "Non-releasable allocs"),
)  # fmt: skip
_OVERSIZE = (("oversize_allocations", "Oversize allocations"), ("oversize_segments", "Oversize GPU segments"))
_POOLS = (("all", ""), ("large_pool", "      from large pool"), ("small_pool", "      from small pool"))
_KINDS = ("current", "peak", "allocated", "freed")


def summary(figures: Mapping[str, Any], index: int, abbreviated: bool) -> str:
    """Return PyTorch's table of nested statistics. With `abbreviated`, lines of single pools are omitted."""
    double, single = "=" * _WIDTH, "-" * _WIDTH
    ooms, retries = figures["num_ooms"], figures["num_alloc_retries"]
    lines = [
        double,
        f"{'':17} PyTorch CUDA memory summary, device ID {index:<17d} ",
        single,
        f"{'':11} CUDA OOMs: {ooms:<12d} | {'':6} cudaMalloc retries: {retries:<8d}  ",
        double,
        "        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ",
    ]
    pools = _POOLS[:1] if abbreviated else _POOLS
    for metrics, write in ((_SIZES, _size), (_COUNTS, _count)):
        for key, name in metrics:
            units = figures[key]["all"]  # the unit of each column is that of its first row
            lines.append(single)
            lines += [_line(label or name, figures[key][pool], units, write) for pool, label in pools]
    for key, name in _OVERSIZE:
        lines += [single, _line(name, figures[key], figures[key], _count)]
    lines.append(double)
    return "".join(f"|{line}|\n" for line in lines)


def _line(
    name: str, values: Mapping[str, int], units: Mapping[str, int], write: Callable[[int, float], str]
) -> str:
    return f" {name:<21} | " + " | ".join(write(values[kind], units[kind]) for kind in _KINDS) + " "


def _size(nbytes: int, unit: float) -> str:
    for name in ("B  ", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if unit < 768 * 1024 or name == "PiB":
            break
        nbytes //= 1024
        unit /= 1024
    return f"{nbytes:6d} {name}"


def _count(count: int, unit: float) -> str:
    for name in (" ", "K", "M"):
        if unit < 750_000 or name == "M":
            break
        count //= 1000
        unit /= 1000
    return f"{count:7d} {name} "

"""Device time of indexing and sorting beside PyTorch: `python tests/gpu/indexing_speed.py`, on a machine with a GPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
warnings.simplefilter("ignore")

import flambeau  # noqa: E402

N = 16 << 20


def calls(torch: Any) -> dict[str, Callable[[], Any]]:
    torch.manual_seed(0)
    x = torch.randn(N, device="cuda")
    places = torch.randint(0, N, (N,), device="cuda")
    table, rows = x.view(1 << 16, 256), torch.randint(0, 1 << 16, (1 << 16,), device="cuda")
    square, columns = x.view(4096, 4096), places.view(4096, 4096) % 4096
    few = torch.randint(0, 1000, (1 << 20,), device="cuda")
    small, whole = x[: 1 << 20], torch.randint(0, 1 << 40, (N,), device="cuda")
    mask = x > 0
    zeros = torch.zeros(N, device="cuda")
    return {
        "gather 1-D random": lambda: torch.gather(x, 0, places),
        "gather rows": lambda: torch.gather(square, 1, columns),
        "index_select rows": lambda: torch.index_select(table, 0, rows),
        "x[i]": lambda: x[places],
        "table[i]": lambda: table[rows],
        "scatter_ 1-D": lambda: zeros.scatter_(0, places, x),
        "scatter_add_ 1-D": lambda: zeros.scatter_add_(0, places, x),
        "index_add_ rows": lambda: zeros.view(1 << 16, 256).index_add_(0, rows, table),
        "index_put_ accumulate": lambda: zeros.index_put_((places,), x, accumulate=True),
        "index_add_ 1 Mi to 1000": lambda: zeros.index_add_(0, few, small),
        "sort float32": lambda: torch.sort(x),
        "sort int64": lambda: torch.sort(whole),
        "sort rows 4096": lambda: torch.sort(square),
        "sort rows 256": lambda: torch.sort(table),
        "topk 10 of 16 Mi": lambda: torch.topk(x, 10),
        "topk 10 of rows 4096": lambda: torch.topk(square, 10),
        "unique 1000 of 16 Mi": lambda: torch.unique(places % 1000),
        "nonzero": lambda: torch.nonzero(mask),
        "x[mask]": lambda: x[mask],
        "flip": lambda: torch.flip(square, (1,)),
        "roll": lambda: torch.roll(square, 7, 1),
        "tril": lambda: torch.tril(square),
        "cat": lambda: torch.cat((x, x)),
        "searchsorted": lambda: torch.searchsorted(small_sorted(torch, small), x),
    }


_kept: dict[Any, Any] = {}


def small_sorted(torch: Any, small: Any) -> Any:
    if torch not in _kept:
        _kept[torch] = torch.sort(small)[0]
    return _kept[torch]


def device_us(torch: Any, call: Callable[[], Any], repeats: int = 11) -> float:
    """Median of events around the call."""
    call(), call()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[repeats // 2]


def main() -> None:
    import torch

    rows: dict[str, list[str]] = {}
    for library in (flambeau, torch):
        try:
            made = calls(library)
        except Exception as error:
            print(library.__name__, type(error).__name__, str(error)[:300])
            continue
        for name, call in made.items():
            try:
                rows.setdefault(name, []).append(f"{device_us(library, call):9.1f}")
            except Exception as error:
                rows.setdefault(name, []).append(f"{type(error).__name__}: {str(error)[:90]}")
        made.clear()
        _kept.clear()
    print(f"{'us of device time':26}{'flambeau':>10}{'torch':>10}")
    for name, found in rows.items():
        print(f"{name:26}", *found)


if __name__ == "__main__":
    main()

"""The generator of docs/coverage.md, which lists the public names of torch.cuda.

    python -m tools.pages.coverage_page tests/goldens/cuda_names.txt > docs/coverage.md

The file lists names, one a line: `1.8 cuda.memory_stats` if PyTorch 1.8 documents it, `now cuda.graph` if today's
PyTorch does. This module lists names that differ, with the difference, and looks up which names are missing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

HEADER = """# Coverage of torch.cuda

<!-- Written by tools.pages.coverage_page; do not edit. -->

This page lists every public name of `torch.cuda` and its modules, in PyTorch 1.8's documentation
and in PyTorch 2.13. It is for people who port a CUDA program. *Supported* means that name,
arguments, defaults and errors are PyTorch's. *Differs* means that the last column states a
difference. *Absent* names raise:

```python
import flambeau as torch

hasattr(torch.cuda, "GreenContext")  # False
```

{counts}.

| name | in 1.8 | in 2.13 | Flambeau | difference, or replacement |
|---|---|---|---|---|
"""

DIFFERENCES = {
    "backends.cuda.matmul": "`allow_tf32` is True initially, as PyTorch 1.8's documentation says "
    "(`--float32-precision highest` or `FLAMBEAU_FLOAT32_PRECISION=highest` makes it False for a run); "
    "in PyTorch 2.13 it is False. "
    "The switches for 16-bit reductions are kept but have no effect: products accumulate in float32",
    "backends.cuda.blas_workspace_size": "32 MiB per stream; other sizes are refused",
    "backends.cuda.cublas_workspace_size": "as `blas_workspace_size`",
    "backends.cuda.cublaslt_workspace_size": "as `blas_workspace_size`",
    "backends.cuda.preferred_blas_library": "cuBLASLt; others are refused",
    "backends.cuda.preferred_linalg_library": "cuSOLVER; others are refused",
    "cuda.CUDAGraph": "no `get_graph_data`",
    "cuda.graph": "no annotations; each capture has a separate stream unless one is given",
    "cuda.Event": "no `external` events",
    "cuda.DeferredCudaCallError": "never raised: calls before CUDA is initialized initialize it",
    "cuda.CUDAPluggableAllocator": "also accepts objects with `allocate` and `free`",
    "cuda.get_device_name": "a negative index gives None, as the documentation says; PyTorch raises",
    "cuda.get_device_capability": "as `get_device_name`",
    "cuda.memory.CUDAPluggableAllocator": "as `CUDAPluggableAllocator`",
    "cuda.memory_stats": "has the documentation's `allocated.*` in addition to PyTorch's `allocation.*`",
    "cuda.comm.broadcast": "complex tensors stay complex; PyTorch gives their real view",
    "cuda.comm.broadcast_coalesced": "tensors may be on the CPU, as the documentation says; PyTorch wants devices[0]",
    "cuda.comm.scatter": "as `comm.broadcast`",
    "cuda.comm.gather": "as `comm.broadcast`",
    "cuda.current_blas_handle": "real GPUs only; virtual ones use no NVIDIA library",
    "cuda.current_solver_handle": "as `current_blas_handle`",
    "cuda.utilization": "real GPUs only: virtual ones have no sensors",
    "cuda.memory_usage": "as `utilization`",
    "cuda.temperature": "as `utilization`",
    "cuda.power_draw": "as `utilization`",
    "cuda.jiterator": "virtual GPUs compute plain C++ (no loops, no pointers); half precision is computed in float32",
    "cuda.nccl": "complex numbers are summed too; virtual GPUs return the `version` of the NCCL that they model",
    "cuda.get_rng_state": "for a missing GPU RuntimeError (PyTorch: IndexError), for the CPU ValueError",
    "cuda.set_rng_state": "as `get_rng_state`",
    "cuda.seed": "default generators start from a fixed seed until it is called: runs repeat",
    "backends.cuda.can_use_cudnn_attention": "always False: attention is Flambeau's own kernel",
    "cuda.ExternalStream": "on virtual GPUs only for streams of `cudart().cudaStreamCreate`",
}
INSTEAD = {
    "cuda.GreenContext": "a GPU's multiprocessors are not divided",
    "cuda.tunable": "products are chosen by cuBLASLt's heuristic",
    "backends.cuda.cuFFTPlanCacheAttrContextProp": "PyTorch's implementation of `size` and `max_size`",
    "backends.cuda.preferred_rocm_fa_library": "NVIDIA's GPUs only",
}


def has_name(name: str) -> bool:
    """Return True if Flambeau has the name."""
    module, _, last = f"flambeau.{name}".rpartition(".")
    try:
        return hasattr(import_module(module), last)
    except ImportError:
        return False


def rows(lines: Iterable[str]) -> list[tuple[str, bool, bool, str, str]]:
    """Return (name, in 1.8, today, supported or differs or absent, note), sorted by name."""
    where: dict[str, set[str]] = {}
    for line in lines:
        version, name = line.split()
        where.setdefault(name, set()).add(version)
    made = []
    for name, versions in sorted(where.items()):
        there = has_name(name)
        note = (DIFFERENCES if there else INSTEAD).get(name, "")
        state = "absent" if not there else "differs" if note else "supported"
        made.append((name, "1.8" in versions, "now" in versions, state, note))
    return made


def page(lines: Sequence[str]) -> str:
    """Return the page as text."""
    listed = rows(lines)
    of_state = {state: sum(row[3] == state for row in listed) for state in ("supported", "differs", "absent")}
    counts = f"{len(listed)} names: " + ", ".join(f"{count} {state}" for state, count in of_state.items())
    yes = {True: "yes", False: ""}
    body = [f"| `{n}` | {yes[old]} | {yes[now]} | {state} | {note} |" for n, old, now, state, note in listed]
    return HEADER.format(counts=counts) + "\n".join(body) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1]).read_text().splitlines()))

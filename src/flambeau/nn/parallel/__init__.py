"""torch.nn.parallel: a module on several GPUs of one process, and the copies between them, plain and in the autograd
graph.
"""

from importlib import import_module as _import_module
from typing import Any

from flambeau.core.public_names import lacking
from flambeau.nn.parallel import _functions, comm, scatter_gather
from flambeau.nn.parallel.data_parallel import DataParallel, data_parallel
from flambeau.nn.parallel.parallel_apply import parallel_apply
from flambeau.nn.parallel.replicate import replicate
from flambeau.nn.parallel.scatter_gather import gather, scatter

__all__ = [
    "DataParallel",
    "DistributedDataParallel",
    "comm",
    "data_parallel",
    "gather",
    "parallel_apply",
    "replicate",
    "scatter",
]

_absent: Any = lacking("torch.nn.parallel")


def __getattr__(name: str) -> Any:
    """Import `distributed` on first use, because many programs have only one process."""
    if name not in ("DistributedDataParallel", "distributed"):
        return _absent(name)
    found = _import_module("flambeau.nn.parallel.distributed")
    return found if name == "distributed" else found.DistributedDataParallel


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "distributed"})

"""torch.nn.parallel: a module on several GPUs of one process, and the copies between them, plain and on the tape."""

from typing import Any

from flambeau.core.names import lacking
from flambeau.nn.parallel import _functions, comm, scatter_gather
from flambeau.nn.parallel.data_parallel import DataParallel, data_parallel
from flambeau.nn.parallel.parallel_apply import parallel_apply
from flambeau.nn.parallel.replicate import replicate
from flambeau.nn.parallel.scatter_gather import gather, scatter

__all__ = ["DataParallel", "comm", "data_parallel", "gather", "parallel_apply", "replicate", "scatter"]

__getattr__: Any = lacking("torch.nn.parallel")

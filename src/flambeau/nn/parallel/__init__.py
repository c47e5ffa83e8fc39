"""torch.nn.parallel: programs over several devices. Here are the copies between them, plain and on the tape."""

from typing import Any

from flambeau.core.names import lacking
from flambeau.nn.parallel import _functions, comm

__all__ = ["comm"]

__getattr__: Any = lacking("torch.nn.parallel")

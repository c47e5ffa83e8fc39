# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.cuda.graphs."""


from flambeau.tensor.tensor import Tensor

from builtins import bool as _bool, complex as _complex, float as _float, int as _int, str as _str
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from flambeau.core.device import device as _device
from flambeau.core.dtype import dtype as _dtype
from flambeau.core.handle import RemovableHandle as _RemovableHandle
from flambeau.core.size import Size as _Size
from flambeau.core.typeinfo import finfo as _finfo, iinfo as _iinfo
from flambeau.runtime.generator import Generator as _Generator
from flambeau.runtime.streams.event import Event as _Event
from flambeau.tape.autograd_node import Node as _Node
from flambeau.tensor.arguments import return_types as _return_types
from flambeau.tensor.arguments.typing import layout as _layout, memory_format as _memory_format
from flambeau.tensor.storages import TypedStorage as _TypedStorage, UntypedStorage as _UntypedStorage

_Number: TypeAlias = _bool | _int | _float | _complex
_Ints: TypeAlias = Sequence[_int]
_IntOrInts: TypeAlias = _int | Sequence[_int]
_Tensors: TypeAlias = Sequence[Tensor]
_Device: TypeAlias = _str | _int | _device | None

from types import TracebackType
from flambeau.runtime.graphs.cuda_graph import CUDAGraph
from flambeau.runtime.memory.private_pool import PoolId
from flambeau.runtime.streams.accelerator_stream import Stream
class graph:

    def __init__(self, cuda_graph: CUDAGraph, pool: PoolId | None=..., stream: Stream | None=..., capture_error_mode: str=..., enable_annotations: bool=..., check_input_liveness: bool=...) -> None:
        ...

    def __enter__(self) -> None:
        ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ...
from flambeau.runtime.graphs.cuda_graph import CUDAGraph as CUDAGraph
from flambeau.runtime.streams.accelerator_stream import Stream as Stream
from flambeau.cuda.memory import empty_cache as empty_cache
from flambeau.runtime.graphs.cuda_graph import graph_pool_handle as graph_pool_handle
from flambeau.runtime.graphs.cuda_graph import is_current_stream_capturing as is_current_stream_capturing
from flambeau.cuda.streams import synchronize as synchronize

TYPE_CHECKING: _bool

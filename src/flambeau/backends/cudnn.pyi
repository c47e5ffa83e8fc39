# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.backends.cudnn."""


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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from flambeau.tensor.tensor import Tensor
def is_available() -> bool:
    ...
def version() -> int | None:
    ...
def is_acceptable(tensor: Tensor) -> bool:
    ...
def set_flags(_enabled: bool | None=..., _benchmark: bool | None=..., _benchmark_limit: int | None=..., _deterministic: bool | None=..., _allow_tf32: bool | None=..., _fp32_precision: str=..., _depthwise_kernel: str | None=...) -> tuple[Any, ...]:
    ...
@contextmanager
def flags(enabled: bool=..., benchmark: bool=..., benchmark_limit: int=..., deterministic: bool=..., allow_tf32: bool=..., fp32_precision: str=..., depthwise_kernel: str=...) -> Iterator[None]:
    ...
from flambeau.backends.flagged import Attributes as Attributes
from flambeau.core.device import CPU as CPU
from flambeau.backends.flagged import Flag as Flag
from flambeau.backends.flagged import FlaggedModule as FlaggedModule
from flambeau.core.errors import NotSupportedError as NotSupportedError
from flambeau.backends.matmul_flags import Precision as Precision
from flambeau.tensor.tensor import Tensor as Tensor
from flambeau.driver.driver_registry import cudnn_version as cudnn_version
from flambeau.backends.matmul_flags import is_tf32 as is_tf32
from flambeau.backends.matmul_flags import say_tf32 as say_tf32

enabled: bool
benchmark: bool
benchmark_limit: int
deterministic: bool
allow_tf32: Any
fp32_precision: Any
CUDNN_TENSOR_DTYPES: Any
conv: Any
flags_of: Any
float16: _dtype
float32: _dtype
float64: _dtype
rnn: Any

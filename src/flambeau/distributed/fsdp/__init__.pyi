# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.distributed.fsdp."""


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

from dataclasses import dataclass
from flambeau.core.dtype import dtype as _dtype
@dataclass(frozen=True)
class MixedPrecisionPolicy:
    param_dtype: _dtype | None = ...
    reduce_dtype: _dtype | None = ...
    output_dtype: _dtype | None = ...
    cast_forward_inputs: bool = ...
@dataclass
class OffloadPolicy:
    ...
@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    pin_memory: bool = ...
@dataclass(frozen=True)
class DataParallelMeshDims:
    shard: str | tuple[str, ...] | None = ...
    replicate: str | tuple[str, ...] | None = ...
from flambeau.distributed.fsdp.api import BackwardPrefetch as BackwardPrefetch
from flambeau.distributed.fsdp.api import CPUOffload as CPUOffload
from flambeau.distributed.fsdp.api import FullOptimStateDictConfig as FullOptimStateDictConfig
from flambeau.distributed.fsdp.api import FullStateDictConfig as FullStateDictConfig
from flambeau.distributed.fsdp.api import LocalOptimStateDictConfig as LocalOptimStateDictConfig
from flambeau.distributed.fsdp.api import LocalStateDictConfig as LocalStateDictConfig
from flambeau.distributed.fsdp.api import MixedPrecision as MixedPrecision
from flambeau.distributed.fsdp.api import OptimStateDictConfig as OptimStateDictConfig
from flambeau.distributed.fsdp.api import OptimStateKeyType as OptimStateKeyType
from flambeau.distributed.fsdp.api import ShardedOptimStateDictConfig as ShardedOptimStateDictConfig
from flambeau.distributed.fsdp.api import ShardedStateDictConfig as ShardedStateDictConfig
from flambeau.distributed.fsdp.api import ShardingStrategy as ShardingStrategy
from flambeau.distributed.fsdp.api import StateDictConfig as StateDictConfig
from flambeau.distributed.fsdp.api import StateDictSettings as StateDictSettings
from flambeau.distributed.fsdp.api import StateDictType as StateDictType
from flambeau.distributed.fsdp import api as api

class FSDPModule:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FullyShardedDataParallel:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class UnshardHandle:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
def fully_shard(*args: Any, **kwargs: Any) -> NoReturn: ...
def register_fsdp_forward_method(*args: Any, **kwargs: Any) -> NoReturn: ...
def share_comm_ctx(*args: Any, **kwargs: Any) -> NoReturn: ...

# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.backends.cuda."""


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

from typing import Any
from flambeau.runtime.devices import library_plans
class cuFFTPlanCache:
    __slots__ = ('device_index',)
    device_index: int | None

    def __init__(self, device_index: int | None) -> None:
        ...

    @property
    def _cache(self) -> library_plans.PlanCache:
        ...

    @property
    def size(self) -> int:
        ...

    @property
    def max_size(self) -> int:
        ...

    def clear(self) -> None:
        ...

    def __getattr__(self, name: str) -> Any:
        ...

    def __setattr__(self, name: str, value: Any) -> None:
        ...
class cuFFTPlanCacheManager(cuFFTPlanCache):
    __slots__ = ()

    def __init__(self) -> None:
        ...

    def __getitem__(self, device: Any) -> cuFFTPlanCache:
        ...
def is_built() -> bool:
    ...
from flambeau.backends.flagged import FlaggedModule as FlaggedModule
from flambeau.backends.attention_flags import SDPAParams as SDPAParams
from flambeau.backends.attention_flags import allow_fp16_bf16_reduction_math_sdp as allow_fp16_bf16_reduction_math_sdp
from flambeau.backends.library_flags import blas_workspace_size as blas_workspace_size
from flambeau.backends.attention_flags import can_use_cudnn_attention as can_use_cudnn_attention
from flambeau.backends.attention_flags import can_use_efficient_attention as can_use_efficient_attention
from flambeau.backends.attention_flags import can_use_flash_attention as can_use_flash_attention
from flambeau.backends.matmul_flags import cuBLASModule as cuBLASModule
from flambeau.backends.library_flags import cublas_workspace_size as cublas_workspace_size
from flambeau.backends.library_flags import cublaslt_workspace_size as cublaslt_workspace_size
from flambeau.backends.attention_flags import fp16_bf16_reduction_math_sdp_allowed as fp16_bf16_reduction_math_sdp_allowed
from flambeau.backends.attention_flags import is_ck_sdpa_available as is_ck_sdpa_available
from flambeau.backends.attention_flags import is_flash_attention_available as is_flash_attention_available
from flambeau.backends.library_flags import preferred_blas_library as preferred_blas_library
from flambeau.backends.library_flags import preferred_linalg_library as preferred_linalg_library
from flambeau.backends.attention_flags import sdp_kernel as sdp_kernel

def cudnn_sdp_enabled() -> _bool: ...
cufft_plan_cache: Any
def enable_cudnn_sdp(enabled: _bool) -> None: ...
def enable_flash_sdp(enabled: _bool) -> None: ...
def enable_math_sdp(enabled: _bool) -> None: ...
def enable_mem_efficient_sdp(enabled: _bool) -> None: ...
def flash_sdp_enabled() -> _bool: ...
def math_sdp_enabled() -> _bool: ...
matmul: Any
def mem_efficient_sdp_enabled() -> _bool: ...

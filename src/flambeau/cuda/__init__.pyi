# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.cuda."""


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

from flambeau.runtime.graphs.cuda_graph import CUDAGraph as CUDAGraph
from flambeau.cuda.memory import CUDAPluggableAllocator as CUDAPluggableAllocator
from flambeau.cuda.runtime_library import CudaError as CudaError
from flambeau.cuda.runtime_library import DeferredCudaCallError as DeferredCudaCallError
from flambeau.runtime.streams.event import Event as Event
from flambeau.cuda.streams import ExternalStream as ExternalStream
from flambeau.runtime.graphs.mempool import MemPool as MemPool
from flambeau.core.errors import OutOfMemoryError as OutOfMemoryError
from flambeau.runtime.streams.stream import Stream as Stream
from flambeau.runtime.streams.guards import StreamContext as StreamContext
from flambeau.cuda import amp as amp
from flambeau.cuda.memory import caching_allocator_alloc as caching_allocator_alloc
from flambeau.cuda.memory import caching_allocator_delete as caching_allocator_delete
from flambeau.cuda.memory import caching_allocator_disabled as caching_allocator_disabled
from flambeau.cuda.memory import caching_allocator_enable as caching_allocator_enable
from flambeau.cuda.devices import can_device_access_peer as can_device_access_peer
from flambeau.cuda.memory import change_current_allocator as change_current_allocator
from flambeau.cuda.runtime_library import check_error as check_error
from flambeau.cuda.sensors import clock_rate as clock_rate
from flambeau.cuda import comm as comm
from flambeau.cuda.runtime_library import cudaStatus as cudaStatus
from flambeau.runtime.generator import cuda_defaults as cuda_defaults
from flambeau.cuda.runtime_library import cudart as cudart
from flambeau.cuda.devices import current_blas_handle as current_blas_handle
from flambeau.cuda.devices import current_device as current_device
from flambeau.cuda.devices import current_solver_handle as current_solver_handle
from flambeau.cuda.streams import current_stream as current_stream
from flambeau.xpu import default_generators as default_generators
from flambeau.cuda.streams import default_stream as default_stream
from flambeau.runtime.streams.guards import device as device
from flambeau.runtime.system import device_count as device_count
from flambeau.cuda.memory import device_memory_used as device_memory_used
from flambeau.runtime.streams.guards import device_of as device_of
from flambeau.cuda import devices as devices
from flambeau.cuda.elementwise_kernel import elementwise as elementwise
from flambeau.cuda import elementwise_kernel as elementwise_kernel
from flambeau.cuda.memory import empty_cache as empty_cache
from flambeau.cuda.memory import get_allocator_backend as get_allocator_backend
from flambeau.cuda.devices import get_arch_list as get_arch_list
from flambeau.cuda.devices import get_device_capability as get_device_capability
from flambeau.cuda.devices import get_device_name as get_device_name
from flambeau.cuda.devices import get_device_properties as get_device_properties
from flambeau.cuda.devices import get_gencode_flags as get_gencode_flags
from flambeau.cuda.memory import get_per_process_memory_fraction as get_per_process_memory_fraction
from flambeau.cuda.random import get_rng_state as get_rng_state
from flambeau.cuda.random import get_rng_state_all as get_rng_state_all
from flambeau.cuda.streams import get_stream_from_external as get_stream_from_external
from flambeau.cuda.devices import get_sync_debug_mode as get_sync_debug_mode
from flambeau.cuda.graphs import graph as graph
from flambeau.runtime.graphs.cuda_graph import graph_pool_handle as graph_pool_handle
from flambeau.cuda import graphed as graphed
from flambeau.cuda import graphs as graphs
from flambeau.cuda.memory import host_memory_stats as host_memory_stats
from flambeau.cuda.memory import host_memory_stats_as_nested_dict as host_memory_stats_as_nested_dict
from flambeau.runtime.system import init as init
from flambeau.cuda.random import initial_seed as initial_seed
from flambeau.cuda import initialization as initialization
from flambeau.cuda.memory import ipc_collect as ipc_collect
from flambeau.runtime.system import is_available as is_available
from flambeau.cuda.devices import is_bf16_supported as is_bf16_supported
from flambeau.runtime.graphs.cuda_graph import is_current_stream_capturing as is_current_stream_capturing
from flambeau.runtime.system import is_initialized as is_initialized
from flambeau.cuda.devices import is_tf32_supported as is_tf32_supported
from flambeau.cuda import jiterator as jiterator
from flambeau.cuda.memory import list_gpu_processes as list_gpu_processes
from flambeau.cuda.graphed import make_graphed_callables as make_graphed_callables
from flambeau.cuda.random import manual_seed as manual_seed
from flambeau.cuda.random import manual_seed_all as manual_seed_all
from flambeau.cuda.memory import max_memory_allocated as max_memory_allocated
from flambeau.cuda.memory import max_memory_cached as max_memory_cached
from flambeau.cuda.memory import max_memory_reserved as max_memory_reserved
from flambeau.cuda.memory import mem_get_info as mem_get_info
from flambeau.cuda import memory as memory
from flambeau.cuda.memory import memory_allocated as memory_allocated
from flambeau.cuda.memory import memory_cached as memory_cached
from flambeau.cuda.memory import memory_reserved as memory_reserved
from flambeau.cuda.memory import memory_snapshot as memory_snapshot
from flambeau.cuda.memory import memory_stats as memory_stats
from flambeau.cuda.memory import memory_stats_as_nested_dict as memory_stats_as_nested_dict
from flambeau.cuda.memory import memory_summary as memory_summary
from flambeau.cuda.sensors import memory_usage as memory_usage
from flambeau.cuda import nccl as nccl
from flambeau.cuda import nvtx as nvtx
from flambeau.cuda.sensors import power_draw as power_draw
from flambeau.cuda import profiler as profiler
from flambeau.cuda import random as random
from flambeau.cuda.memory import reset_accumulated_host_memory_stats as reset_accumulated_host_memory_stats
from flambeau.cuda.memory import reset_accumulated_memory_stats as reset_accumulated_memory_stats
from flambeau.cuda.memory import reset_max_memory_allocated as reset_max_memory_allocated
from flambeau.cuda.memory import reset_max_memory_cached as reset_max_memory_cached
from flambeau.cuda.memory import reset_peak_host_memory_stats as reset_peak_host_memory_stats
from flambeau.cuda.memory import reset_peak_memory_stats as reset_peak_memory_stats
from flambeau.cuda.memory import reset_peak_stats as reset_peak_stats
from flambeau.cuda import runtime_library as runtime_library
from flambeau.cuda.random import seed as seed
from flambeau.cuda.random import seed_all as seed_all
from flambeau.cuda import sensors as sensors
from flambeau.cuda.devices import set_device as set_device
from flambeau.cuda.memory import set_per_process_memory_fraction as set_per_process_memory_fraction
from flambeau.cuda.random import set_rng_state as set_rng_state
from flambeau.cuda.random import set_rng_state_all as set_rng_state_all
from flambeau.cuda.streams import set_stream as set_stream
from flambeau.cuda.devices import set_sync_debug_mode as set_sync_debug_mode
from flambeau.cuda import sparse as sparse
from flambeau.cuda.streams import stream as stream
from flambeau.cuda import streams as streams
from flambeau.cuda.streams import synchronize as synchronize
from flambeau.cuda.sensors import temperature as temperature
from flambeau.runtime.graphs.mempool import use_mem_pool as use_mem_pool
from flambeau.cuda.sensors import utilization as utilization

class BFloat16Storage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BFloat16Tensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BoolStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class BoolTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ByteStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ByteTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CharStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class CharTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ComplexDoubleStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ComplexFloatStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DoubleStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class DoubleTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FloatStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class FloatTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HalfStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class HalfTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IntStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class IntTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LongStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class LongTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ShortStorage(_TypedStorage):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
class ShortTensor(Tensor):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
has_half: _bool
has_magma: _bool

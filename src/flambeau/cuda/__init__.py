"""torch.cuda: argument normalizing over runtime, no logic."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from flambeau.core.public_names import lacking, publish
from flambeau.cuda.devices import (
    OutOfMemoryError,
    can_device_access_peer,
    current_blas_handle,
    current_device,
    current_solver_handle,
    device,
    device_count,
    device_of,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    get_sync_debug_mode,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    is_tf32_supported,
    set_device,
    set_sync_debug_mode,
)
from flambeau.cuda.graphs import CUDAGraph, graph, graph_pool_handle, is_current_stream_capturing
from flambeau.cuda.memory import (
    CUDAPluggableAllocator,
    MemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    change_current_allocator,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    ipc_collect,
    list_gpu_processes,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    reset_peak_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from flambeau.cuda.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from flambeau.cuda.sensors import clock_rate, memory_usage, power_draw, temperature, utilization
from flambeau.cuda.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    _sleep,
    current_stream,
    default_stream,
    get_stream_from_external,
    set_stream,
    stream,
    synchronize,
)
from flambeau.runtime.generator import cuda_defaults
from flambeau.runtime.system import is_forked as _is_in_bad_fork
from flambeau.tensor.exchange.constructor import cuda_storages, cuda_types

_lazy_init = init
globals().update(cuda_types | cuda_storages)
publish(globals())
_lacking = lacking("torch.cuda")

has_half = True
has_magma = False  # linear algebra runs by cuSOLVER


_LATER = {  # name -> the module that is imported when it is first asked for
    **{name: name for name in ("_utils", "amp", "comm", "jiterator", "nccl", "nvtx", "profiler", "sparse")},
    **dict.fromkeys(
        ("CudaError", "DeferredCudaCallError", "check_error", "cudaStatus", "cudart"), "runtime_library"
    ),
    "_get_device_index": "_utils",
    **dict.fromkeys(
        (
            "_exchange_device",
            "_get_device",
            "_get_generator",
            "_get_rng_state_offset",
            "_is_compiled",
            "_lazy_call",
            "_maybe_exchange_device",
            "_set_rng_state_offset",
            "_set_stream_by_id",
        ),
        "initialization",
    ),
    "_CudaDeviceProperties": "devices",
    "_set_allocator_settings": "memory",
    "elementwise": "elementwise_kernel",
    "make_graphed_callables": "graphed",
}


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return cuda_defaults()
    if name == "_initialized":
        return is_initialized()
    if name not in _LATER:
        _lacking(name)
    module = import_module(f"flambeau.cuda.{_LATER[name]}")
    return module if _LATER[name] == name else getattr(module, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, "default_generators"})

"""torch.backends.cuda: the flags of matrix products and of attention, and the FFT plan caches."""

from __future__ import annotations

import sys
from typing import Any

from flambeau.backends.attention_flags import (
    SDPAParams,
    allow_fp16_bf16_reduction_math_sdp,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
    cudnn_sdp_enabled,
    enable_cudnn_sdp,
    enable_flash_sdp,
    enable_math_sdp,
    enable_mem_efficient_sdp,
    flash_sdp_enabled,
    fp16_bf16_reduction_math_sdp_allowed,
    is_ck_sdpa_available,
    is_flash_attention_available,
    math_sdp_enabled,
    mem_efficient_sdp_enabled,
    sdp_kernel,
)
from flambeau.backends.flagged import FlaggedModule
from flambeau.backends.library_flags import (
    blas_workspace_size,
    cublas_workspace_size,
    cublaslt_workspace_size,
    preferred_blas_library,
    preferred_linalg_library,
)
from flambeau.backends.matmul_flags import cuBLASModule
from flambeau.runtime import current, system
from flambeau.runtime.devices import library_plans

__all__ = [
    "SDPAParams", "allow_fp16_bf16_reduction_math_sdp", "blas_workspace_size", "can_use_cudnn_attention",
    "can_use_efficient_attention", "can_use_flash_attention", "cuBLASModule", "cuFFTPlanCache",
    "cuFFTPlanCacheManager", "cublas_workspace_size", "cublaslt_workspace_size", "cudnn_sdp_enabled",
    "cufft_plan_cache", "enable_cudnn_sdp", "enable_flash_sdp", "enable_math_sdp", "enable_mem_efficient_sdp",
    "flash_sdp_enabled", "fp16_bf16_reduction_math_sdp_allowed", "is_built", "is_ck_sdpa_available",
    "is_flash_attention_available", "math_sdp_enabled", "matmul", "mem_efficient_sdp_enabled",
    "preferred_blas_library", "preferred_linalg_library", "sdp_kernel",
]  # fmt: skip


class cuFFTPlanCache:
    """The cache of FFT plans of one device; of the current device if `device_index` is None.

    Its attributes raise RuntimeError: no such device; `max_size` is set to less than 0; `size` is set.
    """

    __slots__ = ("device_index",)
    device_index: int | None

    def __init__(self, device_index: int | None) -> None:
        object.__setattr__(self, "device_index", device_index)

    @property
    def _cache(self) -> library_plans.PlanCache:
        system.init()
        return library_plans.cache_of(
            current.context_at(current.local.device if self.device_index is None else self.device_index)
        )

    @property
    def size(self) -> int:
        """Return the number of cached plans."""
        return self._cache.size

    @property
    def max_size(self) -> int:
        """Return the largest number of cached plans (initially 4096). Setting it lower drops the least recently
        used.
        """
        return self._cache.max_size

    def clear(self) -> None:
        """Drop every plan."""
        self._cache.clear()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "size":
            raise RuntimeError(
                ".size is a read-only property showing the number of plans currently in the cache. To change "
                "the cache capacity, set cufft_plan_cache.max_size."
            )
        if name != "max_size":
            raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"max_size must be an int, not {type(value).__name__}")
        self._cache.max_size = value


class cuFFTPlanCacheManager(cuFFTPlanCache):
    """The plan caches of all devices: `manager[device]` is the cache of one device, `manager` that of the current one.

    Raises:
        RuntimeError: By indexing, if there is no such device.
        ValueError: By indexing, if a device has no index.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(None)

    def __getitem__(self, device: Any) -> cuFFTPlanCache:
        index, count = current.index_of(device), system.device_count()
        if not 0 <= index < count:
            raise RuntimeError(
                f"cufft_plan_cache: expected 0 <= device index < {count}, but got device with index {index}"
            )
        return cuFFTPlanCache(index)


matmul = cuBLASModule()
cufft_plan_cache = cuFFTPlanCacheManager()


def is_built() -> bool:
    """Return True if this package can drive CUDA devices: always True. It does not say that there are any."""
    return True


class _Cuda(FlaggedModule):
    pass


sys.modules[__name__].__class__ = _Cuda

"""torch.backends.cuda: the flags of matrix products and of attention, and the FFT plan caches."""

from __future__ import annotations

import sys
from typing import Any

from flambeau.backends.attention import (
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
from flambeau.core.flags import flags
from flambeau.runtime import current, plans, system

__all__ = [
    "SDPAParams", "allow_fp16_bf16_reduction_math_sdp", "can_use_cudnn_attention", "can_use_efficient_attention",
    "can_use_flash_attention", "cudnn_sdp_enabled", "cufft_plan_cache", "enable_cudnn_sdp", "enable_flash_sdp",
    "enable_math_sdp", "enable_mem_efficient_sdp", "flash_sdp_enabled", "fp16_bf16_reduction_math_sdp_allowed",
    "is_built", "is_ck_sdpa_available", "is_flash_attention_available", "math_sdp_enabled", "matmul",
    "mem_efficient_sdp_enabled", "sdp_kernel",
]  # fmt: skip

_PRECISIONS = ("highest", "high", "medium")


class _Matmul:
    """allow_tf32 (True): whether float32 matrix products may round their inputs to TF32."""

    __slots__ = ()

    @property
    def allow_tf32(self) -> bool:
        return flags.matmul_allow_tf32

    @allow_tf32.setter
    def allow_tf32(self, value: Any) -> None:
        if not isinstance(value, bool):
            raise RuntimeError(f"set_allow_tf32_cublas expects a bool, but got {type(value).__name__}")
        set_float32_matmul_precision("high" if value else "highest")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "allow_tf32":
            raise AttributeError(f"Unknown attribute {name}: Flambeau lacks it (PyTorch may have it)")
        object.__setattr__(self, name, value)


class _PlanCache:
    """A device's cache of FFT plans. The current device's, where `index` is None."""

    __slots__ = ("_index",)

    def __init__(self, index: int | None) -> None:
        object.__setattr__(self, "_index", index)

    @property
    def _cache(self) -> plans.PlanCache:
        system.init()
        return plans.cache_of(
            current.context_at(current.local.device if self._index is None else self._index)
        )

    @property
    def size(self) -> int:
        """How many plans are kept now."""
        return self._cache.size

    @property
    def max_size(self) -> int:
        """How many plans are kept at most (4096 at first); setting it less drops the least recently used."""
        return self._cache.max_size

    def clear(self) -> None:
        """Drop every plan."""
        self._cache.clear()

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


class _PlanCaches(_PlanCache):
    """The plan caches of all devices: `[device or index]` is one device's; itself it is the current device's."""

    __slots__ = ()

    def __getitem__(self, device: Any) -> _PlanCache:
        index, count = current.index_of(device), system.device_count()
        if not 0 <= index < count:
            raise RuntimeError(
                f"cufft_plan_cache: expected 0 <= device index < {count}, but got device with index {index}"
            )
        return _PlanCache(index)


matmul = _Matmul()
cufft_plan_cache = _PlanCaches(None)


def is_built() -> bool:
    """Whether this package can drive CUDA devices: always True. It does not say that there are any."""
    return True


def set_float32_matmul_precision(precision: str) -> None:
    """How float32 matrix products compute: "highest" (float32), "high" or "medium" (inputs rounded to TF32).

    Raises RuntimeError: not a str. ValueError: another str (PyTorch warns and changes nothing).
    """
    if not isinstance(precision, str):
        raise RuntimeError(f"set_float32_matmul_precision expects a str, but got {type(precision).__name__}")
    if precision not in _PRECISIONS:
        raise ValueError(f"{precision} is not one of 'highest', 'high', or 'medium'")
    flags.float32_matmul_precision = precision
    flags.matmul_allow_tf32 = precision != "highest"


def get_float32_matmul_precision() -> str:
    """How float32 matrix products compute: "highest", "high" or "medium"."""
    return flags.float32_matmul_precision


class _Cuda(FlaggedModule):
    pass


sys.modules[__name__].__class__ = _Cuda

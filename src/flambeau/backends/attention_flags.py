"""The switches of torch.backends.cuda for attention; `torch.nn.attention` has their newer form."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from flambeau.core.flags import flags
from flambeau.core.frozen import Record
from flambeau.nn.attention import SDPBackend, sdpa_kernel
from flambeau.nn.functional import attention_choice as choice
from flambeau.tensor.tensor import Tensor


class SDPAParams(Record):
    """The arguments of `scaled_dot_product_attention`, for `can_use_flash_attention` and similar functions.

    query (..., target length, depth), key (..., source length, depth), value (..., source length, depth of
    values), attn_mask (..., target length, source length) or None.

    Raises:
        TypeError: If one is missing.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    dropout: float
    is_causal: bool
    enable_gqa: bool


def _switch(backend: SDPBackend, name: str) -> tuple[Callable[[bool], None], Callable[[], bool]]:
    """Return the functions enable_..._sdp and ..._sdp_enabled of one backend."""
    way = int(backend)

    def enable(enabled: bool) -> None:
        _check(enabled, f"set_sdp_use_{name.removesuffix('_sdp')}")
        flags.attention = flags.attention | {way} if enabled else flags.attention - {way}

    def is_enabled() -> bool:
        return way in flags.attention

    enable.__name__, is_enabled.__name__ = f"enable_{name}", f"{name}_enabled"
    enable.__doc__ = f"Whether SDPBackend.{backend.name} may be used. RuntimeError: it is set to no bool."
    is_enabled.__doc__ = enable.__doc__
    return enable, is_enabled


def _check(enabled: Any, setter: str) -> None:
    if not isinstance(enabled, bool):
        raise RuntimeError(f"{setter} expects a bool, but got {type(enabled).__name__}")


enable_flash_sdp, flash_sdp_enabled = _switch(SDPBackend.FLASH_ATTENTION, "flash_sdp")
enable_mem_efficient_sdp, mem_efficient_sdp_enabled = _switch(
    SDPBackend.EFFICIENT_ATTENTION, "mem_efficient_sdp"
)
enable_math_sdp, math_sdp_enabled = _switch(SDPBackend.MATH, "math_sdp")
enable_cudnn_sdp, cudnn_sdp_enabled = _switch(SDPBackend.CUDNN_ATTENTION, "cudnn_sdp")


def allow_fp16_bf16_reduction_math_sdp(enabled: bool) -> None:
    """Allow the products of SDPBackend.MATH to sum 16-bit numbers in their own precision, or forbid it.

    Raises:
        RuntimeError: If the value is not a bool.
    """
    _check(enabled, "set_math_sdp_allow_fp16_bf16_reduction")
    flags.attention_reduced = enabled


def fp16_bf16_reduction_math_sdp_allowed() -> bool:
    """Return True if the products of SDPBackend.MATH may sum 16-bit numbers in their own precision."""
    return flags.attention_reduced


def is_flash_attention_available() -> bool:
    """Return True if there is a kernel that never writes the scores: always True."""
    return True


def is_ck_sdpa_available() -> bool:
    """Return True if there is AMD's composable kernel: always False."""
    return False


def _can_use(way: int, params: SDPAParams, debug: bool) -> bool:
    x = params
    reason: str | None = f"{SDPBackend(way).name} has been runtime disabled."
    if x.query.device.type != "cuda":
        reason = "the tensors are on the CPU."
    elif way in flags.attention:
        reason = choice.why_not(way, x.query, x.key, x.value, x.attn_mask, x.dropout)
    if reason is not None and debug:
        warnings.warn(reason, UserWarning, stacklevel=3)
    return reason is None


def can_use_flash_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return True if SDPBackend.FLASH_ATTENTION takes a call on a CUDA device; with `debug`, a warning says why not.

    Raises:
        AttributeError: If `params` is not a SDPAParams.
    """
    return _can_use(choice.FLASH, params, debug)


def can_use_efficient_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return True if SDPBackend.EFFICIENT_ATTENTION takes a call on a CUDA device; with `debug`, a warning says why
    not.

    Raises:
        AttributeError: If `params` is not a SDPAParams.
    """
    return _can_use(choice.EFFICIENT, params, debug)


def can_use_cudnn_attention(params: SDPAParams, debug: bool = False) -> bool:
    """Return False: Flambeau does not use SDPBackend.CUDNN_ATTENTION. With `debug`, a warning says so.

    Raises:
        AttributeError: If `params` is not a SDPAParams.
    """
    return _can_use(choice.CUDNN, params, debug)


def sdp_kernel(
    enable_flash: bool = True,
    enable_math: bool = True,
    enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> AbstractContextManager[dict[str, Any]]:
    """Return the older form of `torch.nn.attention.sdpa_kernel`, with a FutureWarning.

    Attention raises RuntimeError where none is left.
    """
    warnings.warn(
        "`torch.backends.cuda.sdp_kernel()` is deprecated. In the future, this context manager will be removed. Please "
        "see `torch.nn.attention.sdpa_kernel()` for the new context manager, with updated signature.",
        FutureWarning,
        stacklevel=2,
    )
    wanted = {
        SDPBackend.FLASH_ATTENTION: enable_flash, SDPBackend.EFFICIENT_ATTENTION: enable_mem_efficient,
        SDPBackend.MATH: enable_math, SDPBackend.CUDNN_ATTENTION: enable_cudnn,
    }  # fmt: skip
    return sdpa_kernel([backend for backend, enabled in wanted.items() if enabled])

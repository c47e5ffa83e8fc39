"""`autocast`, and the functions that read and switch its state, per thread. See Note [Autocast]."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from flambeau.core.callsite import warn_program
from flambeau.core.device import device as torch_device
from flambeau.core.dtype import bfloat16, dtype, float16
from flambeau.runtime import system
from flambeau.tensor import autocast as state
from flambeau.tensor.tensor import Tensor


def is_autocast_available(device_type: str) -> bool:
    """Return True if `device_type` has autocast in PyTorch: "cuda", "cpu", and kinds that are only names here.

    Raises:
        ValueError: If it is not a str.
        RuntimeError: If it is not a device type.
    """
    _check_name(device_type)
    return torch_device(device_type).type in state.local.lower


def _check_name(device_type: Any) -> None:
    if not isinstance(device_type, str):
        raise ValueError(f"Expected `device_type` of type `str`, got: `{type(device_type)}`")


class autocast:
    """A context manager and decorator in which operators choose the dtype they run in.

    Args:
        device_type: "cuda" or "cpu".
        dtype: The lower precision, by default float16 on CUDA and bfloat16 on the CPU.
        enabled: False switches autocast off inside.
        cache_enabled: True if weights are cast once for all their uses inside (default: as around it).

    It warns and has no effect if the CPU does not support the dtype, or "cuda" is not available.

    Raises:
        ValueError, RuntimeError: If there is no such device type.
    """

    def __init__(
        self,
        device_type: str,
        dtype: dtype | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        _check_name(device_type)
        if not is_autocast_available(device_type):
            raise RuntimeError(f"User specified an unsupported autocast device_type '{device_type}'")
        if device_type == "privateuseone":
            raise AssertionError(
                "Tried to use AMP with the `privateuseone` backend, but the backend has not registered a module"
            )
        self.device = device_type
        self.fast_dtype = get_autocast_dtype(device_type) if dtype is None else dtype
        self._cache_enabled = is_autocast_cache_enabled() if cache_enabled is None else cache_enabled
        self._enabled = enabled and self._is_supported()
        self._outer: list[tuple[bool, Any, bool]] = []

    def _is_supported(self) -> bool:
        if self.device == "cuda":
            if not system.is_available():
                warn_program(
                    "CUDA is not available or torch_xla is imported. Disabling autocast.", UserWarning
                )
                return False
        elif self.fast_dtype not in (bfloat16, float16):
            warn_program(
                f"In {self.device.upper()} autocast, but the target dtype is not supported. Disabling autocast.\n"
                f"{self.device.upper()} Autocast only supports dtypes of torch.bfloat16, torch.float16 currently.",
                UserWarning,
            )
            return False
        return True

    def __enter__(self) -> autocast:
        local = state.local
        self._outer.append((local.enabled[self.device], local.lower[self.device], local.cache_enabled))
        self._switch(self._enabled, self.fast_dtype, self._cache_enabled)
        autocast_increment_nesting()
        return self

    def __exit__(self, *error: object) -> None:
        if autocast_decrement_nesting() == 0:
            clear_autocast_cache()
        self._switch(*self._outer.pop())

    def _switch(self, enabled: bool, lower: dtype, cache_enabled: bool) -> None:
        state.enable(self.device, enabled)
        state.local.lower[self.device] = lower
        state.local.cache_enabled = cache_enabled

    def __call__(self, func: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(func):
            raise TypeError(
                f"autocast()(func) requires a callable, but got {type(func).__name__}. "
                "Did you mean to use autocast as a context manager? For example:\n"
                "    with torch.autocast(device_type=...):\n"
                "        output = model(input)"
            )

        @functools.wraps(func)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return func(*args, **kwargs)

        return wrapper


# -- custom Functions ---------------------------------------------------------------------------------------


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str, cast_inputs: dtype | None = None
) -> Any:
    """Decorate the `forward` of a Function, so that a `backward` decorated by `custom_bwd` uses its autocast state.

    Args:
        cast_inputs: If autocast is on, cast floating-point inputs to this dtype and run `forward` without autocast.
    """
    _check_name(device_type)
    if fwd is None:
        return functools.partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @functools.wraps(fwd)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        ctx, enabled = args[0], is_autocast_enabled(device_type)
        ctx._dtype = get_autocast_dtype(device_type)
        ctx._fwd_used_autocast = enabled and cast_inputs is None
        if cast_inputs is None or not enabled:
            return fwd(*args, **kwargs)
        with autocast(device_type, enabled=False):
            return fwd(*_cast(args, device_type, cast_inputs), **_cast(kwargs, device_type, cast_inputs))

    return wrapper


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str) -> Any:
    """Decorate the `backward` of a Function to run with the autocast state of its `forward`."""
    _check_name(device_type)
    if bwd is None:
        return functools.partial(custom_bwd, device_type=device_type)

    @functools.wraps(bwd)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with autocast(device_type, enabled=args[0]._fwd_used_autocast, dtype=args[0]._dtype):
            return bwd(*args, **kwargs)

    return wrapper


def _cast(value: Any, device_type: str, to: dtype) -> Any:
    """Return tensors converted to a dtype, including those in containers."""
    if isinstance(value, Tensor):
        return value.to(to) if state.eligible(value, device_type) else value
    if isinstance(value, str | bytes | np.ndarray):
        return value
    if isinstance(value, Mapping):
        return {_cast(k, device_type, to): _cast(v, device_type, to) for k, v in value.items()}
    if isinstance(value, Iterable):
        items = (_cast(v, device_type, to) for v in value)
        return type(value)(items) if isinstance(value, list | tuple) else items  # type: ignore[call-arg]
    return value


# -- state ------------------------------------------------------------------------------------------------


def _kind(device_type: str) -> str:
    if not is_autocast_available(device_type):
        raise RuntimeError(f"unsupported autocast device type: {device_type}")
    return device_type


def is_autocast_enabled(device_type: str = "cuda") -> bool:
    """Return True if this thread autocasts on a kind of device."""
    return state.local.enabled[_kind(device_type)]


def set_autocast_enabled(device_type: Any, enabled: bool | None = None) -> None:
    """Switch this thread's autocast; with one argument, a bool, that of CUDA."""
    if enabled is None:
        device_type, enabled = "cuda", device_type
    state.enable(_kind(device_type), bool(enabled))


def get_autocast_dtype(device_type: str) -> dtype:
    """Return the lower precision of a kind of device."""
    return state.local.lower[_kind(device_type)]


def set_autocast_dtype(device_type: str, dtype: dtype) -> None:
    """Choose the lower precision of a kind of device."""
    state.local.lower[_kind(device_type)] = dtype


def is_autocast_cache_enabled() -> bool:
    """Return True if weights are cast once for all their uses."""
    return state.local.cache_enabled


def set_autocast_cache_enabled(enabled: bool) -> None:
    """Switch the cache of cast weights."""
    state.local.cache_enabled = bool(enabled)


def clear_autocast_cache() -> None:
    """Drop all cached casts of weights, including those of other threads."""
    state.local.casts.clear()


def autocast_increment_nesting() -> int:
    """Return one more `autocast` around; how many are."""
    state.local.nesting += 1
    return state.local.nesting


def autocast_decrement_nesting() -> int:
    """Return one less `autocast` around; how many are left."""
    state.local.nesting -= 1
    return state.local.nesting


def is_autocast_cpu_enabled() -> bool:
    """Return `is_autocast_enabled("cpu")` of old."""
    return is_autocast_enabled("cpu")


def set_autocast_cpu_enabled(enabled: bool) -> None:
    """Call `set_autocast_enabled("cpu", enabled)`, under an older name."""
    set_autocast_enabled("cpu", enabled)


def get_autocast_gpu_dtype() -> dtype:
    """Return `get_autocast_dtype("cuda")`, under its older name."""
    return get_autocast_dtype("cuda")


def set_autocast_gpu_dtype(dtype: dtype) -> None:
    """Call `set_autocast_dtype("cuda", dtype)`, under an older name."""
    set_autocast_dtype("cuda", dtype)


def get_autocast_cpu_dtype() -> dtype:
    """Return `get_autocast_dtype("cpu")` of old."""
    return get_autocast_dtype("cpu")


def set_autocast_cpu_dtype(dtype: dtype) -> None:
    """Call `set_autocast_dtype("cpu", dtype)`, under an older name."""
    set_autocast_dtype("cpu", dtype)

"""Switches of the `torch` namespace: the default device, determinism, threads of the CPU's arithmetic."""

from __future__ import annotations

import warnings
from typing import Any

from flambeau.core.device import device
from flambeau.core.flags import flags
from flambeau.runtime import current, system
from flambeau.runtime.devices import blas_threads
from flambeau.tensor.arguments.public import function

# -- warnings ---------------------------------------------------------------------------------------------------


@function
def set_warn_always(b: Any) -> None:
    """Set what `is_warn_always_enabled` returns. Flambeau warns at every call, so Python's filters alone decide.

    Raises:
        RuntimeError: If `b` is not a bool.
    """
    if not isinstance(b, bool):
        raise RuntimeError(f"setWarnOnlyOnce expects a bool, but got {type(b).__name__}")
    flags.warn_always = b


@function
def is_warn_always_enabled() -> bool:
    """Return True if `set_warn_always` was last called with True."""
    return flags.warn_always


# -- the default device -----------------------------------------------------------------------------------------


@function
def get_default_device() -> device:
    """Return the default device of new tensors."""
    return system.resolve(current.default.device)


@function
def set_default_device(device: Any) -> None:
    """Set the default device of new tensors in this thread; None for the CPU.

    `torch.tensor`, `as_tensor` and `asarray` also convert arrays and tensors to a device that is not None.
    """
    current.default.select(None if device is None else _device(device))


_device = device  # an argument of the functions here has the name


def _enter(self: device) -> device:
    """Make the device the default of new tensors: `with torch.device("cuda"):`."""
    current.default.left.append(current.default.selected)
    current.default.select(self)
    return self


def _leave(self: device, *error: object) -> None:
    current.default.select(current.default.left.pop())


device.__enter__ = _enter  # type: ignore[attr-defined]
device.__exit__ = _leave  # type: ignore[attr-defined]


# -- determinism --------------------------------------------------------------------------------------------------

_MODES = ("default", "warn", "error")


@function
def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    """Use bitwise reproducible kernels. If an operator has none, raise RuntimeError, or warn.

    On the CPU and on virtual GPUs all kernels are reproducible. New memory is filled too: see
    `torch.utils.deterministic`.
    """
    flags.deterministic = bool(mode)
    flags.deterministic_warn_only = bool(warn_only)


@function
def are_deterministic_algorithms_enabled() -> bool:
    """Return True if `use_deterministic_algorithms` is on."""
    return flags.deterministic


@function
def is_deterministic_algorithms_warn_only_enabled() -> bool:
    """Return True if operators that are not deterministic only warn."""
    return flags.deterministic_warn_only


@function
def set_deterministic_debug_mode(debug_mode: Any) -> None:
    """Set `use_deterministic_algorithms` by one word: "default" or 0, "warn" or 1, "error" or 2."""
    if not isinstance(debug_mode, (int, str)):
        raise TypeError(f"debug_mode must be str or int, but got {type(debug_mode)}")
    if isinstance(debug_mode, str):
        if debug_mode not in _MODES:
            raise RuntimeError(
                f"invalid value of debug_mode, expected one of `default`, `warn`, `error`, but got {debug_mode}"
            )
        debug_mode = _MODES.index(debug_mode)
    if debug_mode not in (0, 1, 2):
        raise RuntimeError(f"invalid value of debug_mode, expected 0, 1, or 2, but got {debug_mode}")
    use_deterministic_algorithms(debug_mode > 0, warn_only=debug_mode == 1)


@function
def get_deterministic_debug_mode() -> int:
    """Return 0, 1 or 2: default, warn or error."""
    if not flags.deterministic:
        return 0
    return 1 if flags.deterministic_warn_only else 2


def alert_not_deterministic(name: str) -> None:
    """Refuse, or warn of, a kernel whose results vary, if the program requires determinism."""
    if not flags.deterministic:
        return
    text = (
        f"{name} does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True{})'. "
    )
    if flags.deterministic_warn_only:
        warnings.warn(text.format(", warn_only=True"), UserWarning, stacklevel=3)
        return
    raise RuntimeError(
        text.format("")
        + "You can turn off determinism just for this operation, or you can use the 'warn_only=True' option, if "
        "that's acceptable for your application."
    )


# -- threads --------------------------------------------------------------------------------------------------------


@function
def get_num_threads() -> int:
    """Return the number of threads for products and factorizations on the CPU; other operators use the calling
    thread.
    """
    return blas_threads.count()


@function
def set_num_threads(int: Any) -> None:
    """Set the number of CPU threads. Raises RuntimeError unless it is a positive int; NotSupportedError if the BLAS has
    no such setting.
    """
    if not isinstance(int, _int) or isinstance(int, bool):
        raise RuntimeError("set_num_threads expects an int")
    blas_threads.limit(int)


_int = int


@function
def get_num_interop_threads() -> int:
    """Return 1: operators on the CPU run one after the other, on the calling thread."""
    return 1


@function
def set_num_interop_threads(int: int) -> None:
    """Take 1. Raises RuntimeError for more: there is no pool of threads between operators to widen."""
    if int <= 0:
        raise RuntimeError("Expected positive number of threads")
    if int > 1:
        raise RuntimeError(
            "set_num_interop_threads: operators on the CPU run on the calling thread; 1 is what there is"
        )


@function
def set_flush_denormal(mode: bool) -> bool:
    """Return False: NumPy always keeps subnormal numbers."""
    return False

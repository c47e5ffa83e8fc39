"""Private functions of torch.cuda that libraries use: calls that wait until CUDA is initialized, and aliases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flambeau.core.callsite import place, program_site
from flambeau.core.device import device as torch_device
from flambeau.core.errors import RaceError
from flambeau.cuda.runtime_library import DeferredCudaCallError
from flambeau.cuda.streams import get_stream_from_external, set_stream
from flambeau.runtime import current, generator, system
from flambeau.runtime.generator import Generator


def _lazy_call(callable: Callable[[], Any], **kwargs: Any) -> None:
    """Call a function now if CUDA is initialized, else as soon as it is.

    Args:
        callable: Called without arguments.
        kwargs: `seed` and `seed_all` of PyTorch, which say what the function does.

    Raises:
        DeferredCudaCallError: If the function fails later, in the call that initializes CUDA.
    """
    if system.is_initialized():
        callable()
        return
    invoked = place(program_site())

    def call() -> None:
        try:
            callable()
        except RaceError:
            raise
        except Exception as error:
            raise DeferredCudaCallError(
                f"CUDA call failed lazily at initialization with error: {error}\n\n"
                f"CUDA call was originally invoked at:\n\n{invoked}"
            ) from error

    system.defer(call)


def _is_compiled() -> bool:
    """Return True: this is a build with CUDA."""
    return True


def _exchange_device(device: int) -> int:
    """Make a device current and return the index of the former one; -1 for a negative index, which changes nothing."""
    if device < 0:
        return -1
    system.init()
    before = current.local.device
    current.local.device = current.context_at(device).index
    return before


_maybe_exchange_device = _exchange_device


def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
    """Make a stream current, and its device, by the three numbers that `torch.cuda.Stream` shows.

    Raises:
        RuntimeError: If `device_type` is not 1, which is CUDA's.
    """
    if device_type != 1:
        raise RuntimeError(f"_cuda_setStream expects device_type=1, CUDA's, but got {device_type}")
    if stream_id:
        set_stream(get_stream_from_external(stream_id, device_index))  # the native stream is the identifier
    else:
        set_stream(current.context_at(device_index).default_stream)


def _get_device(device: Any) -> torch_device:
    """Return the torch.device of a device, a str or an index of a CUDA device."""
    return torch_device("cuda", device) if isinstance(device, int) else torch_device(device)


def _get_generator(device: torch_device) -> Generator:
    """Return the default generator of a CUDA device. Initializes CUDA."""
    return generator.default_of(system.context_of(device).device)


def _get_rng_state_offset(device: Any = "cuda") -> int:
    """Return the offset of a device's default generator. Initializes CUDA.

    Args:
        device: A torch.device, str or index.
    """
    return _get_generator(_get_device(device)).get_offset()


def _set_rng_state_offset(offset: int, device: Any = "cuda") -> None:
    """Set the offset of a device's default generator. Initializes CUDA.

    Args:
        offset: A multiple of 4.
        device: A torch.device, str or index.

    Raises:
        RuntimeError: If `offset` is not a multiple of 4, or negative.
    """
    _get_generator(_get_device(device)).set_offset(offset)

"""torch.cuda.random: the default generators of CUDA devices. Seeding needs no GPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flambeau.core.device import device
from flambeau.core.flags import flags
from flambeau.core.public_names import explain_absent_names
from flambeau.runtime import generator, system
from flambeau.runtime.generator import Generator
from flambeau.tensor.functions.random import get_state, set_state
from flambeau.tensor.tensor import Tensor

__all__ = [
    "get_rng_state", "get_rng_state_all", "initial_seed", "is_portable", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "set_portable", "set_rng_state", "set_rng_state_all",
]  # fmt: skip

explain_absent_names(globals(), "torch.cuda.random")


def _default(where: Any) -> Generator:
    """Return the default generator of a CUDA device: a device, string or index. Initializes CUDA."""
    wanted = device("cuda", where) if isinstance(where, int) else device(where)
    if wanted.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {wanted}")
    return generator.default_of(system.context_of(wanted).device)


def get_rng_state(device: Any = "cuda") -> Tensor:
    """Return the generator state of a GPU as a ByteTensor: seed and offset, 16 bytes. Initializes CUDA.

    Args:
        device: torch.device, string or index; "cuda" is the current device.

    Raises:
        RuntimeError: If there is no such device.
        ValueError: If it is not a CUDA device.
    """
    return get_state(_default(device))


def get_rng_state_all() -> list[Tensor]:
    """Return the states of all GPUs."""
    return [get_rng_state(index) for index in range(system.device_count())]


def set_rng_state(new_state: Tensor, device: Any = "cuda") -> None:
    """Set the generator state of a GPU.

    Raises:
        TypeError: If the state is not a ByteTensor.
        RuntimeError: If the state has a wrong size, or there is no such device.
    """
    set_state(_default(device), new_state)


def set_rng_state_all(new_states: Iterable[Tensor]) -> None:
    """Set the generators' states of GPUs 0, 1, ... If one state is refused, none is set.

    Raises:
        TypeError: If a state is not a tensor of bytes.
        RuntimeError: If a state has a wrong size, or there are more states than GPUs.
    """
    wanted = [(_default(index), state) for index, state in enumerate(new_states)]
    before = [(source, source.state_bytes()) for source, _ in wanted]
    try:
        for source, state in wanted:
            set_state(source, state)
    except Exception:
        for source, kept in before:
            source.load_state_bytes(kept)
        raise


def manual_seed(seed: int) -> None:
    """Seed the current GPU's generator. Without a GPU it counts for one that is opened later.

    Raises:
        ValueError: If the seed has more than 64 bits.
    """
    generator.seed_current_cuda(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all GPUs, of those too that are opened later.

    Raises:
        ValueError: If the seed has more than 64 bits.
    """
    generator.seed_all_cuda(int(seed))


def seed() -> None:
    """Seed the current GPU's generator from the operating system's entropy."""
    generator.seed_current_cuda(Generator().seed())


def seed_all() -> None:
    """Seed the generators of all GPUs with one seed from the operating system."""
    generator.seed_all_cuda(Generator().seed())


def initial_seed() -> int:
    """Return the seed that the current GPU's generator was last started from. Initializes CUDA."""
    return _default("cuda").initial_seed()


def set_portable(mode: bool) -> None:
    """Draw the same numbers on every GPU model. Flambeau's own.

    PyTorch's numbers depend on the GPU's size, which says how many threads share a tensor. With True every GPU
    draws as an A100 does; with False (the default) as PyTorch does on it.

    Raises:
        TypeError: For a value that is not a bool.
    """
    if not isinstance(mode, bool):
        raise TypeError(f"set_portable() expects a bool, got {type(mode).__name__}")
    flags.portable_random = mode


def is_portable() -> bool:
    """Return True if `set_portable` is on."""
    return flags.portable_random

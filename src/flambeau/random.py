"""torch.random: the default generator of the CPU."""

from flambeau.core.public_names import explain_absent_names
from flambeau.runtime.generator import Generator
from flambeau.runtime.generator import default_cpu as default_generator
from flambeau.tensor.functions.random import (
    fork_rng,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)

__all__ = [
    "default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state",
    "thread_safe_generator",
]  # fmt: skip


def thread_safe_generator() -> Generator | None:
    """Return the generator that a loader's worker thread draws from; None elsewhere, which means the default one.

    Always None: workers of `DataLoader` are processes.
    """
    return None


explain_absent_names(globals(), "torch.random")

"""`Generator`: a random number generator of one device. Owner of the default generators and their offsets.

Unlike PyTorch, whose default generators start from the operating system's entropy, ours start from PyTorch's
documented default seed: a run without `manual_seed` repeats exactly, as each run on virtual GPUs must.

Ranks that are threads take turns at the generators (`Defaults`): each has its own, as processes have. The order
of ranks may depend on the schedule, but the numbers that a rank draws must not.
"""

from __future__ import annotations

import os
import struct
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from flambeau.core.device import CPU, device
from flambeau.core.public_names import lacks
from flambeau.core.random import MersenneTwister
from flambeau.runtime import current, system
from flambeau.runtime.device_context import Context
from flambeau.runtime.hooks import capture_breaks
from flambeau.runtime.philox import Draws, Philox

DEFAULT_SEED = 67280421310721
# PyTorch's layout: seed, left, seeded, next, 624 words, then the cached normal (x, y, rho, valid; float, valid).
_CPU_STATE = struct.Struct("<QiiQ624Q3di4xf?3x")


class Generator:
    """A generator: MT19937 on the CPU, Philox 4x32-10 (a seed and an offset) on a CUDA device.

    Args:
        device: "cpu" (the default; None is the same), "cuda" or "cuda:1".

    A copy or unpickled generator has an independent state that begins as this one's.

    Raises:
        RuntimeError: If there is no such device, or it is of another type.
    """

    __slots__ = ("__dict__", "__weakref__", "device", "engine", "lock", "philox")

    def __init__(self, device: Any = "cpu") -> None:
        self.device: device = CPU if device is None else _as_device(device)
        self.lock = threading.Lock()
        self.engine = MersenneTwister(DEFAULT_SEED) if self.device is CPU else None
        self.philox = Philox(DEFAULT_SEED)  # other generators may share it

    def __repr__(self) -> str:
        return f"<torch.Generator device={self.device}>"

    if not TYPE_CHECKING:  # otherwise a type checker would not find misspelled names
        __getattr__ = lacks

    def manual_seed(self, seed: int) -> Generator:
        """Restart the generator from `seed` (64 bits; negative values wrap). The seed cannot change during a graph
        capture.

        Raises:
            RuntimeError: If the value is not an int, or it is another seed during a capture.
            ValueError: If the seed has more than 64 bits.
        """
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
            raise RuntimeError(f"manual_seed expected a long, but got {type(seed).__name__}")
        seed = checked_seed(seed)
        if self.engine is not None:
            with self.lock:
                self.engine.reseed(seed)
            return self
        capture_breaks.leave("a generator is seeded")
        if self._draws() is None:
            with self.philox.lock:
                self.philox.seed, self.philox.offset = seed, 0
        else:
            self._keep_seed(seed)
        return self

    def seed(self) -> int:
        """Restart the generator from the operating system's entropy. Returns the seed."""
        self._refuse_in_capture("seed")
        seed = int.from_bytes(os.urandom(8), "little") & 0x1FFFFFFFFFFFFF
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """Return the seed from which the generator was last started."""
        return self.philox.seed if self.engine is None else self.engine.seed

    def get_offset(self) -> int:
        """Return the number of random numbers used up in each subsequence of a CUDA generator's Philox counter.

        Raises:
            RuntimeError: If the CPU's has none.
        """
        if self.engine is not None:
            raise RuntimeError("CPU Generator does not use offset")
        self._refuse_in_capture("get_offset")
        return self.philox.offset

    def set_offset(self, offset: int) -> Generator:
        """Set the offset of a CUDA generator.

        Raises:
            RuntimeError: If the offset is not a multiple of 4, or the generator is the CPU's.
        """
        if self.engine is not None:
            raise RuntimeError("CPU Generator does not use offset")
        self._refuse_in_capture("set_offset")
        if not 0 <= offset < 1 << 63 or offset % 4:
            raise RuntimeError(f"offset must be a multiple of 4 and not negative, got {offset}")
        with self.philox.lock:
            self.philox.offset = offset
        return self

    def reserve(self, increment: int) -> tuple[int, int]:
        """Return (seed, offset) for a kernel that uses `increment` numbers of each subsequence, and advance the offset.

        In a capture they stand for the numbers of each launch: see Note [Random numbers of graphs].
        """
        return reserve(self.philox, self.device, increment)

    # -- states that generators share ---------------------------------------------------------------------
    def graphsafe_get_state(self) -> Generator:
        """Return a generator that shares its state with this one: a draw from either advances both. CUDA only.

        The call is allowed during a graph capture.

        Raises:
            NotImplementedError: For the CPU's generator.
        """
        self._require_philox("graphsafe_get_state")
        return _of_state(self.device, self.philox)

    def graphsafe_set_state(self, state: Generator) -> None:
        """Share the state of another CUDA generator from now on, also during a graph capture.

        Raises:
            TypeError: If the argument is not a generator.
            NotImplementedError: If this is a generator of the CPU.
            RuntimeError: If the argument is a generator of the CPU.
        """
        if not isinstance(state, Generator):
            raise TypeError(f"expected a Generator, but got {type(state).__name__}")
        self._require_philox("graphsafe_set_state")
        if state.engine is not None:
            raise RuntimeError("Expected a CUDA Generator")
        self.philox = state.philox

    def clone_state(self) -> Generator:
        """Return a new generator of the same device with an independent copy of the current state."""
        self._refuse_in_capture("clone_impl")
        if self.engine is None:
            return _of_state(self.device, self.philox.copy())
        twin = Generator(self.device)
        with self.lock:
            twin.engine = self.engine.copy()
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        return Generator, (self.device,), self.state_bytes()

    def __setstate__(self, state: bytes) -> None:
        self.load_state_bytes(state)

    def _require_philox(self, what: str) -> None:
        if self.engine is not None:
            raise NotImplementedError(f"{what} is not supported in this Generator")

    # -- states as bytes ----------------------------------------------------------------------------------
    def state_bytes(self) -> bytes:
        """Return the state in PyTorch's layout: 5,056 bytes on the CPU; seed and offset, 16 bytes, on CUDA.

        During a capture the offset counts from its beginning, because the graph may draw the same numbers again.
        """
        if self.engine is not None:
            with self.lock:
                return _pack_cpu_state(self.engine)
        draws, philox = self._draws(), self.philox
        with philox.lock:
            return struct.pack("<Qq", philox.seed, philox.offset if draws is None else draws.offset(philox))

    def load_state_bytes(self, state: bytes) -> None:
        """Set the state. A CUDA generator also accepts the 8 bytes of a seed. In a capture see `state_bytes`.

        Raises:
            RuntimeError: If the size is wrong, or the seed differs during a capture.
        """
        wanted = 16 if self.engine is None else _CPU_STATE.size
        if self.engine is None and len(state) == 8:
            state += bytes(8)
        if len(state) != wanted:
            raise RuntimeError(
                f"RNG state is wrong size: a generator of {self.device} has {wanted} bytes, got {len(state)}"
            )
        if self.engine is not None:
            with self.lock:
                _unpack_cpu_state(self.engine, state)
            return
        seed, offset = struct.unpack("<Qq", state)
        draws, philox = self._draws(), self.philox
        if draws is None:
            with philox.lock:
                philox.seed, philox.offset = seed, offset
        else:
            self._keep_seed(seed)
            draws.set_offset(philox, offset)

    # -- captures -----------------------------------------------------------------------------------------
    def _draws(self) -> Draws | None:
        return draws_on(self.device)

    def _keep_seed(self, seed: int) -> None:
        if seed != self.philox.seed:
            raise RuntimeError(
                "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same "
                "as the original seed."
            )

    def _refuse_in_capture(self, what: str) -> None:
        capture_breaks.leave("the state of a generator is read or set")
        if self.engine is None and self._draws() is not None:
            raise RuntimeError(f"Cannot call CUDAGeneratorImpl::{what} during CUDA graph capture")


def _of_state(where: device, philox: Philox) -> Generator:
    made = Generator(where)
    made.philox = philox
    return made


def reserve(philox: Philox, where: device, increment: int) -> tuple[int, int]:
    """Return (seed, offset) for a kernel: from a graph's draws if the device's current stream is captured."""
    draws = draws_on(where)
    return philox.take(increment) if draws is None else draws.take(philox, increment)


_captures: list[Draws] = []  # captures under way, the latest last


def begin_capture() -> Draws:
    """Assign the draws of the recorded streams to a graph's capture from now on, until `end_capture`."""
    draws = Draws()
    _captures.append(draws)
    return draws


def end_capture(draws: Draws) -> None:
    """End the assignment of draws to a graph's capture."""
    _captures.remove(draws)


def draws_on(where: device) -> Draws | None:
    """Return the draws of the graph that a CUDA device's current stream is captured into; None without a capture.

    If there are several captures, this is the one that the calling thread began.
    """
    if not _captures or where is CPU:
        return None
    context = system.context_of(where)
    if not current.stream_at(context.index).is_capturing():
        return None
    mine = [draws for draws in _captures if draws.thread == threading.get_ident()]
    return (mine or _captures)[-1]


def checked_seed(seed: Any) -> int:
    """Return a seed as 64 unsigned bits.

    Raises:
        ValueError: If it does not fit, as PyTorch says it.
    """
    seed = int(seed)
    if not -(1 << 63) <= seed < 1 << 64:
        raise ValueError(
            f"Overflow when unpacking long long: seed {seed} is outside [-0x8000_0000_0000_0000, 0xffff_ffff_ffff_ffff]"
        )
    return seed & 0xFFFFFFFFFFFFFFFF


def _as_device(where: Any) -> device:
    found = system.resolve(where if isinstance(where, device) else device(where))
    if found.type == "cpu":
        return CPU
    if found.type == "meta":
        raise RuntimeError("META device type not an accelerator.")
    if found.type != "cuda":
        raise RuntimeError(f"Device type {found.type.upper()} is not supported for torch.Generator() api.")
    count = system.device_count()
    if not count:
        system.init()  # raises, with the reason
    if not 0 <= (found.index or 0) < count:
        raise RuntimeError(
            f"The device_index is invalid: {found} was asked for, and there are {count} devices"
        )
    return found


def _pack_cpu_state(engine: MersenneTwister) -> bytes:
    key, used = engine.words_and_position
    left, following = (
        (1, 0) if used == 624 else (625 - used, used)
    )  # with left = 1 the next draw twists first
    normal = engine.normal
    return _CPU_STATE.pack(
        engine.seed,
        left,
        1,
        following,
        *key.tolist(),
        0.0,
        normal or 0.0,
        0.0,
        normal is not None,
        0.0,
        False,
    )


def _unpack_cpu_state(engine: MersenneTwister, state: bytes) -> None:
    seed, left, _, following, *rest = _CPU_STATE.unpack(state)
    engine.seed = seed
    engine.words_and_position = (np.array(rest[:624], np.uint64), 624 if left == 1 else following)
    engine.normal = rest[625] if rest[627] else None


default_cpu = Generator()
_default_cuda: dict[Context, Generator] = {}
_early_seeds: dict[int, int] = {}  # device index -> seed set before the device was opened
_cuda_seed = DEFAULT_SEED  # the initial seed of the other CUDA generators


class Defaults:
    """The states of the default generators: the CPU's, each GPU's, and the seed of GPUs that are opened later."""

    def __init__(
        self, cpu: MersenneTwister, cuda: dict[Context, Generator], early: dict[int, int], seed: int
    ) -> None:
        self.cpu = cpu
        self.cuda = cuda
        self.early = early
        self.seed = seed

    def copy(self) -> Defaults:
        """Return generators with a copy of the state: they draw the same numbers independently."""
        cuda = {context: _of_state(made.device, made.philox.copy()) for context, made in self.cuda.items()}
        return Defaults(self.cpu.copy(), cuda, dict(self.early), self.seed)


def defaults() -> Defaults:
    """Return the default generators in use, not a copy."""
    assert default_cpu.engine is not None
    return Defaults(default_cpu.engine, _default_cuda, _early_seeds, _cuda_seed)


def use_defaults(defaults: Defaults) -> None:
    """Replace the default generators."""
    global _default_cuda, _early_seeds, _cuda_seed
    default_cpu.engine = defaults.cpu
    _default_cuda, _early_seeds, _cuda_seed = defaults.cuda, defaults.early, defaults.seed


def default_of(where: device) -> Generator:
    """Return the default generator of a device. A CUDA one starts from the seed that was set before the device was
    opened.
    """
    context = system.context_of(where)
    if context is system.host:
        return default_cpu
    found = _default_cuda.get(context)
    if found is None:
        seed = _early_seeds.pop(context.index, _cuda_seed)
        found = _default_cuda.setdefault(context, _of_state(context.device, Philox(seed)))
    return found


def cuda_defaults() -> tuple[Generator, ...]:
    """Return the default generators of all CUDA devices; none before CUDA is initialized."""
    return tuple([default_of(c.device) for c in system.contexts()]) if system.is_initialized() else ()


def seed_current_cuda(seed: int) -> None:
    """Seed the current CUDA device's default generator; also before CUDA is initialized."""
    index, seed = current.local.device, checked_seed(seed)
    if system.is_initialized():
        default_of(device("cuda", index)).manual_seed(seed)
    else:
        _early_seeds[index] = seed


def seed_all_cuda(seed: int) -> None:
    """Seed the default generators of all CUDA devices, also of those that are opened later."""
    global _cuda_seed
    _cuda_seed = checked_seed(seed)
    _early_seeds.clear()
    for generator in _default_cuda.values():
        generator.manual_seed(seed)


def _forget_closed() -> None:
    """Remove the generators of closed machines; a suspended machine keeps its generators."""
    for context in [c for c in _default_cuda if c.closed]:
        del _default_cuda[context]


system.on_close(_forget_closed)

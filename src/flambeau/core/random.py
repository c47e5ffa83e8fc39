"""The two random engines and the arithmetic that turns their bits into numbers. Pure: no default generator here.

- `MersenneTwister`: MT19937, seeded by Knuth's rule from the seed's low 32 bits: PyTorch's CPU generator.
- `philox`: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), counter-based:
  the generator of CUDA devices. `DrawGrid` is PyTorch's rule of which thread's which draw an element gets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flambeau.core.frozen import Record

Array = np.ndarray[Any, Any]
U32 = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)


class MersenneTwister:
    """PyTorch's CPU engine: 32-bit words in sequence, and the second half of the last pair of normals."""

    __slots__ = ("_made", "normal", "seed")

    def __init__(self, seed: int) -> None:
        self._made: np.random.MT19937 | None = None
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        self.seed = seed & 0xFFFFFFFFFFFFFFFF
        self.normal: float | None = None
        if self._made is not None:
            self._made._legacy_seeding(self.seed & 0xFFFFFFFF)

    def copy(self) -> MersenneTwister:
        """Return an independent engine with equal state."""
        other = MersenneTwister(self.seed)
        if self._made is not None:
            other._bits.state = self._made.state
        other.normal = self.normal
        return other

    @property
    def _bits(self) -> np.random.MT19937:
        """Return NumPy's engine, created on first use because NumPy does not import `numpy.random` itself."""
        if self._made is None:
            self._made = np.random.MT19937(0)
            self._made._legacy_seeding(self.seed & 0xFFFFFFFF)
        return self._made

    def words(self, count: int) -> Array:
        """Return the next `count` 32-bit words, as uint64."""
        return self._bits.random_raw(count)

    def long_words(self, count: int) -> Array:
        """Return the next `count` 64-bit words: of two words, the first is the high half."""
        pairs = self.words(2 * count)
        return (pairs[0::2] << SHIFT) | pairs[1::2]

    @property
    def words_and_position(self) -> tuple[Array, int]:
        """Return the 624 words of state and how many of them are used up."""
        state: Any = self._bits.state["state"]
        return state["key"], state["pos"]

    @words_and_position.setter
    def words_and_position(self, value: tuple[Array, int]) -> None:
        key, position = value
        self._bits.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.asarray(key, np.uint32), "pos": int(position)},
        }


class DrawGrid(Record):
    """The assignment of draws in PyTorch's CUDA kernels: a grid of threads, each with its own Philox subsequence.

    Thread t takes elements t, t + T, t + 2T, ... (T threads in all), `per_draw` of them from each draw of four
    words; the grid depends on the GPU's size, so the numbers do too.
    """

    multiprocessors: int
    threads_per_multiprocessor: int

    BLOCK = 256

    def threads(self, numel: int) -> int:
        full = self.multiprocessors * (self.threads_per_multiprocessor // self.BLOCK)
        return self.BLOCK * min(full, -(-numel // self.BLOCK))

    def rounds(self, numel: int, per_draw: int) -> int:
        return (numel - 1) // (self.threads(numel) * per_draw) + 1

    def increment(self, numel: int, per_draw: int) -> int:
        """Return the amount by which a kernel over `numel` elements advances the generator's offset."""
        return self.rounds(numel, per_draw) * 4

    def draws(self, seed: int, offset: int, numel: int, per_draw: int) -> Iterator[tuple[int, Array]]:
        """Yield, for each round, its first element and the drawn words (4, threads)."""
        threads = self.threads(numel)
        for turn in range(self.rounds(numel, per_draw)):
            yield turn * threads * per_draw, philox(seed, offset // 4 + turn, threads)


PORTABLE = DrawGrid(108, 2048)
"""An A100's grid. With it every GPU model draws the same numbers."""

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox(seed: int, counter: int, subsequences: int, first: int = 0) -> Array:
    """Return philox 4x32-10 as uint64 of shape (4, subsequences): four words for each subsequence at one counter."""
    key0, key1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    c0 = np.full(subsequences, counter & 0xFFFFFFFF, np.uint64)
    c1 = np.full(subsequences, (counter >> 32) & 0xFFFFFFFF, np.uint64)
    c2 = np.arange(first, first + subsequences, dtype=np.uint64)
    c3 = np.zeros(subsequences, np.uint64)
    for _ in range(10):
        low0, low1 = c0 * _M0, c2 * _M1
        c0, c1 = (low1 >> SHIFT) ^ c1 ^ np.uint64(key0), low1 & U32
        c2, c3 = (low0 >> SHIFT) ^ c3 ^ np.uint64(key1), low0 & U32
        key0, key1 = (key0 + _W0) & 0xFFFFFFFF, (key1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3])


# Note [Permutations of GPUs]
# PyTorch's: as many random keys as elements, of 32 bits, or of 64 where more are needed. Places are sorted by the low
# bits of the keys, so many that with a chance of 0.9 all are different; then the places under one key are shuffled by
# the thread that is where they begin. A key is an integer `random_(least, greatest)`, so the greatest is never drawn.


def permutation_bits(count: int) -> int:
    """Return the number of key bits by which a permutation of `count` elements is sorted."""
    n, threshold = float(count), math.log(0.9) * 12
    return min(64, math.ceil(math.log2(n - (6 * n * n + 1) / threshold)))


# -- cuRAND's transforms of Philox words ---------------------------------------------------------------

_INV32 = np.float32(2.0**-32)
_INV53 = 2.0**-53


def uniform_float(words: Array) -> Array:
    """Convert each word to a float32 in (0, 1]."""
    return words.astype(np.uint32).astype(np.float32) * _INV32 + _INV32 / np.float32(2)


def uniform_double(words: Array) -> Array:
    """Convert each pair of words to a float64 in (0, 1]: shape (2, n) from (4, n)."""
    return _long_bits(words) * _INV53 + _INV53 / 2


def normal_float(words: Array) -> Array:
    """Apply Box-Muller to each pair of words: (sin, cos), in the shape of the words."""
    out = np.empty(words.shape, np.float32)
    for i in range(0, len(words), 2):
        radius = np.sqrt(np.float32(-2) * np.log(uniform_float(words[i])))
        turn = np.float32(2.0**-32 * 2 * np.pi)
        angle = words[i + 1].astype(np.uint32).astype(np.float32) * turn + turn / np.float32(2)
        out[i], out[i + 1] = np.sin(angle) * radius, np.cos(angle) * radius
    return out


def normal_double(words: Array) -> Array:
    """Apply Box-Muller to four words: two float64, shape (2, n)."""
    bits = _long_bits(words)
    radius = np.sqrt(-2.0 * np.log(bits[0] * _INV53 + _INV53 / 2))
    angle = (bits[1] * (2 * _INV53) + _INV53) * np.pi
    return np.stack([np.sin(angle) * radius, np.cos(angle) * radius])


def _long_bits(words: Array) -> Array:
    return (words[0::2] ^ (words[1::2] << np.uint64(21))).astype(np.float64)

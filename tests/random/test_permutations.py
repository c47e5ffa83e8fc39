"""`randperm` on CUDA: PyTorch's rule written out element by element, beside the kernels'."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core.random import permutation_bits, philox

# 25 000 places are sorted by 32 bits, as signed numbers; 31 000 and more by keys of 64 bits.
SIZES = [1, 2, 3, 4, 5, 17, 100, 255, 256, 257, 1000, 21_000, 25_000, 31_000]


def by_the_rule(n: int, seed: int, offset: int, threads: int) -> tuple[list[int], int]:
    """The permutation, and how many places shared a key."""
    bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (math.log(0.9) * 12))))
    width = 32 if bits <= 32 else 64
    turns = (n - 1) // (2 * threads) + 1
    drawn = [philox(seed, offset // 4 + turn, threads).tolist() for turn in range(turns)]
    keys = []
    for i in range(n):
        turn, half, thread = i // (2 * threads), i // threads % 2, i % threads
        high, low = drawn[turn][2 * half][thread], drawn[turn][2 * half + 1][thread]
        key = ((high << 32 | low) % (2**width - 1) - 2 ** (width - 1)) % 2**bits
        keys.append(key - 2**width if bits == width and key >= 2 ** (width - 1) else key)
    order = sorted(range(n), key=keys.__getitem__)
    at = shared = 0
    while at < n:
        size = 1
        while at + size < n and keys[order[at + size]] == keys[order[at]]:
            size += 1
        shared += size if size > 1 else 0
        words = [
            w
            for t in range((size + 2) // 4)
            for w in philox(seed, offset // 4 + turns + t, 1, at)[:, 0].tolist()
        ]
        for k, i in enumerate(range(size - 1, 0, -1)):
            other = words[k] % (i + 1)
            order[at + i], order[at + other] = order[at + other], order[at + i]
        at += size
    return order, shared


def drawn(n: int, seed: int, offset: int, **options: Any) -> tuple[list[int], int]:
    generator = torch.Generator("cuda").manual_seed(seed)
    state = generator.get_state()
    state[8:] = torch.tensor(list(offset.to_bytes(8, "little")), dtype=torch.uint8)
    generator.set_state(state)
    found = torch.randperm(n, device="cuda", generator=generator, **options)
    return found.tolist(), int.from_bytes(bytes(generator.get_state().tolist()[8:]), "little")


@pytest.mark.parametrize("n", SIZES)
def test_the_order_is_the_rules(n: int) -> None:
    with torch.virtual(profile="h100"):
        for seed, offset in ((0, 0), (1234, 8), (2**63 + 5, 2**33)):
            want, _ = by_the_rule(n, seed, offset, min(132 * 8 * 256, -(-n // 256) * 256))
            assert drawn(n, seed, offset)[0] == want


def test_the_generator_goes_on_by_the_keys_and_a_number_for_each_place() -> None:
    with torch.virtual(profile="h100"):
        for n in (1, 7, 5000):
            assert drawn(n, 1, 16)[1] == 16 + 4 + -(-n // 4) * 4
        n = 2 * 132 * 2048 + 1
        assert drawn(n, 1, 0)[1] == 8 + n + 3


def test_places_under_one_key_are_shuffled() -> None:
    """Of a hundred seeds about ten have such places."""
    with torch.virtual():
        with_shared = 0
        for seed in range(100):
            want, shared = by_the_rule(300, seed, 0, 512)
            with_shared += shared > 0
            assert drawn(300, seed, 0)[0] == want
        assert 3 <= with_shared <= 25


def test_several_rounds_of_the_grid() -> None:
    n = 600_000
    with torch.virtual(profile="h100"):
        found, _ = drawn(n, 3, 0, dtype=torch.int32)
    assert np.array_equal(np.sort(found), np.arange(n)) and abs(np.corrcoef(found, np.arange(n))[0, 1]) < 0.01


def test_bits_of_keys() -> None:
    """By the same chance that PyTorch takes: 0.9 that all keys differ."""
    assert [permutation_bits(n) for n in (1, 2, 10, 1000, 21_000, 25_000, 31_000, 1 << 20)] == [
        3,
        5,
        9,
        23,
        31,
        32,
        33,
        43,
    ]
    for n in (10, 1000, 100_000):
        different = math.exp(-n * (n - 1) / 2 / 2 ** permutation_bits(n))
        assert 0.89 < different < 0.96


def test_every_permutation_comes_about_as_often() -> None:
    with torch.virtual():
        counts: dict[tuple[int, ...], int] = {}
        for _ in range(1200):
            order = tuple(torch.randperm(3, device="cuda").tolist())
            counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6 and all(140 < count < 260 for count in counts.values())

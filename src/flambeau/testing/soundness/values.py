"""`is_visible`: a check whether the order of two nodes can change what a program prints, according to the model.

Values are symbols: a written value is named by its node and the symbols that the node read. Two orders that leave the
same symbols leave the same bits. Orders that leave different symbols may still leave the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flambeau.testing.soundness.model import Life, Model, ModelRace


def is_visible(model: Model, race: ModelRace) -> bool:
    """Return True if running the second node of a race first changes the symbols of printed values."""
    count, alias = len(model.before), _alias(model, race)
    usual = _run_symbolically(model, range(count), alias)
    return any(_run_symbolically(model, order, alias) != usual for order in _orders_of_race(model, race))


def _alias(model: Model, race: ModelRace) -> dict[Life, Life]:
    """Return a map that gives the later allocation of a reuse the memory of the earlier one."""
    if race.kind != "reuse":
        return {}
    for life, _, _ in model.uses[race.first]:
        for other, _, _ in model.uses[race.second]:
            if life is not other and life.pool == other.pool:
                return {other: life}
    return {}


def _orders_of_race(model: Model, race: ModelRace) -> list[list[int]]:
    """Return two orders: the recorded direction, and one that runs the second node of a race before the first.

    In the latter the first node and its successors are as late as possible, the second and its predecessors as early.
    """
    first, second, nodes = race.first, race.second, range(len(model.before))
    late = [n for n in nodes[: second + 1] if n == first or model.before[n] >> first & 1]
    early = [n for n in nodes[: second + 1] if n == second or model.before[second] >> n & 1]
    rest = list(nodes[second + 1 :])
    before, between = list(nodes[:first]), nodes[first : second + 1]
    return [
        [*[n for n in nodes[: second + 1] if n not in late], *late, *rest],
        [*before, *[n for n in early if n >= first], *[n for n in between if n not in early], *rest],
    ]


def _run_symbolically(model: Model, order: Sequence[int], alias: dict[Life, Life]) -> list[int]:
    """Return the symbols that the host reads during the run, and those at its end."""
    memory: dict[Life, NDArray[np.int64]] = {}

    def symbols(life: Life, mask: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        where, chosen = alias.get(life, life), _flags(mask)
        size = max(life.nbytes, where.nbytes, len(chosen))
        if where not in memory or len(memory[where]) < size:
            memory[where] = np.concatenate(
                [memory.get(where, np.zeros(0, np.int64)), np.zeros(size, np.int64)]
            )
        return memory[where], chosen

    def read(life: Life, mask: int) -> int:
        there, chosen = symbols(life, mask)
        return hash(there[: len(chosen)][chosen].tobytes())

    printed: list[tuple[int, int]] = []
    for node in order:
        uses = model.uses[node]
        value = hash((node, *[read(life, mask) for life, mask, writes in uses if not writes]))
        moved: Any = value
        if node in model.copies and uses[0][1].bit_count() == uses[1][1].bit_count():
            there, chosen = symbols(*uses[0][:2])
            moved = there[: len(chosen)][chosen]
        for life, mask, writes in uses:
            if writes:
                there, chosen = symbols(life, mask)
                there[: len(chosen)][chosen] = moved
        if not any(writes for _, _, writes in uses):
            printed.append((node, value))
    left = [(v.storage.life, v.mask) for host in model.hosts.values() for v in host.names.values()]
    left += [(life, (1 << life.nbytes) - 1) for life in model.kept]
    return [value for _, value in sorted(printed)] + [read(life, mask) for life, mask in left]


@lru_cache(1 << 10)
def _flags(mask: int) -> NDArray[np.bool_]:
    packed = np.frombuffer(mask.to_bytes((mask.bit_length() + 7) // 8, "little"), np.uint8)
    return np.unpackbits(packed, bitorder="little").astype(bool)

"""Collectives as steps of messages between pairs of ranks: `steps_of` for each kind of `driver.protocol.Collective`.

A step is a list of transfers that are under way together. Reductions are computed in the order of the ranks by
`driver/collective_rules.py`, so results equal those of virtual GPUs and of ranks that are threads, bit for bit. Small
tensors travel whole, in one step. Of large ones each rank reduces a part: first all send their numbers for a part to
its rank, then that rank sends its result to those that need it. Each rank then sends and receives about twice the
tensor's size, which is the least possible and what a ring takes, in two steps in place of a ring's 2 * (size - 1). Very
large ones are reduced in segments, one after the other, so that the received numbers stay in the processor's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from flambeau.core.host_arrays import array_at, bytes_at
from flambeau.driver.collective_rules import reduce_arrays
from flambeau.driver.protocol import Collective

Array = np.ndarray[Any, Any]
SMALL = 1 << 15  # bytes of the largest message that is sent before its receiver is ready
_SEGMENT = 1 << 20  # bytes that a rank reduces in one step
_EXCHANGES = 1 << 63  # the first sub-number of messages that the program lists itself


class Transfer(NamedTuple):
    """One message of a step: `memory` is sent to rank `peer` or received from it.

    Attributes:
        sub: Number that distinguishes the messages of one collective between two ranks.
    """

    sends: bool
    peer: int
    sub: int
    memory: Array


Steps = Iterator[Sequence[Transfer]]


def steps_of(call: Collective, index: int, rank: int, size: int) -> Steps:
    """Return the steps of a collective.

    Args:
        index: Position of the collective among those that were issued together.
    """
    return _STEPS[call.kind](call, index << 32, rank, size)


def exchange(calls: Sequence[Collective], rank: int) -> Steps:
    """Return the steps of a list of messages, to and from any ranks."""
    counts: dict[tuple[bool, int], int] = {}
    step, sent, received = [], [], []
    for call in calls:
        sends = call.kind == "send"
        memory = bytes_at(call.source if sends else call.target, call.count * call.dtype.itemsize)
        if call.peer == rank:
            (sent if sends else received).append(memory)
            continue
        number = counts[sends, call.peer] = counts.get((sends, call.peer), -1) + 1
        step.append(Transfer(sends, call.peer, _EXCHANGES + number, memory))
    for source, target in zip(sent, received, strict=True):
        target[...] = source
    yield step


def _broadcast(call: Collective, sub: int, rank: int, size: int) -> Steps:
    if rank != call.peer:
        yield [Transfer(False, call.peer, sub, _bytes(call.target, call))]
        return
    source = _bytes(call.source, call)
    if call.target != call.source:
        _bytes(call.target, call)[...] = source
    yield [Transfer(True, peer, sub, source) for peer in range(size) if peer != rank]


def _all_gather(call: Collective, sub: int, rank: int, size: int) -> Steps:
    source, rows = _bytes(call.source, call), _bytes(call.target, call, size).reshape(size, -1)
    rows[rank] = source  # may be a copy of memory to itself
    yield [
        transfer
        for peer in range(size)
        if peer != rank
        for transfer in (Transfer(True, peer, sub, rows[rank]), Transfer(False, peer, sub, rows[peer]))
    ]


def _reduce_scatter(call: Collective, sub: int, rank: int, size: int) -> Steps:
    source = _numbers(call.source, call.count * size, call).reshape(size, -1)
    rows = np.empty_like(source)
    yield _swap(rank, sub, source, rows)
    _numbers(call.target, call.count, call)[...] = _reduce_rows(rows, rank, source[rank], call)


def _all_reduce(call: Collective, sub: int, rank: int, size: int) -> Steps:
    return _reduce_for(range(size), call, sub, rank, size)


def _reduce(call: Collective, sub: int, rank: int, size: int) -> Steps:
    return _reduce_for([call.peer], call, sub, rank, size)


def _reduce_for(roots: Sequence[int], call: Collective, sub: int, rank: int, size: int) -> Steps:
    """Yield the steps of a reduction whose result the ranks `roots` receive."""
    source = _numbers(call.source, call.count, call)
    if source.nbytes <= SMALL:
        rows = np.empty((size if rank in roots else 0, call.count), source.dtype)
        yield [
            *[Transfer(True, root, sub, _as_bytes(source)) for root in roots if root != rank],
            *[Transfer(False, peer, sub, _as_bytes(row)) for peer, row in enumerate(rows) if peer != rank],
        ]
        if rank in roots:
            _numbers(call.target, call.count, call)[...] = _reduce_rows(rows, rank, source, call)
        return
    target = _numbers(call.target, call.count, call) if rank in roots else source
    segment = size * max(_SEGMENT // source.itemsize, 1)
    for number, first in enumerate(range(0, call.count, segment)):
        here = slice(first, first + segment)
        yield from _reduce_segment(roots, source[here], target[here], call, sub + 2 * number, rank, size)


def _reduce_segment(
    roots: Sequence[int], source: Array, target: Array, call: Collective, sub: int, rank: int, size: int
) -> Steps:
    """Yield the steps that reduce a segment of a large tensor, of which each rank reduces a part."""
    cuts = [source.size * part // size for part in range(size + 1)]
    parts = [slice(a, b) for a, b in pairwise(cuts)]
    mine = source[parts[rank]]
    rows = np.empty((size, mine.size), source.dtype)
    yield _swap(rank, sub, [source[part] for part in parts], rows)
    result = _reduce_rows(rows, rank, mine, call)
    step = [Transfer(True, root, sub + 1, _as_bytes(result)) for root in roots if root != rank]
    if rank in roots:
        target[parts[rank]] = result
        step += [
            Transfer(False, peer, sub + 1, _as_bytes(target[part]))
            for peer, part in enumerate(parts)
            if peer != rank
        ]
    yield step


def _swap(rank: int, sub: int, sent: Sequence[Array], rows: Array) -> list[Transfer]:
    """Return the transfers that send each rank its part of this rank's rows, and receive this rank's part of all
    others'.
    """
    return [
        transfer
        for peer, part in enumerate(sent)
        if peer != rank
        for transfer in (
            Transfer(True, peer, sub, _as_bytes(part)),
            Transfer(False, peer, sub, _as_bytes(rows[peer])),
        )
    ]


def _reduce_rows(rows: Array, rank: int, mine: Array, call: Collective) -> Array:
    """Return the reduction of all ranks' rows; `mine` is the row of this rank."""
    assert isinstance(call.op, str)
    with np.errstate(all="ignore"):  # overflow gives infinity without a warning, as on a device
        return reduce_arrays([mine if peer == rank else row for peer, row in enumerate(rows)], call.op)


def _bytes(ptr: int, call: Collective, times: int = 1) -> Array:
    return bytes_at(ptr, call.count * call.dtype.itemsize * times)


def _numbers(ptr: int, count: int, call: Collective) -> Array:
    return array_at(ptr if count else 0, (count,), call.dtype.numpy)


def _as_bytes(array: Array) -> Array:
    return array.view(np.uint8)


_STEPS: dict[str, Callable[[Collective, int, int, int], Steps]] = {
    "all_reduce": _all_reduce,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}

"""The rules of collectives that all drivers share: memory ranges, matching arguments, and results.

Reductions run in the order of the ranks, in the arithmetic of their dtype. Real rings and trees reduce in
other orders, so the last bits of sums may differ there. NCCL's rules hold: an average of floating-point
numbers scales each number before the sum; an average of integers divides the sum and truncates. Sums of
booleans are "or", products and minima are "and".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from flambeau.core.dtype import complex32, complex64, complex128, float16, float32, float64
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import Collective, PreMul

Array = np.ndarray[Any, Any]
_NONE: Mapping[int, bytes] = MappingProxyType({})

PAIRED = ("send", "recv")
REDUCING = ("all_reduce", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", *PAIRED)
OPS = ("sum", "prod", "min", "max", "avg")
Access = tuple[int, int]
"""Address and size in bytes."""


def spans(part: Collective, rank: int, size: int) -> tuple[Access | None, Access | None]:
    """Return the ranges of memory that a contribution writes and reads; None for one that it lacks."""
    nbytes = part.count * part.dtype.itemsize
    written = read = nbytes
    if part.kind == "all_gather":
        written *= size
    elif part.kind == "reduce_scatter":
        read *= size
    writes = part.kind != "send" and not (part.kind == "reduce" and rank != part.peer)
    reads = part.kind != "recv" and not (part.kind == "broadcast" and rank != part.peer)
    return ((part.target, written) if writes else None), ((part.source, read) if reads else None)


def duplicate(index: int) -> str:
    """Return the error message for two members of a communicator that join with one device."""
    return (
        f"NCCL error: invalid usage: Duplicate GPU detected: two ranks both on cuda:{index}; each member needs "
        "its own device (torch.cuda.set_device(LOCAL_RANK))"
    )


Key = tuple[int, int, int]
"""The identity of a collective instance in its communicator.

It is (sender, receiver, number) for a message, and (-1, -1, number) for a collective.
"""


class Course:
    """The sequence counter of one member.

    A member's n-th collective pairs with the n-th of every other member; its n-th message to a peer pairs
    with the peer's n-th receipt from it.
    """

    __slots__ = ("_calls", "_messages", "rank")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._calls = 0
        self._messages: dict[tuple[str, int], int] = {}  # (kind, peer) -> messages so far

    def next_key(self, call: Collective) -> Key:
        """Advance the counter and return the instance that the member's next contribution belongs to."""
        if call.kind not in PAIRED:
            self._calls += 1
            return -1, -1, self._calls
        end = (call.kind, call.peer)
        self._messages[end] = self._messages.get(end, 0) + 1
        pair = (self.rank, call.peer) if call.kind == "send" else (call.peer, self.rank)
        return *pair, self._messages[end]


def orders(call: Collective, rank: int, other: int) -> bool:
    """Return True if `other`'s contribution ends after the commands before `rank`'s, because data flows from `rank` to
    `other`.
    """
    if call.kind == "broadcast":
        return rank == call.peer
    if call.kind == "reduce":
        return other == call.peer
    if call.kind in PAIRED:
        return call.kind == "send"
    return True


def describe(call: Collective, called: Sequence[int] = ()) -> str:
    """Return a description of a contribution. `called` holds the rank numbers that the program uses."""
    peer = called[call.peer] if called and 0 <= call.peer < len(called) else call.peer
    text = f"{call.kind} of {call.count} {call.dtype.name}"
    if call.kind in REDUCING:
        text += f", op {call.op}"
    if call.kind in ROOTED:
        text += f", root {peer}"
    elif call.kind in PAIRED:
        text += f" {'to' if call.kind == 'send' else 'from'} {'any rank' if peer < 0 else f'rank {peer}'}"
    return text


def common_arguments(call: Collective) -> tuple[object, ...]:
    """Return the arguments that all contributions of one collective, or both ends of a message, must share."""
    if call.kind in PAIRED:
        return call.count, call.dtype
    op = _word(call.op) if call.kind in REDUCING else ""
    return call.kind, call.count, call.dtype, op, call.peer if call.kind in ROOTED else -1


def perform(
    calls: Sequence[Collective], window: Callable[[int, int], Array], theirs: Mapping[int, bytes] = _NONE
) -> None:
    """Compute a collective: read all sources, reduce or move the data, and write all targets.

    Args:
        calls: The contributions by rank; for a message, the sender's and the receiver's.
        window: Function of (ptr, nbytes) that returns memory as an array of bytes.
        theirs: Source data of ranks whose memory is in another process.
    """
    size = len(calls)
    sources = [
        np.frombuffer(theirs[rank], call.dtype.numpy) if rank in theirs else _source(call, rank, size, window)
        for rank, call in enumerate(calls)
    ]
    # Overflow gives infinity without a warning, as on a device.
    with np.errstate(all="ignore"):
        results = _results(calls, sources)
    for rank, result in enumerate(results):
        written, _ = spans(calls[rank], rank, size)
        if rank not in theirs and written is not None and written[1]:
            window(*written)[...] = np.ascontiguousarray(result).reshape(-1).view(np.uint8)


def _source(call: Collective, rank: int, size: int, window: Callable[[int, int], Array]) -> Array:
    """Return a copy of the range that a contribution reads, because it may overlap the target."""
    _, read = spans(call, rank, size)
    data = np.empty(0, np.uint8) if read is None or not read[1] else window(*read).copy()
    return data.view(call.dtype.numpy)


def _results(calls: Sequence[Collective], sources: list[Array]) -> list[Array]:
    call, size = calls[0], len(calls)
    if call.kind in PAIRED:
        return [sources[0]] * size
    if call.kind == "broadcast":
        return [sources[call.peer]] * size
    if call.kind == "all_gather":
        return [np.concatenate(sources)] * size
    scaled = [_scale(source, part.op) for source, part in zip(sources, calls, strict=True)]
    total = reduce_arrays(scaled, "sum" if isinstance(call.op, PreMul) else call.op)
    return list(total.reshape(size, -1)) if call.kind == "reduce_scatter" else [total] * size


def _scale(array: Array, op: str | PreMul) -> Array:
    return array * np.asarray(op.factor).astype(array.dtype) if isinstance(op, PreMul) else array


def _word(op: str | PreMul) -> str:
    return "premul_sum" if isinstance(op, PreMul) else op


def reduce_arrays(arrays: Sequence[Array], op: str) -> Array:
    """Reduce arrays of one dtype from the first to the last, by the rules in the module's docstring."""
    kind, size = arrays[0].dtype, len(arrays)
    if kind in _PARTS:
        return reduce_arrays([array.view(_PARTS[kind]) for array in arrays], op).view(kind)
    floating = op == "avg" and not np.issubdtype(kind, np.integer)
    if floating:
        scale = np.asarray(1.0 / size).astype(kind)
        arrays = [array * scale for array in arrays]
    total, combine = arrays[0].copy(), _UFUNCS[op]
    for array in arrays[1:]:
        combine(total, array, out=total)
    if op == "avg" and not floating:
        return np.asarray(np.sign(total) * (np.abs(total) // kind.type(size)), kind)
    return total


_UFUNCS = {
    "sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum, "avg": np.add,
    "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,  # for CPU tensors only
}  # fmt: skip
_PARTS = {  # complex numbers are reduced as pairs of real numbers
    complex32.numpy: float16.numpy,
    complex64.numpy: float32.numpy,
    complex128.numpy: float64.numpy,
}


def check(call: Collective, rank: int, size: int) -> None:
    """Check the arguments of a contribution without those of other members.

    Raises:
        DriverError: If no communicator of this size can run it.
    """
    if call.kind not in KINDS:
        raise DriverError(f"collective: the kind must be one of {', '.join(KINDS)}, not {call.kind!r}")
    if call.count < 0:
        raise DriverError(f"{call.kind}: the count must not be negative, got {call.count}")
    if call.kind in REDUCING:
        _check_op(call)
    if call.kind in (*ROOTED, *PAIRED) and not 0 <= call.peer < size:
        raise DriverError(f"{call.kind}: there is no rank {call.peer} among {size} (of rank {rank})")


def _check_op(call: Collective) -> None:
    word, kind = _word(call.op), call.dtype
    if word not in (*OPS, "premul_sum"):
        raise DriverError(f"{call.kind}: op must be one of {', '.join(OPS)}, not {call.op!r}")
    if (
        (kind.is_complex and word not in ("sum", "avg"))
        or (kind.name == "bool" and word == "avg")
        or (word == "premul_sum" and not kind.is_floating_point)
    ):
        raise DriverError(f"{call.kind}: op {word} of {kind.name} is not defined")

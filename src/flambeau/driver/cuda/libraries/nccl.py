"""NCCL by ctypes, an extra: `NcclCommunicators`, the communicators of one driver, and the driver protocol's
collectives.

Data that is only moved is sent as bytes, so every dtype works; reductions use NCCL's type. See Note [Contexts of real
GPUs]: NCCL uses the device whose context is current in the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_double, c_float, c_int, c_uint16, c_void_p, sizeof
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from flambeau.core.dtype import (
    bfloat16,
    bool_,
    dtype,
    float8_e4m3fn,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)  # fmt: skip
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.cuda.libraries.native_library import Id, NativeLibrary
from flambeau.driver.protocol import Collective, PreMul

_TYPES = {
    int8: 0, uint8: 1, int32: 2, uint32: 3, int64: 4, uint64: 5, float16: 6, float32: 7, float64: 8, bfloat16: 9,
    float8_e4m3fn: 10, float8_e5m2: 11,
}  # ncclDataType_t  # fmt: skip
_BYTE = _TYPES[uint8]
_OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}  # ncclRedOp_t
_BOOL_OPS = {"sum": "max", "prod": "min", "max": "max", "min": "min"}
_SCALARS: dict[dtype, Any] = {float16: c_uint16, bfloat16: c_uint16, float32: c_float, float64: c_double}
_HOST_IMMEDIATE = 1  # ncclScalarResidence_t
_IN_PROGRESS = 7
_STATUSES = {
    1: "unhandled cuda error", 2: "unhandled system error", 3: "internal error", 4: "invalid argument",
    5: "invalid usage", 6: "remote process exited or there was a network error", 7: "in progress",
}  # fmt: skip
_CALLS = {  # in the order of NCCL's arguments: s source, t target, n count, d type, o op, r root or peer
    "all_reduce": ("ncclAllReduce", "stndo"), "broadcast": ("ncclBroadcast", "stndr"),
    "reduce": ("ncclReduce", "stndor"), "all_gather": ("ncclAllGather", "stnd"),
    "reduce_scatter": ("ncclReduceScatter", "stndo"), "send": ("ncclSend", "sndr"), "recv": ("ncclRecv", "tndr"),
}  # fmt: skip
_LETTERS = {"s": "p", "t": "p", "n": "z", "d": "i", "o": "i", "r": "i"}
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class _Nccl(NativeLibrary):
    """The functions of NCCL. Creating it raises NotSupportedError if NCCL is not installed."""

    def __init__(self) -> None:
        super().__init__("nccl", "NCCL", "nccl", _STATUSES)
        self.version = self.function("ncclGetVersion", "p")
        self.unique = self.function("ncclGetUniqueId", "p")
        self.join = self.function("ncclCommInitRank", "piui")
        self.leave = self.function("ncclCommDestroy", "p")
        self.abort = self.function("ncclCommAbort", "p")
        self.error_of = self.function("ncclCommGetAsyncError", "pp")
        self._create_op = self.function("ncclRedOpCreatePreMulSum", "ppiip")
        self._destroy_op = self.function("ncclRedOpDestroy", "ip")
        self._start = self.function("ncclGroupStart", "")
        self._end = self.function("ncclGroupEnd", "")
        self.calls = {
            kind: self.function(name, "".join([_LETTERS[x] for x in order]) + "pp")
            for kind, (name, order) in _CALLS.items()
        }

    def failure(self, name: str, status: int) -> Exception:
        """Return the error of a call, with NCCL's text of its last error."""
        said = self.text("ncclGetLastError")
        return DriverError(f"{super().failure(name, status)}{f': {said}' if said else ''}")

    @contextmanager
    def create_scaled_op(self, native: int, kind: dtype, factor: float) -> Iterator[int]:
        """Create a scaled operation of a communicator, valid inside the block."""
        op = c_int()
        self._create_op(byref(op), byref(_scalar(kind, factor)), _TYPES[kind], _HOST_IMMEDIATE, native)
        try:
            yield op.value
        finally:
            self._destroy_op(op.value, native)

    def group(self, calls: Sequence[Callable[[], None]]) -> None:
        """Issue calls that wait for each other as one NCCL group. The group ends even if a call raises."""
        if len(calls) == 1:  # a single call needs no group
            return calls[0]()
        self._start()
        try:
            for call in calls:
                call()
        except BaseException:
            with suppress(DriverError):
                self._end()
            raise
        self._end()


@dataclass(slots=True)
class _Member:
    """One member of a communicator: NCCL's object, the device, and the streams that used it."""

    native: int
    index: int
    rank: int
    size: int
    streams: dict[int, None] = field(default_factory=dict)


Part = tuple[int, Collective, int, int, Any]
"""(communicator, part, device, stream's handle, native stream)."""
Enter = Callable[[int], None]
"""`enter(index)` makes a device's context current."""


class NcclCommunicators:
    """The communicators that a driver has joined, by handle. The library is loaded on first use."""

    def __init__(self) -> None:
        self._members: dict[int, _Member] = {}
        self._loaded: _Nccl | None = None

    @property
    def _nccl(self) -> _Nccl:
        if self._loaded is None:
            self._loaded = _Nccl()
        return self._loaded

    def version(self) -> int:
        """Return NCCL's version number; 22809 is 2.28.9."""
        number = c_int()
        self._nccl.version(byref(number))
        return number.value

    def unique(self) -> bytes:
        """Return a new communicator id, as `Driver.comm_id` does. Needs no GPU."""
        unique = Id()
        self._nccl.unique(byref(unique))
        return bytes(unique)

    def join(
        self,
        unique: bytes,
        size: int,
        members: Sequence[tuple[int, int]],
        enter: Enter,
        handles: Sequence[int],
    ) -> None:
        """Create communicators as `Driver.comm_create` does, under these handles."""
        _check_members(unique, size, members)
        name = Id.from_buffer_copy(unique)
        natives = [c_void_p() for _ in members]

        def joining(native: c_void_p, rank: int, index: int) -> Callable[[], None]:
            def call() -> None:
                enter(index)
                self._nccl.join(byref(native), size, name, rank)

            return call

        self._nccl.group([joining(native, *member) for native, member in zip(natives, members, strict=True)])
        for handle, native, (rank, index) in zip(handles, natives, members, strict=True):
            self._members[handle] = _Member(native.value or 0, index, rank, size)

    def find(self, comm: int) -> _Member:
        found = self._members.get(comm)
        if found is None:
            raise DriverError(f"{comm} is not a communicator of the cuda driver, or was destroyed")
        return found

    def leave(self, comm: int, abort: bool) -> None:
        """Leave a communicator whose device's context is current. Without `abort`, the work of its streams must be
        finished.
        """
        (self._nccl.abort if abort else self._nccl.leave)(self.find(comm).native)
        self.forget(comm)

    def forget(self, comm: int) -> None:
        """Drop a communicator at the end of the process without leaving it, which would wait for the other members."""
        self._members.pop(comm, None)

    def error(self, comm: int) -> str | None:
        """Return the error of a communicator, as `Driver.comm_error` does."""
        status = c_int()
        self._nccl.error_of(self.find(comm).native, byref(status))
        if status.value in (0, _IN_PROGRESS):
            return None
        return str(self._nccl.failure("a collective", status.value))

    def run(self, parts: Sequence[Part], enter: Enter) -> None:
        """Enqueue collectives as `Driver.collective` does. All are checked before any is enqueued."""
        self._nccl.group([self._call(enter, *part) for part in parts])
        for comm, _, _, stream, _ in parts:
            self._members[comm].streams[stream] = None

    def _call(
        self, enter: Enter, comm: int, part: Collective, index: int, stream: int, native: Any
    ) -> Callable[[], None]:
        member = self.find(comm)
        if index != member.index:
            raise DriverError(
                f"collective: the communicator's member is on device {member.index}, the stream on device {index}"
            )
        if part.kind not in _CALLS:
            raise DriverError(f"collective: the kind must be one of {tuple(_CALLS)}, not {part.kind!r}")
        kind, count, op = wire(part)
        order = _CALLS[part.kind][1]
        if "r" in order and not 0 <= part.peer < member.size:
            raise DriverError(f"{part.kind}: there is no rank {part.peer} among {member.size}")
        values = {"s": part.source, "t": part.target, "n": count, "d": kind, "o": op, "r": part.peer}
        call = self._nccl.calls[part.kind]

        def enqueue() -> None:
            enter(index)
            call(*[values[x] for x in order], member.native, int(native))

        def enqueue_scaled(factor: float) -> None:
            enter(index)
            with self._nccl.create_scaled_op(member.native, part.dtype, factor) as values["o"]:
                enqueue()

        return partial(enqueue_scaled, part.op.factor) if isinstance(part.op, PreMul) else enqueue

    def all(self) -> list[int]:
        """Return the handles of all communicators."""
        return list(self._members)


def wire(part: Collective) -> tuple[int, int, int]:
    """Return NCCL's arguments for one contribution: type, count, operation.

    Sums of complex numbers are sums of real and imaginary parts. Booleans are bytes 0 and 1, and their sum is the
    maximum.

    Raises:
        NotSupportedError: If NCCL has no such reduction of the dtype.
    """
    if part.kind not in _REDUCING:
        return _BYTE, part.count * part.dtype.itemsize, 0
    kind, count, op = part.dtype, part.count, part.op
    if isinstance(op, PreMul):
        if kind not in _SCALARS:
            raise NotSupportedError(f"{part.kind}: NCCL has no premul_sum of {part.dtype}")
        return _TYPES[kind], count, -1  # the operation is created for the call
    if op not in _OPS:
        raise DriverError(f"{part.kind}: the op must be one of {tuple(_OPS)}, not {op!r}")
    if kind is bool_ and op in _BOOL_OPS:
        kind, op = uint8, _BOOL_OPS[op]
    if kind.is_complex and op in ("sum", "avg"):
        kind, count = kind.to_real(), 2 * count
    if kind not in _TYPES:
        raise NotSupportedError(f"{part.kind}: NCCL has no {op} of {part.dtype}")
    return _TYPES[kind], count, _OPS[op]


def _scalar(kind: dtype, factor: float) -> Any:
    """Return a factor in the bits of a dtype."""
    bits = np.asarray(factor, np.float64).astype(kind.numpy)
    return _SCALARS[kind].from_buffer_copy(bits.tobytes())


def _check_members(unique: bytes, size: int, members: Sequence[tuple[int, int]]) -> None:
    ranks = [rank for rank, _ in members]
    if len(unique) != sizeof(Id):
        raise DriverError(f"comm_create: the id has {sizeof(Id)} bytes, not {len(unique)}")
    if not members or len(set(ranks)) < len(ranks) or not all(0 <= rank < size for rank in ranks):
        raise DriverError(f"comm_create: the members must have different ranks below {size}, not {ranks}")

"""`MpiBackend`: collectives of CPU tensors between processes, by MPI. PyTorch's names for it are "gloo" and "mpi".

Dtypes that MPI cannot reduce (float16, bfloat16, float8, complex32) are reduced in float32 and rounded once. Data that
is only moved is sent as bytes, so every dtype works. An average is the sum divided once, truncated for integers. For
booleans, sum and max are "or", product and min are "and". The backend uses nonblocking calls, so a wait can time out,
be interrupted, and notice that a rank's process has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import numpy as np

from flambeau.core import dtype as dtypes
from flambeau.core.callsite import Site, caller, place
from flambeau.core.dtype import dtype
from flambeau.core.host_arrays import array_at, bytes_at
from flambeau.distributed.backends import mpi_world
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.flat_backend import Build, FlatBackend, _nothing
from flambeau.distributed.backends.monitored_barrier import Monitored
from flambeau.distributed.backends.mpi_checks import Comparison, Comparisons
from flambeau.distributed.backends.process_work import ANY, ProcessWork
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.work import Work
from flambeau.driver.collective_rules import PAIRED, common_arguments, describe
from flambeau.driver.protocol import Collective

Array = np.ndarray[Any, Any]
Step = Callable[[], None]

_WIDER = {
    kind: dtypes.complex64 if kind.is_complex else dtypes.float32
    for kind in (
        dtypes.float16, dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2, dtypes.complex32,
    )
}  # fmt: skip
_OPS = {
    "sum": "SUM", "avg": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX", "band": "BAND", "bor": "BOR",
    "bxor": "BXOR",
}  # fmt: skip
_OF_BOOL = {
    "sum": "MAX",
    "max": "MAX",
    "bor": "MAX",
    "prod": "MIN",
    "min": "MIN",
    "band": "MIN",
    "bxor": "BXOR",
}


class MpiBackend(FlatBackend):
    """The backend of CPU tensors over MPI. All members of a group create their backends in the same order of groups."""

    kind = "mpi"
    name = "gloo"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.transport = mpi_world.current_world()
        self.transport.meet(place.store, "mpi", place.rank, place.ranks, place.timeout)
        comm, mpi = self.transport.comm, self.transport.MPI
        everybody = comm.Get_group()
        members = everybody.Incl(list(place.ranks))
        self._comm = comm.Create_group(members, _tag(place.name))
        for group in (members, everybody):
            group.Free()
        # a communicator for collectives of messages, separate from the program's own
        self._aside = self._comm.Dup()
        self._comm.Set_errhandler(mpi.ERRORS_RETURN)
        self._aside.Set_errhandler(mpi.ERRORS_RETURN)
        self._comparisons = Comparisons(self._comm.Dup(), mpi, place)
        self._monitored = Monitored(place, self.transport.dead)
        self.aborted = False
        self._mismatch = ""  # the report of ranks that disagreed, which ends the group
        self._lost: list[Any] = []

    def barrier(self, device: Any = None, async_op: bool = False) -> Work:
        self._check_alive()
        if self.agreement is not None:
            self.agreement.compare(["barrier"], "barrier")
        site = caller()
        comparison = self._compare(["barrier"], "barrier", site)
        return self._work([], [(self._comm.Ibarrier(), "barrier", None)], [], [], site, comparison)

    def monitored_barrier(self, timeout: timedelta | None, wait_all_ranks: bool) -> None:
        self._check_alive()
        self._monitored.pass_through(self.timeout if timeout is None else timeout, wait_all_ranks)

    def close(self) -> None:
        """Free the communicators, of which a process has at most 2,048, after pending operations."""
        if not self.transport.MPI.Is_finalized():
            self.transport.free(
                [self._comm, self._aside, self._comparisons.comm],
                [work for work in self.transport.pending if work.backend is self],
            )

    def abort(self) -> None:
        self.aborted = True

    def _run(
        self,
        tensors: Sequence[Any],
        build: Build,
        after: Step = _nothing,
        async_op: bool = False,
        results: Sequence[Any] | None = None,
        pair: int | None = None,
        channel: object = None,
    ) -> Work:
        self._check_alive()
        site = caller()
        calls = list(build())
        if self.agreement is not None:
            self.agreement.check(calls)
        for call in calls:
            self._touch(call)
        steps: list[Step] = []
        keep: list[Any] = list(tensors)
        ranks = self.place.ranks
        requests = [
            (self._begin(call, channel, steps, keep), describe(call, ranks), self._peer(call))
            for call in calls
        ]
        shown = list(tensors if results is None else results)
        what = " and ".join(dict.fromkeys([words for _, words, _ in requests]))
        alike = [repr(common_arguments(call)) for call in calls if call.kind not in PAIRED]
        comparison = None if isinstance(channel, int) else self._compare(alike, what, site)
        tag = channel if isinstance(channel, int) else 0
        return self._work(shown, requests, [*steps, after], keep, site, comparison, tag)

    def _work(
        self,
        shown: list[Any],
        requests: list[Any],
        steps: Sequence[Step],
        keep: list[Any],
        site: Site,
        comparison: Comparison | None,
        tag: int = 0,
    ) -> MpiWork:
        self.transport.reap()
        return MpiWork(shown, requests, steps, keep, site, self, comparison, tag)

    def _compare(self, alike: Sequence[str], what: str, site: Site) -> Comparison:
        return self._comparisons.begin(alike, f"{self.me} at {place(site)}: {what}")

    @property
    def me(self) -> str:
        return f"rank {self.place.ranks[self.place.rank]}"

    def _check_alive(self) -> None:
        if self.aborted:
            raise DistBackendError("the process group was aborted")
        if self._mismatch:
            raise DistBackendError(self._mismatch)

    def _peer(self, call: Collective) -> int | None:
        return call.peer if call.kind in ("send", "recv") else None

    def why_gone(self, rank: int) -> str:
        """Return the reason why a member, by its number in the group, will not answer; "" if it may."""
        return self.transport.dead(self.place.ranks[rank])

    def _begin(self, call: Collective, channel: object, steps: list[Step], keep: list[Any]) -> Any:
        """Start one nonblocking MPI call and return its request. Actions to run when it completes are added to
        `steps`, and memory that MPI uses until then to `keep`: requests of mpi4py do not hold it.
        """
        if call.kind in ("send", "recv"):
            return self._message(call, channel)
        if call.kind == "broadcast":
            if self.place.rank == call.peer and call.target != call.source:
                _bytes(call.target, call)[...] = _bytes(call.source, call)
            return self._comm.Ibcast(_bytes(call.target, call), call.peer)
        if call.kind == "all_gather":
            return self._all_gather(call)
        return self._reduction(call, steps, keep)

    def _message(self, call: Collective, channel: object) -> Any:
        comm, tag = (self._comm, channel) if isinstance(channel, int) else (self._aside, 0)
        if call.kind == "send":
            return comm.Isend(_bytes(call.source, call), call.peer, tag)
        origin = self.transport.MPI.ANY_SOURCE if call.peer == ANY else call.peer
        return comm.Irecv(_bytes(call.target, call), origin, tag)

    def _all_gather(self, call: Collective) -> Any:
        source, target = _bytes(call.source, call), _bytes(call.target, call, self.place.size)
        if call.source == call.target + self.place.rank * source.nbytes:
            return self._comm.Iallgather(self.transport.MPI.IN_PLACE, target)
        return self._comm.Iallgather(source, target)

    def _reduction(self, call: Collective, steps: list[Step], keep: list[Any]) -> Any:
        """Start a reduction in the tensors' memory, or through copies for wider numbers or overlapping operands."""
        size, scatters = self.place.size, call.kind == "reduce_scatter"
        kind = _WIDER.get(call.dtype, call.dtype)
        count = call.count * size if scatters else call.count
        source = _numbers(call.source, count, call.dtype)
        direct = kind is call.dtype and not (scatters and 0 <= call.target - call.source < source.nbytes)
        writes = call.kind != "reduce" or call.peer == self.place.rank
        target = np.empty(call.count, kind.numpy)
        if direct and writes:
            target = _numbers(call.target, call.count, call.dtype)
        sent: Any = self._buffer(source if direct else source.astype(kind.numpy), kind)
        if direct and writes and call.source == call.target and not scatters:
            sent = self.transport.MPI.IN_PLACE
        keep += [sent, target]
        if writes and not (direct and call.op != "avg"):
            steps.append(lambda: _store(call, target, size))
        return self._reduce(call, sent, self._buffer(target, kind))

    def _reduce(self, call: Collective, sent: Any, received: Any) -> Any:
        operation = self._operation(call)
        if call.kind == "all_reduce":
            return self._comm.Iallreduce(sent, received, operation)
        if call.kind == "reduce":
            return self._comm.Ireduce(
                sent, received if call.peer == self.place.rank else None, operation, call.peer
            )
        return self._comm.Ireduce_scatter_block(sent, received, operation)

    def _operation(self, call: Collective) -> Any:
        names = _OF_BOOL if call.dtype is dtypes.bool_ else _OPS
        if call.op not in names:
            raise ValueError(f"Cannot use ReduceOp.{call.op.upper()} with {call.dtype}")
        return getattr(self.transport.MPI, names[call.op])

    def _buffer(self, array: Array, kind: dtype) -> list[Any]:
        """Return an array and the MPI type of its elements, as mpi4py expects them."""
        plain = array.view(np.uint8) if kind is dtypes.bool_ else array
        return [plain, self.transport.MPI._typedict[plain.dtype.char]]


class MpiWork(ProcessWork):
    """The work of MPI requests.

    Args:
        steps: Actions to run after the requests complete.
        keep: The tensors and arrays whose memory MPI uses.

    Attributes:
        backend: The group's backend.
        has_moved: True after MPI has finished the operation.
    """

    def __init__(
        self,
        results: list[Any],
        requests: list[tuple[Any, str, int | None]],
        steps: Sequence[Step],
        keep: list[Any],
        site: Site,
        backend: MpiBackend,
        comparison: Comparison | None,
        tag: int,
    ) -> None:
        calls = [(what, peer) for _, what, peer in requests]
        super().__init__(results, backend, calls, 0 if comparison is None else comparison.number, site, tag)
        self._comparison = comparison
        self._requests = [request for request, _, _ in requests]
        if comparison is not None:
            self._requests.append(comparison.request)
        self._steps = steps
        self._keep = keep
        self.backend = backend
        self.has_moved = False
        backend.transport.pending.add(self)

    def __del__(self) -> None:
        if not self.has_moved:
            memory = self._keep, self._steps, self._comparison
            self.backend.transport.adopt(self._requests, memory, self.pending_operation)

    def _test(self) -> bool:
        mpi = self.backend.transport.MPI
        status = [mpi.Status() for _ in self._requests]
        try:
            over = mpi.Request.Testall(self._requests, status)
        except mpi.Exception as error:
            if self._comparison is not None and self._comparison.differ(timeout_s=1.0):
                self._disagree(self._comparison)
            self._fail(self._error_text(error, status))
        if self._comparison is not None and self._comparison.differ():
            self._disagree(self._comparison)
        if not over:
            return False
        self.has_moved = True
        if self._source < 0 and status:
            self._source = status[0].Get_source()
        return True

    def _complete(self) -> None:
        for step in self._steps:
            step()
        self._keep = []

    def _error_text(self, error: Any, statuses: Sequence[Any]) -> str:
        """Return MPI's text for the first request that failed."""
        mpi = self.backend.transport.MPI
        if error.Get_error_class() != mpi.ERR_IN_STATUS:
            return str(error)
        failed = next(
            status for status in statuses if status.Get_error() not in (mpi.SUCCESS, mpi.ERR_PENDING)
        )
        if self._comparison is None and mpi.Get_error_class(failed.Get_error()) == mpi.ERR_TRUNCATE:
            return f"the message received from rank {self.backend.place.ranks[failed.Get_source()]} is longer"
        return str(mpi.Get_error_string(failed.Get_error()))

    def _disagree(self, comparison: Comparison) -> NoReturn:
        """Fail the work because ranks called different collectives. Its memory stays allocated, as MPI may still write
        to it.
        """
        self.backend._lost.append((self._requests, self._keep, self._steps))
        self.backend._mismatch = comparison.report()
        raise DistBackendError(self.backend._mismatch)


def _tag(name: str) -> int:
    """Return a message tag that is equal for all members and within MPI's limit."""
    return sum(ord(letter) * 31**power for power, letter in enumerate(name)) % 32749


def _bytes(ptr: int, call: Collective, times: int = 1) -> Array:
    return bytes_at(ptr, call.count * call.dtype.itemsize * times)


def _numbers(ptr: int, count: int, kind: dtype) -> Array:
    return array_at(ptr if count else 0, (count,), kind.numpy)


def _store(call: Collective, total: Array, size: int) -> None:
    """Copy a reduction's result to its target."""
    with np.errstate(all="ignore"):
        if call.op == "avg":
            total = total / size if total.dtype.kind in "fc" else np.sign(total) * (np.abs(total) // size)
        _numbers(call.target, call.count, call.dtype)[...] = total.astype(call.dtype.numpy)

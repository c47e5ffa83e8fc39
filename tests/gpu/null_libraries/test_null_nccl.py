"""Collectives of the CUDA driver over an NCCL that runs on the host: what is asked of it, and what comes back."""

from __future__ import annotations

from pathlib import Path

from test_null_driver import library, run

assert library  # a fixture

KIT = """
import ctypes, numpy as np
ctypes.CDLL("libnccl.so.2")  # what is loaded already is taken, whatever the machine has
from flambeau.core import dtype as kinds
from flambeau.core.errors import DriverError, NotSupportedError
from flambeau.driver.protocol import Collective
from flambeau.driver.cuda.driver import CudaDriver
driver = CudaDriver()

class Member:
    def __init__(self, comm, rank):
        self.comm, self.rank, self.stream = comm, rank, driver.stream_create(rank, 0)

    def put(self, array):
        at = driver.mem_alloc(self.rank, max(array.nbytes, 1))
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        return at

    def part(self, *given, **named):
        return self.comm, Collective(*given, **named), self.stream

def take(at, like, count):
    out = np.empty(count, like.dtype)
    ctypes.memmove(out.ctypes.data, at, out.nbytes)
    return out

def meet(size):
    comms = driver.comm_create(driver.comm_id(), size, [(rank, rank) for rank in range(size)])
    return [Member(comm, rank) for rank, comm in enumerate(comms)]

def refused(kind, call, *args, **named):
    try:
        call(*args, **named)
    except kind as error:
        return str(error)
    raise AssertionError("nothing was raised")
"""

EVERY_KIND = """
rng = np.random.default_rng(7)
NAMES = ["int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64", "complex128", "bool_"]
OPS = {"sum": sum, "prod": lambda x: np.prod(x, axis=0, dtype=x[0].dtype), "min": lambda x: np.min(x, axis=0), "max": lambda x: np.max(x, axis=0)}
for size in (1, 2, 3):
    members = meet(size)
    for name in NAMES:
        kind = getattr(kinds, name)
        for n in (0, 1, 6):
            make = lambda count: rng.integers(0, 2 if name == "bool_" else 4, count).astype(kind.numpy)
            for op, reduced in OPS.items():
                if kind.is_complex and op != "sum":
                    continue
                given = [make(n * size) for _ in members]
                want = reduced(np.stack(given)).astype(kind.numpy)
                at = [m.put(x) for m, x in zip(members, given)]
                driver.collective([m.part("all_reduce", a, a, n * size, kind, op) for m, a in zip(members, at)])
                for a in at:
                    assert (take(a, want, n * size) == want).all(), (name, op, size)
                at = [m.put(x) for m, x in zip(members, given)]
                to = [m.put(make(n)) for m in members]
                driver.collective([m.part("reduce_scatter", t, a, n, kind, op) for m, a, t in zip(members, at, to)])
                for r, t in enumerate(to):
                    assert (take(t, want, n) == want[r * n:][:n]).all()
                root = size - 1
                driver.collective([m.part("reduce", at[root] if m.rank == root else 0, a, n, kind, op, root) for m, a in zip(members, at)])
                assert (take(at[root], want, n) == want[:n]).all()
            given = [make(n) for _ in members]
            at = [m.put(x) for m, x in zip(members, given)]
            to = [m.put(make(n * size)) for m in members]
            driver.collective([m.part("all_gather", t, a, n, kind) for m, a, t in zip(members, at, to)])
            assert all((take(t, given[0], n * size) == np.concatenate(given)).all() for t in to)
            driver.collective([m.part("broadcast", t, a if m.rank == 0 else 0, n, kind, peer=0) for m, a, t in zip(members, at, to)])
            assert all((take(t, given[0], n) == given[0]).all() for t in to)
            parts = []  # everybody to the next one
            for m, a, t in zip(members, at, to):
                parts += [m.part("send", 0, a, n, kind, peer=(m.rank + 1) % size), m.part("recv", t, 0, n, kind, peer=(m.rank - 1) % size)]
            driver.collective(parts)
            assert all((take(t, given[0], n) == given[r - 1]).all() for r, t in enumerate(to))
    for m in members:
        driver.comm_destroy(m.comm)
print("equal")
"""


def test_every_kind_dtype_and_op_gives_what_numpy_gives(library: Path) -> None:
    assert run(library, KIT + EVERY_KIND, devices=3) == "equal\n"


FACTORS = """
from flambeau.driver.protocol import PreMul
for name in ("float16", "float32", "float64"):
    kind = getattr(kinds, name)
    for size in (1, 3):
        members = meet(size)
        given = [np.arange(size * 4).astype(kind.numpy) + m.rank for m in members]
        scaled = [x * kind.numpy.type(0.5 + m.rank) for m, x in zip(members, given)]
        want = sum(scaled)
        for again in range(9):  # NCCL's ops are given back: this one has 16
            at = [m.put(x) for m, x in zip(members, given)]
            driver.collective([m.part("all_reduce", a, a, 4 * size, kind, PreMul(0.5 + m.rank)) for m, a in zip(members, at)])
            assert all((take(a, want, 4 * size) == want).all() for a in at)
        at, to = [m.put(x) for m, x in zip(members, given)], [m.put(x) for m, x in zip(members, given)]
        driver.collective([m.part("reduce_scatter", t, a, 4, kind, PreMul(0.5 + m.rank)) for m, a, t in zip(members, at, to)])
        assert all((take(t, want, 4) == want[4 * r:][:4]).all() for r, t in enumerate(to))
        driver.collective([m.part("reduce", t, a, 4, kind, PreMul(0.5 + m.rank), 0) for m, a, t in zip(members, at, to)])
        assert (take(to[0], want, 4) == want[:4]).all()
        for m in members:
            driver.comm_destroy(m.comm)
(a,) = meet(1)
print(refused(NotSupportedError, driver.collective, [a.part("all_reduce", 0, 0, 4, kinds.int32, PreMul(2.0))]))
"""


def test_sums_of_numbers_that_are_scaled_first(library: Path) -> None:
    assert run(library, KIT + FACTORS, devices=3) == "all_reduce: NCCL has no premul_sum of torch.int32\n"


THREADS = """
import threading
unique, size, out = driver.comm_id(), 3, {}
def rank(r):
    (comm,) = driver.comm_create(unique, size, [(r, r)])
    m = Member(comm, r)
    a = m.put(np.full(5, r + 1.0, np.float32))
    driver.collective([m.part("all_reduce", a, a, 5, kinds.float32, "avg")])
    everybody.wait()
    out[r] = take(a, np.zeros(1, np.float32), 5).tolist()
everybody = threading.Barrier(size)
threads = [threading.Thread(target=rank, args=(r,)) for r in range(size)]
[t.start() for t in threads]; [t.join() for t in threads]
print(out[0] == out[1] == out[2] == [2.0] * 5)
"""


def test_members_may_come_in_threads_of_their_own(library: Path) -> None:
    assert run(library, KIT + THREADS, devices=3) == "True\n"


REFUSALS = """
a, b = meet(2)
x = [m.put(np.ones(4, np.float32)) for m in (a, b)]
def both(*given, **named):
    return [m.part(given[0], at, at, *given[1:], **named) for m, at in zip((a, b), x)]
print(refused(NotSupportedError, driver.collective, both("all_reduce", 4, kinds.int16)))
print(refused(NotSupportedError, driver.collective, both("reduce", 1, kinds.complex64, "max", 0)))
print(refused(NotSupportedError, driver.collective, both("all_reduce", 1, kinds.bool_, "avg")))
print(refused(DriverError, driver.collective, both("all_reduce", 4, kinds.float32, "mean")))
print(refused(DriverError, driver.collective, both("all_to_all", 4, kinds.float32)))
print(refused(DriverError, driver.collective, both("broadcast", 4, kinds.float32, peer=2)))
comm, part, stream = a.part("all_reduce", x[0], x[0], 4, kinds.float32)
print(refused(DriverError, driver.collective, [(comm, part, b.stream)]))
print(refused(DriverError, driver.collective, [(17, part, a.stream)]))
print(refused(DriverError, driver.comm_create, b"short", 2, [(0, 0)]))
print(refused(DriverError, driver.comm_create, driver.comm_id(), 2, [(0, 0), (0, 1)]))
print(refused(DriverError, driver.comm_create, driver.comm_id(), 2, [(0, 0), (1, 0)]))
driver.collective(both("all_reduce", 4, kinds.float32))  # all is as it was
print(take(x[1], np.ones(1, np.float32), 4), driver.comm_error(a.comm))
"""


def test_what_nccl_has_not_is_refused_before_anything_is_queued(library: Path) -> None:
    assert run(library, KIT + REFUSALS, devices=2).splitlines() == [
        "all_reduce: NCCL has no sum of torch.int16",
        "reduce: NCCL has no max of torch.complex64",
        "all_reduce: NCCL has no avg of torch.bool",
        "all_reduce: the op must be one of ('sum', 'prod', 'max', 'min', 'avg'), not 'mean'",
        "collective: the kind must be one of ('all_reduce', 'broadcast', 'reduce', 'all_gather', 'reduce_scatter', 'send', 'recv'), "
        "not 'all_to_all'",
        "broadcast: there is no rank 2 among 2",
        "collective: the communicator's member is on device 0, the stream on device 1",
        "17 is not a communicator of the cuda driver, or was destroyed",
        "comm_create: the id has 128 bytes, not 5",
        "comm_create: the members must have different ranks below 2, not [0, 0]",
        "NCCL: ncclCommInitRank: invalid usage: Duplicate GPU detected",
        "[2. 2. 2. 2.] None",
    ]


FAILURES = """
a, b = meet(2)
x = a.put(np.ones(4, np.float32))
driver.collective([a.part("all_reduce", x, x, 4, kinds.float32)])  # the other one never comes
print(refused(DriverError, driver.comm_destroy, a.comm))
driver.comm_destroy(b.comm, abort=True)
print(driver.comm_error(a.comm))
print(refused(DriverError, driver.comm_error, b.comm))
driver.comm_destroy(a.comm, abort=True)
c, d = meet(2)
driver.collective([c.part("all_reduce", x, x, 4, kinds.float32)])
driver.collective([d.part("all_reduce", x, x, 3, kinds.float32)])
print(driver.comm_error(c.comm) is not None)
driver.close()
print(refused(DriverError, driver.comm_id))
"""


def test_a_peer_that_goes_is_an_error_that_can_be_asked_for(library: Path) -> None:
    assert run(library, KIT + FAILURES, devices=2).splitlines() == [
        "NCCL: ncclCommDestroy: invalid usage: a call waits for a peer",
        "NCCL: a collective: remote process exited or there was a network error: remote process exited",
        "4097 is not a communicator of the cuda driver, or was destroyed",
        "True",
        "the cuda driver has been closed",
    ]


def test_without_nccl_the_error_says_how_to_install_it(library: Path) -> None:
    program = """
from unittest import mock
import cuda.pathfinder
from flambeau.driver.cuda.driver import CudaDriver
with mock.patch.object(cuda.pathfinder, "load_nvidia_dynamic_lib", side_effect=RuntimeError("not there")):
    for _ in range(2):
        try:
            CudaDriver().comm_id()
        except RuntimeError as error:
            print(type(error).__name__, error)
"""
    said = "NotSupportedError NCCL is not on this machine: pip install 'flambeau[nccl]'"
    assert run(library, program).splitlines() == [said, said]

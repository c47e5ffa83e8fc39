"""Small programs of whose waits each is needed: together they run every wait, record and share of Flambeau's own.

Each is race-free, by the certificate, and returns values that tell whether what it was promised was kept.
"""

from __future__ import annotations

from datetime import timedelta

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.flags import flags
from flambeau.distributed.future import Future
from flambeau.runtime import system
from flambeau.runtime.devices import peers
from flambeau.tensor.exchange import interop
from flambeau.testing.ranks import ranks

N = 1 << 10
PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def full(value, device="cuda", n=N):
    return torch.full((n,), float(value), device=device)


def streams(count=2, device=0):
    """Side streams that come after what the default stream has been given."""
    made = [torch.cuda.Stream(device) for _ in range(count)]
    for stream in made:
        stream.wait_stream(torch.cuda.default_stream(device))
    return made


# -- memory of another stream: Note [Reuse by order] in runtime/memory/cross_stream_reuse.py -----------------------------------


def adopting(use, make=full):
    """A tensor of the first stream is used on the second and freed; the third, which waits for the first alone, asks
    for memory: it must not be given what the second may still use.
    """

    def run():
        a, b, c = streams(3)
        other = full(1)
        use(full(2), full(1))  # the way that calls take the second time
        with torch.cuda.stream(a):
            x = make(2)
        b.wait_stream(a)
        b.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(b):
            result = use(x, other)
        del x
        c.wait_stream(a)
        with torch.cuda.stream(c):
            kept = [full(9) for _ in range(8)]  # all that it may be given
        torch.cuda.synchronize()
        return result.tolist(), len(kept)

    return run


USES = {
    "left": lambda x, other: torch.cat([x + x, other]),
    "first": lambda x, other: x + other,
    "second": lambda x, other: other + x,
    "scalar": lambda x, other: x + 1,
    "one": lambda x, other: x.neg(),
    "several": lambda x, other: torch.addcmul(other, x, other),
    "in_place": lambda x, other: (x.add_(1), other)[1],
    "into": lambda x, other: torch.add(x, x, out=torch.empty_like(other)),
    "out": lambda x, other: (torch.add(other, other, out=x), other)[1],
    "filled": lambda x, other: (x.zero_(), other)[1],
    "added_to": lambda x, other: (x.add_(other), other)[1],
    "adds": lambda x, other: other.add_(x),
    "one_of_two": lambda x, other: torch.max(
        other.expand(2, N), 0, out=(x, torch.empty(N, dtype=torch.int64, device="cuda"))
    )[1],
    "read_by_two": lambda x, other: torch.max(
        x.expand(2, N), 0, out=(other, torch.empty(N, dtype=torch.int64, device="cuda"))
    )[0],
    "upload": lambda x, other: (x.copy_(torch.ones(N).pin_memory(), non_blocking=True), other)[1],
    "download": lambda x, other: torch.empty(N).pin_memory().copy_(x, non_blocking=True),
    "grown": lambda x, other: x.resize_(2 * N)[:N],
    "compiled": torch.compile(lambda x, other: (x + other).abs()),
}
for name, use in USES.items():
    PROGRAMS[f"adopting_{name}"] = adopting(use)
PROGRAMS["adopting_a_compiled_result"] = adopting(
    USES["first"], torch.compile(lambda value: full(value).abs())
)


@program
def replayed_result_on_a_side_stream():
    """A graph's next run overwrites a result that a side stream still reads, unless it waits."""
    (side,) = streams(1)
    replayed = torch.compile(lambda x: x.abs() + 1, mode="reduce-overhead")
    x = full(2)
    for _ in range(4):  # eagerly, captured, and replayed
        y = replayed(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y * 2
    replayed(x)
    torch.cuda.current_stream().wait_stream(side)
    return z.tolist()


def by_address(leave):
    """A tensor's address leaves: whoever has it may use the memory on any stream."""

    def run():
        a, b, c = streams(3)
        with torch.cuda.stream(a):
            x = full(2)
        b.wait_stream(a)
        kept = leave(x)
        target = full(0)
        b.wait_stream(torch.cuda.current_stream())
        system.accelerator().copy(target.ptr, x.ptr, 4 * N, b.handle)
        target.record_stream(b)
        del x, kept
        c.wait_stream(a)
        with torch.cuda.stream(c):
            full(9)
        torch.cuda.synchronize()
        return target.tolist()

    return run


PROGRAMS["address_taken"] = by_address(lambda x: x.data_ptr())
PROGRAMS["storage_sliced"] = by_address(
    lambda x: torch.empty(0, device="cuda").set_(x.untyped_storage()[: x.nbytes], 0, x.shape, x.stride())
)
PROGRAMS["capsule_taken"] = by_address(lambda x: torch.from_dlpack(x.__dlpack__(stream=None)))


@program
def capsule_for_a_stream():
    (side,) = streams(1)
    x = full(3)
    y = torch.from_dlpack(x.__dlpack__(stream=side.cuda_stream))
    with torch.cuda.stream(side):
        z = y + 1
    torch.cuda.current_stream().wait_stream(side)
    return z.tolist()


def as_if_real(run):
    """The array interface is for real GPUs alone; its waits are tested on virtual ones."""

    def as_real():
        is_real = interop.is_real
        interop.is_real = lambda context: True
        try:
            return run()
        finally:
            interop.is_real = is_real

    as_real.__name__ = run.__name__
    return as_real


PROGRAMS["interface_taken"] = as_if_real(by_address(lambda x: x.__cuda_array_interface__["data"]))


class Foreign:
    """An array of another library, whose last work is on a stream."""

    def __init__(self, x, stream):
        self.x = x
        self.__cuda_array_interface__ = {
            "data": (x.ptr, False), "shape": (N,), "typestr": "<f4", "version": 3, "stream": stream.cuda_stream,
        }  # fmt: skip


@program
@as_if_real
def interface_of_a_stream():
    (side,) = streams(1)
    with torch.cuda.stream(side):
        x = full(3)
    return (torch.as_tensor(Foreign(x, side), device="cuda") + 1).tolist()


@program
def raw_memory():
    """Memory by its address: nobody tells on which streams it is used."""
    a, b, c = streams(3)
    with torch.cuda.stream(a):
        ptr = torch.cuda.caching_allocator_alloc(4 * N, stream=a)
        source = full(1)
    b.wait_stream(a)
    system.accelerator().copy(ptr, source.ptr, 4 * N, b.handle)
    source.record_stream(b)
    torch.cuda.caching_allocator_delete(ptr)
    c.wait_stream(a)
    with torch.cuda.stream(c):
        full(9)
    torch.cuda.synchronize()


# -- memory that is used elsewhere and freed ---------------------------------------------------------------------


@program
def recorded_stream():
    (side,) = streams(1)
    x = full(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    x.record_stream(side)
    del x
    z = full(5)
    torch.cuda.synchronize()
    return y.tolist(), z.tolist()


@program
def recorded_use():
    (side,) = streams(1)
    x = full(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
        done = side.record_event()
    x.record_use(done)
    del x
    z = full(5)
    torch.cuda.synchronize()
    return y.tolist(), z.tolist()


@program
def memory_comes_back():
    """What other streams used is reused once they are done, on the device and on the host."""
    (side,) = streams(1)
    reserved = []
    for _ in range(40):
        x = torch.zeros(1 << 19, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        x.record_stream(side)
        del x, y
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    return reserved[-1] <= 3 * reserved[0]


@program
def pinned_comes_back():
    ptrs = set()
    x = full(1, n=1 << 16)
    for _ in range(20):
        pinned = torch.ones(1 << 16).pin_memory()
        x.copy_(pinned, non_blocking=True)
        ptrs.add(pinned.data_ptr())
        del pinned
        torch.cuda.synchronize()
    return len(ptrs) < 10


@program
def retried_when_full():
    """The heap is full: what waits for another stream is waited for on the host, and then reused."""
    (side,) = streams(1)
    torch.cuda.set_per_process_memory_fraction(
        24 * (1 << 20) / torch.cuda.get_device_properties(0).total_memory
    )
    x = torch.zeros(5 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(1 << 20)
        y = x[:N] + 1
    x.record_stream(side)
    del x
    z = torch.full((5 << 20,), 3.0, device="cuda")
    torch.cuda.synchronize()
    return y.tolist(), z[:3].tolist()


@program
def freed_in_a_capture():
    """Uses cannot be marked while a graph is captured: they are when it has ended."""
    (side,) = streams(1)
    x = full(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    x.record_stream(side)
    graph = torch.cuda.CUDAGraph()
    static = full(2)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        del x
        static.add_(1)
    before = torch.cuda.memory_stats()["active_bytes.all.current"]
    torch.cuda.synchronize()
    z = full(5)
    graph.replay()
    torch.cuda.synchronize()
    return (
        y.tolist(),
        z.tolist(),
        static.tolist(),
        torch.cuda.memory_stats()["active_bytes.all.current"] - before,
    )


# -- copies -----------------------------------------------------------------------------------------------------


@program
def blocking_copies():
    x, pinned = full(3), torch.zeros(N).pin_memory()
    pinned.copy_(x)
    seen = pinned.tolist()
    x.copy_(pinned)
    pinned.fill_(7)
    return seen, x.cpu().tolist(), x.to("cpu").tolist()


@program
def pinned_freed_in_flight():
    x = full(0)
    pinned = torch.ones(N).pin_memory()
    x.copy_(pinned, non_blocking=True)
    del pinned
    torch.full((N,), 9.0).pin_memory()
    return x.tolist()


@program
def alias_freed_in_flight():
    """The copy goes through another tensor over the pinned memory."""
    x = full(0)
    pinned = torch.ones(N).pin_memory()
    x.copy_(torch.from_numpy(pinned.numpy()), non_blocking=True)
    del pinned
    torch.full((N,), 9.0).pin_memory()
    return x.tolist()


@program
def fetched_freed_in_flight():
    x = full(4)
    pinned = torch.zeros(N).pin_memory()
    pinned.copy_(x, non_blocking=True)
    del pinned
    other = torch.full((N,), 9.0).pin_memory()
    torch.cuda.synchronize()
    return other.tolist()


@program
def across():
    """Between devices: after what the target's stream did before, before what it and the source's do next."""
    a, b = full(1, "cuda:0"), full(2, "cuda:1")
    b.mul_(3)
    b.copy_(a)
    c = b + 1
    a.fill_(8)
    b.fill_(9)
    seen = seen_after_the_source(full(5, "cuda:0"), full(6, "cuda:1"))
    return a.tolist(), b.tolist(), c.tolist(), seen, full(4, "cuda:1").to("cuda:0").tolist()


def adopting_across(staged, target):
    """The other device's third stream asks for memory that a copy between devices may still write, or read."""

    def run():
        if staged:
            pair = [system.context_of(torch.device("cuda", i)) for i in range(2)]
            peers._pairs[pair[0], pair[1]] = peers._pairs[pair[1], pair[0]] = peers.CORRUPT
        there = 1 if target else 0
        a, b, c = streams(3, there)
        source = full(2, "cuda:0")
        arrived = full(0, "cuda:1")
        with torch.cuda.stream(a):
            mine = full(1, f"cuda:{there}")
        b.wait_stream(a)
        b.wait_stream(torch.cuda.default_stream(there))
        with torch.cuda.stream(b):
            if target:
                mine.copy_(source, non_blocking=True)
            else:
                arrived.copy_(mine, non_blocking=True)
        del mine
        c.wait_stream(a)
        with torch.cuda.stream(c):
            full(9, f"cuda:{there}")
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        return arrived.tolist()

    return run


for staged in (False, True):
    for target in (False, True):
        PROGRAMS[f"adopting_across_{staged}_{target}"] = adopting_across(staged, target)


@program
def across_through_the_host():
    pair = [system.context_of(torch.device("cuda", i)) for i in range(2)]
    peers._pairs[pair[0], pair[1]] = peers._pairs[pair[1], pair[0]] = peers.CORRUPT
    a, b = full(1, "cuda:0"), full(2, "cuda:1")
    b.mul_(3)
    b.copy_(a)
    torch.full((N,), 7.0).pin_memory()
    c = b + 1
    a.fill_(8)
    return a.tolist(), b.tolist(), c.tolist(), seen_after_the_source(full(5, "cuda:0"), b)


@program
def across_through_the_host_behind_the_target():
    """What the target's stream waits for comes before a copy, though the source's stream has not waited for it."""
    pair = [system.context_of(torch.device("cuda", i)) for i in range(2)]
    peers._pairs[pair[0], pair[1]] = peers._pairs[pair[1], pair[0]] = peers.CORRUPT
    a, b = full(1, "cuda:0"), full(2, "cuda:1")
    (side,) = streams(1, device=0)
    side.wait_stream(torch.cuda.default_stream(0))
    with torch.cuda.stream(side):
        a.mul_(3)
    torch.cuda.default_stream(1).wait_stream(side)
    b.copy_(a)
    a.record_stream(side)
    return b.tolist()


def seen_after_the_source(a, b):
    """What waits for the source's stream after a copy sees the copy."""
    (side,) = streams(1, device=1)
    side.wait_stream(torch.cuda.default_stream(1))
    b.copy_(a)
    side.wait_stream(torch.cuda.default_stream(0))
    b.record_stream(side)
    with torch.cuda.stream(side):
        return (b + 1).tolist()


@program
def canary():
    """The pattern of the first copy between two devices has waits of its own."""
    return peers.direct(*[system.context_of(torch.device("cuda", i)) for i in range(2)], look=True)


# -- streams and events ------------------------------------------------------------------------------------------


@program
def events():
    (side,) = streams(1)
    x, done = full(1), torch.cuda.Event()
    done.record()
    with torch.cuda.stream(side):
        done.wait()
        y = x + 1
        back = side.record_event()
    torch.cuda.current_stream().wait_event(back)
    x.fill_(3)
    return x.tolist(), y.cpu().tolist()


@program
def host_waits():
    (side,) = streams(1)
    pinned, done = torch.zeros(N).pin_memory(), torch.cuda.Event()
    seen = []
    for wait in (side.synchronize, done.synchronize, torch.cuda.synchronize):
        with torch.cuda.stream(side):
            pinned.copy_(full(len(seen) + 1), non_blocking=True)
            done.record()
        wait()
        seen.append(pinned.tolist())
    return seen


@program
def launches_that_are_waited_for():
    """CUDA_LAUNCH_BLOCKING=1: each launch is done on return."""
    (side,) = streams(1)
    flags.launch_blocking = True
    try:
        x = full(1)
        with torch.cuda.stream(side):
            y = x + 1
        return y.mul_(2).tolist()
    finally:
        flags.launch_blocking = False


# -- backward -----------------------------------------------------------------------------------------------------


def weighted(w, stream):
    with torch.cuda.stream(stream):
        return (w * w).sum()


@program
def backward_on_a_side_stream():
    (side,) = streams(1)
    w = full(2).requires_grad_()
    side.wait_stream(torch.cuda.current_stream())
    loss = weighted(w, side)
    w.record_stream(side)
    seed = torch.ones_like(loss)
    loss.backward(seed)
    seed.fill_(7)
    grad = w.grad * 1
    torch.cuda.current_stream().wait_stream(side)
    return grad.tolist()


@program
def backward_that_meets():
    """Two branches on two streams: their gradients meet on the first."""
    a, b = streams(2)
    w = full(2).requires_grad_()
    for stream in (a, b):
        stream.wait_stream(torch.cuda.current_stream())
        w.record_stream(stream)
    x = w * 3
    for stream in (a, b):
        stream.wait_stream(torch.cuda.current_stream())
        x.record_stream(stream)
    losses = [weighted(x, stream) for stream in (a, b)]
    for stream in (a, b):
        torch.cuda.current_stream().wait_stream(stream)
    (losses[0] + losses[1]).backward()
    del losses, x
    for stream in (a, b):  # the gradients that they gave are gone, and may still be read elsewhere
        with torch.cuda.stream(stream):
            full(9), full(9)
    return w.grad.tolist()


@program
def backward_across_devices():
    w = full(2, "cuda:0").requires_grad_()
    ((w * 2).to("cuda:1") * 5).sum().backward()
    w.grad.mul_(2)
    return w.grad.tolist()


# -- parallel -------------------------------------------------------------------------------------------------------


@program
def scattered():
    """The parts are of streams of their own, used on the current ones, and freed."""
    seen = []
    for _ in range(3):
        parts = torch.nn.parallel.scatter(torch.arange(4.0 * N).pin_memory(), [0, 1])
        seen += [part + 1 for part in parts]
        del parts
    return [part.tolist() for part in seen]


@program
def data_parallel():
    torch.manual_seed(0)
    model = torch.nn.DataParallel(torch.nn.Linear(8, 3).to("cuda:0"), [0, 1])
    out = model(torch.ones(6, 8))
    out.sum().backward()
    return out.tolist(), [p.grad.tolist() for p in model.parameters()]


@program
def loaded():
    """Pinned batches, uploaded while the next is made."""
    data = [torch.full((N,), float(i)) for i in range(12)]
    loader = torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)
    seen = [batch.to("cuda", non_blocking=True) for batch in loader]
    return [batch[:, 0].tolist() for batch in seen]


# -- ranks ----------------------------------------------------------------------------------------------------------


def ranked(body):
    """Two ranks do it."""

    def run():
        def member():
            dist.init_process_group("nccl")
            value = body()
            torch.cuda.synchronize()
            dist.destroy_process_group()
            return value

        return ranks(member, 2)

    PROGRAMS[body.__name__] = run
    return body


@ranked
def reduced_beside_other_work():
    total = full(0)
    for _ in range(3):
        flat = full(dist.get_rank() + 1)
        work = dist.all_reduce(flat, async_op=True)
        other = total * 2
        work.wait()
        total = total + flat + 0 * other
    return total.tolist()


@ranked
def reduced_and_forgotten():
    """The tensor goes while it is reduced: its memory is not given away."""
    flat = full(dist.get_rank() + 1)
    work = dist.all_reduce(flat, async_op=True)
    del flat
    other = full(5)
    work.wait()
    return other.tolist()


@ranked
def reduced_on_a_side_stream():
    """The adopting program with a collective as the use."""
    a, b, c = streams(3, torch.cuda.current_device())
    dist.all_reduce(full(1))
    with torch.cuda.stream(a):
        x = full(2)
    b.wait_stream(a)
    with torch.cuda.stream(b):
        dist.all_reduce(x)
    del x
    c.wait_stream(a)
    with torch.cuda.stream(c):
        kept = [full(9) for _ in range(8)]
    return len(kept)


@ranked
def waited_for_on_the_host():
    (side,) = streams(1, torch.cuda.current_device())
    flat = full(dist.get_rank() + 1)
    dist.all_reduce(flat, async_op=True).wait(timedelta(seconds=60))
    with torch.cuda.stream(side):
        return (flat + 1).tolist()


@ranked
def after_a_barrier():
    pinned = torch.zeros(N).pin_memory()
    pinned.copy_(full(dist.get_rank()), non_blocking=True)
    dist.barrier(device_ids=[torch.cuda.current_device()])
    seen = pinned.tolist()
    pinned.copy_(full(7), non_blocking=True)
    dist.barrier(None, True, [torch.cuda.current_device()]).wait()
    return seen, pinned.tolist()


@ranked
def what_came_before_a_barrier():
    """The host has waited for the collectives that were begun before, on whatever stream they are."""
    (side,) = streams(1, torch.cuda.current_device())
    flat = full(dist.get_rank() + 1)
    dist.all_reduce(flat, async_op=True)
    dist.barrier(None, True, [torch.cuda.current_device()]).wait()
    with torch.cuda.stream(side):
        return (flat + 1).tolist()


@ranked
def future_of_a_collective():
    flat = full(dist.get_rank() + 1)
    future = dist.all_reduce(flat, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    return future.wait().tolist()


@ranked
def several_gathered_as_one():
    rows = [[full(0), full(0)] for _ in range(2)]
    dist.all_gather_coalesced(rows, [full(dist.get_rank() + 1), full(5)], async_op=True).wait()
    return [(x * 2).tolist() for row in rows for x in row]


@ranked
def sent_and_received():
    rank = dist.get_rank()
    x, y = full(rank + 1), full(0)
    requests = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
    )
    for request in requests:
        request.wait()
    gathered = [full(0) for _ in range(2)]
    dist.all_gather(gathered, y)
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    return y.tolist(), [g.tolist() for g in gathered], objects


@ranked
def sent_and_then_received():
    """Messages of their own communicator and stream, one after the other."""
    rank = dist.get_rank()
    x, y = full(rank + 1), full(0)
    if rank == 0:
        dist.send(x, 1)
        x.zero_()
        dist.recv(y, 1)
    else:
        assert dist.irecv(y, 0).source_rank() == 0  # who asks for it waits
        dist.send(y + x, 0)
    return (y + 1).tolist()


@ranked
def waited_for_by_other_names():
    found = []
    for wait in ("synchronize", "block_current_stream"):
        flat = full(dist.get_rank() + 1)
        getattr(dist.all_reduce(flat, async_op=True), wait)()
        found.append((flat + 1).tolist())
    return found


@ranked
def works_of_the_cpu():
    """Whoever asks whether one is over is told of all that it brings; of a receipt, who sent it."""
    group, rank = dist.new_group(backend="gloo"), dist.get_rank()
    parts = [torch.zeros(3) for _ in range(2)]
    work = dist.all_gather(parts, torch.full((3,), float(rank)), group=group, async_op=True)
    dist.barrier(group=group)
    over = work.is_completed()
    found = torch.zeros(3)
    if rank == 0:
        dist.send(torch.ones(3), 1, group=group)
        return over, [part.tolist() for part in parts]
    receipt = dist.irecv(found, group=group)
    return over, receipt.source_rank(), found.tolist()


@program
def future_of_another_rank():
    future = Future()

    def member():
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            future.set_result(5)
        return future.wait()

    return ranks(member, 2)


def trained(**options):
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank], **options)
    for step in range(2):
        parallel.zero_grad()
        parallel(torch.full((4, 8), rank + step + 1.0, device="cuda")).sum().backward()
    return [p.grad.tolist() for p in model.parameters()]


@ranked
def data_parallel_ranks():
    return trained()


class Branches(torch.nn.Module):
    """Its second layer is used where it is asked for; each may run on a stream of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 4), torch.nn.Linear(8, 4)

    def forward(self, x, both=True, side=None):
        y = self.first(x)
        if both and side is not None:
            here = torch.cuda.current_stream()
            side.wait_stream(here)
            with torch.cuda.stream(side):
                z = self.second(x)
            here.wait_stream(side)
            z.record_stream(here)
            return y + z
        return y + self.second(x) if both else y


def branches(both, steps=2, side=None, **options):
    torch.manual_seed(0)
    model = Branches().cuda()
    if side is not None:  # the reducer keeps the leaves' nodes, and these their streams: of the first use
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first_use = [p * 1 for p in model.second.parameters()]
        torch.cuda.current_stream().wait_stream(side)
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[dist.get_rank()], **options)
    x = torch.full((4, 8), dist.get_rank() + 1.0, device="cuda")
    if side is not None:
        del first_use
        x.record_stream(side)
    for _ in range(steps):
        parallel.zero_grad()
        parallel(x, both, side).sum().backward()
    grads = [None if p.grad is None else p.grad.cpu() for p in model.parameters()]
    if side is not None:  # their memory goes back to its stream, and the reducer may still read it elsewhere
        parallel(x, both, side).sum().backward()
        parallel.zero_grad()
        with torch.cuda.stream(side):
            kept = [torch.full(p.shape, 9.0, device="cuda") for p in model.parameters() for _ in range(3)]
        torch.cuda.synchronize()
        del kept
    return [None if grad is None else grad.tolist() for grad in grads]


@ranked
def data_parallel_with_a_branch_of_one_rank():
    return branches(dist.get_rank() == 0, find_unused_parameters=True)


@ranked
def data_parallel_with_a_branch_of_nobody():
    return branches(False, find_unused_parameters=True)


@ranked
def data_parallel_with_a_branch_on_a_stream():
    (side,) = streams(1, torch.cuda.current_device())
    return branches(True, side=side, gradient_as_bucket_view=False)


@ranked
def data_parallel_with_uneven_inputs():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[dist.get_rank()])
    with parallel.join(divide_by_initial_world_size=False):
        for _ in range(dist.get_rank() + 1):
            parallel.zero_grad()
            parallel(torch.ones(4, 8, device="cuda")).sum().backward()
    return [p.grad.tolist() for p in model.parameters()]


@ranked
def data_parallel_with_a_hook():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4).cuda()
    parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=[dist.get_rank()])

    beside = full(dist.get_rank())

    def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        outcome = work.get_future().then(lambda done: done.value()[0] / 2)
        parallel.reducer._install_post_backward_futures([dist.all_reduce(beside, async_op=True).get_future()])
        return outcome

    parallel.register_comm_hook(None, hook)
    parallel(torch.full((4, 8), dist.get_rank() + 1.0, device="cuda")).sum().backward()
    return [p.grad.tolist() for p in model.parameters()], (beside + 1).tolist()


@ranked
def data_parallel_on_a_side_stream():
    (side,) = streams(1, torch.cuda.current_device())
    with torch.cuda.stream(side):
        return trained()


@ranked
def synchronized_batch_norm():
    layer = torch.nn.SyncBatchNorm(4).cuda()
    x = torch.arange(32.0, device="cuda").reshape(8, 4).requires_grad_()
    layer(x * (dist.get_rank() + 1)).square().sum().backward()
    return x.grad.tolist(), layer.running_mean.tolist()


def adopting_collective(outputs):
    """The adopting program with a collective of one process as the use, of its sources or of its targets."""

    def run():
        devices = range(2)
        those = [streams(3, i) for i in devices]
        other = [full(1, f"cuda:{i}") for i in devices]
        mine = []
        for i, (a, b, _) in enumerate(those):
            with torch.cuda.stream(a):
                mine.append(full(2, f"cuda:{i}"))
            b.wait_stream(a)
            b.wait_stream(torch.cuda.default_stream(i))
        sources, targets = (other, mine) if outputs else (mine, other)
        torch.cuda.nccl.all_reduce(sources, targets, streams=[b for _, b, _ in those])
        del mine, sources, targets
        kept = []
        for i, (a, _, c) in enumerate(those):
            c.wait_stream(a)
            with torch.cuda.stream(c):
                kept.append([full(9, f"cuda:{i}") for _ in range(8)])
        for i in devices:
            torch.cuda.synchronize(i)
        return [x.tolist() for x in other]

    return run


PROGRAMS["adopting_reduced"] = adopting_collective(False)
PROGRAMS["adopting_reduced_into"] = adopting_collective(True)

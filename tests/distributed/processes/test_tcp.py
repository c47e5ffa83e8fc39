"""The TCP transport of CPU tensors: beside PyTorch's gloo, with CUDA tensors, strangers, killed and forked ranks."""

from __future__ import annotations

import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from rank_kit import Said, run_ranks
from seeds import EXHAUSTIVE

from flambeau.core.ipc.codec import receive, send
from flambeau.core.ipc.handshake import UNGREETED, RefusedError, greet
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.backends.peer_connections import _accept, _own_address
from flambeau.distributed.dist_errors import DistBackendError
from flambeau.distributed.stores.store import HashStore

DRAWN = str(Path(__file__).with_name("drawn_collectives.py"))
TCP = {"FLAMBEAU_GLOO": "tcp"}


def run(size: int, program: str, *args: str, **more: str) -> list[Said]:
    return run_ranks(size, "-c", program, *args, **TCP, **more)


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (5, 3)] if EXHAUSTIVE else [(3, 2)])
def test_drawn_programs_leave_what_pytorchs_gloo_leaves(size: int, seed: int) -> None:
    """Bit for bit: reductions of two ranks have one order, and those of more are exact."""
    wanted = run_ranks(size, DRAWN, "torch", str(seed), "60", PYTHONWARNINGS="ignore")
    assert not any(said.status for said in wanted), wanted[0].err
    found = run_ranks(size, DRAWN, "flambeau", str(seed), "60", PYTHONWARNINGS="ignore", **TCP)
    for mine, theirs in zip(found, wanted, strict=True):
        assert (mine.status, mine.out.splitlines()) == (0, theirs.out.splitlines()), mine.err


_LONGER = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
try:
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(2))
except dist.DistBackendError as error:
    print(error)
t = torch.ones(1)
dist.all_reduce(t)  # the group still works
print(t.item())
"""


def test_a_message_that_does_not_fit_fails_at_both_ends() -> None:
    for said in run(2, _LONGER):
        assert said.status == 0, said.err
        assert said.out == (
            "collective mismatch: a message of group 0 is not the same for both ends\n"
            "  rank 0 at <string>:6: send of 4 float32 to rank 1\n"
            "  rank 1 at <string>:8: recv of 2 float32 from any rank\n"
            "2.0\n"
        )


_SPLITS = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
for call in (
    lambda g: dist.gather(torch.ones(2), [torch.ones(2)] * 3 if rank == min(rank, 1) else None, dst=min(rank, 1), group=g),
    lambda g: dist.all_to_all_single(torch.ones(3 + rank), torch.ones(3), [1 + rank, 1, 1], [1, 1, 1], group=g),
    lambda g: dist.gather(torch.ones(2), [torch.ones(2)] * 3 if rank == 0 else None, dst=0, group=g) if rank else
        dist.scatter(torch.ones(2), [torch.ones(2)] * 3, src=0, group=g),
):
    group = dist.new_group()
    try:
        call(group)
        print("through")
    except dist.DistBackendError as error:
        print(str(error).partition(":")[0])
    dist.barrier()
"""


def test_lists_of_messages_that_do_not_fit_are_found() -> None:
    """MPI has no comparison of these. A rank whose own messages fit may end its part."""
    for said in run(3, _SPLITS):
        assert said.status == 0, said.err
        assert [line in ("collective mismatch", "through") for line in said.out.splitlines()] == [True] * 3
    assert "through" not in said.out.splitlines()[0]


_DIES = """
import os, signal, sys, time
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank, size, big = dist.get_rank(), dist.get_world_size(), torch.ones(3_000_000)
dist.all_reduce(big)
work = dist.all_reduce(big, async_op=True)
if rank == 1:
    if sys.argv[1] == "forked" and os.fork() == 0:
        os.close(1), os.close(2)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
try:
    for _ in range(1000):
        work.wait()
        work = dist.all_reduce(big, async_op=True)
except dist.DistBackendError as error:
    print(error)
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
def test_a_rank_killed_amid_large_reductions_is_named(how: str) -> None:
    """Also if a child of the rank lives on, with what it inherited."""
    program = _DIES.replace("signal.pause()", "signal.alarm(60), signal.pause()")
    for rank, said in enumerate(run(3, program, how)):
        if rank != 1:
            assert said.status == 0, said.err
            assert said.out.startswith(f"rank {rank} at <string>:")
            assert "all_reduce of 3000000 float32, op sum: the process of rank 1, " in said.out
            assert said.out.endswith(", has ended\n")


_LEAVES = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
group, store = dist.new_group(), dist.group.WORLD.get_group_store()
dist.barrier(group)
if dist.get_rank() == 1:
    dist.destroy_process_group(group)
else:
    try:
        dist.barrier(group)
    except dist.DistBackendError as error:
        print(error)
dist.barrier()
"""


def test_a_rank_that_left_the_group_is_named() -> None:
    first, second = run(2, _LEAVES)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert first.out == "rank 0 at <string>:10: barrier: rank 1 has left the group\n"


_BOTH_WAYS = """
import flambeau as torch, flambeau.distributed as dist
dist.init_process_group("gloo")
rank, size, count = dist.get_rank(), dist.get_world_size(), 6_000_003
mine, theirs = torch.full((count,), float(rank)), [torch.empty(count) for _ in range(size)]
works = [dist.isend(mine, peer, tag=9) for peer in range(size) if peer != rank]
for peer in range(size):
    if peer != rank:
        dist.recv(theirs[peer], peer, tag=9)
        assert (theirs[peer] == float(peer)).all()
for work in works:
    work.wait()
many = [dist.all_reduce(torch.ones(n), async_op=True) for n in (1, 5, 100_000, 3, 2_000_000) * 4]
for work in reversed(many):  # waited for in another order
    work.wait()
    assert (work.result()[0] == float(size)).all()
print("through")
"""


def test_large_tensors_in_both_directions_do_not_block() -> None:
    for said in run(3, _BOTH_WAYS):
        assert (said.status, said.out) == (0, "through\n"), said.err


_CUDA = """
import flambeau as torch, flambeau.distributed as dist
torch.cuda.set_device(int(__import__("os").environ["RANK"]))
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
t = torch.full((5,), rank + 1.0, device="cuda")
dist.all_reduce(t)
assert t.tolist() == [3.0] * 5 and t.is_cuda
work = dist.broadcast(t.mul_(rank + 1), 1, async_op=True)
work.wait()
assert t.tolist() == [6.0] * 5
outs = [torch.zeros(2, device="cuda") for _ in range(size)]
dist.all_gather(outs, torch.full((2,), float(rank), device="cuda"))
assert [o.tolist() for o in outs] == [[0.0, 0.0], [1.0, 1.0]]
out = torch.zeros(1, device="cuda")
dist.reduce_scatter_single(out, torch.arange(2.0, device="cuda"))
assert out.item() == 2.0 * rank
dist.scatter(out, list(torch.tensor([4.0, 5.0], device="cuda").split(1)) if rank == 0 else None, src=0)
assert out.item() == 4.0 + rank
dist.reduce(out, 1)
assert out.item() == (9.0 if rank else 4.0)
dist.gather(out, outs := [torch.zeros(1, device="cuda") for _ in range(2)] if rank == 0 else None, dst=0)
assert not rank == 0 or [o.item() for o in outs] == [4.0, 9.0]
swapped = torch.zeros(2, device="cuda")
dist.all_to_all_single(swapped, torch.arange(2.0, device="cuda") + 10 * rank)
assert swapped.tolist() == [rank, 10.0 + rank]
if rank == 0:
    dist.send(swapped, 1)
else:
    assert dist.recv(swapped) == 0 and swapped.tolist() == [0.0, 10.0]
h = torch.ones(2)
dist.all_reduce(h)
dist.barrier()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).cuda())
model(torch.full((4, 3), rank + 1.0, device="cuda")).sum().backward()
print(h.tolist(), model.module.weight.grad.tolist())
"""


def test_cuda_tensors_are_copied_through_the_host() -> None:
    for said in run(2, _CUDA, FLAMBEAU_VIRTUAL_DEVICES="2"):
        assert said.status == 0, said.err
        assert said.out == "[2.0, 2.0] [[6.0, 6.0, 6.0], [6.0, 6.0, 6.0]]\n"


def test_a_stranger_without_the_secret_is_turned_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        address = listener.getsockname()
        stranger, silent = socket.create_connection(address), socket.create_connection(address)
        silent.close()
        liar, member = socket.create_connection(address), socket.create_connection(address)
        send(stranger, ["flambeau store 2", 5])
        send(stranger, ["proof", b"guess"])
        send(liar, ["GET / HTTP/1.1"])
        joiner = threading.Thread(target=lambda: (greet(member, "the secret"), send(member, [3])))
        joiner.start()
        rank, connection = _accept(listener, "the secret", str, 1e12)
        joiner.join()
        assert rank == 3
        assert receive(stranger, UNGREETED)[0] == "prove"
        assert receive(stranger, UNGREETED)[0] == "refused"
        for end in (stranger, liar, member, connection):
            end.close()


def test_a_member_that_does_not_know_the_secret_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        done = threading.Event()

        def serve() -> None:
            with pytest.raises(DistBackendError, match="gone"):
                _accept(listener, "the secret", lambda: "gone" if done.is_set() else "", 1e12)

        server = threading.Thread(target=serve)
        server.start()
        with socket.create_connection(listener.getsockname()) as member, pytest.raises(RefusedError):
            greet(member, "another")
        done.set()
        server.join()


def test_the_interface_is_chosen_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    store = HashStore()
    place = Place(0, 2, (0, 1), "0", store, timedelta(seconds=1))
    store.set("process of rank 0", "1 here ")
    store.set("process of rank 1", "2 here ")
    assert _own_address(place) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert _own_address(place) == "127.0.0.1"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothere")
    with pytest.raises(DistBackendError, match="GLOO_SOCKET_IFNAME names 'nothere'"):
        _own_address(place)

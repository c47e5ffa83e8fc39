"""Ranks that disagree, never come, die or run out of memory: told at once, with each rank's line, and no hang."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import timedelta

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.distributed.backends import rank_processes
from flambeau.distributed.backends.backend import Place
from flambeau.distributed.debug import Agreement
from flambeau.testing.ranks import ranks

HERE = r"\S*test_mismatches\.py:\d+"


def differing(first, second, backend="nccl"):
    """Both join, agree once, and then each does what it wants."""
    dist.init_process_group(backend)
    where = "cuda" if backend == "nccl" else "cpu"
    dist.all_reduce(torch.ones(4, device=where))
    (first if dist.get_rank() == 0 else second)(torch.ones(4, device=where), torch.ones(5, device=where))
    if where == "cuda":
        torch.cuda.synchronize()


def all_reduce(t, u):
    dist.all_reduce(t)


OTHERS = {
    "kind": (lambda t, u: dist.broadcast(t, 0), "broadcast of 4 float32, root 0"),
    "count": (lambda t, u: dist.all_reduce(u), "all_reduce of 5 float32, op sum"),
    "dtype": (lambda t, u: dist.all_reduce(t.double()), "all_reduce of 4 float64, op sum"),
    "op": (lambda t, u: dist.all_reduce(t, dist.ReduceOp.MAX), "all_reduce of 4 float32, op max"),
}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("mine_first", [True, False])
def test_members_that_disagree_are_named_with_their_lines(what, backend, mine_first):
    other, told = OTHERS[what]
    pair = (all_reduce, other) if mine_first else (other, all_reduce)
    with pytest.raises(RuntimeError) as caught:
        ranks(differing, 2, *pair, backend)
    text = str(caught.value)
    lines = re.findall(rf"rank (\d)(?: \(cuda:\d\))? at {HERE}: (.+)", text)
    said = ["all_reduce of 4 float32, op sum", told]
    assert lines == list(zip("01", said if mine_first else said[::-1], strict=True))
    assert "mismatch: call 2 of" in text
    assert caught.value.__notes__[0].startswith("(rank ")


def test_roots_that_differ():
    with pytest.raises(RuntimeError, match=r"(?s)reduce of 4 float32, op sum, root 0\n.*op sum, root 1"):
        ranks(differing, 2, lambda t, u: dist.reduce(t, 0), lambda t, u: dist.reduce(t, 1))


def test_messages_of_different_sizes():
    with pytest.raises(RuntimeError, match=r"(?s)message 1 from rank 0 to rank 1.*send of 4.*recv of 5"):
        ranks(differing, 2, lambda t, u: dist.send(t, 1), lambda t, u: dist.recv(u, 0))


def swapped(t, u):
    dist.broadcast(t, 0)
    dist.all_reduce(t)


def in_order(t, u):
    dist.all_reduce(t)
    dist.broadcast(t, 0)


def test_an_order_that_differs():
    with pytest.raises(RuntimeError, match=r"(?s)call 2 of.*all_reduce.*broadcast.*in the same order"):
        ranks(differing, 2, in_order, swapped)


def test_what_was_queued_before_is_as_it_was():
    """The report comes late to who was first; nothing that was right is wrong."""
    seen = {}

    def body():
        dist.init_process_group("nccl")
        rank = dist.get_rank()
        kept = torch.full((4,), float(rank), device="cuda")
        dist.all_reduce(kept)
        seen[rank] = kept.tolist()
        with pytest.raises(RuntimeError, match="mismatch"):
            dist.all_reduce(torch.ones(4 + rank, device="cuda"))
            torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="mismatch"):  # it stays
            torch.ones(1, device="cuda")
        raise KeyError("done")

    with pytest.raises(KeyError):
        ranks(body, 2)
    assert seen == {0: [1.0] * 4, 1: [1.0] * 4}


def nobody_comes(backend):
    dist.init_process_group(backend)
    t = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
    dist.all_reduce(t)
    if dist.get_rank() != 1:
        dist.all_reduce(t)
        t.sum().item()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize("order", [None, 1, 2])
def test_a_rank_that_never_comes(backend, order):
    with pytest.raises(RuntimeError) as caught:
        ranks(nobody_comes, 3, backend, order=order)
    text = str(caught.value)
    assert text.startswith("deadlock: no rank can go on") and "rank 1 has ended" in text
    assert len(re.findall(rf"rank [02] at {HERE}", text)) >= 2
    assert re.search(r"waits for rank 1( \(cuda:1\), which has not arrived)?", text)


def different_groups():
    dist.init_process_group("nccl")
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    t = torch.ones(4, device="cuda")
    for group in groups:
        dist.all_reduce(t, group=group)
    dist.all_reduce(t, group=groups[dist.get_rank()])
    torch.cuda.synchronize()


def test_ranks_that_call_on_different_groups():
    with pytest.raises(RuntimeError) as caught:
        ranks(different_groups, 2)
    text = str(caught.value)
    for rank, number in ((0, 1), (1, 2)):
        assert re.search(
            rf"call 2 of communicator {number} of 2 ranks \(group {number}\) at {HERE} waits for rank {1 - rank} \(cuda:{1 - rank}\)",
            text,
        )


def messages_in_different_groups(backend, known):
    """known: the groups have exchanged messages before."""
    dist.init_process_group(backend)
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    t = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
    rank = dist.get_rank()
    message = dist.send if rank == 0 else dist.recv
    for group in groups * known:
        message(t, 1 - rank, group=group)
    message(t, 1 - rank, group=groups[rank])
    t.tolist()


@pytest.mark.parametrize(
    ("backend", "known", "of"),
    [
        (
            "nccl",
            False,
            r"comm_create of communicator 1 of 2 ranks \(messages of group 1\).* \(messages of group 2\)/0",
        ),
        (
            "nccl",
            True,
            r"send of 4 float32 .*\(messages of group 1\).*recv of 4 float32 .*\(messages of group 2\)",
        ),
        (
            "gloo",
            False,
            "send of 4 float32 to rank 1 in group 1: .*recv of 4 float32 from rank 0 in group 2: ",
        ),
    ],
)
def test_the_ends_of_a_message_in_different_groups_are_told_with_them(backend, known, of):
    with pytest.raises(RuntimeError, match=f"(?s)deadlock: no rank can go on.*{of}"):
        ranks(messages_in_different_groups, 2, backend, known)


def both_send_first():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    t = torch.ones(4, device="cuda")
    dist.send(t, 1 - rank)
    dist.recv(t, 1 - rank)
    torch.cuda.synchronize()


def test_two_that_both_send_first():
    with pytest.raises(
        RuntimeError,
        match=r"(?s)the message from rank 0 to rank 1, call 1.*they wait for each other in a circle",
    ) as caught:
        ranks(both_send_first, 2)
    line = both_send_first.__code__.co_firstlineno + 4
    assert f"test_mismatches.py:{line}" in str(caught.value) and f"test_mismatches.py:{line + 1}" in str(
        caught.value
    )


def both_receive(backend):
    """Ranks 2 and 3 of 4: within their group they are 0 and 1, which is nothing that a program's writer knows."""
    dist.init_process_group(backend)
    pair = dist.new_group([2, 3])
    rank = dist.get_rank()
    if rank > 1:
        t = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
        dist.recv(t, 5 - rank, group=pair)
        t.tolist()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_two_that_both_receive_are_told_by_their_ranks_and_lines(backend):
    with pytest.raises(RuntimeError) as caught:
        ranks(both_receive, 4, backend)
    text, line = str(caught.value), both_receive.__code__.co_firstlineno + 7
    for rank, peer in ((2, 3), (3, 2)):
        assert re.search(rf"recv of 4 float32 from rank {peer}.* waits for the send of rank {peer}", text)
        assert re.search(rf"rank {rank}('s recv.*| at .*)test_mismatches.py:{line}", text)
    assert "rank 0 has ended" in text and "from rank 0" not in text and "from rank 1" not in text


def all_on_one_device():
    dist.init_process_group("nccl")
    t = torch.ones(2, device="cuda:0")
    with pytest.raises(dist.DistBackendError) as caught:
        dist.all_reduce(t)
    return str(caught.value), t.tolist()


def test_ranks_that_share_a_device_all_hear_so():
    """Who came first was told that nobody else comes."""
    for text, values in ranks(all_on_one_device, 3):
        assert "Duplicate GPU detected: two ranks both on cuda:0" in text and "set_device" in text
        assert values == [1.0, 1.0]


def a_group_that_differs(backend):
    dist.init_process_group(backend)
    pair = dist.new_group([1, 2])
    if (rank := dist.get_rank()) > 0:
        t = torch.ones(4, device="cuda" if backend == "nccl" else "cpu")
        dist.broadcast(t, rank, group=pair)
        t.tolist()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_mismatch_in_a_group_is_told_by_the_ranks_of_all(backend):
    with pytest.raises(RuntimeError, match="collective mismatch") as caught:
        ranks(a_group_that_differs, 3, backend)
    for rank in (1, 2):
        assert re.search(rf"rank {rank} .*broadcast of 4 float32, root {rank}", str(caught.value))


def death():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    dist.all_reduce(t)
    if dist.get_rank() == 1:
        raise ZeroDivisionError("rank 1 is out")
    dist.all_reduce(t)
    torch.cuda.synchronize()


@pytest.mark.parametrize("order", [None, 0, 3])
def test_a_rank_that_dies_ends_all_with_its_error(order):
    with pytest.raises(ZeroDivisionError, match="rank 1 is out") as caught:
        ranks(death, 3, order=order)
    assert caught.value.__notes__ == ["(rank 1 of 3)"]


def out_of_memory():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    if dist.get_rank() == 1:
        torch.empty(1 << 40, device="cuda")
    dist.all_reduce(t)
    torch.cuda.synchronize()


def test_a_rank_that_runs_out_of_memory():
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate") as caught:
        ranks(out_of_memory, 2)
    assert caught.value.__notes__ == ["(rank 1 of 2)"]


def failing_kernel():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    if dist.get_rank() == 1:
        t = t[torch.tensor([0, 1, 2, 99], device="cuda")]  # asserts on the device
    dist.all_reduce(t)
    torch.cuda.synchronize()


def test_a_device_that_has_failed_fails_its_peers():
    with pytest.raises(RuntimeError) as caught:
        ranks(failing_kernel, 2)
    assert "device-side assert" in str(caught.value) or "remote process exited" in str(caught.value)


def aborted():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    dist.all_reduce(t)
    if dist.get_rank() == 0:
        dist.distributed_c10d._abort_process_group()
        return "left"
    with pytest.raises(RuntimeError, match=r"aborted|has not arrived"):
        dist.all_reduce(t)
        torch.cuda.synchronize()
    return "told"


def test_a_rank_that_aborts_leaves_nobody_hanging():
    assert ranks(aborted, 2) == ["left", "told"]


def waits_in_the_store():
    dist.init_process_group("gloo")
    store = dist.group.WORLD.get_group_store()
    if dist.get_rank() == 0:
        store.get("never set")


def test_a_key_that_nobody_sets():
    with pytest.raises(RuntimeError, match=r"(?s)no rank can go on.*never set.*rank 1 has ended"):
        ranks(waits_in_the_store, 2)


def polls():
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    work = dist.all_reduce(t, async_op=True)
    turns = 0
    while not work.is_completed():
        turns += 1
    return t.tolist(), turns


def test_a_rank_that_polls_lets_the_others_come():
    assert [values for values, _ in ranks(polls, 3)] == [[3.0] * 4] * 3


def test_a_full_queue_does_not_keep_a_rank_from_going_on():
    """One rank queues more than a launch queue holds behind a collective that the other has not arrived at."""

    def body():
        dist.init_process_group("nccl")
        t = torch.ones(4, device="cuda")
        dist.barrier(device_ids=[torch.cuda.current_device()])
        if dist.get_rank() == 1:
            dist.barrier(device_ids=[torch.cuda.current_device()])
        dist.all_reduce(t)
        for _ in range(1500):
            t.add_(1)
        if dist.get_rank() == 0:
            dist.barrier(device_ids=[torch.cuda.current_device()])
        return t.tolist()

    with pytest.raises(RuntimeError, match="mismatch"):  # barriers and the all_reduce have met crosswise
        ranks(body, 2)
    assert ranks(_long_queue, 2) == [[1502.0] * 4] * 2


def _long_queue():
    dist.init_process_group("nccl")
    dist.barrier(device_ids=[torch.cuda.current_device()])
    t = torch.ones(4, device="cuda")
    dist.all_reduce(t)
    for _ in range(1500):
        t.add_(1)
    return t.tolist()


# -- TORCH_DISTRIBUTED_DEBUG=DETAIL: ranks compare before they begin, as real GPUs need it ------------------------


def detailed(second, agree_first=True):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    dist.init_process_group("nccl")
    t = torch.ones(4, device="cuda")
    for _ in range(3 * agree_first):
        dist.all_reduce(t)
    with pytest.raises(dist.DistBackendError) as caught:
        all_reduce(t, None) if dist.get_rank() == 0 else second(t, torch.ones(5, device="cuda"))
    return str(caught.value), t.add_(1).tolist()  # nothing was begun: the devices are well


@pytest.mark.parametrize("what", OTHERS)
def test_in_detail_a_mismatch_is_told_before_anything_is_queued(what):
    other, told = OTHERS[what]
    (text, values), (same_text, _) = ranks(detailed, 2, other)
    assert text == same_text and values == [9.0] * 4
    lines = re.findall(rf"rank (\d) at {HERE}: (.+)", text)
    assert lines == [("0", "all_reduce of 4 float32, op sum"), ("1", told)]
    assert "call 4 of group 0" in text


def test_in_detail_a_rank_whose_process_has_ended_is_told_at_once(monkeypatch):
    """It was waited for as long as the group's timeout lets."""
    monkeypatch.setattr("flambeau.distributed.stores.store._LOOK_S", 0.005)
    store, limit = dist.HashStore(), timedelta(minutes=5)
    mine = Agreement(Place(0, 2, (4, 7), "3", store, limit))
    other = subprocess.Popen([sys.executable, "-c", ""])
    other.wait()
    store.set("process of rank 1", rank_processes.here().replace(str(os.getpid()), str(other.pid), 1))
    with pytest.raises(dist.DistBackendError) as caught:
        mine.compare(["x"], "an all_reduce")
    first, second = str(caught.value).splitlines()
    assert first == f"rank 7 has not arrived at call 1 of group 3: its process, {other.pid}, has ended"
    assert second.startswith("  rank 4 at ") and second.endswith(": an all_reduce")


def levels():
    found = [dist.get_debug_level()]
    dist.set_debug_level(dist.DebugLevel.INFO)
    found.append(dist.get_debug_level())
    dist.set_debug_level_from_env()
    with pytest.raises(TypeError):
        dist.set_debug_level(2)
    return [*found, dist.get_debug_level()]


def test_debug_levels(monkeypatch):
    expected = [dist.DebugLevel.OFF, dist.DebugLevel.INFO, dist.DebugLevel.OFF]
    assert ranks(levels, 1) == [expected]
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "detail")
    assert dist.get_debug_level() is dist.DebugLevel.DETAIL
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "much")
    with pytest.raises(ValueError, match=r"must be OFF, INFO, or DETAIL\."):
        dist.set_debug_level_from_env()

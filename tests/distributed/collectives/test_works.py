"""Works: what `wait`, `is_completed` and futures say, in time and too late, of each kind of work."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import flambeau as torch
import flambeau.distributed as dist
from flambeau.distributed.backends.nccl_backend import BlockingWork
from flambeau.distributed.work import Work
from flambeau.testing.ranks import ranks


class Fails(Work):
    """Over at once, with an error; each end is counted."""

    ends = 0

    def _finish(self, timeout: timedelta | None) -> None:
        self.ends += 1
        raise dist.DistBackendError("it went wrong")


def test_what_went_wrong_is_raised_by_each_wait() -> None:
    work = Fails([])
    for _ in range(2):
        with pytest.raises(dist.DistBackendError, match="it went wrong"):
            work.wait()
    assert work.ends == 1 and work.is_completed() and not work.is_success()


def test_who_polls_learns_of_an_error_where_pytorch_tells_it() -> None:
    work = Fails([])
    future = work.get_future()
    assert work.is_completed() and not work.is_success() and str(work.exception()) == "it went wrong"
    with pytest.raises(dist.DistBackendError, match="it went wrong"):
        future.wait()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_barrier_has_a_future(backend: str) -> None:
    def step() -> Any:
        dist.init_process_group(backend)
        device_ids = [dist.get_rank()] if backend == "nccl" else None
        work = dist.barrier(async_op=True, device_ids=device_ids)
        seen: list[bool] = []
        future = work.get_future().then(lambda _: seen.append(True))
        work.wait()
        future.wait()
        return seen, work.is_completed(), work.is_success()

    assert ranks(step, 2) == [([True], True, True)] * 2


def test_a_barrier_on_no_named_device_warns_on_rank_0() -> None:
    """PyTorch leaves it to Python's filters how often the warning is shown: once for each line by default."""

    def step() -> None:
        dist.init_process_group("nccl")
        dist.barrier(device_ids=[dist.get_rank()])
        dist.barrier()

    with pytest.warns(UserWarning, match=r"^barrier\(\): using the device under current context\.") as caught:
        ranks(step, 2)
    assert len(caught) == 1


def test_a_work_that_blocks_the_host_has_the_futures_of_others() -> None:
    """DDP's hooks go on with them during backward: with TORCH_NCCL_BLOCKING_WAIT they waited for ever."""
    with torch.virtual(1):
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
        x = torch.ones(2, device="cuda")
        inner = dist.all_reduce(x, async_op=True)
        engine: Any = dist.group.WORLD.backend_of("cuda")
        work = BlockingWork(inner, engine)
        doubled = work.get_future().then(lambda done: done.value()[0] * 2)
        assert doubled.done() and doubled.wait().tolist() == [2.0, 2.0]
        assert work.wait() and work.is_success() and work.result()[0] is x
        dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
@pytest.mark.parametrize(("leave", "told"), [("abort", "was aborted"), ("shutdown", "was shut down")])
def test_a_group_that_was_left_takes_nothing_more(backend: str, leave: str, told: str) -> None:
    """It would meet in what the store still has of it."""

    def step() -> None:
        dist.init_process_group(backend)
        x = torch.ones(1, device="cuda" if backend == "nccl" else "cpu")
        dist.all_reduce(x)
        getattr(dist.group.WORLD, leave)()
        with pytest.raises(dist.DistBackendError, match=f"process group 0 {told}"):
            dist.all_reduce(x)

    ranks(step, 1)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_messages_to_oneself(backend: str) -> None:
    """Two that are begun meet; who waits for one would wait for ever."""

    def body() -> list[float]:
        dist.init_process_group(backend)
        group = dist.new_group([1, 0], sort_ranks=False)
        rank, device = dist.get_rank(), "cuda" if backend == "nccl" else "cpu"
        x, y = torch.zeros(2, device=device), torch.ones(2, device=device)
        for call in (
            lambda: dist.send(y, rank),
            lambda: dist.recv(x, rank),
            lambda: dist.recv(x, group=group, group_src=group.rank()),
            lambda: dist.send_object_list([1], rank),
            lambda: dist.recv_object_list([1], rank),
        ):
            with pytest.raises(
                ValueError, match="rank should not be the same as the rank of the current process"
            ):
                call()
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, y, rank), dist.P2POp(dist.irecv, x, rank)]
        ):
            work.wait()
        got: list[float] = x.tolist()
        if rank == 0:
            with pytest.raises(RuntimeError, match=r"(?s)recv of 2 float32 from rank 0.* the send of rank 0"):
                dist.irecv(y, 0).wait()
                torch.cuda.synchronize()
        return got

    assert ranks(body, 2) == [[1.0, 1.0]] * 2


def test_groups_that_their_members_make_alone_have_new_names() -> None:
    def step() -> list[str]:
        dist.init_process_group("gloo")
        names = []
        for _ in range(2):
            near = dist.new_group([0, 1], use_local_synchronization=True)
            names.append(near.group_name)
            dist.destroy_process_group(near)
        return names

    (one, other), same = ranks(step, 2)
    assert one != other and same == [one, other]

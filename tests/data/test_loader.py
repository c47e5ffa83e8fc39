"""The DataLoader's worker processes: order, errors, deaths, the end; pinned batches; what needs no oracle."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
from loader_kit import (
    Custom,
    Failing,
    Large,
    Numbers,
    Process,
    Slow,
    Stream,
    Trained,
    Unpinnable,
    Views,
    broken_init,
    take,
    unpicklable,
)

import flambeau as torch
from flambeau.core.ipc.exception_wrapper import ExceptionWrapper
from flambeau.data.pin import Pinner, pin_memory
from flambeau.utils.data import DataLoader

METHODS = [m for m in ("fork", "spawn", "forkserver") if m in multiprocessing.get_all_start_methods()]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # on machines with few processors
]


def loader(dataset: Any, workers: int = 2, **options: Any) -> DataLoader[Any]:
    """A loader whose workers are forked, which starts them in a millisecond."""
    options.setdefault("multiprocessing_context", "fork")
    return DataLoader(dataset, num_workers=workers, **options)


def children() -> set[int | None]:
    return {process.pid for process in multiprocessing.active_children()}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    """Each test leaves no process and no descriptor behind."""
    before = children()
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    yield
    gc.collect()
    assert children() == before
    if files:
        assert len(os.listdir("/proc/self/fd")) <= files + 2  # Python's resource tracker and fork server stay


# -- order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_start_methods(method: str) -> None:
    found = list(loader(Numbers(7), batch_size=2, multiprocessing_context=method))
    assert [b.tolist() for b in found] == [[0, 1], [2, 3], [4, 5], [6]]


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("ahead", [0, 1, 2, 9])
def test_batches_come_in_order_whoever_is_faster(workers: int, ahead: int) -> None:
    found = [b.item() for b in loader(Slow(12), workers, prefetch_factor=ahead)]
    assert found == list(range(12))


def test_without_order_nothing_is_lost() -> None:
    found = [b.item() for b in loader(Slow(20), 4, in_order=False)]
    assert sorted(found) == list(range(20))


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("size", [None, 1, 2, 3])
def test_streams_end_one_after_another(size: int | None, in_order: bool) -> None:
    found = list(loader(Stream(), 3, batch_size=size, in_order=in_order))
    flat = [x for b in found for x in ([b] if size is None else b.tolist())]
    assert sorted(flat) == [0, 1, 100, 101, 102, 103, 200, 201, 202, 203, 204, 205]
    if in_order and size == 1:
        assert flat == [0, 100, 200, 1, 101, 201, 102, 202, 103, 203, 204, 205]


def test_persistent_workers_stay_for_the_next_pass() -> None:
    kept = loader(Process(4), persistent_workers=True, collate_fn=take)
    first = [one for batch in kept for one in batch]
    assert [one for batch in kept for one in batch] == first
    assert len({pid for _, pid in first}) == 2
    stream = loader(Stream(), persistent_workers=True)
    assert len(list(stream)) == len(list(stream)) == 6
    fresh = loader(Process(4), collate_fn=take)
    assert {pid for b in fresh for _, pid in b}.isdisjoint({pid for b in fresh for _, pid in b})


def test_a_pass_that_was_left_early_leaves_nothing_to_the_next() -> None:
    kept = loader(Slow(10), persistent_workers=True)
    for batch in kept:
        if batch.item() == 2:
            break
    assert [b.item() for b in kept] == list(range(10))


def test_lengths() -> None:
    it = iter(loader(Numbers(7), batch_size=2))
    assert len(it) == 4
    assert iter(it) is it


# -- what travels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS[:2])
def test_large_samples_travel_in_shared_memory(method: str) -> None:
    for i, sample in enumerate(loader(Large(4), batch_size=None, multiprocessing_context=method)):
        assert sample["tensor"].shape == (200, 300) and (sample["tensor"] == i).all()
        assert (sample["array"] == i).all() and isinstance(sample["array"], torch.Tensor)
        assert sample["half"].dtype is torch.bfloat16 and (sample["half"] == i).all()
        assert sample["column"].tolist() == [i] * 200
        assert len(sample["text"]) == 40_000
        sample["tensor"] += 1  # what is received may be written to
        assert (sample["tensor"] == i + 1).all()
        assert sample["tensor"].sum().item() == 60_000 * (i + 1)


def test_batches_outlive_the_loader() -> None:
    batches = list(loader(Large(2), batch_size=None))
    gc.collect()
    assert [b["tensor"][0, 0].item() for b in batches] == [0, 1]


def test_a_view_travels_without_the_rest_of_its_storage() -> None:
    for i, row in enumerate(loader(Views(3), batch_size=None)):
        assert row.tolist() == [i * 1_000_000 + k for k in range(3)]
        assert row.untyped_storage().nbytes() == 24


def test_gradients_do_not_cross_processes() -> None:
    found = list(loader(Trained(leaf=True), batch_size=None))
    assert [t.requires_grad for t in found] == [True, True]
    with pytest.raises(
        RuntimeError, match="Cowardly refusing to serialize non-leaf tensor which requires_grad"
    ):
        list(loader(Trained(leaf=False), batch_size=None))


def test_large_lists_of_indices_do_not_block() -> None:
    sizes = [
        len(b) for b in loader(Numbers(200_000), 2, batch_size=50_000, prefetch_factor=4, collate_fn=take)
    ]
    assert sizes == [50_000] * 4


# -- errors ---------------------------------------------------------------------------------------------------


def test_an_error_names_its_worker_and_the_rest_can_be_had() -> None:
    it = iter(loader(Failing("raises"), 2, batch_size=2))
    assert next(it).tolist() == [0, 1] and next(it).tolist() == [2, 3]
    with pytest.raises(ValueError, match="Caught ValueError in DataLoader worker process 0") as caught:
        next(it)
    assert "bad sample" in str(caught.value) and "loader_kit.py" in str(caught.value)
    assert next(it).tolist() == [6, 7]
    with pytest.raises(StopIteration):
        next(it)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("is_killed", r"is killed by signal: Killed\. "),
        ("is_terminated", r"is killed by signal: Terminated\. "),
        ("exits", "exited unexpectedly with exit code 3. Details are lost due to multiprocessing"),
    ],
)
def test_a_dead_worker_is_an_error_that_names_it(how: str, why: str, method: str) -> None:
    if method != "fork" and how != "is_killed":
        return  # one of them is enough for the others, which take a second
    it = iter(loader(Failing(how), 2, batch_size=1, multiprocessing_context=method))
    with pytest.raises(
        RuntimeError, match=r"DataLoader worker \(pid\(s\) \d+\) exited unexpectedly"
    ) as caught:
        list(it)
    assert caught.match(str(caught.value.__cause__).split()[3].rstrip(")"))
    with pytest.raises(RuntimeError, match=why):
        raise caught.value.__cause__  # type: ignore[misc]
    with pytest.raises(RuntimeError, match="stopped after an error"):
        next(it)


def test_a_death_noticed_on_sending_ends_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch in hand is lost then: those that wait behind it must not pass for its successors."""
    it: Any = iter(loader(Numbers(8), 2, batch_size=1))
    while len(it._arrived) < 4:
        it._receive()

    def dead(worker: int, task: Any) -> None:
        raise RuntimeError("dead")

    monkeypatch.setattr(it._pool, "send", dead)
    with pytest.raises(RuntimeError, match="dead"):
        next(it)
    with pytest.raises(RuntimeError, match="stopped after an error"):
        next(it)


def test_persistent_workers_are_started_anew_after_a_death() -> None:
    dataset = Failing("is_killed")
    kept = loader(dataset, persistent_workers=True)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        list(kept)
    dataset.how = "__repr__"
    assert len(list(kept)) == 8


def test_a_worker_that_hangs_runs_into_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flambeau.data.worker_pool._PATIENCE", 0.1)
    it = iter(loader(Failing("hangs"), 1, timeout=0.2))
    assert [next(it).item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(it)


def test_what_cannot_be_sent_is_an_error_not_a_hang() -> None:
    with pytest.raises(
        AttributeError, match=r"DataLoader worker process 0(.|\n)*Can't (pickle|get) local object"
    ):
        list(loader(Numbers(4), collate_fn=unpicklable))
    with pytest.raises((AttributeError, TypeError), match=r"pickle|local object"):
        iter(loader(Numbers(4), collate_fn=lambda b: b, multiprocessing_context="spawn"))


def test_init_functions_that_fail() -> None:
    with pytest.raises(
        RuntimeError, match=r"Caught RuntimeError in DataLoader worker process 0(.|\n)*no worker 0"
    ):
        list(loader(Numbers(4), worker_init_fn=broken_init))


def test_cuda_is_refused_in_a_forked_worker() -> None:
    with torch.virtual(devices=1):
        torch.ones(1, device="cuda")
        with pytest.raises(
            RuntimeError, match=r"Cannot re-initialize CUDA in forked subprocess. To use CUDA with mul"
        ):
            list(loader(Failing("uses_cuda")))


def test_loaders_within_loaders() -> None:
    inner = loader(Numbers(3))
    assert [(a.item(), b.item()) for a in loader(Numbers(2)) for b in inner] == [
        (a, b) for a in range(2) for b in range(3)
    ]


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_the_interpreter_ends_in_the_middle_of_a_pass() -> None:
    """Workers end with it, though the iterator is still there, and so is a persistent one."""
    pids = run(
        "import flambeau as torch\n"
        "from flambeau.utils.data import DataLoader\n"
        "it = iter(DataLoader(range(100), num_workers=2, multiprocessing_context='fork'))\n"
        "kept = DataLoader(range(100), num_workers=1, persistent_workers=True, multiprocessing_context='fork')\n"
        "next(it), next(iter(kept))\n"
        "print(*it._pool.pids, *kept._iterator._pool.pids)"
    )
    assert len(pids.split()) == 3
    for pid in pids.split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_workers_end_when_their_parent_is_killed() -> None:
    """They hold the pipe of standard output, whose end is seen when the last of them is gone."""
    program = (
        "import os, signal\n"
        "from flambeau.utils.data import DataLoader\n"
        "its = [iter(DataLoader(range(100), num_workers=2, multiprocessing_context='fork')) for _ in range(2)]\n"
        "[next(it) for it in its]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=300)
    assert done.returncode == -9


# -- pinned memory --------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_in_pinned_memory(workers: int) -> None:
    def of(dataset: Any, **options: Any) -> Any:
        if not workers:
            return DataLoader(dataset, pin_memory=True, **options)
        return loader(dataset, workers, pin_memory=True, **options)

    with torch.virtual(devices=1):
        for batch in of(Numbers(5), batch_size=2):
            assert batch.is_pinned()
        batch = next(iter(of(Numbers(4), batch_size=2, collate_fn=Custom)))
        assert batch.pinned_by == "itself" and batch.values.is_pinned() and batch.values.tolist() == [0, 1]
        with pytest.raises(ValueError, match="never"):
            next(iter(of(Numbers(4), collate_fn=Unpinnable)))
        target = [b.to("cuda", non_blocking=True) for b in of(Numbers(6), batch_size=2)]
        assert torch.cat(target).tolist() == [0, 1, 2, 3, 4, 5]


def test_containers_are_pinned_in_place_of_their_tensors() -> None:
    ones = torch.ones(2)
    data = {
        "pair": Pair(ones, "s"),
        "list": [ones, 3],
        "tuple": (ones,),
        "ordered": OrderedDict(a=ones),
        "text": b"x",
    }
    with torch.virtual(devices=1):
        found = pin_memory(data)
        assert type(found["pair"]) is Pair and found["pair"].x.is_pinned() and found["pair"].y == "s"
        assert found["list"][0].is_pinned() and found["list"][1] == 3
        assert type(found["tuple"]) is list and found["tuple"][0].is_pinned()
        assert type(found["ordered"]) is OrderedDict and found["ordered"]["a"].is_pinned()
        assert found["text"] == b"x"
        assert not data["list"][0].is_pinned()  # type: ignore[index]


def test_the_pinning_thread() -> None:
    """As on real GPUs: pins in the background, hands errors on in order, ends with its source."""
    results = iter(
        [(0, torch.ones(1)), (1, ExceptionWrapper((ValueError, ValueError("x"), None))), (2, Unpinnable([]))]
    )

    def receive() -> Any:
        try:
            return next(results)
        except StopIteration:
            raise RuntimeError("the worker died") from None

    with torch.virtual(devices=1):
        pinner = Pinner(receive, 0)
        index, tensor = pinner.receive()  # type: ignore[misc]
        assert index == 0 and tensor.is_pinned()
        assert pinner.receive()[1].exc_type is ValueError  # type: ignore[index]
        with pytest.raises(
            ValueError, match=r"Caught ValueError in pin memory thread for device 0(.|\n)*never"
        ):
            pinner.receive()[1].reraise()  # type: ignore[index]
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the worker died"):
                pinner.receive()
        pinner.join()


def test_a_collection_amid_the_list_of_threads_may_end_the_pinning_thread() -> None:
    begin, ended = threading.Event(), threading.Event()

    def receive() -> Any:
        begin.wait()
        raise RuntimeError("no more")

    def end() -> None:
        pinner.join()
        ended.set()

    pinner = Pinner(receive, 0)
    threading.Thread(target=end, daemon=True).start()
    with threading._active_limbo_lock:  # type: ignore[attr-defined]  # as in threading.enumerate
        begin.set()
        assert ended.wait(20)


def test_a_pinned_pass_repeats_exactly() -> None:
    """On virtual GPUs the machine's trace is the same whoever of the workers is faster."""

    def trace() -> Any:
        with torch.virtual(devices=1) as machine:
            total = torch.zeros((), device="cuda")
            for batch in loader(Slow(12), 3, batch_size=2, pin_memory=True):
                total += batch.to("cuda", non_blocking=True).sum()
            assert total.item() == 66
            return machine.driver.trace_hash()

    assert trace() == trace()

"""What a program leaves behind when a wait is interrupted, a thread ends, or a call raises: nothing."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import flambeau as torch
from flambeau.runtime import system

LONG = 10**7  # clock cycles


@pytest.fixture(autouse=True, params=["off", "error"])
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    with torch.virtual(devices=2, races=request.param):
        yield


def interrupt_in_the_queue() -> None:
    """Ctrl-C is pressed when the current stream of the current device gets here."""
    stream = torch.cuda.current_stream()
    stream.context.driver.host_call(lambda: signal.raise_signal(signal.SIGINT), stream.handle)


def polled() -> None:
    while not torch.cuda.current_stream().query():
        pass


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "torch.cuda.synchronize": lambda x: torch.cuda.synchronize(),
    "stream.synchronize": lambda x: torch.cuda.current_stream().synchronize(),
    "event.synchronize": lambda x: torch.cuda.current_stream().record_event().synchronize(),
    "cpu": lambda x: x.cpu(),
    "item": lambda x: x[0].item(),
    "repr": repr,
    "copy_": lambda x: torch.zeros(4).copy_(x),
    "a blocking copy in": lambda x: x[:0].new_empty(4).copy_(torch.ones(4)),
    "polling": lambda x: polled(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_an_interrupted_wait_loses_nothing(wait: Callable[[torch.Tensor], object]) -> None:
    before = torch.cuda.memory_allocated()
    x = torch.zeros(4, device="cuda")
    x.add_(1)
    interrupt_in_the_queue()
    x.add_(2)
    with pytest.raises(KeyboardInterrupt):
        wait(x)
    assert (x * 2).tolist() == [6.0] * 4
    del x
    gc.collect()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_a_wait_of_one_stream_for_another_is_interrupted_and_still_holds() -> None:
    here, there = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(4, device="cuda")
    there.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(there):
        torch.cuda._sleep(LONG)
        interrupt_in_the_queue()
        x.fill_(3)
    here.wait_stream(there)
    with torch.cuda.stream(here):
        y = x + 1
    with pytest.raises(KeyboardInterrupt):
        here.synchronize()
    assert not here.query()
    here.synchronize()
    assert y.tolist() == [4.0] * 4


def test_emptying_the_cache_may_be_interrupted() -> None:
    x = torch.zeros(1 << 22, device="cuda")
    interrupt_in_the_queue()
    del x
    with pytest.raises(KeyboardInterrupt):
        torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == 0 < torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def test_a_thread_that_ends_leaves_its_work_queued_and_its_selection_behind() -> None:
    results: list[torch.Tensor] = []

    def work() -> None:
        torch.cuda.set_device(1)
        torch.cuda.set_stream(torch.cuda.Stream())
        torch.cuda._sleep(LONG)
        results.append(torch.ones(4, device="cuda") * 3)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    del work, thread
    gc.collect()  # the stream has no holder any more
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
    torch.cuda.Stream(1)  # collected native streams go when the next is made: its work is still to run
    torch.cuda.synchronize(1)
    (x,) = results
    assert x.device == torch.device("cuda:1") and x.cpu().tolist() == [3.0] * 4
    results.clear()
    del x
    gc.collect()
    torch.cuda.synchronize(1)
    assert torch.cuda.memory_allocated(1) == 0


def pinned_in_use() -> int:
    """Bytes of pinned memory that are still there when all that is kept has been given back."""
    gc.collect()
    torch.cuda.synchronize()
    system.pinned_allocator().empty_cache()
    return system.pinned_allocator().reserved_bytes


FAILURES: dict[str, Callable[[torch.Tensor], object]] = {
    "shapes": lambda p: torch.empty(3, device="cuda").copy_(p, non_blocking=True),
    "memory": lambda p: (p.to("cuda", non_blocking=True), torch.empty(1 << 50, device="cuda")),
    "device": lambda p: p.to("cuda:7", non_blocking=True),
    "dtype": lambda p: p.pin_memory().to("cuda", torch.float8_e4m3fn, non_blocking=True) + p.cuda(),
    "pinned memory": lambda p: torch.empty(1 << 60, pin_memory=True),
    "the program": lambda p: p.to("cuda", non_blocking=True).nothing,
    "an interrupt": lambda p: (
        p.to("cuda", non_blocking=True),
        interrupt_in_the_queue(),
        torch.cuda.synchronize(),
    ),
    "the way back": lambda p: p.copy_(torch.ones(3, device="cuda"), non_blocking=True),
}


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_pinned_memory_is_back_after_a_call_that_raises(fail: Callable[[torch.Tensor], object]) -> None:
    assert pinned_in_use() == 0
    p = torch.ones(1 << 12).pin_memory()
    with pytest.raises((RuntimeError, AttributeError, KeyboardInterrupt)) as caught:
        fail(p)
    assert pinned_in_use() == 1 << 14  # `p` alone
    assert p[:3].tolist() == [1.0] * 3
    del p, caught
    assert pinned_in_use() == 0
    assert torch.cuda.memory_allocated() == 0


def test_snapshots_are_taken_while_other_threads_allocate() -> None:
    wrong: list[Exception] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(seed: int) -> None:
        chosen, live, side = random.Random(seed), [], torch.cuda.Stream()
        try:
            for i in range(60):
                with torch.cuda.stream(side):
                    live.append(torch.empty(chosen.randrange(1, 3 << 20), dtype=torch.uint8, device="cuda"))
                live[-1].record_stream(torch.cuda.default_stream())
                del live[: -chosen.randrange(1, 10)]
                if i % 3 == 0:
                    torch.cuda.memory._snapshot()
        except Exception as error:
            wrong.append(error)

    try:
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong

"""The table of docs/determinism.md: each row's line comes out of a tiny program."""

import asyncio
import gc
import queue
import random
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from test_host_threads import after, before, gate, in_threads

import flambeau as torch
from flambeau.testing import ranks

PAGE = (Path(__file__).parents[3] / "docs" / "determinism.md").read_text()


def zeros(count=64):
    return torch.zeros(count, device="cuda")


# -- covered: a race ----------------------------------------------------------------------------------------------


def two_streams():
    x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.add_(1)


def freed_memory():
    x, side = zeros(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    del x
    return y, torch.zeros(64, device="cuda")


def the_host_and_a_copy():
    h = zeros().to("cpu", non_blocking=True)
    return h.sum()


def a_view_that_is_written():
    h = torch.ones(64).pin_memory()
    view = h.numpy()
    x = h.to("cuda", non_blocking=True)
    view[:] = 2
    torch.cuda.synchronize()
    return x


# -- assumed: a line below the certificate ---------------------------------------------------------------------------


def deterministic_operators():
    zeros()


def one_host_thread():
    zeros()


def several_host_threads():
    zeros()
    thread = threading.Thread(target=zeros)
    thread.start()
    thread.join()


def other_host_threads():
    zeros()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def a_condition():
    ready, told = threading.Condition(), []
    zeros()

    def tell():
        with ready:
            told.append(1)
            ready.notify()

    with ready:
        thread = threading.Thread(target=tell)
        thread.start()
        while not told:
            ready.wait()
    thread.join()


def ranks_as_threads():
    ranks(zeros, 2)


def no_polls_of_the_device():
    zeros()


def times_that_are_read():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    zeros()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def memory_that_was_written():
    zeros()


def a_view_during_an_upload():
    h = torch.ones(64).pin_memory()
    view = h.numpy()
    x = h.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    return view, x


def a_view_during_a_download():
    h = torch.ones(64).pin_memory()
    view = h.numpy()
    h.copy_(zeros(), non_blocking=True)
    torch.cuda.synchronize()
    return view


def pinned_memory_that_a_view_wrote():
    h = torch.empty(64, pin_memory=True)
    h.numpy()[:] = 1
    return h.to("cuda", non_blocking=True)


def polled_reuse():
    side = torch.cuda.Stream()
    for _ in range(50):
        x = zeros()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x + 1
        x.record_stream(side)


# -- withheld: no race, and no certificate ----------------------------------------------------------------------------


def polls_of_the_device():
    zeros()
    return torch.cuda.current_stream().query()


def times_of_pending_events():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    zeros()
    end.record()
    with suppress(RuntimeError):
        start.elapsed_time(end)


def failed_work():
    zeros(3)[torch.tensor([7], device="cuda")]
    with suppress(RuntimeError):
        torch.cuda.synchronize()


def shared_memory():
    queue = torch.multiprocessing.SimpleQueue()
    queue.put(zeros())


def threads_on_one_stream():
    go = gate()
    in_threads(
        before(go, lambda: torch.ones(8, device="cuda")), after(go, lambda: torch.zeros(8, device="cuda"))
    )


def threads_that_draw():
    go, streams = gate(), [torch.cuda.Stream(), torch.cuda.Stream()]

    def draw(stream):
        with torch.cuda.stream(stream):
            torch.randn(16, device="cuda")

    in_threads(before(go, lambda: draw(streams[0])), after(go, lambda: draw(streams[1])))
    torch.cuda.synchronize()


def threads_that_autocast():
    go, weight = gate(), torch.ones(8, 8, device="cuda", requires_grad=True)

    def use():
        with torch.autocast("cuda"):
            weight.matmul(weight.detach()).matmul(weight)

    def leave():
        with torch.autocast("cuda"):
            pass

    in_threads(before(go, use), after(go, leave))
    torch.cuda.synchronize()


def threads_with_unseen_synchronization():
    x, go = zeros(), gate()
    torch.cuda.synchronize()

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1).tolist()

    in_threads(before(go, work), after(go, work))


def polls_by_threads():
    told = threading.Event()
    zeros()
    thread = threading.Thread(target=told.set)
    thread.start()
    told.is_set()
    thread.join()


def polls_before_a_device_is_used():
    told = threading.Event()
    thread = threading.Thread(target=told.set)
    thread.start()
    value = 1 if told.is_set() else 2
    thread.join()
    return zeros() + value


def an_event_between_threads():
    event, go, side = torch.cuda.Event(), gate(), torch.cuda.Stream()
    in_threads(
        before(go, lambda: (event.record(), event.wait(side))),
        after(go, lambda: event.record(torch.cuda.Stream())),
    )


def a_queue_of_threads():
    work, go = queue.Queue(), gate()
    zeros()
    in_threads(before(go, lambda: work.put(1)), after(go, lambda: work.put(2)))


def the_first_of_several():
    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.wait(
            [loop.run_in_executor(None, int) for _ in range(2)], return_when=asyncio.FIRST_COMPLETED
        )

    zeros()
    asyncio.run(main())


def tasks_of_an_event_loop():
    async def job():
        await asyncio.to_thread(int)
        zeros()

    async def main():
        await asyncio.gather(job(), job())

    zeros()
    asyncio.run(main())


def freed_by_another_thread():
    def consume():
        side = torch.cuda.Stream()
        side.wait_event(ready)
        with torch.cuda.stream(side):
            held.pop() + 1

    held, go = [zeros()], gate()
    ready = torch.cuda.current_stream().record_event()
    thread = threading.Thread(target=after(go, consume))
    thread.start()
    zeros()
    go.release()
    thread.join()


def memory_between_streams():
    a, b, c = [torch.cuda.Stream() for _ in range(3)]
    with torch.cuda.stream(a):
        x = zeros()
        del x
    b.wait_stream(a)
    with torch.cuda.stream(b):
        y = torch.empty(64, device="cuda")
    with torch.cuda.stream(c):
        y.fill_(1)


def freed_pinned_memory():
    h = torch.ones(64).pin_memory()
    part = torch.from_numpy(h.numpy()[8:])
    x = part.to("cuda", non_blocking=True)
    del h, part
    torch.cuda.synchronize()
    return x


def memory_of_a_graph():
    x, graph = zeros(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
    del x
    graph.replay()


def unwritten_memory():
    return torch.empty(64, device="cuda") + 1


def unwritten_pinned_memory():
    return torch.empty(64, pin_memory=True).to("cuda", non_blocking=True)


def unknown_elements():
    x = torch.empty(64, device="cuda")
    return x.index_fill_(0, torch.arange(64, device="cuda"), 1.0)


def an_early_view_that_stays_alive():
    h = zeros().to("cpu", non_blocking=True)
    view = h.numpy()
    torch.cuda.synchronize()
    return view


def a_view_under_strict():
    return a_view_during_an_upload()


# -- not covered: nothing is said ---------------------------------------------------------------------------------------


def the_clock():
    return zeros() + (1 if time.time() > 0 else 2)


def random_numbers_without_a_seed():
    return zeros() + random.SystemRandom().random()


# -- the table ------------------------------------------------------------------------------------------------------------

OPTIONS = {"a_view_under_strict": {"strict": True}, "unknown_elements": {"data": False}}
TABLE = PAGE.split("## What is checked, and what is assumed")[1].split("\n## ")[0]
ROWS = {
    case.replace(" ", "_"): (status, line.strip("`"))
    for case, status, _, line in [
        [cell.strip() for cell in row.strip("|").split("|")]
        for row in TABLE.splitlines()
        if row.startswith("|")
    ][2:]
}
STANDARD = (
    "every operator",
    "one host thread",
    "other host threads",
    "the program never asked",
    "no operation read",
)


def shown(text):
    """Return a text with its places, and counts that follow from simulated times, as one that can be compared."""
    return re.sub(r"[\w/]+\.py:\d+", "program.py:1", re.sub(r"^\d+ reuses", "1 reuses", text))


def run(case):
    with torch.virtual(races="warn", **OPTIONS.get(case, {})) as machine:
        kept = globals()[case]()
        certificate = machine.certificate()
        del kept
        gc.collect()
    return certificate


@pytest.mark.filterwarnings("ignore:Producer process has been terminated")
@pytest.mark.parametrize("case", ROWS)
def test_a_row_has_its_line(case):
    status, line = ROWS[case]
    certificate = run(case)
    assert certificate.race_free == (status in ("assumed", "not covered")), str(certificate)
    assert bool(certificate.races) == (status == "covered")
    if status == "not covered":
        assert line == "none"
        assert [text for text in certificate.assumptions if not text.startswith(STANDARD)] == []
        return
    lines = {
        "covered": [race.headline for race in certificate.races],
        "assumed": certificate.assumptions,
        "withheld": certificate.violated,
    }[status]
    assert shown(line) in [shown(text) for text in lines]


def test_each_program_has_a_row():
    helpers = {"zeros", "shown", "run"}
    programs = {name for name, value in globals().items() if getattr(value, "__module__", "") == __name__}
    assert {name for name in programs - helpers if not name.startswith("test_")} == set(ROWS)
    assert {status for status, _ in ROWS.values()} == {"covered", "assumed", "withheld", "not covered"}

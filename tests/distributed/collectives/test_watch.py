"""The watch of collectives on real GPUs, beside communicators that are made up and a clock that tests turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.callsite import caller
from flambeau.distributed.backends import rank_processes, watchdog
from flambeau.distributed.backends.communicator import PendingCollective, RankCommunicator
from flambeau.distributed.backends.rank_progress import RankProgress
from flambeau.distributed.backends.watchdog import Handling, Watch, handling_of
from flambeau.driver.protocol import Collective


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Communicator:
    """What the watch sees of one."""

    rank = 1
    title = "group 0 (ranks 0, 1)"
    limit_s = 600.0
    freed = True

    def __init__(self, handling: Handling = Handling.END) -> None:
        self.handling = handling
        self.pending: list[PendingCollective] = []
        self.wrong: str | None = None
        self.dead: list[str] = []
        self.told = 0
        self.error: Exception | None = None
        self.closed: list[Any] = []
        self.takes: Callable[[], None] = lambda: None

    def begin(self, number: int = 1) -> None:
        self.pending.append(PendingCollective(number, [], caller(), None))  # type: ignore[arg-type]

    def head(self) -> PendingCollective | None:
        return self.pending[0] if self.pending else None

    def failure(self) -> str | None:
        return self.wrong

    def describe_ended_processes(self) -> list[str]:
        return self.dead

    def publish_progress(self) -> None:
        self.told += 1

    def lines(self) -> list[str]:
        return ["rank 1 queued it at train.py:7: all_reduce of 4 float32, op sum"]

    def fail(self, error: Exception) -> bool:
        self.error = error
        self.takes()
        return self.freed

    def close(self, abort: bool) -> None:
        self.closed.append(abort)

    def forget(self) -> None:
        self.closed.append("forgotten")


class Ended(Exception):
    """The process."""


def end() -> None:
    raise Ended


class Scene:
    """A watch whose clock the test turns; no thread."""

    def __init__(self, handling: Handling = Handling.END) -> None:
        self.clock = Clock()
        self.threads: list[Any] = []
        self.watch = Watch(self.clock, self.threads.append, end)
        self.line = Communicator(handling)
        self.watch.add(self.line)

    def after(self, seconds: float) -> None:
        self.clock.now += seconds
        self.watch.look()


def test_what_ends_in_time_is_nothing_to_speak_of(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    for number in range(5):
        scene.line.begin(number)
        scene.after(0)
        scene.after(600)  # of each: what waits for another is not late itself
        scene.line.pending.pop(0)
    scene.after(10_000)
    assert capfd.readouterr() == ("", "")


def test_a_late_one_is_told_with_its_line_and_the_process_ends(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.line.begin(17)
    scene.after(0)
    scene.after(600)
    with pytest.raises(Ended):
        scene.after(2)
    said = capfd.readouterr().err.splitlines()
    assert said[0] == (
        "[rank1]: flambeau.distributed.DistBackendError: collective timed out: call 17 of group 0 (ranks 0, 1) has not "
        "ended for 602.0 s; the group's timeout is 600 s"
    )
    assert said[1] == "[rank1]:   rank 1 queued it at train.py:7: all_reduce of 4 float32, op sum"
    assert said[2].startswith("[rank1]:   the program of rank 1 is at ") and "test_watch.py:" in said[2]
    assert scene.line.error is None  # nothing is aborted: that may not return
    scene.after(10_000)  # once


@pytest.mark.parametrize("handling", [Handling.NOTHING, Handling.ABORT, Handling.ABORT_AND_END])
def test_what_is_asked_for_is_done(handling: Handling, capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene(handling)
    scene.line.begin()
    scene.after(0)
    if handling is Handling.ABORT_AND_END:
        with pytest.raises(Ended):
            scene.after(700)
    else:
        scene.after(700)
    assert "collective timed out" in capfd.readouterr().err
    assert (scene.line.error is None) is (handling is Handling.NOTHING)
    assert handling is Handling.NOTHING or isinstance(scene.line.error, dist.DistBackendError)


def test_an_abort_that_frees_nothing_ends_the_process() -> None:
    scene = Scene(Handling.ABORT)
    scene.line.freed = False
    scene.line.begin()
    scene.after(0)
    with pytest.raises(Ended):
        scene.after(700)


def test_a_timeout_that_changes_counts_from_then_on() -> None:
    scene = Scene()
    scene.line.begin()
    scene.after(0)
    scene.line.limit_s = 5.0
    scene.after(5)
    with pytest.raises(Ended):
        scene.after(1.5)


def test_what_nccl_says_is_told_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene()
    scene.line.wrong = "remote process exited"
    scene.after(5)  # nothing is under way
    scene.line.begin()
    with pytest.raises(Ended):
        scene.after(0.1)
    assert (
        "collective failed: call 1 of group 0 (ranks 0, 1): remote process exited" in capfd.readouterr().err
    )


def test_half_a_minute_after_the_end_of_a_member_nobody_waits_any_more(
    capfd: pytest.CaptureFixture[str],
) -> None:
    scene = Scene()
    scene.line.begin()
    scene.after(0)
    scene.line.dead = ["the process of rank 0, 4711, has ended"]
    scene.after(2)
    scene.after(29)
    with pytest.raises(Ended):
        scene.after(2)
    said = capfd.readouterr().err
    assert "collective waits forever: call 1" in said and "the process of rank 0, 4711, has ended" in said


def test_how_far_it_is_is_told_ten_times_a_minute_at_most() -> None:
    scene = Scene()
    for _ in range(601):
        scene.after(0.1)
    assert 5 <= scene.line.told <= 6


def test_the_thread_is_there_as_long_as_somebody_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    monkeypatch.setattr(watchdog, "_LOOK_S", 0)
    looks = []
    monkeypatch.setattr(scene.watch, "look", lambda: (looks.append(1), scene.watch.remove(scene.line)))
    scene.threads.pop()()
    assert looks == [1]
    other = Communicator()
    scene.watch.add(other)
    assert len(scene.threads) == 1  # a new one
    scene.watch.before_close(None)  # type: ignore[arg-type]
    scene.threads.pop()()
    assert looks == [1]


def test_communicators_of_one_group_fail_together(capfd: pytest.CaptureFixture[str]) -> None:
    scene = Scene(Handling.ABORT)
    other = Communicator(Handling.ABORT)
    scene.watch.add(other)
    scene.line.begin()
    other.begin()
    scene.line.takes = lambda: scene.watch.remove(other)
    scene.after(0)
    scene.after(700)
    assert capfd.readouterr().err.count("collective timed out") == 1 and other.error is None


@pytest.mark.parametrize(
    "why", ["all is well", "failed", "a member has ended", "another does not leave", "no threads"]
)
def test_at_its_end_a_process_waits_for_nobody(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    if why == "failed":
        scene.watch.give_up()
    if why == "a member has ended":
        scene.line.dead = ["the process of rank 0, 4711, has ended"]
    if why == "another does not leave":
        monkeypatch.setattr(watchdog, "within", lambda *runs: False)
    if why == "no threads":
        monkeypatch.setattr(watchdog.threading.Thread, "start", no_thread)
    scene.watch.before_close(None)  # type: ignore[arg-type]
    assert scene.line.closed == ([False] if why == "all is well" else ["forgotten"])
    assert scene.line.told == (why not in ("another does not leave", "no threads"))


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't create new thread at interpreter shutdown")


def test_a_program_that_failed_leaves_what_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    other = Communicator()
    scene.watch.add(other)
    other.begin()
    scene.watch.give_up()
    assert scene.line.error is None and isinstance(other.error, dist.DistBackendError)
    ended: list[int] = []
    other.freed = False
    monkeypatch.setattr(watchdog.os, "_exit", ended.append)
    scene.watch.give_up()
    assert ended == [1]


@pytest.mark.parametrize(
    ("environment", "handling"),
    [
        ({}, 3), ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, 0), ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, 1),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}, 2), ({"TORCH_NCCL_BLOCKING_WAIT": "1"}, 0),
        ({"TORCH_NCCL_BLOCKING_WAIT": "no"}, 3),
    ],
)  # fmt: skip
def test_pytorchs_variables(environment: dict[str, str], handling: int) -> None:
    assert handling_of(environment) == handling
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_BLOCKING_WAIT"):
        with pytest.raises(RuntimeError, match=f"Invalid value for environment variable: {name}"):
            handling_of({**environment, name: "7"})


# -- lines ------------------------------------------------------------------------------------------------------


class Marks:
    """A driver whose events up to a number are done; each question is counted."""

    def __init__(self) -> None:
        self.done = 0
        self.asked = 0

    def event_ended(self, event: int) -> bool:
        self.asked += 1
        return event <= self.done


class Mark:
    def __init__(self, handle: int) -> None:
        self.handle = handle


def line_of(driver: Any, whereabouts: Any = None) -> RankCommunicator:
    backend: Any = type("Backend", (), {})()
    backend.place = type("Place", (), {"rank": 0, "ranks": (3, 5), "name": "1", "priority": 0})()
    line = RankCommunicator(backend, torch.runtime.system.contexts()[0], 7, None, None)
    line._driver = driver
    line.progress = whereabouts
    return line


def begin(line: RankCommunicator, number: int) -> PendingCollective:
    call = Collective("all_reduce", 0, 0, number, torch.float32)
    begun = PendingCollective(number, [call], caller(), Mark(number))  # type: ignore[arg-type]
    line.pending.append(begun)
    line.newest, line.count = begun, number
    return begun


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=6))
def test_the_first_that_is_not_over_is_found_by_few_questions(steps: list[tuple[int, int]]) -> None:
    with torch.virtual(1):
        driver = Marks()
        line = line_of(driver)
        for more, done in steps:
            for _ in range(more):
                begin(line, line.count + 1)
            driver.done = min(driver.done + done, line.count)
            driver.asked = 0
            head = line.head()
            assert driver.asked <= 10
            oldest = max(driver.done + 1, line.count - 255)
            assert (head.number if head else line.count + 1) == oldest
            assert [begun.number for begun in line.pending] == list(range(oldest, line.count + 1))


def test_what_is_queued_while_the_watch_asks_is_not_taken_for_over() -> None:
    """A host that is far ahead pushes the first out: what stood at a place is another then."""
    with torch.virtual(1):

        class Ahead(Marks):
            def event_ended(self, event: int) -> bool:
                ended = super().event_ended(event)
                if line.count == 256:
                    begin(line, 257)
                return ended

        driver = Ahead()
        line = line_of(driver)
        for number in range(1, 257):
            begin(line, number)
        driver.done = 256
        head = line.head()
        assert head is not None and head.number == 257


def test_what_was_queued_as_its_group_was_given_up_says_so() -> None:
    with torch.virtual(1):
        store = dist.HashStore()
        here = [rank_processes.here(), rank_processes.here()]
        line = line_of(Marks(), RankProgress(store, "key", [3, 5], 3, here))
        begin(line, 1)
        why = dist.DistBackendError("given up")
        line.give_up(why)
        line.publish_progress()  # the others learn of it all the same
        assert json.loads(store.get("key/at/3"))[0] == 1
        stream = torch.cuda.current_stream()
        begun = line.note([], stream, stream.record_event())
        assert begun is not None and begun.error is why


def test_a_communicator_that_cannot_be_asked_has_failed() -> None:
    """The watchdog must survive the error, because it watches other communicators too."""
    with torch.virtual(1):
        line = line_of(Marks())
        line.comm = 4711
        assert "4711 is not a communicator" in str(line.failure())


def test_ranks_tell_each_other_how_far_they_are() -> None:
    with torch.virtual(1):
        store = dist.HashStore()
        driver = Marks()
        mine = RankProgress(
            store, "communicator/all/0", [3, 5], 3, [rank_processes.here(), rank_processes.here()]
        )
        theirs = RankProgress(
            store, "communicator/all/0", [3, 5], 5, [rank_processes.here(), rank_processes.here()]
        )
        line = line_of(driver, mine)
        begin(line, 1)
        begin(line, 2)
        assert line.lines()[1] == "rank 5 has not arrived: it has reported no call"
        theirs.publish_progress(1, "at other.py:3: all_reduce of 1 float32, op sum")
        driver.done = 1
        head = line.head()
        assert head is not None and head.number == 2
        me, other = line.lines()
        assert me.startswith("rank 3 queued it at ") and me.endswith(": all_reduce of 2 float32, op sum")
        assert "(begin(line, 2))" in me
        assert other == (
            "rank 5 has not arrived: the last that it reported is call 1, at other.py:3: all_reduce of 1 float32, op sum"
        )
        theirs.publish_progress(2, "at other.py:4: broadcast of 9 float32, root 3")
        assert (
            line.lines()[1] == "rank 5 has arrived at call 2, at other.py:4: broadcast of 9 float32, root 3"
        )
        line.publish_progress()
        assert json.loads(store.get("communicator/all/0/at/3"))[0] == 2


def test_a_process_that_has_ended_is_seen() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    there = rank_processes.here().replace(str(os.getpid()), str(child.pid), 1)
    child.wait()
    seen = RankProgress(dist.HashStore(), "key", [0, 1], 0, [rank_processes.here(), there])
    assert seen.describe_ended_processes([0, 1]) == [f"the process of rank 1, {child.pid}, has ended"]
    assert seen.describe_ended_processes([0]) == []
    assert seen.others(1)[0].endswith(f"; its process, {child.pid}, has ended")
    elsewhere = RankProgress(
        dist.HashStore(), "key", [0, 1], 0, [rank_processes.here(), f"{child.pid} another host"]
    )
    assert elsewhere.describe_ended_processes([0, 1]) == []


def test_messages_need_their_peers_alone() -> None:
    class Seen:
        def describe_ended_processes(self, ranks: Any) -> list[str]:
            return [str(rank) for rank in ranks]

    with torch.virtual(1):
        line = line_of(Marks(), Seen())
        assert line.describe_ended_processes() == ["3", "5"]
        begin(line, 1)
        assert line.describe_ended_processes() == ["3", "5"]
        line.pending.clear()
        begin(line, 2).calls = [Collective("recv", 0, 0, 4, torch.float32, peer=1)]
        assert line.describe_ended_processes() == ["5"]


def test_a_store_that_has_gone_is_no_reason_to_fail() -> None:
    class Gone:
        def clone(self) -> Gone:
            return self

        def set(self, key: str, value: str) -> None:
            raise dist.DistNetworkError("gone")

    seen = RankProgress(Gone(), "key", [0, 1], 0, [rank_processes.here(), rank_processes.here()])
    seen.publish_progress(1, "at train.py:1")
    seen.publish_progress(2, "at train.py:2")
    assert seen.others(2) == ["rank 1 is unknown: the store does not answer"]


def test_works_that_were_given_up_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.virtual(1):
        begun = PendingCollective(1, [], caller(), None)  # type: ignore[arg-type]
        stream = torch.cuda.current_stream()
        work = dist.work.StreamWork([], stream, stream.record_event(), pending=begun)
        assert work.wait() and work.is_success() and work.exception() is None
        begun.error = dist.DistBackendError("given up")
        with pytest.raises(dist.DistBackendError, match="given up"):
            work.wait()
        assert not work.is_success() and work.exception() is begun.error

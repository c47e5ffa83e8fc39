"""Virtual GPUs of ranks that are processes: results, times that repeat, reports, one capacity; the meeting place alone."""

from __future__ import annotations

import itertools
import math
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_kit import HERE, Said, finish, run_ranks, start

from flambeau.core.host.process_state import processor_seconds
from flambeau.distributed.stores.coordinator import Coordinator

PROGRAM = str(HERE / "exchange_program.py")
VIRTUAL = {"FLAMBEAU_VIRTUAL_DEVICES": "3", "FLAMBEAU_VIRTUAL_PROFILE": "a100-40g"}


def launch(size: int, what: str, *args: str, **more: str) -> Said:
    return finish(
        start(
            "-m",
            "flambeau.distributed.run",
            "--nproc-per-node",
            str(size),
            *args,
            PROGRAM,
            what,
            **VIRTUAL,
            **more,
        )
    )


def test_collectives_under_the_launcher() -> None:
    said = launch(3, "collectives")
    assert said.status == 0, said.err
    assert sorted(said.out.splitlines()) == [f"rank {rank} is through" for rank in range(3)]


def test_collectives_of_ranks_that_nobody_launched() -> None:
    for said in run_ranks(2, PROGRAM, "collectives", **VIRTUAL):
        assert (said.status, said.err) == (0, "")


@pytest.mark.parametrize(
    ("what", "devices"), [("barrier_before_any_collective", "01"), ("barrier_after_a_collective", "12")]
)
def test_a_barrier_uses_the_device_of_the_groups_collectives_between_processes(
    what: str, devices: str
) -> None:
    said = launch(2, what)
    assert said.status == 0, said.err
    assert sorted(said.out.splitlines())[:2] == [f"devices {index}" for index in devices]
    assert ("currently unknown" in said.err) == ("before" in what)


def test_the_rank_that_serves_the_others_outlasts_them() -> None:
    for said in run_ranks(3, PROGRAM, "first_is_done_first", **VIRTUAL):
        assert said.status == 0, said.err


def test_devices_go_on_while_their_host_makes_a_communicator_or_waits_in_the_store() -> None:
    said = launch(2, "sends_before_the_host_waits")
    assert said.status == 0, said.err
    assert said.out.splitlines().count("got 10.0") == 2


@pytest.mark.parametrize("schedule", ["earliest", "random:3"])
@pytest.mark.parametrize(
    ("program", "result"), [("hosts_that_wait_in_mpi", "93.0"), ("hosts_that_ask_mpi", "1731.0")]
)
def test_devices_go_on_while_their_host_waits_in_mpi(program: str, result: str, schedule: str) -> None:
    said = [launch(3, program, FLAMBEAU_SCHEDULE=schedule) for _ in range(2)]
    assert said[0].status == 0, said[0].err
    assert [line.split()[:3] for line in said[0].out.splitlines() if "got" in line] == [
        ["got", result, result]
    ] * 3
    assert sorted(said[0].out.splitlines()) == sorted(said[1].out.splitlines())


def test_a_circle_through_mpi_is_told_with_all_lines() -> None:
    said = launch(2, "circle_through_mpi")
    assert "deadlock: no rank can go on" in said.err
    assert re.search(
        r"rank 1 \(process \d+\): waits for all_reduce of 1 float32, op sum of CPU tensors in group 1 at ",
        said.err,
    )


@pytest.mark.parametrize("schedule", ["earliest", "random:3"])
def test_results_and_times_do_not_depend_on_how_fast_processes_are(schedule: str) -> None:
    first, second = (launch(3, "repeats", FLAMBEAU_SCHEDULE=schedule) for _ in range(2))
    assert first.status == 0, first.err
    assert second.status == 0, second.err
    assert sorted(first.out.splitlines()) == sorted(second.out.splitlines())
    sums = [line.split()[1] for line in first.out.splitlines() if len(line.split()) == 2]
    assert len(sums) == 9
    assert len({*sums}) == 3, "all ranks have the same sums"


def test_without_a_launcher_it_is_the_same() -> None:
    """Rank 0 serves the others by threads of its own; who asks whether it may wait alone must not count them."""
    launched = launch(3, "repeats")
    alone = run_ranks(3, PROGRAM, "repeats", **VIRTUAL)
    assert [said.status for said in alone] == [0] * 3, alone[0].err
    assert sorted(line for said in alone for line in said.out.splitlines()) == sorted(
        launched.out.splitlines()
    )


def test_a_poll_does_not_wait_for_what_comes_after_it() -> None:
    said = launch(2, "polls_for_what_comes_later")
    assert (said.status, said.out.count("is through")) == (0, 2), said.err


def test_ranks_that_disagree_are_told_each_others_lines() -> None:
    said = launch(2, "mismatch")
    assert said.status == 1
    assert (
        "collective mismatch: call 2 of communicator 1 of 2 ranks (group 0) is not the same for all"
        in said.err
    )
    assert "all_reduce of 1024 float32, op sum" in said.err
    assert "broadcast of 1024 float32, root 0" in said.err
    assert said.err.count("exchange_program.py:") >= 2


def test_a_mismatch_does_not_lose_what_was_told_beside_it() -> None:
    """Found by the hunt: the second wait said that nobody could go on."""
    said = launch(2, "mismatch_beside_another_group")
    assert (
        said.out.count(
            "collective mismatch: call 2 of communicator 1 of 2 ranks (group 0) is not the same for all"
        )
        == 4
    )
    assert "deadlock" not in said.out + said.err


def test_a_rank_that_has_ended_before_it_needed_the_others_is_named() -> None:
    """Without a launcher, too: rank 0 waited for ever."""
    first, second = run_ranks(2, PROGRAM, "first_never_comes", **VIRTUAL)
    assert "which rank 1 has not joined" in first.out and second.out == "rank 1 is through\n"
    assert re.search(r"rank 1 \(process \d+\): has ended", first.out)


def test_who_makes_no_communicator_in_time_is_named() -> None:
    first, second = run_ranks(2, PROGRAM, "first_is_late", **VIRTUAL)
    assert first.status == second.status == 0, first.err + second.err
    assert re.search(
        r"rank 1 at \S*exchange_program.py:\d+: rank 0 did not arrive within 0.2 s at the first collective of group 1 "
        r"\(ranks 0, 1\)",
        second.out,
    )


def test_who_waits_for_a_rank_that_gave_up_and_ended_is_told_so() -> None:
    """It waited as long as the group's timeout lets."""
    said = launch(2, "first_gives_up")
    assert said.status == 0, said.err
    deadlock, late = said.out[: said.out.index("rank 0 is through")], said.out[said.out.index("rank 1 at") :]
    assert deadlock.startswith("deadlock: no rank can go on")
    assert re.search(
        r"makes the communicator of ranks 0, 1 at .*\(messages of group 1\), which rank 1 has not", deadlock
    )
    assert re.search(r"rank 1 \(.*\): waits for '.*\(messages of group 2\)/0' of the store at ", deadlock)
    assert re.search(
        r"rank 0 did not arrive at the first message of group 2 \(ranks 0, 1\): its process, \d+, has ended\n",
        late,
    )


def test_a_rank_that_never_comes_is_named_when_it_has_ended() -> None:
    said = launch(2, "never_comes")
    assert said.status == 1
    assert "rank 1 (process " in said.err
    assert "has ended and will never reach call 2" in said.err
    assert "exchange_program.py:" in said.err
    assert "rank 0 failed first" in said.err


def test_a_rank_that_dies_ends_all_with_its_status() -> None:
    said = launch(2, "dies")
    assert said.status == 9
    assert "rank 1 failed first" in said.err


def test_ranks_that_wait_for_each_other_are_told_at_once() -> None:
    said = launch(2, "waits_in_a_circle")
    assert said.status == 1
    assert "deadlock: no rank can go on" in said.err
    assert "the host waits for device cuda:0" in said.err
    assert "/afterwards' of the store" in said.err


def test_a_ring_in_which_all_receive_first_is_told_with_every_line() -> None:
    """Their first messages: each waits for its communicator with a neighbour."""
    said = launch(3, "ring")
    for rank, what in enumerate(
        (
            "makes the communicator of ranks 0, 2 at LINE (messages of group 0), which rank 2 has not joined",
            "waits for '/default_pg/1/0/communicator of ranks 0, 1 (messages of group 0)/0' of the store at LINE",
            "waits for '/default_pg/1/0/communicator of ranks 1, 2 (messages of group 0)/0' of the store at LINE",
        )
    ):
        expected = re.escape(what).replace("LINE", r"\S*exchange_program.py:\d+")
        assert re.search(rf"rank {rank} \(process \d+\): {expected}", said.err), said.err


def test_a_group_of_all_ranks_begins_anew_in_the_store_of_the_one_before() -> None:
    said = launch(2, "begins_again")
    assert said.status == 0, said.err


def test_what_ranks_hold_of_one_device_is_limited_together() -> None:
    said = launch(2, "one_device")
    assert said.status == 0, said.err
    assert (
        "Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 39.59 GiB of which 9.18 GiB is free"
        in said.out
    )
    assert said.out.count("Duplicate GPU detected: two ranks both on cuda:0") >= 1
    assert said.out.count("is through") == 2


# -- the meeting place alone -----------------------------------------------------------------------------------


class Ranks:
    """Processes that ask a meeting place by a plan, in any order that a seed gives; what each is told."""

    def __init__(self, plans: list[list[Any]], seed: int) -> None:
        self.place = Coordinator(len(plans))
        self.plans = [list(plan) for plan in plans]
        self.told: list[list[Any]] = [[] for _ in plans]
        self.waits = [False] * len(plans)
        self.dice = random.Random(seed)
        for rank in range(len(plans)):
            self.place.ask(rank, 0, "hello", [rank])

    def run(self) -> list[list[Any]]:
        while True:
            able = [rank for rank, plan in enumerate(self.plans) if plan and not self.waits[rank]]
            for rank, answer in self.place.settle({}):
                self.waits[rank] = False
                self.told[rank].append(answer[1:])
                able.append(rank)
            if not able:
                return self.told
            rank = self.dice.choice([rank for rank in able if self.plans[rank]] or [-1])
            if rank >= 0:
                self.step(rank)

    def step(self, rank: int) -> None:
        operation, *args = self.plans[rank].pop(0)
        if operation == "end":
            self.place.remove_process(rank)
            return
        answer = self.place.ask(rank, len(self.told[rank]), operation, args)
        self.waits[rank] = answer is None
        if answer is not None and answer[1] != "ok":
            self.told[rank].append(answer[1:])


def offer(number: int, rank: int, unique: bytes = b"c", key: tuple[int, int] = (-1, -1)) -> list[Any]:
    slot = rank if key[0] < 0 else int(rank == key[1])
    return [
        "offer",
        unique,
        [*key, number],
        slot,
        ["all_reduce", 1, "float32", "sum", -1, f"rank {rank}", b"x", 5],
    ]


WAIT, LOOK = ["wait", "why", True], ["look", True]


def told_in_any_order(plans: list[list[Any]]) -> list[list[Any]]:
    """What the ranks are told: the same, whoever is faster."""
    first = Ranks(plans, 0).run()
    for seed in range(1, 60):
        assert Ranks(plans, seed).run() == first, f"seed {seed}"
    return first


def join(rank: int, unique: bytes = b"c", size: int = 2) -> list[Any]:
    return ["join", unique, list(range(size)), [[rank, rank]], "a line"]


def test_ranks_are_told_of_all_their_meetings_together() -> None:
    plans = [[join(rank), offer(1, rank), offer(2, rank), WAIT] for rank in range(2)]
    for rank, (joined, news) in enumerate(told_in_any_order(plans)):
        assert joined == ["ok", [[[0, 0], [1, 1]], []]]
        assert [outcome[:2] for outcome in news[1]] == [[b"c", [-1, -1, 1]], [b"c", [-1, -1, 2]]]
        for _, _, parts in news[1]:
            assert [(slot, part[-2]) for slot, part in parts] == [
                (0, b"" if rank == 0 else b"x"),
                (1, b"x" if rank == 0 else b""),
            ]


@given(
    st.lists(
        st.sampled_from([(0, 1), (0, 2), (1, 2), (0, 1, 2)]).flatmap(
            lambda group: st.tuples(st.just(group), st.booleans())
        ),
        max_size=8,
    )
)
@settings(max_examples=40, deadline=None)
def test_meetings_of_groups_that_overlap_are_told_in_the_order_in_which_a_rank_came(
    calls: list[tuple[tuple[int, ...], bool]],
) -> None:
    """A call is (its group, whether its ranks wait right after it)."""
    groups = list(dict.fromkeys(group for group, _ in calls))
    plans: list[list[Any]] = [[join(rank, b"all", 3)] for rank in range(3)]
    came: list[list[Any]] = [[] for _ in range(3)]
    for group in groups:
        for slot, rank in enumerate(group):
            plans[rank].append(["join", repr(group).encode(), list(group), [[slot, rank]], "a line"])
    for number, (group, waits) in enumerate(calls):
        for slot, rank in enumerate(group):
            plans[rank].append(offer(number, slot, repr(group).encode()))
            plans[rank] += [WAIT] * waits
            came[rank].append(number)
    for rank, told in enumerate(told_in_any_order([[*plan, WAIT] for plan in plans])):
        outcomes = [news for status, news in told if status == "ok"][1 + sum(rank in g for g in groups) :]
        assert [outcome[1][2] for news in outcomes for outcome in news] == came[rank]


def test_what_depends_on_what_a_rank_does_next_is_no_deadlock() -> None:
    """Rank 0 waits for a message that rank 1 sends when it has got one, which rank 0 sends after its wait."""
    plans = [
        [join(0), offer(1, 0), offer(1, 0, key=(1, 0)), WAIT, offer(1, 0, key=(0, 1)), WAIT],
        [join(1), offer(1, 1), WAIT, offer(1, 1, key=(0, 1)), WAIT, offer(1, 1, key=(1, 0)), WAIT],
    ]
    told = told_in_any_order(plans)
    assert [[outcome[1] for outcome in news[1]] for news in told[0][1:]] == [
        [[-1, -1, 1]],
        [[1, 0, 1], [0, 1, 1]],
    ]
    assert [len(news[1]) for news in told[1][1:]] == [1, 1, 1]


def test_a_poll_learns_that_nothing_has_happened_when_all_wait() -> None:
    plans = [
        [join(0), offer(1, 0), LOOK, offer(1, 0, key=(0, 1)), WAIT],
        [join(1), offer(1, 1, key=(0, 1)), WAIT, offer(1, 1), WAIT],
    ]
    told = told_in_any_order(plans)
    assert told[0][1] == ["ok", []], "rank 1 waits for the message that rank 0 sends after its poll"
    assert {outcome[1][0] for outcome in told[0][2][1]} == {0, -1} or len(told[0][2][1]) == 1


def test_who_waits_in_vain_is_told_every_ranks_line() -> None:
    plans = [[join(0), offer(1, 0), WAIT], [join(1), ["wait", "somewhere else", True]]]
    told = told_in_any_order(plans)
    for one in told:
        status, report = one[1]
        assert status == "error"
        assert report.splitlines() == [
            "deadlock: no rank can go on", "  rank 0 (process 0): why", "  rank 1 (process 1): somewhere else",
        ]  # fmt: skip


def test_who_waits_for_a_rank_that_has_ended_is_told_so() -> None:
    plans = [[join(0), offer(1, 0), WAIT], [join(1), ["end"]]]
    told = told_in_any_order(plans)
    assert told[0][1][0] == "error"
    assert "rank 1 (process 1) has ended and will never reach call 1" in told[0][1][1]


def test_who_makes_a_communicator_goes_on_with_what_others_wait_for() -> None:
    """Rank 0 sends, and receives; sends again once it knows. Rank 1 joins when it has got that."""
    there, back = (0, 1), (1, 0)
    plans = [
        [join(0), offer(1, 0, key=there), offer(1, 0, key=back), join(0, b"d"), offer(2, 0, key=there),
         ["join", b"d", [0, 1], [], "a line"]],
        [join(1), offer(1, 1, key=there), offer(1, 1, key=back), WAIT, offer(2, 1, key=there), WAIT, join(1, b"d")],
    ]  # fmt: skip
    told = told_in_any_order(plans)
    devices, news = told[0][1][1]
    assert devices is None
    assert [key for _, key, _ in news] == [[0, 1, 1], [1, 0, 1]]
    assert told[0][2][1][0] == told[1][3][1][0] == [[0, 0], [1, 1]]


def test_an_idle_rank_is_told_only_where_nobody_else_can_go_on() -> None:
    place = Coordinator(2)
    for rank in range(2):
        place.ask(rank, 0, "hello", [rank])
        place.ask(rank, 0, *_asked(join(rank)))
    place.settle({})
    for rank in range(2):
        place.ask(rank, 1, *_asked(offer(1, rank, key=(0, 1))))
    assert place.settle({0: "a key of the store"}) == [], "rank 1 may set it"
    place.ask(1, 2, *_asked(WAIT))
    assert len(place.settle({0: "a key of the store"})) == 1
    place.ask(1, 3, *_asked(WAIT))
    assert place.settle({0: "a key of the store"}) == [], "rank 0 will ask for what there is to be told"
    place.ask(0, 2, "idle", [""])
    ((process, answer),) = place.settle({0: "a key of the store"})
    assert (process, answer[1], len(answer[2])) == (0, "ok", 1)
    assert place.settle({0: "a key of the store"}) == [], "it goes on with that"
    place.ask(0, 3, "idle", [""])
    report = dict(place.settle({0: "a key of the store"}))[1][2]
    assert "rank 0 (process 0): waits for a key of the store" in report.splitlines()[1]


def test_ranks_in_mpi_look_again_together_before_anything_is_told() -> None:
    """What MPI does is not seen: where all wait, it may be that one has only not looked."""
    place = Coordinator(3)
    for rank in range(3):
        place.ask(rank, 0, "hello", [rank])
        place.ask(rank, 0, *_asked(join(rank, size=3)))
    place.settle({})
    place.ask(0, 1, "wait", ["at a line", True])
    numbers = itertools.count(2)

    def waits(rank: int) -> None:
        place.ask(rank, next(numbers), "idle", ["waits for a sum"])

    def asked_back() -> list[int]:
        told = place.settle({})
        assert all(answer[1] == "why" for _, answer in told)
        return [process for process, _ in told]

    waits(1)
    waits(2)
    assert asked_back() == [1, 2]
    waits(1)
    assert asked_back() == [], "rank 2 has not looked as often"
    place.ask(2, next(numbers), "awake", [])
    waits(2)
    for _ in range(3):  # all anew: rank 2 did something else meanwhile
        assert asked_back() == [1, 2]
        waits(1)
        waits(2)
    report = dict(place.settle({}))[0][2]
    assert report.splitlines()[-1] == "  rank 2 (process 2): waits for a sum"


def test_a_message_outlives_its_sender() -> None:
    plans = [[join(0), offer(1, 0, key=(0, 1)), ["end"]], [join(1), offer(1, 1, key=(0, 1)), WAIT]]
    told = told_in_any_order(plans)
    assert told[1][1][1][0][1] == [0, 1, 1]


def test_who_polls_is_kept_back_while_others_work_and_no_longer() -> None:
    """Rank 1 is no participant that waits: it computes for a while, then waits where nobody sees it."""
    now, used = [0.0], [0.0]
    place = Coordinator(2, clock=lambda: now[0], used=lambda process: used[0])
    for rank in range(2):
        place.ask(rank, 0, "hello", [rank])
        assert place.ask(rank, 0, *_asked(join(rank))) is None
    assert len(place.settle({})) == 2
    assert place.ask(0, 1, *_asked(offer(1, 0))) == [1, "ok", None]
    assert place.ask(0, 2, *_asked(LOOK)) is None
    for _ in range(8):
        assert place.deadline is not None
        now[0], used[0] = place.deadline, used[0] + 9
        assert place.settle({}) == [], "rank 1 works"
    now[0] = place.deadline
    assert place.settle({}) == [(0, [2, "ok", []])], "it has done nothing for long"
    asked = now[0]
    assert place.ask(0, 3, *_asked(LOOK)) is None
    assert place.deadline is not None
    assert place.deadline < asked + 1, "from now on polls are answered soon"
    assert place.ask(1, 1, *_asked(offer(1, 1))) == [1, "ok", None]
    ((process, answer),) = place.settle({})
    assert (process, len(answer[2])) == (0, 1)


def _asked(step: list[Any]) -> tuple[str, list[Any]]:
    operation, *args = step
    return operation, args


def test_who_waits_for_data_works_as_long_as_its_workers_do(tmp_path: Path) -> None:
    """As /proc tells it: process 7 sleeps, its children 8 and 9 load for it; 10 is 9's."""

    def say(process: int, state: str, ticks: int, *children: int) -> None:
        threads = tmp_path / str(process) / "task" / str(process)
        threads.mkdir(parents=True, exist_ok=True)
        (threads / "children").write_text(" ".join(map(str, children)))
        (tmp_path / str(process) / "stat").write_text(
            f"{process} (a b) c) {state} {'0 ' * 10}{ticks} {ticks}"
        )

    second = os.sysconf("SC_CLK_TCK")
    say(7, "S", second, 8, 9)
    say(8, "S", 0)
    say(9, "S", second, 10)
    say(10, "S", 2 * second)
    assert processor_seconds(7, tmp_path) == 8.0
    for state in ("R", "D"):
        say(10, state, 2 * second)
        assert processor_seconds(7, tmp_path) == math.inf
    say(9, "S", second)
    assert processor_seconds(7, tmp_path) == 4.0
    assert processor_seconds(11, tmp_path) == math.inf, "nothing is known of it"


def test_who_was_told_that_nobody_joins_is_in_the_communicator_no_more() -> None:
    """Its partner, who came later, was told that all had joined."""
    place = Coordinator(2)
    for rank in range(2):
        place.ask(rank, 0, "hello", [rank])
    assert place.ask(0, 1, *_request(join(0))) is None
    assert place.settle({1: "a key"})[0][1][1] == "error"
    assert place.ask(1, 1, *_request(join(1))) is None
    assert place.settle({}) == []
    assert place.ask(0, 2, *_request(join(0))) is None
    assert [(rank, told[1]) for rank, told in place.settle({})] == [(0, "ok"), (1, "ok")]


def _request(asked: list[Any]) -> tuple[str, list[Any]]:
    return asked[0], asked[1:]


def test_communicators_that_cannot_be() -> None:
    place = Coordinator(3)
    for rank in range(3):
        place.ask(rank, 0, "hello", [rank])
    assert place.ask(0, 1, "join", [b"c", [0, 1], [[0, 0]], "a line"]) is None
    for members, size, words in (
        [[[0, 1]], 2, "joined already"],
        [[[1, 0]], 2, "Duplicate GPU"],
        [[[1, 1]], 3, "others say 3"],
    ):
        answer = place.ask(1, 1, "join", [b"c", list(range(size)), members, "a line"])
        assert answer is not None
        assert answer[1] == "error"
        assert words in answer[2]
    [(process, told)] = place.settle({})
    assert process == 0 and "Duplicate GPU" in told[2], "who waits for the one that cannot come"
    answer = place.ask(2, 1, "join", [b"c", [0, 1], [[1, 2]], "a line"])
    assert answer is not None and "Duplicate GPU" in answer[2]


def test_a_capacity_is_one_for_all_processes() -> None:
    place = Coordinator(2)
    for rank in range(2):
        place.ask(rank, 0, "hello", [rank])
    assert place.ask(0, 1, "reserve", [0, 7, 60, 100]) == [1, "ok", None]
    assert place.ask(1, 1, "reserve", [0, 7, 60, 100]) == [1, "full", [[0, 60]]]
    assert place.ask(1, 2, "reserve", [1, 7, 60, 100]) == [2, "ok", None], "another device"
    assert place.ask(0, 2, "release", [0, 7]) == [2, "ok", None]
    assert place.ask(1, 3, "reserve", [0, 8, 60, 100]) == [3, "ok", None]
    place.remove_process(1)
    assert place.ask(0, 3, "reserve", [0, 8, 100, 100]) == [3, "ok", None], "what a process held ends with it"

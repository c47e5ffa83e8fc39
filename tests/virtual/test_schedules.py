"""Schedules: determinism, in-order streams, every legal order, replay, loops of queries that end."""

import base64
import itertools
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from virtual_kit import SLEEP, busy_program

from flambeau.core.dtype import int64
from flambeau.core.errors import DriverError
from flambeau.driver.protocol import Launch
from flambeau.driver.virtual import VirtualDriver
from flambeau.driver.virtual.scheduling.schedule_policy import open_policy

SCHEDULES = ("earliest", "random:7", "adversarial:7", "pct:7:3")


def run(schedule, program=busy_program):
    driver = VirtualDriver(2, schedule=schedule)
    seen = program(driver)
    result = seen, driver.trace_hash(), driver.time_ns(), driver.token()
    driver.close()
    return result


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_repeats_exactly(schedule):
    assert run(schedule) == run(schedule)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_repeats_in_another_process(schedule):
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from test_schedules import run; print(run(sys.argv[3])[1])"
    )
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1] / "src")]
    out = subprocess.run(
        [sys.executable, "-c", code, *paths, schedule], capture_output=True, text=True, check=True,
        env={"PYTHONHASHSEED": "1234", "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert out.stdout.strip() == run(schedule)[1]


def test_seeds_give_different_orders():
    assert len({tuple(run(f"random:{seed}")[0]) for seed in range(10)}) == 10
    assert len({run(f"adversarial:{seed}")[1] for seed in range(10)}) >= 3


@pytest.mark.parametrize("schedule", (*SCHEDULES, *(f"random:{seed}" for seed in range(20))))
def test_streams_stay_in_order_and_times_consistent(schedule):
    driver, ends, records = VirtualDriver(2, schedule=schedule), {}, []
    driver.on_command = records.append
    busy_program(driver)
    by_seq = {}
    for record in records:
        previous = ends.get(record.stream)
        assert previous is None or (previous.seq < record.seq and previous.end_ns <= record.start_ns)
        assert record.start_ns <= record.end_ns
        for seq in record.waits:
            assert by_seq[seq].end_ns <= record.start_ns
        ends[record.stream] = by_seq[record.seq] = record
    assert sorted(by_seq) == list(range(len(records)))
    assert max(r.end_ns for r in records) <= driver.time_ns()
    driver.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_copy_engines_and_links_take_one_command_at_a_time(schedule):
    driver, busy = VirtualDriver(2, schedule=schedule), {}
    driver.on_command = lambda r: busy.setdefault((r.index, r.kind), []).append((r.start_ns, r.end_ns))
    busy_program(driver)
    for index in range(2):
        spans = sorted(busy[index, "copy_in"])
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    driver.close()


def two_streams(driver):
    """a, b, c on one stream; x, y on another; y waits for b."""
    seen = []
    first, second = driver.stream_create(0, 0), driver.stream_create(0, 0)
    event = driver.event_create(0, False)
    driver.host_call(lambda: seen.append("a"), first)
    driver.host_call(lambda: seen.append("b"), first)
    driver.event_record(event, first)
    driver.host_call(lambda: seen.append("c"), first)
    driver.host_call(lambda: seen.append("x"), second)
    driver.stream_wait(second, event)
    driver.host_call(lambda: seen.append("y"), second)
    driver.device_sync(0)
    return "".join(seen)


LEGAL = {
    "".join(p)
    for p in itertools.permutations("abcxy")
    if p.index("a") < p.index("b") < p.index("c")
    and p.index("x") < p.index("y")
    and p.index("b") < p.index("y")
}


def test_random_seeds_reach_every_legal_order_and_no_other():
    assert {run(f"random:{seed}", two_streams)[0] for seed in range(150)} == LEGAL


@pytest.mark.parametrize("kind", ["adversarial:{}", "pct:{}:3"])
def test_other_policies_reach_legal_orders_only_and_several(kind):
    orders = {run(kind.format(seed), two_streams)[0] for seed in range(60)}
    assert orders <= LEGAL
    assert len(orders) >= 3


def test_the_adversary_starves_a_stream_to_the_end():
    orders = {run(f"adversarial:{seed}", two_streams)[0] for seed in range(20)}
    assert {"abcxy"} <= orders
    assert any(order.startswith("xa") for order in orders)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_token_replays_a_run(schedule):
    seen, trace, time, token = run(schedule)
    assert run("replay:" + token) == (seen, trace, time, token)


def test_a_token_of_another_program_is_refused_with_the_reason():
    token = run("random:3")[3]
    driver = VirtualDriver(2, schedule="replay:" + token)
    with pytest.raises(DriverError, match=r"replay: this program is not the one.*choice \d+ of \d+"):
        two_streams(driver)


def test_a_program_that_ends_before_its_token_is_told():
    def ended(commands, schedule):
        driver = VirtualDriver(1, schedule=schedule)
        for _ in range(commands):
            driver.host_call(lambda: None, driver.stream_default(0))
        driver.device_sync(0)
        return driver

    token = "replay:" + ended(3, "random:1").token()
    assert "At choice 3 of 3, the program has ended" in ended(2, token).explain_unplayed()
    assert (
        ended(3, token).explain_unplayed()
        == ended(4, token).explain_unplayed()
        == ended(2, "earliest").explain_unplayed()
        == ""
    )


def test_a_program_goes_on_after_its_tokens_end():
    driver = VirtualDriver(1, schedule="random:1")
    stream, seen = driver.stream_create(0, 0), []
    driver.host_call(lambda: seen.append(1), stream)
    driver.stream_sync(stream)
    again = VirtualDriver(1, schedule="replay:" + driver.token())
    stream, seen = again.stream_create(0, 0), []
    for i in range(3):
        again.host_call(lambda i=i: seen.append(i), stream)
    again.device_sync(0)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_query_loops_end_and_cost_what_they_wait(schedule):
    driver = VirtualDriver(1, schedule=schedule)
    sleep = driver.load(Launch(SLEEP, (), (int64,)), 0)
    stream, event = driver.stream_create(0, 0), driver.event_create(0, False)
    driver.launch(sleep, (), (1_410_000,), stream)  # a millisecond on an A100
    driver.event_record(event, stream)
    polls = 0
    while not driver.event_query(event):
        polls += 1
    assert 1_000_000 <= driver.time_ns() <= 1_200_000
    assert polls * driver.profile.costs.poll_ns <= driver.time_ns()
    driver.close()


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_full_queue_makes_the_host_wait(schedule):
    driver = VirtualDriver(1, schedule=schedule)
    stream, seen = driver.stream_create(0, 0), []
    for i in range(3000):
        driver.host_call(lambda i=i: seen.append(i), stream)
    assert len(seen) == 3000 - driver.profile.queue
    driver.close()
    assert seen == list(range(3000))


@pytest.mark.parametrize(
    "schedule",
    ["", "late", "random", "random:", "random:x", "random:-1", "earliest:1", "pct:1", "pct:1:0",
     "adversarial:1.5", "replay:", "replay:1zzzz", "replay:2abc", None, 3],
)  # fmt: skip
def test_bad_schedules_are_refused(schedule):
    with pytest.raises(ValueError, match="schedule"):
        VirtualDriver(1, schedule=schedule)


@pytest.mark.parametrize("devices", [-1, 256, True, "2", 1.0, None])
def test_bad_device_counts_are_refused(devices):
    with pytest.raises(ValueError, match="devices"):
        VirtualDriver(devices)


def test_a_machine_may_have_no_device():
    driver = VirtualDriver(0)
    assert driver.device_count() == 0
    with pytest.raises(DriverError, match="invalid device ordinal"):
        driver.device_sync(0)
    driver.close()


@pytest.mark.parametrize("schedule", ["random:1", "pct:1:3", "adversarial:1"])
def test_a_choice_among_many_streams_looks_at_few_of_them(schedule):
    """Counted, not timed: what the policy asks of the commands of 2,000 streams that all can run."""
    asked = 0

    class Waiting:
        def __init__(self, seq):
            self.number, self.handle, self.ready = seq, seq, 0

        @property
        def seq(self):
            nonlocal asked
            asked += 1
            return self.number

        @property
        def stream(self):
            nonlocal asked
            asked += 1
            return self

    policy, count = open_policy(schedule), 2000
    for seq in range(count):
        policy.offer(Waiting(seq))
    taken = [policy.take(None).number for _ in range(count)]
    assert sorted(taken) == list(range(count)) and policy.take(None) is None and not policy.runnable
    assert asked <= 20 * count


def packed(choices: bytes) -> str:
    """A token whose checksum is right."""
    data = zlib.compress(choices, 9)
    return "1" + base64.urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")


@pytest.mark.parametrize(
    ("choices", "why"),
    [
        (bytes(1 << 25), "has more than 16777216 bytes of choices"),  # 32 KiB as a token
        (b"\xff" * (1 << 20), "a choice has more than 64 bits"),
    ],
)
def test_tokens_that_unpack_to_much_are_refused(choices, why):
    with pytest.raises(ValueError, match=why) as caught:
        open_policy(f"replay:{packed(choices)}")
    assert len(str(caught.value)) < 300


def test_schedules_of_any_type_are_refused_at_once():
    shared = ()
    for _ in range(100):
        shared = (shared, shared)
    with pytest.raises(ValueError, match="is not one of earliest"):
        open_policy(shared)

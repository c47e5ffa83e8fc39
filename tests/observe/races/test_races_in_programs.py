"""The race detector under torch programs: PyTorch's own examples and the usual mistakes."""

import inspect
import re

import pytest

import flambeau
import flambeau as torch
import flambeau.distributed as dist
from flambeau.core.callsite import line_of, place
from flambeau.runtime import system
from flambeau.testing.ranks import ranks


def races_of(program, schedule="earliest"):
    """Run a program on two virtual GPUs and return its certificate."""
    with flambeau.virtual(devices=2, profile="a100-40g", schedule=schedule, races="warn"):
        program()
        torch.cuda.synchronize()
        return system.context_of(torch.device("cuda:0")).driver.detector.certificate()


def notes_example(wait):
    """The deliberately incorrect example of PyTorch's CUDA notes."""
    cuda = torch.device("cuda")
    s = torch.cuda.Stream()
    A = torch.empty((100, 100), device=cuda).normal_(0.0, 1.0)  # noqa: N806
    if wait:
        s.wait_stream(torch.cuda.default_stream(cuda))
    with torch.cuda.stream(s):
        return torch.sum(A)


@pytest.mark.parametrize("schedule", ["earliest", "random:0", "random:1", "adversarial:0"])
def test_the_wrong_example_is_found_under_every_schedule(schedule):
    certificate = races_of(lambda: notes_example(False), schedule)
    (race,) = certificate.races
    line = notes_example.__code__.co_firstlineno
    assert race.first.place.endswith(f"test_races_in_programs.py:{line + 4}")
    assert race.second.place.endswith(f"test_races_in_programs.py:{line + 8}")
    assert (race.first.operator, race.second.operator) == ("normal_", "sum")
    assert race.fix.call == "wait_stream" and race.fix.verified
    assert "normal_(0.0, 1.0)" in str(race) and "return torch.sum(A)" in str(race)


@pytest.mark.parametrize("schedule", ["earliest", "random:0", "adversarial:0"])
def test_the_fixed_example_is_certified(schedule):
    certificate = races_of(lambda: notes_example(True), schedule)
    assert certificate.race_free, str(certificate)


def test_error_mode_raises_at_the_second_access():
    with (
        flambeau.virtual(devices=1, profile="a100-40g", races="error"),
        pytest.raises(flambeau.RaceError, match="wait_stream"),
    ):
        notes_example(False)


def handed_over(record):
    """A tensor of the default stream, used on a side stream and dropped while that use may still run."""
    side = torch.cuda.Stream()
    x = torch.ones(1024, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x + 1
    if record:
        x.record_stream(side)
    del x
    z = torch.zeros(1024, device="cuda")
    return y, z


def test_record_stream_forgotten():
    (race,) = races_of(lambda: handed_over(False)).races
    assert race.reused and race.fix.call == "record_stream"
    assert race.freed[0] is handed_over.__code__


def test_record_stream_called():
    assert races_of(lambda: handed_over(True)).race_free


def staged(wait):
    """A pinned buffer that is filled again while the copy from it is pending."""
    pinned = torch.zeros(1024).pin_memory()
    x = pinned.to("cuda", non_blocking=True)
    if wait:
        torch.cuda.current_stream().synchronize()
    pinned.fill_(1.0)
    return x


def changed_in_place(rounds):
    side = torch.cuda.Stream()
    x, y = torch.zeros(4, device="cuda"), torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    for _ in range(rounds):
        x.add_(y)
        with torch.cuda.stream(side):
            x.mul_(2.0)
        torch.cuda.synchronize()


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_a_line_reads_and_writes_in_place_is_one_race(rounds):
    (race,) = races_of(lambda: changed_in_place(rounds)).races
    assert (race.first.kind, race.second.kind, race.count) == ("reads and writes", "reads and writes", rounds)
    assert "reads and writes bytes that add_ on the default stream of cuda:0" in race.headline


def test_an_in_place_operator_reads_and_writes_where_races_raise() -> None:
    """The error comes at the first conflict, of what the operator reads; it tells of what it writes, too."""
    with torch.virtual(races="error"):
        x = torch.ones(64, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            with pytest.raises(torch.RaceError, match=r"mul_ .* reads and writes bytes that ones .* writes"):
                x.mul_(2)
            with pytest.raises(torch.RaceError, match=r"mul .* reads bytes that ones .* writes"):
                x * 2
        torch.cuda.synchronize()


def test_pinned_buffer_overwritten_too_early():
    (race,) = races_of(lambda: staged(False)).races
    assert race.fix.call == "synchronize"
    assert (race.first.kind, race.second.kind, race.second.stream) == ("reads", "writes", None)
    assert races_of(lambda: staged(True)).race_free


def fetched(wait):
    """A result that the host reads before its copy is done."""
    y = torch.ones(4, device="cuda").to("cpu", non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    return y.tolist()


def test_result_read_too_early():
    (race,) = races_of(lambda: fetched(False)).races
    assert race.first.operator == "copy_out" and race.second.kind == "reads"
    assert str(race).startswith("tolist on the host at ")
    assert races_of(lambda: fetched(True)).race_free


def columns(first, second):
    side = torch.cuda.Stream()
    m = torch.zeros(8, 8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    m[:, first].fill_(1.0)
    with torch.cuda.stream(side):
        m[:, second].fill_(2.0)
    torch.cuda.synchronize()
    return m


def test_columns_do_not_conflict_and_overlapping_views_do():
    assert races_of(lambda: columns(0, 1)).race_free
    assert len(races_of(lambda: columns(slice(0, 3), slice(2, 5))).races) == 1


def test_a_copy_between_devices_is_ordered_on_both():
    def program():
        a = torch.ones(16, device="cuda:0")
        b = a.to("cuda:1")
        a.fill_(2.0)
        return (b + 1).sum().item()

    assert races_of(program).race_free


def test_reading_an_empty_tensor_is_named():
    certificate = races_of(lambda: torch.empty(8, device="cuda") + 1)
    assert not certificate.race_free and not certificate.races
    assert "never written: its result is undefined" in certificate.violated[0]


@pytest.mark.parametrize("left_out", [0, 1])
def test_places_that_indices_write_count_as_written(left_out):
    """An inverse permutation writes all of an empty tensor; less of it leaves something out."""

    def program():
        order = torch.tensor([2, 0, 1], device="cuda")
        back = torch.empty_like(order)
        back[order[left_out:]] = torch.arange(3 - left_out, device="cuda")
        return back.tolist()

    violated = races_of(program).violated
    assert len(violated) == left_out
    assert all("copy_out at " in text and "never written" in text for text in violated)


def test_a_race_is_found_again_after_memory_went_back_to_the_driver() -> None:
    """A known write at the same address, then a read of a new kind: no cell is remembered longer than its memory."""

    def race(use) -> None:
        side, x = torch.cuda.Stream(), torch.zeros(1 << 20, device="cuda")
        with torch.cuda.stream(side):
            y = use(x)
        torch.cuda.synchronize()
        ptrs.append((x.data_ptr(), y.data_ptr()))

    ptrs: list[tuple[int, int]] = []
    with torch.virtual(devices=1, races="warn"):
        detector = system.context_of(torch.device("cuda:0")).driver.detector
        counts = []
        for use in (torch.neg, torch.exp, torch.sin):
            race(use)
            torch.cuda.empty_cache()
            counts.append(sum(found.count for found in detector.races))
        detector.certificate()
    assert len(set(ptrs)) == 1
    assert counts == [1, 2, 3]


@pytest.mark.parametrize("wait", [True, False])
def test_clocks_grow_with_the_streams_at_one_time_not_with_all(wait):
    """A stream that is gone, and whose work the host waited for, gives its place to the next one."""

    def program():
        x = torch.ones(100, device="cuda")
        torch.cuda.synchronize()
        for _ in range(50):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                x + 1
            if wait:
                side.synchronize()
            del side
        sizes.append(len(system.context_of(x.device).driver.detector.known))

    sizes = []
    certificate = races_of(program)
    assert certificate.race_free, str(certificate)
    assert sizes[0] <= 3


def test_streams_that_take_over_a_place_are_told_apart():
    """The first stream waits early for one that is gone; the race is with another one, made later."""

    def program():
        first, gone = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(gone):
            torch.ones(10, device="cuda")
        first.wait_stream(gone)
        torch.cuda.synchronize()
        del gone
        later = torch.cuda.Stream()
        with torch.cuda.stream(later):
            x = torch.ones(10, device="cuda")
        with torch.cuda.stream(first):
            x + 1

    (race,) = races_of(program).races
    assert (race.first.stream, race.second.stream) == ("side stream 3 of cuda:0", "side stream 1 of cuda:0")
    assert race.note == ""
    line = program.__code__.co_firstlineno
    assert race.first.stream_site[0] is program.__code__ and line_of(race.first.stream_site) == line + 7


class Graphed:
    """A graph of `y = x + 1` on the stream of the capture and `z = x * 2` on a side stream, and what it is made of."""

    def __init__(self, joined_late=False):
        self.side, self.x = torch.cuda.Stream(), torch.zeros(64, device="cuda")
        self.pinned = torch.zeros(64, pin_memory=True)
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph):
            here = torch.cuda.current_stream()
            self.side.wait_stream(here)
            if joined_late:
                self.x.add_(1)
            with torch.cuda.stream(self.side):
                self.z = self.x * 2
                self.pinned.copy_(self.z, non_blocking=True)
            here.wait_stream(self.side)
        torch.cuda.synchronize()


def lines(function):
    """The text of a function's lines, told by what is in them: their numbers."""
    first = function.__code__.co_firstlineno
    text = inspect.getsource(function).splitlines()
    return lambda part: (
        f"test_races_in_programs.py:{first + next(i for i, t in enumerate(text) if part in t)}"
    )


def replayed_elsewhere():
    it, other = Graphed(), torch.cuda.Stream()
    it.x.fill_(3)
    with torch.cuda.stream(other):
        it.graph.replay()
    return it


def result_read_elsewhere():
    it, other = Graphed(), torch.cuda.Stream()
    it.graph.replay()
    with torch.cuda.stream(other):
        it.z.sum()
    return it


def result_read_by_the_host():
    it = Graphed()
    it.graph.replay()
    it.pinned.sum()
    return it


def input_freed_too_early():
    it, other = Graphed(), torch.cuda.Stream()
    with torch.cuda.stream(other):
        it.graph.replay()
    del it.x
    torch.ones(64, device="cuda")
    return it


def forked_too_early():
    it = Graphed(joined_late=True)
    it.graph.replay()
    return it


@pytest.mark.parametrize(
    ("program", "fix"),
    [
        (
            replayed_elsewhere,
            "Before {.replay()} insert: other.wait_stream(torch.cuda.default_stream())",
        ),
        (
            result_read_elsewhere,
            "Before {.sum()} insert: other.wait_stream(torch.cuda.default_stream())",
        ),
        (
            result_read_by_the_host,
            "Before {.sum()} insert: torch.cuda.current_stream().synchronize()",
        ),
        (
            input_freed_too_early,
            "Before {torch.ones(64} insert: torch.cuda.current_stream().wait_stream(other)",
        ),
    ],
)
def test_a_graphs_race_is_fixed_where_it_is_launched(program, fix):
    (race,) = races_of(program).races
    at = lines(program)
    assert race.fix.verified
    assert race.fix.text.replace("tests/observe/races/", "") == re.sub(r"\{(.*?)\}", lambda m: at(m[1]), fix)
    side = next(side for side in (race.first, race.second) if side.launched)
    assert f"(launched at {place(side.launched)})" in race.headline


def test_a_race_inside_of_a_graph_is_fixed_in_the_capture():
    (race,) = races_of(forked_too_early).races
    at = lines(Graphed.__init__)
    assert race.fix.verified
    assert race.fix.text.replace("tests/observe/races/", "") == (
        f"Before {at('with torch.cuda.stream(self.side)')} insert: self.side.wait_stream(torch.cuda.current_stream())"
    )
    assert race.note.replace("tests/observe/races/", "").startswith(
        f"note:   it waits for the stream of the capture at {at('wait_stream(here)')}, but for a point before"
    )
    assert race.second.stream == "the captured side stream 1 of cuda:0"


def received(blocking):
    """Received on a side stream, where alone it is waited for."""
    dist.init_process_group("nccl")
    x, side = torch.zeros(64, device="cuda"), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        if dist.get_rank() == 0:
            dist.send(x, 1)
        elif blocking:
            dist.recv(x, 0)
        else:
            dist.irecv(x, 0).wait()
    x.sum()
    torch.cuda.synchronize()


@pytest.mark.parametrize("blocking", [True, False])
def test_a_work_that_is_waited_for_on_another_stream(blocking):
    (race,) = races_of(lambda: ranks(received, 2, blocking)).races
    at = lines(received)
    text = f"Before {at('x.sum()')} insert: torch.cuda.current_stream().wait_stream(side)"
    assert race.fix.text.replace("tests/observe/races/", "") == text and race.fix.verified
    waited = at("dist.recv" if blocking else ".wait()")
    assert (
        race.note.replace("tests/observe/races/", "")
        == f"note:   the wait at {waited} is on side stream 1 of cuda:1."
    )


def changed_meanwhile(dtype, function):
    """A size that the host read, of numbers that a side stream goes on to write."""
    x, side = torch.zeros(210, device="cuda", dtype=dtype), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for i in range(12):
            x[i::7] = i % 3
    function(x, torch.arange(210, device="cuda")).tolist()


SIZED = {
    "nonzero": (torch.int64, lambda x, y: x.nonzero()),
    "where": (torch.bool, lambda x, y: torch.where(x)[0]),
    "masked_select": (torch.bool, lambda x, y: y.masked_select(x)),
    "index": (torch.bool, lambda x, y: y[x]),
    "index of rows": (torch.bool, lambda x, y: y.view(1, 210)[:, x]),
    "unique": (torch.int64, lambda x, y: x.unique(return_inverse=True, return_counts=True)[1]),
    "unique_consecutive": (torch.int64, lambda x, y: x.unique_consecutive()),
    "repeat_interleave": (torch.int64, lambda x, y: y.repeat_interleave(x)),
    "bincount": (torch.int64, lambda x, y: x.bincount()),
    "weighted bincount": (torch.int64, lambda x, y: x.bincount(y.float())),
    "item": (torch.int64, lambda x, y: y[: int(x.max().item())]),
}


@pytest.mark.parametrize("name", SIZED)
def test_a_size_that_races_is_told_as_a_race_alone(name):
    """A device-side assert stood beside it: the size that the host had read no longer fitted."""
    for seed in range(20):
        races = races_of(lambda: changed_meanwhile(*SIZED[name]), f"random:{seed}").races
        assert races and all(race.fix.call == "wait_stream" for race in races)
    with flambeau.virtual(devices=1, races="error"), pytest.raises(flambeau.RaceError):
        changed_meanwhile(*SIZED[name])


@pytest.mark.parametrize("settings", ["", "expandable_segments:True"])
def test_memory_that_went_back_to_the_device_races_with_nothing(settings):
    def program():
        torch.cuda.memory._set_allocator_settings(settings)
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            torch.ones(3 << 20, device="cuda")  # freed at once; 12 of the 20 MiB that a range grows by
            kept = torch.ones(2 << 20, device="cuda")
        torch.cuda.empty_cache()  # waits for the device, whatever goes back
        with torch.cuda.stream(second):
            torch.ones(3 << 20, device="cuda")
            torch.ones(9 << 20, device="cuda")
        del kept
        torch.cuda.empty_cache()
        with torch.cuda.stream(second):
            torch.ones(9 << 20, device="cuda")

    certificate = races_of(program)
    assert certificate.race_free, str(certificate)


def test_a_race_in_a_range_that_grows_is_found_where_its_pages_came_and_went():
    def program():
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.ones(30 << 20, device="cuda")
        torch.cuda.empty_cache()
        x = torch.ones(30 << 20, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)

    (race,) = races_of(program).races
    assert (race.first.operator, race.second.operator) == ("fill", "add")

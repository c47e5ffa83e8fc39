"""Indexed access: what the race detector decides by the places that indices name, and what it says where it cannot."""

import gc

import numpy as np
import pytest
from fake_drivers import StillDriver
from race_kit import machine, meta

import flambeau
import flambeau as torch
import flambeau.nn.functional as F
from flambeau.core.callsite import line_of
from flambeau.core.errors import RaceError
from flambeau.core.host_arrays import compact_copy
from flambeau.driver.protocol import Kernel, Launch, Touches
from flambeau.observe.indexed import deferred, place_map
from flambeau.runtime import system


def detector():
    return system.accelerator().detector


def certificate_of(program, races="warn", **options):
    with flambeau.virtual(devices=1, races=races, **options):
        program()
        torch.cuda.synchronize()
        return detector().certificate()


def rows(*places):
    return torch.tensor(places, device="cuda")


def two_streams(first, second, start=torch.zeros, size=(8, 4)):
    """A program that calls `first(x, rows 0 to 3)` and `second(x, rows 4 to 7)` on two streams, or overlapping rows."""

    def program(shift=0):
        x = start(*size, device="cuda")
        mine, theirs = rows(0, 1, 2, 3), rows(4 - shift, 5, 6, 7)
        a, b = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            first(x, mine)
        with torch.cuda.stream(b):
            kept = second(x, theirs)
        torch.cuda.synchronize()
        del kept

    return program


def ones(*shape):
    return torch.ones(*shape, device="cuda")


def grid(i):
    return i.unsqueeze(1).expand(4, 4)


def full_grid(i):
    return grid(i).clone()


def mask(i):
    """A mask of the rows, without a wait."""
    return torch.zeros(8, 4, dtype=torch.bool, device="cuda").index_fill_(0, i, True)


def flat(i):
    return (i.unsqueeze(1) * 4 + torch.arange(4, device="cuda")).reshape(-1)


WRITES = {
    "index_put_": lambda x, i: x.index_put_((i,), ones(4, 4)),
    "accumulate": lambda x, i: x.index_put_((i,), ones(4, 4), accumulate=True),
    "assignment": lambda x, i: x.__setitem__(i, 5.0),
    "index_copy_": lambda x, i: x.index_copy_(0, i, ones(4, 4)),
    "index_add_": lambda x, i: x.index_add_(0, i, ones(4, 4)),
    "index_fill_": lambda x, i: x.index_fill_(0, i, 2.0),
    "index_reduce_": lambda x, i: x.index_reduce_(0, i, ones(4, 4), "amax"),
    "scatter_": lambda x, i: x.scatter_(0, full_grid(i), ones(4, 4)),
    "scatter_ value": lambda x, i: x.scatter_(0, grid(i), 1.0),
    "scatter_add_": lambda x, i: x.scatter_add_(0, grid(i), ones(4, 4)),
    "scatter_reduce_": lambda x, i: x.scatter_reduce_(0, full_grid(i), ones(4, 4), "prod"),
    "put_": lambda x, i: x.put_(flat(i), ones(16)),
    "mask": lambda x, i: x.__setitem__(mask(i), ones(16)),
    "columns": lambda x, i: x.view(4, 8).index_fill_(1, i, 3.0),
    "part": lambda x, i: x[:, 1:3].index_fill_(0, i, 3.0),
}
READS = {
    "index": lambda x, i: x[i],
    "index_select": lambda x, i: x.index_select(0, i),
    "gather": lambda x, i: x.gather(0, full_grid(i)),
    "take": lambda x, i: x.take(flat(i)),
    "masked_select": lambda x, i: x[mask(i)],
    "embedding": lambda x, i: F.embedding(i, x),
    "embedding_bag": lambda x, i: F.embedding_bag(i.view(2, 2), x, mode="sum"),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i.unsqueeze(1), 0),
}


@pytest.mark.parametrize("name", [*WRITES, *READS])
def test_disjoint_rows_are_no_race_and_a_shared_one_is(name):
    use = WRITES.get(name) or READS[name]
    write = use if name == "columns" else WRITES["index_fill_"]
    program = two_streams(write, use)
    assert certificate_of(program).race_free
    (race,) = certificate_of(lambda: program(shift=1)).races
    assert race.fix.verified and not race.note
    assert race.range[1] - race.range[0] <= (104 if name == "columns" else 16)


@pytest.mark.parametrize("name", READS)
def test_readers_of_one_row_are_no_race(name):
    program = two_streams(READS[name], READS["index"])
    assert certificate_of(lambda: program(shift=1)).race_free


@pytest.mark.parametrize(
    ("name", "kind"),
    [("index_put_", "writes"), ("accumulate", "reads and writes"), ("assignment", "writes"),
     ("index_copy_", "writes"), ("index_fill_", "writes"), ("index_add_", "reads and writes"), ("scatter_", "writes"),
     ("scatter_ value", "writes"), ("scatter_add_", "reads and writes"), ("put_", "writes"), ("mask", "writes")],
)  # fmt: skip
def test_reports_say_whether_places_are_read(name, kind):
    program = two_streams(WRITES[name], lambda x, i: x.fill_(1))
    (race,) = certificate_of(program).races
    assert (race.first.kind, race.second.kind) == (kind, "writes")


@pytest.mark.parametrize("name", ["masked_fill_", "masked_scatter_"])
def test_masked_writes_rewrite_all_as_pytorchs_kernels_do(name):
    """Unmasked elements are loaded and stored: what another stream writes there meanwhile may be lost."""
    value = 1.0 if name == "masked_fill_" else ones
    use = lambda x, i: getattr(x, name)(mask(i), value if value == 1.0 else ones(16))  # noqa: E731
    (race,) = certificate_of(two_streams(use, use)).races
    assert race.second.kind == "reads and writes" and not race.note


@pytest.mark.parametrize("reduce", ["index_reduce_", "scatter_reduce_"])
def test_a_mean_divides_all_of_the_target(reduce):
    def mean(x, i):
        index = i if reduce == "index_reduce_" else full_grid(i)
        getattr(x, reduce)(0, index, ones(4, 4), "mean")

    assert len(certificate_of(two_streams(mean, mean)).races) == 1


# -- what is kept ------------------------------------------------------------------------------------------


def streams(count=3):
    return [torch.cuda.Stream() for _ in range(count)]


def test_a_partial_write_does_not_supersede_what_came_before():
    def program():
        x, i, j = torch.zeros(8, 4, device="cuda"), rows(1), rows(2)
        a, b, _ = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            x.index_fill_(0, i, 1.0)
            x.index_fill_(0, j, 1.0)
        with torch.cuda.stream(b):
            x.index_fill_(0, i, 2.0)

    (race,) = certificate_of(program).races
    line = program.__code__.co_firstlineno
    assert (line_of(race.first.site), line_of(race.second.site)) == (line + 5, line + 8)


def test_a_whole_write_before_a_partial_one_is_remembered():
    def program():
        x, i = torch.zeros(8, 4, device="cuda"), rows(1)
        a, b, c = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            x.fill_(1)
        b.wait_stream(a)
        with torch.cuda.stream(b):
            x.index_fill_(0, i, 1.0)
        with torch.cuda.stream(c):
            x[5].fill_(3)

    (race,) = certificate_of(program).races
    assert race.first.operator == race.second.operator == "fill"


@pytest.mark.parametrize("shift", [0, 1])
def test_what_ran_on_one_stream_before_another_was_used(shift):
    """The host waited for neither; the second stream is created afterwards."""

    def program():
        x, i, j = torch.zeros(8, 4, device="cuda"), rows(0, 1), rows(2 - shift, 3)
        torch.cuda.synchronize()
        x.index_fill_(0, i, 1.0)
        b = torch.cuda.Stream()
        with torch.cuda.stream(b):
            x.index_fill_(0, j, 2.0)

    assert len(certificate_of(program).races) == shift


def test_what_ran_before_a_second_stream_was_in_use_is_conservative():
    """Unless the host has waited for it: programs with one stream keep no indices."""

    def program(wait):
        x, i, j = torch.zeros(8, 4, device="cuda"), rows(0, 1), rows(2, 3)
        torch.cuda.synchronize()
        x.index_fill_(0, i, 1.0)
        system.bare_driver().device_sync(
            0
        )  # as a full launch queue does, which the detector draws no order from
        if wait:
            torch.cuda.synchronize()
        x.index_select(0, i)
        with torch.cuda.stream(torch.cuda.Stream()):
            x.index_fill_(0, j, 2.0)

    (race,) = certificate_of(lambda: program(False)).races
    assert race.first.operator == "index_fill" and "ran before a second stream was in use" in race.note
    assert certificate_of(lambda: program(True)).race_free


@pytest.mark.parametrize("shift", [0, 1])
def test_what_ran_early_is_known(shift):
    """The third stream's wait lets the first stream's work run, though the host has not waited for it."""

    def program():
        x, y = torch.zeros(8, 4, device="cuda"), torch.zeros(8, device="cuda")
        i, j = rows(0, 1), rows(2 - shift, 3)
        a, b, c = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            x.index_fill_(0, i, 1.0)
        with torch.cuda.stream(c):
            y.fill_(1)
        c.synchronize()
        with torch.cuda.stream(b):
            x.index_fill_(0, j, 2.0)

    assert len(certificate_of(program).races) == shift


def test_indices_are_those_that_the_command_found():
    """The index tensor changes afterwards, in order."""

    def program(late):
        x, i, j, k = torch.zeros(8, 4, device="cuda"), rows(0, 1), rows(2, 3), rows(6, 7)
        a, b, _ = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            if not late:
                i.copy_(j)
            x.index_fill_(0, i, 1.0)
            i.copy_(k)
        with torch.cuda.stream(b):
            x.index_fill_(0, j, 2.0)

    assert certificate_of(lambda: program(True)).race_free
    assert len(certificate_of(lambda: program(False)).races) == 1


def test_indices_that_race_are_a_race_themselves():
    def program():
        x, i, j = torch.zeros(8, 4, device="cuda"), rows(0, 1), rows(2, 3)
        a, b, _ = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            x.index_fill_(0, i, 1.0)
        with torch.cuda.stream(b):
            i.copy_(j)

    (race,) = certificate_of(program).races
    assert (race.first.operator, race.second.operator) == ("index_fill", "copy")


def test_gradients_of_disjoint_rows_race_where_they_share_a_tensor():
    """Each embedding's gradient is a tensor of its own; `weight.grad` is shared, and its sum reads and writes all."""

    def program():
        weight = torch.zeros(8, 4, device="cuda", requires_grad=True)
        a, b, _ = streams()
        mine, theirs = rows(0, 1), rows(4, 5)
        torch.cuda.synchronize()
        for stream, i in ((a, mine), (b, theirs)):
            with torch.cuda.stream(stream):
                part = weight.detach().requires_grad_()
                F.embedding(i, part).sum().backward()
                weight.data.index_add_(0, i, part.grad.index_select(0, i))

    assert certificate_of(program).race_free


# -- when it is told -----------------------------------------------------------------------------------------


def test_a_race_is_raised_at_the_next_call_once_the_places_are_known():
    program = two_streams(WRITES["index_fill_"], WRITES["index_fill_"])
    with flambeau.virtual(devices=1, races="error"):
        with pytest.raises(RaceError) as error:
            program(shift=1)
        assert "index_fill" in str(error.value)
        torch.cuda.synchronize()  # once is enough


def test_a_race_with_known_places_is_raised_at_the_second_command():
    with flambeau.virtual(devices=1, races="error"):
        x, y, i = torch.zeros(8, 4, device="cuda"), torch.zeros(8, device="cuda"), rows(1)
        a, b, c = streams()
        torch.cuda.synchronize()
        with torch.cuda.stream(a):
            x.index_fill_(0, i, 1.0)
        with torch.cuda.stream(c):
            y.fill_(1)
        c.synchronize()
        with torch.cuda.stream(b):
            x[2:].fill_(1)
            with pytest.raises(RaceError):
                x[:2].fill_(1)


def test_the_next_launch_raises_too():
    with flambeau.virtual(devices=1, races="error"):
        x, y, i = torch.zeros(8, 4, device="cuda"), torch.zeros(8, device="cuda"), rows(1)
        a, b, _ = streams()
        torch.cuda.synchronize()
        for stream in (a, b):
            with torch.cuda.stream(stream):
                x.index_fill_(0, i, 1.0)
        driver = system.bare_driver()
        driver.stream_sync(a.handle)
        driver.stream_sync(b.handle)
        detector().settle()
        with pytest.raises(RaceError):
            y.add_(1)


# -- what is not known ----------------------------------------------------------------------------------------

SIZE = 64
INDEXED = Kernel(
    "index_put_",
    lambda launch: lambda outputs, inputs: None,
    touches=lambda launch: Touches(True, (1,), lambda indices: indices[0]),
)


def put(gpu, ptr, stream):
    """An indexed write in place, of a driver that runs no bodies."""
    m, i = meta((SIZE,)), meta((4,))
    exe, index = gpu.load(Launch(INDEXED, (m,), (m, i)), 0), gpu.mem_alloc(0, 16)
    gpu.fill(index, 0, 16, stream)
    gpu.launch(exe, [ptr, ptr, index], [], stream)


def test_real_gpus_are_told_conservatively():
    gpu, _ = machine("warn", StillDriver())
    x, side = gpu.mem_alloc(0, 4 * SIZE), gpu.stream_create(0, 0)
    gpu.fill(x, 0, 4 * SIZE, 1)
    gpu.device_sync(0)
    put(gpu, x, 1)
    put(gpu, x, side)
    (race,) = gpu.detector.races
    assert race.first.kind == race.second.kind == "writes"
    assert "is counted as touching all of [64] torch.float32: a real GPU's indices are not read" in race.note


def test_without_data_the_answer_is_conservative():
    program = two_streams(WRITES["index_fill_"], WRITES["index_fill_"])
    (race,) = certificate_of(program, data=False).races
    assert "virtual GPUs without data have no indices" in race.note


def test_what_has_not_run_is_conservative_for_the_time_being():
    with flambeau.virtual(devices=1, races="warn"):
        x, i, j = torch.zeros(8, 4, device="cuda"), rows(1), rows(2)
        a, b, _ = streams()
        torch.cuda.synchronize()
        for stream, index in ((a, i), (b, j)):
            with torch.cuda.stream(stream):
                x.index_fill_(0, index, 1.0)
        (race,) = detector().certificate().races
        assert "it has not run yet" in race.note
        torch.cuda.synchronize()
        assert detector().certificate().race_free


@pytest.mark.parametrize("limit", ["_UNITS", "_BYTES"])
def test_what_is_too_large_is_conservative(limit, monkeypatch):
    monkeypatch.setattr(place_map, limit, 2)
    program = two_streams(WRITES["index_fill_"], WRITES["index_fill_"])
    (race,) = certificate_of(program).races
    assert "too large to keep places apart" in race.note


def test_too_many_indices_at_once_are_conservative(monkeypatch):
    monkeypatch.setattr(deferred, "_COPIED", -1)
    program = two_streams(WRITES["index_fill_"], WRITES["index_fill_"])
    (race,) = certificate_of(program).races
    assert "too large to keep places apart" in race.note


def test_a_kernel_that_failed_says_so_and_no_more():
    with flambeau.virtual(devices=1, races="warn"):
        x, i = torch.zeros(8, 4, device="cuda"), rows(9)
        a, b, _ = streams()
        torch.cuda.synchronize()
        for stream in (a, b):
            with torch.cuda.stream(stream):
                x.index_fill_(0, i, 1.0)
        with pytest.raises(RuntimeError, match="device-side assert"):
            torch.cuda.synchronize()
        assert len(detector().certificate().races) == 1


# -- graphs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0, 1])
def test_each_replay_touches_what_its_indices_name_then(shift):
    """A graph writes rows by an index that the program changes between replays; another stream reads other rows."""

    def program():
        x, i = torch.zeros(16, 4, device="cuda"), rows(0, 1)
        ahead, reader = torch.cuda.Stream(), torch.cuda.Stream()
        theirs = [rows(8, 9), rows(0, 1), rows(2 + 2 * shift, 3)]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=ahead):
            x.index_fill_(0, i, 1.0)
        torch.cuda.synchronize()
        for step in range(3):  # the graph writes rows 0 and 1, then 2 and 3, then 4 and 5
            graph.replay()
            i.add_(2)
            with torch.cuda.stream(reader):
                kept = x[theirs[step]]
            torch.cuda.synchronize()
        del kept

    races = certificate_of(program).races
    assert len(races) == shift
    assert all(race.first.launched and race.first.operator == "index_fill" for race in races)


def test_replays_without_a_wait_between_them():
    def program(shift):
        x, i = torch.zeros(16, 4, device="cuda"), rows(0, 1)
        ahead, reader = torch.cuda.Stream(), torch.cuda.Stream()
        theirs = rows(10 - shift, 11)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=ahead):
            x.index_fill_(0, i, 1.0)
            i.add_(2)
        torch.cuda.synchronize()
        for _ in range(5):  # rows 0 to 9
            graph.replay()
        with torch.cuda.stream(reader):
            x.index_fill_(0, theirs, 1.0)

    assert certificate_of(lambda: program(0)).race_free
    assert len(certificate_of(lambda: program(1)).races) == 1


# -- memory that was never written --------------------------------------------------------------------------


def test_gathers_from_a_cache_that_is_written_row_by_row():
    def program(read):
        cache = torch.empty(64, 4, device="cuda")
        for step in range(8):
            cache.index_copy_(0, rows(step), ones(1, 4))
            kept = cache[rows(0, step + read)]
        return kept

    assert certificate_of(lambda: program(0)).race_free
    (text,) = certificate_of(lambda: program(1)).violated
    assert "reads memory" in text and "never written" in text


def test_views_and_indices_together_write_all():
    def program(end):
        x = torch.empty(8, 4, device="cuda")
        x[:4].fill_(1)
        x[4, :2].fill_(1)
        x.index_put_((rows(4, 4), rows(2, 3)), ones(2))
        x.index_fill_(0, torch.arange(5, end, device="cuda"), 2.0)
        return x + 1, x[rows(4)]

    assert certificate_of(lambda: program(8)).race_free
    (text,) = certificate_of(lambda: program(7)).violated
    assert text.startswith("add at ")


def test_masks_write_what_they_choose():
    def program(threshold):
        x, m = torch.empty(8, device="cuda"), torch.arange(8, device="cuda")
        x.masked_fill_(m < 4, 1.0)
        x.masked_fill_(m >= threshold, 2.0)
        return x + 1

    assert certificate_of(lambda: program(4)).race_free
    (text,) = certificate_of(lambda: program(5)).violated
    assert text.startswith("add at ")


def test_adding_to_what_was_never_written_is_named():
    (text,) = certificate_of(lambda: torch.empty(8, device="cuda").index_add_(0, rows(1), ones(1))).violated
    assert text.startswith("index_add at ") and "reads memory" in text
    assert certificate_of(
        lambda: torch.empty(8, device="cuda").index_fill_(0, rows(1), 0.0).index_add_(0, rows(1), ones(1))
    ).race_free


def test_a_driver_that_does_not_see_indices_says_so_of_empty_memory():
    gpu, _ = machine("warn", StillDriver())
    x, out = gpu.mem_alloc(0, 4 * SIZE), gpu.mem_alloc(0, 4 * SIZE)
    put(gpu, x, 1)
    gpu.copy(out, x, 4 * SIZE, 1)
    texts = [text for text in gpu.detector.certificate().violated if "index_put_" in text]
    assert len(texts) == 1 and "which these are is not known" in texts[0]
    assert not any("copy" in text for text in gpu.detector.certificate().violated)


# -- what is kept in memory -------------------------------------------------------------------------------------


def test_what_is_remembered_of_a_tensor_is_bounded():
    def program():
        x, a = torch.zeros(256, 4, device="cuda"), torch.cuda.Stream()
        index = torch.arange(256, device="cuda")
        torch.cuda.synchronize()
        for step in range(3000):
            i = index[step % 256 : step % 256 + 1]
            if step % 2:
                with torch.cuda.stream(a):
                    x.index_fill_(0, i, 1.0)
            else:
                x.index_fill_(0, i, 1.0)
        (places,) = {c.block.places for c in detector().shadow.cells.values() if c.partial}
        torch.cuda.synchronize()
        detector().settle()
        places.draw()
        assert len(places.accesses) <= 1200
        assert not detector().deferred.open and not detector().deferred.executed

    assert certificate_of(program).race_free


def test_weights_that_ever_new_streams_gather_from():
    def program():
        weights, i, j = torch.zeros(16, 4, device="cuda"), rows(1, 2), rows(5)
        torch.cuda.synchronize()
        before = torch.cuda.current_stream()
        for _ in range(300):  # each after the one before; nobody waits on the host
            side = torch.cuda.Stream()
            side.wait_stream(before)
            with torch.cuda.stream(side):
                weights.index_select(0, i)
            before = side
        (cell,) = [c for c in detector().shadow.cells.values() if c.partial]
        assert len(cell.partial) <= 65
        other = torch.cuda.Stream()
        with torch.cuda.stream(other):
            weights.index_fill_(0, j, 1.0)

    (race, *_) = races = certificate_of(program).races
    assert len(races) == 1 and "more streams use the tensor than are kept apart" in race.note
    gc.collect()


def test_indices_are_copied_once_where_they_only_repeat():
    wide = np.broadcast_to(np.arange(4).reshape(4, 1), (4, 1000))
    kept = compact_copy(wide)
    assert kept.shape == (4, 1000) and kept.strides[1] == 0 and np.array_equal(kept, wide)
    assert compact_copy(np.array(3)).shape == ()


def test_an_indexed_write_to_memory_that_is_freed_too_early_is_a_write():
    def program():
        side, i = torch.cuda.Stream(), rows(1)
        x = torch.zeros(8, 4, device="cuda")
        torch.cuda.synchronize()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x.index_fill_(0, i, 1.0)
        del x
        torch.zeros(8, 4, device="cuda")

    (race,) = certificate_of(program).races
    assert race.reused and (race.first.operator, race.first.kind) == ("index_fill", "writes")

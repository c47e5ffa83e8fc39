"""The race detector and pinned memory: copies, aliases, and views through which the host may touch it unseen."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest
from fake_drivers import StillDriver
from race_kit import machine

import flambeau
import flambeau as torch
from flambeau.core.host_arrays import address_of
from flambeau.driver.protocol import HostMemory
from flambeau.runtime import system

N = 256


def certificate_of(program, schedule="earliest", devices=1, **options):
    """The certificate of a program on virtual GPUs, whose last work is waited for."""
    with flambeau.virtual(devices=devices, schedule=schedule, races="warn", **options):
        kept = program()
        torch.cuda.synchronize()
        certificate = system.accelerator().detector.certificate()
        del kept
        return certificate


def freed_in_flight(start, wait):
    """A copy through another tensor over pinned memory, whose names are gone while it may run."""
    pinned = torch.ones(N).pin_memory()
    alias = torch.from_numpy(pinned.numpy()[start:])
    x = alias.cuda(non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    del pinned, alias
    return x, torch.zeros(N).pin_memory()


@pytest.mark.parametrize("start", [0, 1])
def test_copies_that_pytorchs_pinned_allocator_misses_withhold_the_certificate(start):
    """PyTorch finds the block of another object's copy by its first address alone."""
    certificate = certificate_of(lambda: freed_in_flight(start, False))
    line = freed_in_flight.__code__.co_firstlineno
    assert not certificate.races
    if start == 0:
        assert certificate.race_free
        return
    (text,) = certificate.violated
    assert f"test_pinned_memory.py:{line + 4} uses on the default stream of cuda:0 is freed" in text
    assert certificate_of(lambda: freed_in_flight(start, True)).race_free


# -- views of pinned memory: each program is called with `wait`, which says whether the host waits in between ------------


def overwritten(view):
    """A write into the source of a copy, through a view of `view`'s kind."""

    def run(wait):
        h = torch.zeros(N).pin_memory()
        write = view(h)
        x = h.to("cuda", non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        write()
        return x, write

    return run


def by_numpy(h):
    v = h.numpy()
    return lambda: v.__setitem__(3, 2)


def by_memoryview(h):
    v = memoryview(h.numpy()).cast("B")
    return lambda: v.__setitem__(12, 2)


def by_another_library(h):
    v = np.from_dlpack(h)
    return lambda: np.multiply(v, 0, out=v) + np.add(v, 1, out=v)


def by_address(h):
    ptr = h.data_ptr()
    return lambda: ctypes.memset(ptr + 8, 1, 4)


def by_the_storages_address(h):
    ptr = h[4:].untyped_storage().data_ptr()
    return lambda: ctypes.memset(ptr, 1, 4)


def by_an_alias_of_a_view(h):
    v = torch.frombuffer(h.numpy(), dtype=torch.int32).numpy()
    return lambda: v.fill(7)


VIEWS = [
    by_numpy,
    by_memoryview,
    by_another_library,
    by_address,
    by_the_storages_address,
    by_an_alias_of_a_view,
]


@pytest.mark.parametrize("schedule", ["earliest", "adversarial:0"])
@pytest.mark.parametrize("view", VIEWS)
def test_a_write_through_a_view_into_a_pending_source_is_a_race(view, schedule):
    program = overwritten(view)
    (race,) = certificate_of(lambda: program(False), schedule).races
    line = program.__code__.co_firstlineno
    assert race.first.place.endswith(f"test_pinned_memory.py:{line + 3}") and race.first.kind == "reads"
    assert race.second.kind == "writes" and race.second.stream is None and race.fix.call == "synchronize"
    assert race.fix.where == f"After tests/observe/races/test_pinned_memory.py:{line + 3} insert"
    assert (
        race.fix.code == "torch.cuda.current_stream().synchronize()"
        and "before the host writes" in race.fix.hint
    )
    assert f"test_pinned_memory.py:{view.__code__.co_firstlineno + 1} shows the memory" in race.note
    assert not certificate_of(lambda: program(True), schedule).races


def test_the_race_names_the_wait_that_ended_the_window():
    def program():
        h = torch.zeros(N).pin_memory()
        v = h.numpy()
        x = h.to("cuda", non_blocking=True)
        v[:] = 1
        torch.cuda.current_stream().synchronize()
        return x, v

    (race,) = certificate_of(program).races
    line = program.__code__.co_firstlineno
    assert (
        race.second.place.endswith(f":{line + 5}")
        and f"before tests/observe/races/test_pinned_memory.py:{line + 5}" in race.fix.text
    )


def test_a_write_through_a_view_of_registered_memory_is_a_race():
    def program(wait):
        h = torch.zeros(N)
        torch.cuda.cudart().cudaHostRegister(h.data_ptr(), h.nbytes, 0)
        v = h.numpy()
        x = h.to("cuda", non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        v[:] = 1
        return x, v

    (race,) = certificate_of(lambda: program(False)).races
    assert race.first.kind == "reads" and race.second.kind == "writes" and race.second.stream is None
    assert certificate_of(lambda: program(True)).race_free


def test_where_races_are_errors_the_wait_raises():
    with flambeau.virtual(devices=1, races="error"):
        h = torch.zeros(N).pin_memory()
        v = h.numpy()
        x = h.to("cuda", non_blocking=True)
        v[:] = 1
        with pytest.raises(flambeau.RaceError, match="a write through a view, before this line"):
            torch.cuda.synchronize()
        assert x.tolist() == [1.0] * N


def test_a_write_through_a_view_into_a_pending_target_is_a_race():
    """The copy writes over it: seen as the poison is no longer whole when the copy runs."""

    def program():
        h, x = torch.zeros(N).pin_memory(), torch.ones(N, device="cuda")
        v = h.numpy()
        h.copy_(x, non_blocking=True)
        v[5] = 3
        return h, x, v

    (race,) = certificate_of(program).races
    assert (race.first.operator, race.first.kind, race.second.kind) == ("copy_out", "writes", "writes")
    begin, end = race.range
    assert end - begin == 4


def looked(keep, wait):
    h, x = torch.zeros(N).pin_memory(), torch.ones(N, device="cuda")
    h.copy_(x, non_blocking=True)
    if wait:
        torch.cuda.synchronize()
    v = h.numpy()
    seen = v.sum()
    if not keep:
        del v
    torch.cuda.synchronize()
    return (h, x, seen) if not keep else (h, x, seen, v)


def test_a_view_of_a_pending_target_that_is_gone_before_the_wait_is_an_early_read():
    (race,) = certificate_of(lambda: looked(False, False)).races
    line = looked.__code__.co_firstlineno
    assert race.first.place.endswith(f":{line + 2}") and race.second.place.endswith(f":{line + 5}")
    assert (race.first.kind, race.second.kind, race.second.operator) == (
        "writes",
        "reads",
        "a read through numpy()",
    )
    assert certificate_of(lambda: looked(False, True)).race_free


def test_a_view_of_a_pending_target_that_lives_on_withholds_the_certificate():
    certificate = certificate_of(lambda: looked(True, False))
    line, here = looked.__code__.co_firstlineno, "tests/observe/races/test_pinned_memory.py"
    assert certificate.violated == [
        f"the array of numpy() at {here}:{line + 5} shows pinned memory that the copy at {here}:{line + 2} may still "
        f"write: whether it is read before the wait at {here}:{line + 9} cannot be seen. Take it after a wait for the copy"
    ]
    assert not certificate.races and certificate_of(lambda: looked(True, True)).race_free


def staged(outwards, early, live):
    """Copies of pinned memory beside a view, alive or not, that nothing touches at the wrong time."""
    h, x = torch.zeros(N).pin_memory(), torch.ones(N, device="cuda")
    if early:
        v = h.numpy()
        if not live:
            del v
    h.copy_(x, non_blocking=True) if outwards else x.copy_(h, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    if not early:
        v = h.numpy()
    return (h, x, v) if live else (h, x)


@pytest.mark.parametrize("outwards", [True, False])
def test_a_copy_beside_a_live_view_is_named_with_three_lines(outwards):
    line, here = staged.__code__.co_firstlineno, "tests/observe/races/test_pinned_memory.py"
    does = "reads or writes" if outwards else "writes"
    text = (
        f"nothing {does} pinned memory through the array of numpy() at {here}:{line + 4} between the copy at "
        f"{here}:{line + 7} and the wait at {here}:{line + 8}"
    )
    certificate = certificate_of(lambda: staged(outwards, True, True))
    assert certificate.race_free and certificate.assumptions[-1] == text
    strict = certificate_of(lambda: staged(outwards, True, True), strict=True)
    assert not strict.races and strict.violated == [f"it cannot be seen that {text}"]


@pytest.mark.parametrize("outwards", [True, False])
@pytest.mark.parametrize(("early", "live"), [(False, True), (False, False), (True, False)])
def test_a_view_that_cannot_have_been_used_meanwhile_is_not_named(outwards, early, live):
    certificate = certificate_of(lambda: staged(outwards, early, live and not early), strict=True)
    assert certificate.race_free and not [text for text in certificate.assumptions if "pinned" in text]


def test_blocking_copies_leave_no_time_for_a_view(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # a test runner may have threads of its own

    def program():
        h = torch.zeros(N).pin_memory()
        v = h.numpy()
        x = h.cuda()
        h.copy_(x)
        v[:] = 2
        return x, h, v

    certificate = certificate_of(program, strict=True)
    assert certificate.race_free, str(certificate)


def test_windows_of_one_view_share_a_line():
    def program():
        h, x = torch.zeros(N).pin_memory(), torch.zeros(N, device="cuda")
        v = h.numpy()
        for _ in range(3):
            x.copy_(h, non_blocking=True)
            torch.cuda.synchronize()
            v += 1
        x.copy_(h, non_blocking=True)
        return x, v

    certificate = certificate_of(program)
    (text,) = [text for text in certificate.assumptions if "pinned" in text]
    assert text.count("the copy at") == 2 and certificate.race_free


# -- what was written --------------------------------------------------------------------------------------------------


def filled(how):
    h = torch.empty(N, pin_memory=True)
    if how == "view":
        h.numpy()[:] = 1
    elif how == "operator":
        h.fill_(1)
    elif how == "halves":
        h[: N // 2] = 1
        h[N // 2 :] = 2
    elif how == "columns":
        h.view(-1, 2)[:, 0] = 1
        h.view(-1, 2)[:, 1] = 2
    elif how == "copy":
        h.copy_(torch.ones(N, device="cuda"), non_blocking=True)
    elif how == "part":
        h[1:] = 1
    elif how == "column":
        h.view(-1, 2)[:, 0] = 1
    return h.to("cuda", non_blocking=True), h


@pytest.mark.parametrize("how", ["operator", "halves", "columns", "copy"])
def test_pinned_memory_that_was_written_needs_no_assumption(how):
    certificate = certificate_of(lambda: filled(how), strict=True)
    assert certificate.race_free and "pinned" not in str(certificate)


@pytest.mark.parametrize("how", ["", "part", "column"])
def test_a_read_of_pinned_memory_that_was_never_written_withholds_the_certificate(how):
    (text,) = certificate_of(lambda: filled(how)).violated
    line = filled.__code__.co_firstlineno
    assert (
        f":{line + 18} reads pinned memory, allocated at" in text
        and f":{line + 1}, that nothing has written" in text
    )


def test_pinned_memory_that_only_a_view_has_written_is_named():
    certificate = certificate_of(lambda: filled("view"))
    line, here = filled.__code__.co_firstlineno, "tests/observe/races/test_pinned_memory.py"
    text = f"the program has written through the array of numpy() at {here}:{line + 3} what copy_in at {here}:{line + 18} reads"
    assert certificate.race_free and certificate.assumptions[-1].startswith(text)
    assert not certificate_of(lambda: filled("view"), strict=True).race_free


# -- what is no race ---------------------------------------------------------------------------------------------------


def test_host_functions_may_use_what_their_stream_uses():
    def program():
        h, x = torch.zeros(N).pin_memory(), torch.ones(N, device="cuda")
        v, stream = h.numpy(), torch.cuda.current_stream().handle
        x.copy_(h, non_blocking=True)
        system.accelerator().host_call(lambda: v.fill(5), stream)
        y = h.to("cuda", non_blocking=True)
        system.accelerator().host_call(lambda: v.fill(6), stream)
        torch.cuda.synchronize()
        assert x.tolist() == [0.0] * N and y.tolist() == [5.0] * N and v.tolist() == [6.0] * N
        return h

    assert not certificate_of(program).races


def test_a_staging_buffer_with_a_view_may_be_used_both_ways_in_one_stream():
    def program():
        h, x = torch.zeros(N).pin_memory(), torch.ones(N, device="cuda")
        v = h.numpy()
        for step in range(3):
            v[:] = step
            x.copy_(h, non_blocking=True)
            x += 1
            h.copy_(x, non_blocking=True)
            x.copy_(h, non_blocking=True)
            torch.cuda.synchronize()
            assert v.tolist() == [step + 1.0] * N
        return h

    for schedule in ("earliest", "random:0", "adversarial:0"):
        certificate = certificate_of(program, schedule)
        assert certificate.race_free, str(certificate)


# -- graphs, real GPUs, no data ---------------------------------------------------------------------------------------


def replayed(wait):
    h, graph = torch.zeros(N).pin_memory(), torch.cuda.CUDAGraph()
    v, x = h.numpy(), torch.zeros(N, device="cuda")
    with torch.cuda.graph(graph):
        x.copy_(h, non_blocking=True)
    for step in range(3):
        v[:] = step
        graph.replay()
        if wait:
            torch.cuda.synchronize()
    return h, v, x, graph


def test_a_graphs_copy_is_compared_from_each_launch_on():
    (race,) = certificate_of(lambda: replayed(False)).races
    line = replayed.__code__.co_firstlineno
    assert race.first.place.endswith(f":{line + 4}") and race.first.launched is not None
    assert certificate_of(lambda: replayed(True)).race_free


def test_virtual_gpus_without_data_name_views_too():
    def program():
        h = torch.zeros(N).pin_memory()
        v = h.numpy()
        x = h.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return x, v

    certificate = certificate_of(program, data=False)
    assert certificate.race_free and "nothing writes pinned memory through" in str(certificate)


class Memory(StillDriver):
    """As a real GPU's driver: it does not say when commands run."""

    def host_alloc(self, nbytes):
        owner = np.zeros(nbytes, np.uint8)
        return HostMemory(address_of(owner), nbytes, owner, pinned=True)


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_real_gpus_compare_sources_at_the_wait(written, download):
    """But for memory that a copy writes, too: nobody knows when it does."""
    gpu, cpu = machine(accelerator=Memory())
    memory = gpu.host_alloc(64)
    ptr, view = gpu.mem_alloc(0, 64), memory.owner.view()
    cpu.host_touch(memory.ptr, 64, True)
    cpu.host_export(memory.ptr, 64, "data_ptr()", None)
    gpu.copy_in(ptr, memory, 1)
    if download:
        gpu.copy_out(memory, ptr, 1)
    if written:
        view[5] = 1
    gpu.stream_sync(1)
    view[6] = 1
    certificate = gpu.detector.certificate()
    assert bool(certificate.races) == (written and not download)
    assert len([text for text in certificate.assumptions if "pinned memory through" in text]) == 1 + download


def test_another_librarys_pinned_memory_is_named():
    gpu, _ = machine()
    owner = np.zeros(64, np.uint8)
    gpu.copy_in(gpu.mem_alloc(0, 64), HostMemory(address_of(owner), 64, owner, pinned=True), 1)
    gpu.stream_sync(1)
    (text,) = [text for text in gpu.detector.certificate().assumptions if "pinned" in text]
    assert "through the library that pinned it between the copy at" in text


# -- exports and lives --------------------------------------------------------------------------------------------------


def test_a_view_is_forgotten_with_the_memory_that_it_showed():
    def program():
        h = torch.zeros(N).pin_memory()
        h.data_ptr()
        del h
        h = torch.zeros(N).pin_memory()
        return h.to("cuda", non_blocking=True), h

    certificate = certificate_of(program, strict=True)
    assert certificate.race_free, str(certificate)


def test_what_is_remembered_of_views_is_bounded():
    with flambeau.virtual(devices=1, races="warn"):
        h, x = torch.zeros(N).pin_memory(), torch.zeros(N, device="cuda")
        pinned = system.accelerator().detector.pinned
        for _ in range(200):
            h.numpy()
            h.data_ptr()
            x.copy_(h, non_blocking=True)
        (life,) = pinned._lives.values()
        assert len(life.exports) <= 2 and len(pinned._windows) == 1

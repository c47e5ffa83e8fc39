"""Races on freed memory: decided by the allocator's contract, not by where this run put tensors."""

from __future__ import annotations

import gc
import threading

import pytest

import flambeau
import flambeau as torch
from flambeau.runtime import system

PLACEMENTS = ["default", "pytorch", "random:1", "random:2"]
N = 1000  # elements, of the small pool
LARGE = 1 << 19  # of the large pool


def verdict(program, placement="default", devices=1):
    """The certificate of a program, a function of two side streams."""
    with flambeau.virtual(devices=devices, races="warn", placement=placement):
        program(torch.cuda.Stream(), torch.cuda.Stream())
        torch.cuda.synchronize()
        return system.accelerator().detector.certificate()


def used_elsewhere(side, n=N):
    """A tensor of the current stream that another one reads for a while; the caller frees it too early."""
    x = torch.ones(n, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000)
        torch.neg(x, out=torch.empty_like(x))
    return x


def only(certificate):
    """The only race, whose fix is record_stream."""
    (race,) = certificate.races
    assert race.reused and race.fix.call == "record_stream" and race.fix.verified
    assert race.first.operator == "neg" and race.first.kind == "reads"
    assert "may use it for the tensor allocated at" in race.note
    assert "record_stream missing" in race.headline and str(race)
    return race


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("n", [1, N, 3 * N, 1 << 18])
def test_any_later_size_of_the_pool_may_be_the_freed_memory(n, placement):
    def program(side, _):
        x = used_elsewhere(side)
        del x
        torch.zeros(n, device="cuda")

    race = only(verdict(program, placement))
    assert race.second.operator == "fill" and race.allocated and race.freed


def test_record_stream_settles_it():
    def program(side, _):
        x = used_elsewhere(side)
        x.record_stream(side)
        del x
        torch.zeros(N, device="cuda")

    assert verdict(program).race_free


def test_record_stream_of_one_of_two_users_leaves_the_other():
    def program(side, other):
        x = used_elsewhere(side)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            x.sum()
        x.record_stream(other)
        del x
        torch.zeros(N, device="cuda")

    only(verdict(program))


@pytest.mark.parametrize("when", ["before the free", "before the allocation", "before the first use"])
def test_a_wait_before_the_first_use_settles_it(when):
    def program(side, _):
        x = used_elsewhere(side)
        if when == "before the free":
            torch.cuda.current_stream().wait_stream(side)
        del x
        if when == "before the allocation":
            torch.cuda.current_stream().wait_stream(side)
        y = torch.empty(N, device="cuda")
        if when == "before the first use":
            torch.cuda.current_stream().wait_stream(side)
        y.zero_()

    assert verdict(program).race_free


def test_a_wait_for_an_earlier_point_does_not():
    def program(side, _):
        side.wait_stream(torch.cuda.current_stream())
        early = side.record_event()
        x = used_elsewhere(side)
        del x
        early.wait()
        torch.zeros(N, device="cuda")

    only(verdict(program))


def test_a_wait_of_the_host_settles_it():
    def program(side, _):
        x = used_elsewhere(side)
        del x
        side.synchronize()
        torch.zeros(N, device="cuda")

    assert verdict(program).race_free


def test_a_tensor_that_is_never_used_races_with_nothing():
    def program(side, _):
        x = used_elsewhere(side)
        del x
        torch.empty(N, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        torch.zeros(N, device="cuda")

    assert verdict(program).race_free


def test_what_was_allocated_before_the_free_races_with_nothing():
    def program(side, _):
        x = used_elsewhere(side)
        y = torch.empty(N, device="cuda")
        del x
        y.zero_()

    assert verdict(program).race_free


@pytest.mark.parametrize("other", ["kind", "stream", "mempool", "device"])
def test_other_pools_do_not_have_the_memory(other):
    def program(side, third):
        x = used_elsewhere(side)
        del x
        if other == "kind":
            torch.zeros(LARGE, device="cuda")
        elif other == "device":
            torch.zeros(N, device="cuda:1")
        elif other == "stream":
            with torch.cuda.stream(third):
                torch.zeros(N, device="cuda")
        else:
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
                torch.zeros(N, device="cuda")

    assert verdict(program, devices=2).race_free


def test_the_pools_of_a_mempool_are_pools_too():
    def program(side, _):
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            x = used_elsewhere(side)
        del x
        torch.zeros(N, device="cuda")
        assert system.accelerator().detector.certificate().race_free
        with torch.cuda.use_mem_pool(pool):
            torch.zeros(N, device="cuda")

    only(verdict(program))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_empty_cache_orders_nothing_while_the_pool_is_in_use(placement):
    """The freed block may share its segment with a tensor that lives: then it stays where it is."""

    def program(side, _):
        keep = torch.ones(N, device="cuda")
        x = used_elsewhere(side)
        del x
        torch.cuda.empty_cache()
        torch.zeros(N, device="cuda")
        keep.add_(1)

    only(verdict(program, placement))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_empty_cache_gives_all_memory_of_an_unused_pool_back(placement):
    def program(side, _):
        large = torch.ones(LARGE, device="cuda")  # of another pool
        x = used_elsewhere(side)
        del x
        torch.cuda.empty_cache()
        torch.zeros(N, device="cuda")
        large.add_(1)

    assert verdict(program, placement).race_free


def test_without_caching_each_free_waits(monkeypatch):
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

    def program(side, _):
        x = used_elsewhere(side)
        del x
        torch.zeros(N, device="cuda")

    assert verdict(program).race_free


@pytest.mark.parametrize(
    "conf", ["expandable_segments:True", "max_split_size_mb:20", "garbage_collection_threshold:0.5"]
)
def test_settings_change_nothing(conf, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", conf)

    def program(side, _):
        x = used_elsewhere(side)
        del x
        torch.zeros(3 * N, device="cuda")

    only(verdict(program))


def test_another_stream_than_the_allocating_one_must_wait_for_it():
    """Its own earlier work may still use memory that it freed."""

    def program(side, _):
        x = torch.ones(N, device="cuda")
        x.mul_(2)
        del x
        y = torch.empty(7 * N, device="cuda")
        with torch.cuda.stream(side):
            y.zero_()
        torch.cuda.current_stream().wait_stream(side)

    (race,) = verdict(program).races
    assert race.fix.call == "wait_stream" and not race.reused
    assert race.first.operator == "mul" and race.second.operator == "fill"


def test_fresh_memory_needs_no_wait():
    def program(side, _):
        y = torch.empty(7 * N, device="cuda")
        with torch.cuda.stream(side):
            y.zero_()
        torch.cuda.current_stream().wait_stream(side)
        x = torch.ones(N, device="cuda")
        del x

    assert verdict(program).race_free


def test_a_wait_for_the_allocating_stream_settles_it_all():
    def program(side, other):
        x = used_elsewhere(other)
        torch.cuda.current_stream().wait_stream(other)
        del x
        y = torch.empty(N, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.zero_()
        torch.cuda.current_stream().wait_stream(side)

    assert verdict(program).race_free


def test_the_allocating_streams_wait_does_not_count_for_a_stream_that_skips_it():
    def program(side, other):
        x = used_elsewhere(other)
        early = torch.cuda.current_stream().record_event()
        torch.cuda.current_stream().wait_stream(other)
        del x
        y = torch.empty(N, device="cuda")
        early.wait(side)
        with torch.cuda.stream(side):
            y.zero_()
        torch.cuda.current_stream().wait_stream(side)

    (race,) = verdict(program).races
    assert race.fix.call == "wait_stream" and race.fix.verified


def test_memory_taken_over_by_order_withholds_the_certificate():
    """Whether the second stream takes over what the first has freed depends on the placement; the third waits for none."""

    def program(side, third):
        x = torch.ones(LARGE, device="cuda")
        x.mul_(2)
        del x
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = torch.empty(LARGE, device="cuda")
        with torch.cuda.stream(third):
            y.zero_()

    for placement in PLACEMENTS:
        certificate = verdict(program, placement)
        assert not certificate.race_free
        assert "does not wait for side stream 1" in str(certificate)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_one_defect_is_one_report(placement):
    def program(side, _):
        x = used_elsewhere(side)
        del x
        kept = [torch.zeros(n, device="cuda") for n in (N, 5, 2 * N)]
        kept.append(kept[0] + 1)

    assert only(verdict(program, placement)).count == 4


def test_a_tensor_freed_by_another_thread_withholds_the_certificate():
    def program(side, _):
        held = [used_elsewhere(side)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        gc.collect()
        torch.zeros(N, device="cuda")

    assert not verdict(program).race_free


def test_use_by_indices_is_a_use():
    def program(side, _):
        x = torch.ones(N, device="cuda")
        index = torch.arange(10, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            x[index] = 3.0
        del x
        torch.cuda.empty_cache()
        torch.zeros(N, device="cuda")
        index.add_(1)

    assert not verdict(program).race_free


def test_a_first_use_by_indices_is_compared():
    def program(side, _):
        index = torch.arange(10, device="cuda")
        x = used_elsewhere(side)
        y = None
        del x
        y = torch.empty(N, device="cuda")
        y[index] = 1.0
        torch.cuda.current_stream().wait_stream(side)

    assert any(race.first.operator == "neg" for race in verdict(program).races)


def test_what_is_forgotten_of_a_long_run_is_still_compared(monkeypatch):
    from flambeau.observe import lifetimes

    monkeypatch.setattr(lifetimes, "_FREES", 16)

    def program(waits):
        def run(side, _):
            x = torch.ones(N, device="cuda").mul_(2)
            del x
            y = torch.empty(N, device="cuda")
            if waits:
                side.wait_stream(torch.cuda.current_stream())
            for _ in range(100):
                torch.ones(N, device="cuda")
            with torch.cuda.stream(side):
                y.zero_()
            torch.cuda.current_stream().wait_stream(side)

        return run

    assert verdict(program(True)).race_free
    (race,) = verdict(program(False)).races
    assert race.first.operator == "mul"

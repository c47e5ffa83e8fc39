"""Entries of the journal, and the figures and the history that are made up from them."""

from __future__ import annotations

from typing import Any

import pytest
from allocator_kit import context_over, stream_of
from fake_drivers import MIB, FakeDriver
from hypothesis import given, settings
from hypothesis import strategies as st

from flambeau.core.errors import OutOfMemoryError
from flambeau.runtime.memory.allocator import CachingAllocator
from flambeau.runtime.memory.allocator_config import policy_of
from flambeau.runtime.memory.allocator_statistics import ALL, ALLOCATED_BYTES, Ledger, allocated_bytes_of
from flambeau.runtime.memory.history import Columns, History, Recording, columns_of
from flambeau.runtime.memory.log_entries import (
    ALLOC,
    CODES,
    CUT,
    HEADS,
    ORDER,
    Batch,
    Entry,
    body,
    codes_and_sizes,
    codes_sizes_requests,
    entry,
)
from flambeau.runtime.memory.private_pool import as_id, pack_id, unpack_id
from flambeau.runtime.memory_reports.oom_advice import suggest_settings

Read = tuple[Any, ...]  # an entry's numbers, its stack, its time

NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
NOTES = st.one_of(st.none(), st.tuples(st.sampled_from(["here", "there", None]), st.integers(0, 1 << 62)))
READS = st.lists(
    st.tuples(st.tuples(st.sampled_from(CODES), *[NUMBERS] * 5), NOTES), min_size=1, max_size=60
).map(lambda found: [(*numbers, *(notes or (None, None))) for numbers, notes in found])
SMALL = st.lists(
    st.tuples(st.sampled_from(CODES), *[st.integers(-5, 5)] * 2, st.booleans()), min_size=1, max_size=80
)


def written(read: Read) -> Entry:
    numbers = entry(*read[:6])
    return numbers if read[7] is None else (numbers, *read[6:])


def rows(columns: Columns) -> list[Read]:
    return [
        (*numbers, columns.stacks[place], None if time < 0 else time)
        for numbers, place, time in zip(
            columns.numbers.tolist(), columns.stack.tolist(), columns.time.tolist(), strict=True
        )
    ]


@given(READS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_what_is_written_is_read(reads: list[Read]) -> None:
    entries = [written(read) for read in reads]
    batch = Batch(entries)
    assert rows(columns_of([batch])) == reads and len(batch) == len(reads)
    assert list(codes_and_sizes(entries)) == [read[:2] for read in reads]
    assert list(codes_sizes_requests(entries)) == [read[:3] for read in reads]
    shown = [i for i, read in enumerate(reads) if read[0] & ~1 not in (CUT, ORDER)]
    assert batch.events == len(shown) and [batch.place(n) for n in range(batch.events)] == shown


@given(st.sampled_from(CODES), st.tuples(*[NUMBERS] * 5))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_head_and_a_body_are_an_entry(code: int, numbers: tuple[int, ...]) -> None:
    assert HEADS[code] + body(*numbers) == entry(code, *numbers)


@given(SMALL, st.integers(0, 80))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_figures_are_the_same_by_batches_and_one_by_one(
    found: list[tuple[int, int, int, bool]], cut: int
) -> None:
    entries: list[Entry] = [
        (numbers, None, 7) if noted else numbers
        for *three, noted in found
        for numbers in [entry(*three, 512, 1, 0)]
    ]
    by_steps, at_once, in_parts = Ledger(), Ledger(), Ledger()
    for one in entries:
        by_steps.post([one])
    at_once.post(Batch(entries))
    for part in (entries[:cut], entries[cut:]):
        if part:
            in_parts.post(part if len(part) % 2 else Batch(part))
    assert by_steps.figures() == at_once.figures() == in_parts.figures()
    assert allocated_bytes_of(entries) == by_steps.current[ALL][ALLOCATED_BYTES]


@given(SMALL, st.integers(1, 30), st.integers(1, 90))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_history_is_the_latest_events(
    found: list[tuple[int, int, int, bool]], step: int, most: int
) -> None:
    reads: list[Read] = [
        (*three, at, 1, 0, None, at if noted else None) for at, (*three, noted) in enumerate(found)
    ]
    history = History()
    history.begin(Recording(max_entries=most))
    for begin in range(0, len(reads), step):
        part = [written(read) for read in reads[begin : begin + step]]
        history.add(Batch(part) if step % 2 else part)
    kept = rows(history.read())
    assert kept == reads[len(reads) - len(kept) :]
    shown = [read for read in reads if read[0] & ~1 not in (CUT, ORDER)]
    assert [read for read in kept if read[0] & ~1 not in (CUT, ORDER)] == shown[-most:]


# -- numbers beyond what an entry holds ---------------------------------------------------------------------------


def make(text: str = "", **chosen: Any) -> tuple[CachingAllocator, FakeDriver, Any]:
    driver = FakeDriver(**chosen)
    context = context_over(driver)
    return CachingAllocator(context, policy_of(text)), driver, stream_of(context, 1)


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 63) - 1, 1 << 63, 1 << 64])
def test_a_request_beyond_all_devices_is_refused_in_words(nbytes: int) -> None:
    allocator, driver, stream = make()
    with pytest.raises(
        OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate more than 1EB memory"
    ):
        allocator.allocate(nbytes, stream)
    assert driver.calls == 0
    with pytest.raises(OutOfMemoryError, match=r"Tried to allocate 1073741824\.00 GiB"):
        allocator.allocate((1 << 60) - MIB, stream)
    assert allocator.growth.num_ooms == 1


@pytest.mark.parametrize("address", [0, -4096, 1 << 63])
def test_what_is_no_address_is_refused_in_words(address: int) -> None:
    allocator, driver, stream = make()
    driver.mem_alloc = lambda index, nbytes: address  # type: ignore[method-assign]
    with pytest.raises(
        RuntimeError, match=r"DriverMemory.allocate\(2097152\) gave -?0x[08]*1?0*, which is not an address"
    ):
        allocator.allocate(1, stream)
    assert not list(allocator.segments()) and allocator.reserved_bytes() == 0


def test_a_replay_on_ample_memory_has_addresses_for_many_streams() -> None:
    """With segments that grow each stream's pool takes a share of the addresses that the device has bytes."""
    allocator, driver, stream = make("expandable_segments:True", capacity=4096 * MIB)
    for handle in range(1, 101):
        allocator.allocate(30 * MIB, stream_of(stream.context, handle))
    allocator.oom_advice = suggest_settings
    driver.capacity = driver.used
    with pytest.raises(
        OutOfMemoryError, match=r"With [\d.]+ GiB in place of [\d.]+ GiB this request would have"
    ):
        allocator.allocate(1500 * MIB, stream)


@given(st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 32) - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_ids_of_pools_are_numbers_of_entries(first: int, second: int) -> None:
    owner = pack_id(as_id([first, second]))
    assert unpack_id(owner) == (first, second)
    assert Batch([entry(ALLOC, 0, 0, 0, 0, owner)]).numbers[0, 5] == owner


@pytest.mark.parametrize("id", [(1 << 31, 0), (0, 1 << 32), (-1, 0), (0, -1), (1 << 70, 1)])
def test_ids_that_no_pool_has(id: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"it must be from \(0, 0\) to"):
        as_id(id)


@pytest.mark.parametrize("id", [5, "ab", (1,), (1, 2, 3), (1.0, 2), None])
def test_what_is_no_id(id: object) -> None:
    with pytest.raises(TypeError, match=r"a memory pool's id is a pair of ints, as MemPool\.id, not"):
        as_id(id)


# -- finalizers in the middle -------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(5))
def test_figures_may_be_read_in_the_middle_of_their_making_up(
    at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gc.callbacks and destructors do that write down how much memory there is."""
    allocator, _, stream = make()
    held = [allocator.allocate(5 * MIB, stream) for _ in range(4)]
    held += [allocator.allocate(512, stream) for _ in range(40)]
    for block in held[:-3]:
        allocator.free(block)
    left = [at]

    def finalizer() -> None:
        left.append(left.pop() - 1)
        if left == [-1]:
            inner = [allocator.allocate(4096 * n, stream) for n in range(1, 60)]
            allocator.allocated_bytes(), allocator.history()
            for block in inner[3:]:
                allocator.free(block)
            allocator.ledger()

    for owner, name in ((Ledger, "_take_over"), (History, "add"), (History, "_keep")):
        monkeypatch.setattr(owner, name, _after(finalizer, getattr(owner, name)))
    allocator.ledger()
    assert left[0] < 0  # it was there
    by_steps = Ledger()
    for numbers in allocator.history().numbers.tolist():  # in the order in which it happened
        by_steps.post([entry(*numbers)])
    assert allocator.ledger().figures() == by_steps.figures()
    assert by_steps.peak[ALL][ALLOCATED_BYTES] == 20 * MIB + 40 * 512
    assert by_steps.current[ALL][ALLOCATED_BYTES] == 3 * 512 + 4096 * (1 + 2 + 3)


def _after(first: Any, call: Any) -> Any:
    def both(*args: Any) -> Any:
        first()
        return call(*args)

    return both

"""The race detector at the level of driver calls: which programs race, and what is said of them."""

import numpy as np
import pytest
from fake_drivers import StillDriver
from race_kit import machine, meta, run, wait

from flambeau.core.errors import RaceError
from flambeau.core.host_arrays import address_of
from flambeau.driver.protocol import HostMemory

M = meta((4, 4))


@pytest.fixture
def gpu():
    return machine()[0]


def memory(driver, nbytes=64, index=0):
    ptr = driver.mem_alloc(index, nbytes)
    driver.fill(ptr, 0, nbytes, driver.stream_default(index))
    driver.device_sync(index)
    return ptr


def only(driver):
    (race,) = driver.detector.races
    assert race.fix.verified
    return race


def test_read_on_a_side_stream_without_a_wait(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "normal_", [(a, M)], [], 1)
    run(gpu, "sum", [(out, meta(()))], [(a, M)], side)
    race = only(gpu)
    assert (race.first.operator, race.first.kind) == ("normal_", "writes")
    assert (race.second.operator, race.second.kind) == ("sum", "reads")
    assert race.first.stream == "the default stream of cuda:0"
    assert race.second.stream == "side stream 1 of cuda:0"
    assert race.range == (a, a + 64)
    assert race.fix.call == "wait_stream"
    assert "torch.cuda.default_stream(0)" in race.fix.text
    assert not gpu.detector.certificate().race_free


def test_the_wait_makes_it_certified(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "normal_", [(a, M)], [], 1)
    wait(gpu, side, 1)
    run(gpu, "sum", [(out, meta(()))], [(a, M)], side)
    certificate = gpu.detector.certificate()
    assert certificate.race_free, str(certificate)
    assert "Race-free under every schedule" in str(certificate)


def test_a_stream_alone_never_races(gpu):
    a = memory(gpu)
    side = gpu.stream_create(0, 0)
    for _ in range(3):
        run(gpu, "add_", [(a, M)], [(a, M)], side, updates=True)
    assert gpu.detector.races == []


def test_double_buffer_overwritten_while_it_is_read(gpu):
    buffers, out = [memory(gpu), memory(gpu)], memory(gpu)
    host = gpu.host_alloc(64)
    copies, compute = gpu.stream_create(0, 0), gpu.stream_create(0, 0)
    for step in range(4):
        gpu.copy_in(buffers[step % 2], host, copies)
        wait(gpu, compute, copies)
        run(gpu, "classify", [(out, M)], [(buffers[step % 2], M)], compute)
    race = only(gpu)
    assert (race.first.kind, race.second.kind) == ("reads", "writes")
    assert race.second.operator == "copy_in"
    assert race.count == 2


def test_double_buffer_with_both_waits(gpu):
    buffers, out = [memory(gpu), memory(gpu)], memory(gpu)
    host = gpu.host_alloc(64)
    copies, compute = gpu.stream_create(0, 0), gpu.stream_create(0, 0)
    free = [gpu.event_create(0, False), gpu.event_create(0, False)]
    for step in range(6):
        gpu.stream_wait(copies, free[step % 2])  # never recorded at first: no wait
        gpu.copy_in(buffers[step % 2], host, copies)
        wait(gpu, compute, copies)
        run(gpu, "classify", [(out, M)], [(buffers[step % 2], M)], compute)
        gpu.event_record(free[step % 2], compute)
    assert gpu.detector.races == []


def test_event_recorded_before_the_work(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    event = gpu.event_create(0, False)
    gpu.event_record(event, 1)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.stream_wait(side, event)
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert "for a point before this access" in only(gpu).note


def test_a_wait_takes_the_record_that_is_current_when_it_is_called(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    event = gpu.event_create(0, False)
    gpu.event_record(event, 1)
    gpu.stream_wait(side, event)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.event_record(event, 1)  # too late for the wait above
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert only(gpu).fix.call == "wait_stream"


def test_a_wait_holds_after_the_event_is_recorded_elsewhere(gpu):
    a, out = memory(gpu), memory(gpu)
    side, third = gpu.stream_create(0, 0), gpu.stream_create(0, 0)
    event = gpu.event_create(0, False)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.event_record(event, 1)
    gpu.stream_wait(side, event)
    gpu.event_record(event, third)
    gpu.event_destroy(event)
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert gpu.detector.races == []


def test_order_passes_through_a_third_stream(gpu):
    a, out = memory(gpu), memory(gpu)
    side, third = gpu.stream_create(0, 0), gpu.stream_create(0, 0)
    run(gpu, "fill_", [(a, M)], [], 1)
    wait(gpu, third, 1)
    wait(gpu, side, third)
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert gpu.detector.races == []


@pytest.mark.parametrize("sync", ["stream", "device", "event", "query", "copy_out", "free"])
def test_what_the_host_waited_for_is_before_later_commands(gpu, sync):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    event = gpu.event_create(0, False)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.event_record(event, 1)
    gpu.inner.done = True
    host = np.empty(64, np.uint8)
    {
        "stream": lambda: gpu.stream_sync(1),
        "device": lambda: gpu.device_sync(0),
        "event": lambda: gpu.event_sync(event),
        "query": lambda: gpu.event_query(event),
        "copy_out": lambda: gpu.copy_out(HostMemory(address_of(host), 64, host), a, 1),
        "free": lambda: gpu.mem_free(memory(gpu)),
    }[sync]()
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert gpu.detector.races == []


def test_a_query_that_says_no_orders_nothing(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "fill_", [(a, M)], [], 1)
    assert not gpu.stream_query(1)
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert only(gpu)


def test_the_runtimes_own_poll_orders_nothing_for_the_program(gpu):
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    event = gpu.event_create(0, False)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.event_record(event, 1)
    gpu.inner.done = True
    assert gpu.event_query(event, internal=True)
    run(gpu, "sum", [(out, M)], [(a, M)], side)
    assert only(gpu)


def test_a_program_that_queries_is_not_certified(gpu):
    gpu.stream_query(1)
    certificate = gpu.detector.certificate()
    assert not certificate.race_free
    assert "Stream.query()" in certificate.violated[0] and "test_races.py" in certificate.violated[0]


def test_copies_between_devices(gpu):
    a, b = memory(gpu), memory(gpu, index=1)
    run(gpu, "fill_", [(a, M)], [], 1)
    gpu.copy(b, a, 64, 2)
    race = only(gpu)
    assert race.second.stream == "the default stream of cuda:1"
    wait(gpu, 2, 1)
    gpu.copy(b, a, 64, 2)
    wait(gpu, 1, 2)
    run(gpu, "fill_", [(a, M)], [], 1)
    assert len(gpu.detector.races) == 1


# -- layouts ----------------------------------------------------------------------------------------------


def test_columns_of_one_matrix_do_not_conflict(gpu):
    a = memory(gpu)
    side = gpu.stream_create(0, 0)
    column = meta((4,), (4,))
    run(gpu, "fill_", [(a, column)], [], 1)
    run(gpu, "fill_", [(a + 4, column)], [], side)
    assert gpu.detector.races == []
    run(gpu, "fill_", [(a + 4, meta((4, 2), (4, 1)))], [], 1)
    assert only(gpu).first.operator == "fill_"


def test_overlapping_views_conflict(gpu):
    a = memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "fill_", [(a, meta((10,)))], [], 1)
    run(gpu, "fill_", [(a + 36, meta((6,)))], [], side)
    assert only(gpu).range == (a + 36, a + 40)


# -- memory that is reused --------------------------------------------------------------------------------


def reused_block(gpu, record=False, done=True):
    segment = memory(gpu, 512)
    side = gpu.stream_create(0, 0)
    out = memory(gpu)
    gpu.block_alloc(segment, 64, 1)
    run(gpu, "fill_", [(segment, M)], [], 1)
    wait(gpu, side, 1)
    run(gpu, "sum", [(out, M)], [(segment, M)], side)
    event = gpu.event_create(0, False)
    if record:
        gpu.event_record(event, side)
        gpu.inner.done = done
        gpu.event_query(event, internal=True)
    gpu.block_free(segment, 64, 1, [event] if record else [])
    gpu.block_alloc(segment, 64, 1)
    run(gpu, "zero_", [(segment, M)], [], 1)


def test_record_stream_forgotten(gpu):
    reused_block(gpu)
    race = only(gpu)
    assert race.reused and race.fix.call == "record_stream"
    assert "record_stream missing" in race.headline
    assert race.freed is not None and race.allocated is not None


def test_record_stream_called(gpu):
    reused_block(gpu, record=True)
    certificate = gpu.detector.certificate()
    assert certificate.race_free
    assert any("polling" in text for text in certificate.assumptions)


def test_an_allocator_that_did_not_see_the_uses_done_is_not_believed(gpu):
    reused_block(gpu, record=True, done=False)
    assert only(gpu).reused


def test_a_poll_for_one_block_orders_no_other_block(gpu):
    """Both were used on the side stream before the event; the runtime waited for it on behalf of one."""
    marked, unmarked = memory(gpu, 512), memory(gpu, 512)
    side, out = gpu.stream_create(0, 0), memory(gpu)
    for block in (marked, unmarked):
        gpu.block_alloc(block, 64, 1, pool=0)
        run(gpu, "fill_", [(block, M)], [], 1)
    wait(gpu, side, 1)
    for block in (unmarked, marked):
        run(gpu, "sum", [(out, M)], [(block, M)], side)
    event = gpu.event_create(0, False)
    gpu.event_record(event, side)
    gpu.inner.done = True
    gpu.event_query(event, internal=True)
    gpu.block_free(marked, 64, 1, [event])
    gpu.block_free(unmarked, 64, 1)
    gpu.block_alloc(marked, 64, 1, pool=0)
    assert not gpu.detector.races
    run(gpu, "zero_", [(marked, M)], [], 1)  # another allocator takes `unmarked`
    assert only(gpu).reused
    gpu.block_alloc(unmarked, 64, 1, pool=0)
    run(gpu, "zero_", [(unmarked, M)], [], 1)
    assert only(gpu).count == 2


@pytest.mark.parametrize("waits", [False, True], ids=["", "the owner's stream waits for it"])
def test_a_freed_block_that_waits_for_some_of_its_uses_alone(gpu, waits):
    """The poll says no, so this run takes other memory. Had it said yes, the use that nobody recorded would race."""
    block, other = memory(gpu, 512), memory(gpu, 512)
    gpu.block_alloc(block, 64, 1, pool=0)
    run(gpu, "fill_", [(block, M)], [], 1)
    recorded, missed, out = gpu.stream_create(0, 0), gpu.stream_create(0, 0), memory(gpu)
    for side in (recorded, missed):
        wait(gpu, side, 1)
        run(gpu, "sum", [(out if side == missed else memory(gpu), M)], [(block, M)], side)
    event = gpu.event_create(0, False)
    gpu.event_record(event, recorded)
    gpu.block_wait(block, 64, 1, [event])
    gpu.inner.done = False
    gpu.event_query(event, internal=True)
    if waits:
        wait(gpu, 1, missed)
    gpu.block_alloc(other, 64, 1, pool=0)
    run(gpu, "zero_", [(other, M)], [], 1)
    if waits:
        assert gpu.detector.certificate().race_free
    else:
        race = only(gpu)
        assert race.first.operator == "sum" and race.fix.call == "record_stream"


def test_what_the_runtime_waits_for_orders_nothing_of_the_program(gpu):
    """Whether giving memory back makes the host wait depends on what polls found before."""
    marked, data = memory(gpu, 512), memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "fill_", [(data, M)], [], side)
    event = gpu.event_create(0, False)
    gpu.event_record(event, side)
    gpu.event_query(event, internal=True)
    gpu.event_sync(event, internal=True)
    gpu.mem_free(marked)
    run(gpu, "zero_", [(data, M)], [], 1)
    assert only(gpu).fix.call == "wait_stream"


def test_memory_used_on_another_stream_than_it_was_allocated_for(gpu):
    segment, out = memory(gpu, 512), memory(gpu)
    side = gpu.stream_create(0, 0)
    gpu.block_alloc(segment, 64, 1)
    run(gpu, "fill_", [(segment, M)], [], 1)
    gpu.block_free(segment, 64, 1)
    gpu.block_alloc(segment, 64, 1)
    run(gpu, "fill_", [(segment, M)], [], side)  # the last life's fill_ may still run
    assert only(gpu).fix.call == "wait_stream"
    run(gpu, "copy", [(out, M)], [(segment, M)], side)


def test_blocks_of_ever_new_sizes_keep_few_cells(gpu):
    segment = memory(gpu, 1 << 16)
    side = gpu.stream_create(0, 0)
    for n in range(1, 200):
        gpu.block_alloc(segment, 4 * n, 1)
        run(gpu, "fill_", [(segment, meta((n,)))], [], 1)
        gpu.block_free(segment, 4 * n, 1)
    assert len(gpu.detector.shadow.cells) < 40
    run(gpu, "read", [], [(segment, M)], side)
    assert only(gpu).second.operator == "read"


# -- host memory ------------------------------------------------------------------------------------------


def test_pinned_buffer_overwritten_while_its_copy_is_pending():
    gpu, cpu = machine()
    a, pinned = memory(gpu), gpu.host_alloc(64)
    gpu.copy_in(a, pinned, 1)
    cpu.host_touch(pinned.ptr, 64, write=False)  # reading beside a read is no conflict
    assert gpu.detector.races == []
    cpu.host_touch(pinned.ptr + 60, 4, write=True)
    race = only(gpu)
    assert race.fix.call == "synchronize" and race.second.stream is None
    gpu.stream_sync(1)
    cpu.host_touch(pinned.ptr + 60, 4, write=True)
    assert race.count == 1 and not gpu.detector.host.cells


def test_result_read_before_its_copy_is_done():
    gpu, cpu = machine()
    a, pinned = memory(gpu), gpu.host_alloc(64)
    gpu.copy_out(pinned, a, 1)
    cpu.host_touch(pinned.ptr, 64, write=False)
    assert only(gpu).first.operator == "copy_out"


def test_operators_of_the_cpu_are_watched_too():
    gpu, cpu = machine()
    a = memory(gpu)
    owner = np.zeros(64, np.uint8)
    pinned = HostMemory(address_of(owner), 64, owner, pinned=True)
    gpu.copy_in(a, pinned, 1)
    run(cpu, "neg_", [(pinned.ptr, M)], [(pinned.ptr, M)], -1)
    assert only(gpu).second.operator == "neg_"


def test_pageable_copies_leave_nothing_pending():
    gpu, cpu = machine()
    a = memory(gpu)
    owner = np.zeros(64, np.uint8)
    pageable = HostMemory(address_of(owner), 64, owner)
    gpu.copy_in(a, pageable, 1)
    cpu.host_touch(pageable.ptr, 64, write=True)
    gpu.copy_out(pageable, a, 1)
    cpu.host_touch(pageable.ptr, 64, write=False)
    assert gpu.detector.certificate().race_free


def test_cached_pinned_block_reused_after_the_runtimes_poll():
    gpu, cpu = machine()
    a, pinned = memory(gpu), gpu.host_alloc(64)
    gpu.block_alloc(pinned.ptr, 64, 0)
    gpu.copy_in(a, pinned, 1)
    event = gpu.event_create(0, False)
    gpu.event_record(event, 1)
    gpu.inner.done = True
    gpu.event_query(event, internal=True)
    gpu.block_free(pinned.ptr, 64, 0, [event])
    cpu.host_touch(pinned.ptr, 64, write=True)
    assert len(gpu.detector.races) == 1  # the old tensor's memory, still its own: a race
    gpu.block_alloc(pinned.ptr, 64, 0)
    cpu.host_touch(pinned.ptr, 64, write=True)
    assert only(gpu).count == 1


# -- the rest of the certificate --------------------------------------------------------------------------


def test_reading_memory_that_was_never_written_voids_the_certificate(gpu):
    a, out = gpu.mem_alloc(0, 64), memory(gpu)
    run(gpu, "fill_", [(a, meta((2, 4)))], [], 1)
    run(gpu, "sum", [(out, M)], [(a, meta((2, 4)))], 1)
    assert gpu.detector.certificate().race_free
    run(gpu, "sum", [(out, M)], [(a, M)], 1)
    certificate = gpu.detector.certificate()
    assert not certificate.race_free and "sum at " in certificate.violated[0]


def test_memory_written_by_parts_is_written(gpu):
    a, out = gpu.mem_alloc(0, 64), memory(gpu)
    for row in range(4):
        run(gpu, "fill_", [(a + 4 * row, meta((4,), (4,)))], [], 1)
    run(gpu, "sum", [(out, M)], [(a, M)], 1)
    assert gpu.detector.certificate().race_free


def test_two_host_threads_are_named(gpu):
    from threading import Thread

    a = memory(gpu)
    thread = Thread(target=lambda: run(gpu, "fill_", [(a, M)], [], 1))
    thread.start()
    thread.join()
    assert any("2 host threads" in text for text in gpu.detector.certificate().assumptions)


def test_error_mode_raises_before_the_command_is_queued():
    gpu, _ = machine("error", StillDriver())
    a, out = memory(gpu), memory(gpu)
    side = gpu.stream_create(0, 0)
    run(gpu, "normal_", [(a, M)], [], 1)
    with pytest.raises(RaceError, match="sum on side stream 1"):
        run(gpu, "sum", [(out, meta(()))], [(a, M)], side)
    assert gpu.inner.queued == ["normal_"]
    wait(gpu, side, 1)
    run(gpu, "sum", [(out, meta(()))], [(a, M)], side)


def test_races_that_nobody_was_told_of_are_warned_of_at_the_end():
    gpu, _ = machine()
    a = memory(gpu)
    run(gpu, "fill_", [(a, M)], [], 1)
    run(gpu, "fill_", [(a, M)], [], gpu.stream_create(0, 0))
    with pytest.warns(UserWarning, match="nothing orders them"):
        gpu.close()


def test_an_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'warn' or 'error'"):
        machine("loud")

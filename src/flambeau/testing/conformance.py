"""The driver protocol's contract as tests: `cases`, each named after the call and the promise that it checks.

A case takes a newly opened driver and fails with AssertionError. A driver is complete when all cases pass:

    @pytest.mark.parametrize("case", conformance.cases, ids=lambda case: case.__name__)
    def test_driver(case):
        driver = MyDriver()
        case(driver)
        driver.close()

A driver must refuse calls that it does not support with NotSupportedError; the cases check that too. Cases for two
devices check the refusals if the driver has only one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from flambeau.core.device import CPU
from flambeau.core.dtype import float32, int64
from flambeau.core.errors import (
    DriverError,
    InvalidAddressError,
    NotReadyError,
    NotSupportedError,
    OutOfMemoryError,
)
from flambeau.core.host_arrays import address_of, bytes_at
from flambeau.core.meta import Meta
from flambeau.driver.protocol import (
    Collective,
    Driver,
    Executable,
    Expression,
    HostMemory,
    Kernel,
    Launch,
    PreMul,
    RecurrentNetwork,
)

_COUNT = 1000
_NBYTES = 4 * _COUNT
_LARGE = 1 << 24
_NETWORK = RecurrentNetwork("LSTM", float32, 6, 8, 0, 1, False, True, 5, 3, (), True, False)


# -- devices ---------------------------------------------------------------------------------------------


def device_count_is_at_least_one_and_stays(driver: Driver) -> None:
    count = driver.device_count()
    assert count >= 1
    assert driver.device_count() == count


def device_properties_describe_each_device(driver: Driver) -> None:
    for index in range(driver.device_count()):
        properties = driver.device_properties(index)
        assert properties.name
        assert properties.total_memory > 0
        assert driver.device_properties(index) == properties


def device_properties_refuses_an_index_past_the_last(driver: Driver) -> None:
    for index in (driver.device_count(), -1):
        _raises(DriverError, driver.device_properties, index)


def device_sync_waits_for_every_stream(driver: Driver) -> None:
    streams = [driver.stream_default(0)] + [driver.stream_create(0, 0) for _ in range(3)]
    ptr = driver.mem_alloc(0, 4 * _NBYTES)
    for i, stream in enumerate(streams):
        driver.fill(ptr + i * _NBYTES, i + 1, _NBYTES, stream)
    driver.device_sync(0)
    assert all(driver.stream_query(stream) for stream in streams)
    expected = np.repeat(np.arange(1, 5, dtype=np.uint8), _NBYTES)
    assert (_read(driver, ptr, 4 * _NBYTES) == expected).all()


def mem_info_is_free_and_total(driver: Driver) -> None:
    free, total = driver.mem_info(0)
    assert 0 < free <= total
    assert total == driver.device_properties(0).total_memory


def mem_processes_names_this_one(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(NotSupportedError, driver.mem_processes, 0)
    driver.mem_alloc(0, _NBYTES)
    found = driver.mem_processes(0)  # on real GPUs in a container the ids may be the host's
    assert all(nbytes >= 0 for _, nbytes in found)
    assert driver.name == "cuda" or (os.getpid() in dict(found) and dict(found)[os.getpid()] >= _NBYTES)


def close_makes_every_later_call_raise(driver: Driver) -> None:
    ptr, stream = driver.mem_alloc(0, _NBYTES), driver.stream_default(0)
    event = driver.event_create(0, False)
    exe = _adder(driver)
    driver.close()
    host = _host(np.zeros(_COUNT, np.float32))
    calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (driver.device_count, ()), (driver.device_properties, (0,)), (driver.device_sync, (0,)),
        (driver.mem_info, (0,)), (driver.mem_alloc, (0, 512)), (driver.mem_free, (ptr,)),
        (driver.range_page, (0,)), (driver.range_reserve, (0, 1 << 21)), (driver.range_map, (ptr, 1 << 21)),
        (driver.range_unmap, (ptr, 1 << 21)), (driver.range_release, (ptr,)), (driver.host_pinned, (ptr, 8)),
        (driver.copy_in, (ptr, host, stream)), (driver.copy_out, (host, ptr, stream)),
        (driver.copy, (ptr, ptr, 8, stream)), (driver.fill, (ptr, 0, 8, stream)),
        (driver.stream_default, (0,)), (driver.stream_create, (0, 0)), (driver.stream_destroy, (stream,)),
        (driver.stream_native, (stream,)), (driver.stream_adopt, (0, 0)), (driver.stream_query, (stream,)),
        (driver.stream_sync, (stream,)),
        (driver.stream_wait, (stream, event)), (driver.event_create, (0, True)),
        (driver.event_destroy, (event,)), (driver.event_record, (event, stream)),
        (driver.event_query, (event,)), (driver.event_sync, (event,)),
        (driver.event_elapsed_ns, (event, event)), (driver.load, (exe.launch, 0)), (driver.unload, (exe,)),
        (driver.launch, (exe, (ptr, ptr, ptr), (), stream)), (driver.host_call, (lambda: None, stream)),
        (driver.library_handle, ("cublas", stream)), (driver.recurrent_memory, (0, _NETWORK)),
        (driver.capture_begin, (stream, "global")), (driver.capture_end, (stream,)),
        (driver.capture_active, (stream,)), (driver.graph_launch, (stream, stream)),
        (driver.graph_dump, (stream, "graph.dot")), (driver.graph_destroy, (stream,)),
        (driver.graph_native, (stream,)), (driver.graph_instantiate, (stream,)),
        (driver.ipc_memory, (ptr,)), (driver.ipc_open, (0, b"")), (driver.ipc_close, (ptr,)),
        (driver.ipc_event, (event,)), (driver.ipc_event_open, (0, b"")), (driver.peer_can, (0, 0)),
    ]  # fmt: skip
    for call, args in calls:
        _raises(DriverError, call, *args)


def close_finishes_queued_work(driver: Driver) -> None:
    ran: list[int] = []
    driver.host_call(lambda: ran.append(1), driver.stream_default(0))
    driver.close()
    assert ran == [1]


# -- memory ----------------------------------------------------------------------------------------------


def mem_alloc_is_aligned_to_512_and_disjoint(driver: Driver) -> None:
    ptrs = [driver.mem_alloc(0, nbytes) for nbytes in (1, 511, 512, 513, 100_000)]
    assert all(ptr % 512 == 0 for ptr in ptrs)
    spans = sorted(zip(ptrs, (1, 511, 512, 513, 100_000), strict=True))
    assert all(a + n <= b for (a, n), (b, _) in pairwise(spans))


def mem_alloc_out_of_memory_leaves_all_as_it_was(driver: Driver) -> None:
    ptr = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    before = driver.mem_info(0) if driver.name != "host" else None
    _raises(OutOfMemoryError, driver.mem_alloc, 0, 1 << 60)
    assert before is None or driver.mem_info(0) == before
    assert _read(driver, ptr, _NBYTES).view(np.float32)[-1] == _COUNT - 1
    driver.mem_free(driver.mem_alloc(0, 512))


def mem_free_gives_memory_back(driver: Driver) -> None:
    if driver.name == "host":  # the system's free memory is not ours alone
        return driver.mem_free(driver.mem_alloc(0, _NBYTES))
    before = driver.mem_info(0)
    ptr = driver.mem_alloc(0, 64 << 20)
    assert driver.mem_info(0)[0] <= before[0] - (64 << 20)
    driver.mem_free(ptr)
    assert driver.mem_info(0) == before


def mem_free_refuses_what_is_not_an_allocation(driver: Driver) -> None:
    ptr = driver.mem_alloc(0, _NBYTES)
    _raises(DriverError, driver.mem_free, ptr + 512)
    driver.mem_free(ptr)
    _raises(DriverError, driver.mem_free, ptr)


def mem_free_waits_for_the_devices_work(driver: Driver) -> None:
    stream, ptr = driver.stream_create(0, 0), driver.mem_alloc(0, _NBYTES)
    ran: list[int] = []
    driver.fill(ptr, 1, _NBYTES, stream)
    driver.host_call(lambda: ran.append(1), stream)
    driver.mem_free(ptr)
    assert ran == [1]


def host_alloc_is_pinned_and_aligned_to_64(driver: Driver) -> None:
    memory = _allocate_pinned(driver, _NBYTES)
    if memory is None:
        return
    assert memory.pinned
    assert memory.nbytes == _NBYTES
    assert memory.ptr % 64 == 0
    bytes_at(memory.ptr, _NBYTES)[...] = 7
    driver.host_free(memory)


def host_free_waits_for_all_devices_work(driver: Driver) -> None:
    memory = _allocate_pinned(driver, _NBYTES)
    if memory is None:
        return
    ran: list[int] = []
    driver.host_call(lambda: ran.append(1), driver.stream_default(driver.device_count() - 1))
    driver.host_free(memory)
    assert ran == [1]
    _raises(DriverError, driver.host_free, memory)


def host_pinned_goes_by_address(driver: Driver) -> None:
    pageable = np.zeros(_NBYTES, np.uint8)
    assert not driver.host_pinned(address_of(pageable), _NBYTES)
    memory = _allocate_pinned(driver, 4096)
    if memory is None:
        return
    ptr = memory.ptr
    for start, nbytes, pinned in (
        (0, 4096, True), (0, 1, True), (1, 4095, True), (4095, 1, True), (7, 0, False), (0, 1 << 40, False),
        (1 << 40, 1, False),
    ):  # fmt: skip
        assert driver.host_pinned(ptr + start, nbytes) is pinned, (start, nbytes)
    driver.host_free(memory)
    # CUDA may keep the pages for other memory
    assert driver.name == "cuda" or not driver.host_pinned(ptr, 4096)


def host_register_pins_until_host_unregister(driver: Driver) -> None:
    array = np.ones(4096, np.uint8)
    ptr = address_of(array)
    memory = _allocate_pinned(driver, 64)
    if memory is None:
        _raises(NotSupportedError, driver.host_register, ptr, 4096)
        _raises(NotSupportedError, driver.host_unregister, ptr)
        return
    driver.host_free(memory)
    _raises(DriverError, driver.host_register, ptr, 0)
    driver.host_register(ptr, 4096)
    assert driver.host_pinned(ptr, 4096)
    assert driver.host_pinned(ptr + 4095, 1)
    _raises(DriverError, driver.host_register, ptr + 64, 64)
    _raises(DriverError, driver.host_unregister, ptr + 64)
    ran: list[int] = []
    driver.host_call(lambda: ran.append(1), driver.stream_default(driver.device_count() - 1))
    assert driver.host_unregister(ptr) == 4096
    assert ran == [1]
    assert not driver.host_pinned(ptr, 1)
    _raises(DriverError, driver.host_unregister, ptr)
    assert array.all()


def host_touch_changes_nothing(driver: Driver) -> None:
    array = np.arange(16, dtype=np.uint8)
    driver.host_touch(address_of(array), 16, True)
    driver.host_touch(address_of(array), 16, False)
    assert array.tolist() == list(range(16))


def host_export_changes_nothing(driver: Driver) -> None:
    array = np.arange(16, dtype=np.uint8)
    driver.host_export(address_of(array), 16, "numpy()", array)
    driver.host_export(address_of(array), 16, "data_ptr()", None)
    assert array.tolist() == list(range(16))


def block_alloc_block_wait_and_block_free_are_accepted(driver: Driver) -> None:
    ptr, stream, event = driver.mem_alloc(0, 4096), driver.stream_default(0), driver.event_create(0, False)
    for written in (False, True):
        driver.block_alloc(ptr, 1024, stream, written)
        driver.fill(ptr, 3, 1024, stream)
        assert (_read(driver, ptr, 1024) == 3).all()
        driver.event_record(event, stream)
        driver.block_wait(ptr, 1024, stream, [event])
        driver.event_sync(event)
        driver.block_free(ptr, 1024, stream, [event])
    driver.stream_sync(stream)


def range_page_is_a_power_of_two_or_none(driver: Driver) -> None:
    page = driver.range_page(0)
    if page:
        assert page & page - 1 == 0 and page % 512 == 0
        return
    for call, args in (
        (driver.range_reserve, (0, 1 << 21)), (driver.range_map, (0, 1 << 21)), (driver.range_unmap, (0, 1 << 21)),
        (driver.range_release, (0,)),
    ):  # fmt: skip
        _raises(NotSupportedError, call, *args)


def range_reserve_takes_whole_pages_and_no_memory(driver: Driver) -> None:
    page = driver.range_page(0)
    if not page:
        return
    free, _ = driver.mem_info(0)
    a, b = driver.range_reserve(0, 4 * page), driver.range_reserve(0, 4 * page)
    assert a % page == b % page == 0 and abs(a - b) >= 4 * page
    assert driver.mem_info(0)[0] == free
    _raises(DriverError, driver.range_reserve, 0, page + 512)
    driver.range_release(a)
    driver.range_release(b)


def range_map_puts_memory_behind_addresses(driver: Driver) -> None:
    page = driver.range_page(0)
    if not page:
        return
    ptr, stream = driver.range_reserve(0, 4 * page), driver.stream_default(0)
    driver.range_map(ptr + 2 * page, page)
    driver.range_map(ptr + page, page)
    _raises(InvalidAddressError, driver.range_map, ptr + page, page)
    _raises(InvalidAddressError, driver.range_map, ptr + 4 * page, page)
    across = ptr + 2 * page - _NBYTES // 2  # the range lies in both
    data = np.arange(_COUNT, dtype=np.float32)
    driver.copy_in(across, _host(data), stream)
    assert (_read(driver, across, _NBYTES).view(np.float32) == data).all()
    driver.range_unmap(ptr + page, 2 * page)
    driver.range_release(ptr)


def range_unmap_waits_and_gives_memory_back(driver: Driver) -> None:
    page = driver.range_page(0)
    if not page:
        return
    ptr, stream = driver.range_reserve(0, 3 * page), driver.stream_default(0)
    free, _ = driver.mem_info(0)
    for n in range(3):
        driver.range_map(ptr + n * page, page)
    assert driver.mem_info(0)[0] <= free - 3 * page
    driver.fill(ptr, 1, 3 * page, stream)
    driver.range_unmap(ptr + page, page)
    assert driver.stream_query(stream)
    _raises(InvalidAddressError, driver.range_unmap, ptr + page, page)
    assert _read(driver, ptr, 8).tolist() == [1] * 8
    driver.range_map(ptr + page, page)  # again
    driver.range_unmap(ptr, 3 * page)
    assert driver.mem_info(0)[0] == free
    driver.range_release(ptr)


def range_release_is_of_addresses_without_memory(driver: Driver) -> None:
    page = driver.range_page(0)
    if not page:
        return
    ptr = driver.range_reserve(0, 2 * page)
    driver.range_map(ptr, page)
    _raises(InvalidAddressError, driver.range_release, ptr)
    driver.range_unmap(ptr, page)
    _raises(InvalidAddressError, driver.range_release, ptr + page)
    driver.range_release(ptr)
    _raises(InvalidAddressError, driver.range_map, ptr, page)


# -- copies and fills ------------------------------------------------------------------------------------


def copy_in_from_pageable_memory_reads_before_it_returns(driver: Driver) -> None:
    ptr, array = driver.mem_alloc(0, _NBYTES), np.arange(_COUNT, dtype=np.float32)
    driver.copy_in(ptr, _host(array), driver.stream_default(0))
    array[...] = -1
    assert (_read(driver, ptr, _NBYTES).view(np.float32) == np.arange(_COUNT)).all()


def copy_in_from_pinned_memory_arrives(driver: Driver) -> None:
    memory = _allocate_pinned(driver, _NBYTES)
    if memory is None:
        return
    bytes_at(memory.ptr, _NBYTES)[...] = 9
    ptr, stream = driver.mem_alloc(0, _NBYTES), driver.stream_default(0)
    driver.copy_in(ptr, memory, stream)
    driver.stream_sync(stream)
    assert (_read(driver, ptr, _NBYTES) == 9).all()


def copy_in_of_a_part_of_pinned_memory(driver: Driver) -> None:
    memory = _allocate_pinned(driver, 1024)
    if memory is None:
        return
    bytes_at(memory.ptr, 1024)[...] = np.arange(1024, dtype=np.uint16).astype(np.uint8)
    ptr, stream = driver.mem_alloc(0, 1024), driver.stream_default(0)
    driver.copy_in(ptr + 512, memory.part(16, 16), stream)
    driver.stream_sync(stream)
    assert _read(driver, ptr + 512, 16).tolist() == list(range(16, 32))


def copy_out_to_pageable_memory_is_done_on_return(driver: Driver) -> None:
    ptr = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    out = np.zeros(_COUNT, np.float32)
    driver.copy_out(_host(out), ptr, driver.stream_default(0))
    assert (out == np.arange(_COUNT)).all()


def copy_out_to_pinned_memory_is_done_when_its_stream_is(driver: Driver) -> None:
    memory = _allocate_pinned(driver, _NBYTES)
    if memory is None:
        return
    ptr, stream = driver.mem_alloc(0, _NBYTES), driver.stream_create(0, 0)
    driver.fill(ptr, 5, _NBYTES, stream)
    driver.copy_out(memory, ptr, stream)
    driver.stream_sync(stream)
    assert (bytes_at(memory.ptr, _NBYTES) == 5).all()


def copy_moves_bytes_within_a_device(driver: Driver) -> None:
    source, stream = _upload(driver, np.arange(_COUNT, dtype=np.float32)), driver.stream_default(0)
    target = driver.mem_alloc(0, _NBYTES)
    driver.copy(target, source, _NBYTES, stream)
    assert (_read(driver, target, _NBYTES).view(np.float32) == np.arange(_COUNT)).all()


def copy_moves_bytes_between_devices_on_a_stream_of_either(driver: Driver) -> None:
    if driver.device_count() < 2:
        return
    source = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    for index in (0, 1):
        target, stream = driver.mem_alloc(1, _NBYTES), driver.stream_create(index, 0)
        driver.copy(target, source, _NBYTES, stream)
        driver.stream_sync(stream)
        assert (_read(driver, target, _NBYTES, 1).view(np.float32) == np.arange(_COUNT)).all()


def copies_of_no_bytes_do_nothing(driver: Driver) -> None:
    stream, nothing = driver.stream_default(0), HostMemory(0, 0, None)
    driver.copy_in(0, nothing, stream)
    driver.copy_out(nothing, 0, stream)
    driver.copy(0, 0, 0, stream)
    driver.fill(0, 1, 0, stream)
    driver.stream_sync(stream)


def fill_sets_bytes_and_no_others(driver: Driver) -> None:
    ptr, stream = driver.mem_alloc(0, 1024), driver.stream_default(0)
    driver.fill(ptr, 1, 1024, stream)
    driver.fill(ptr + 100, 255, 10, stream)
    assert _read(driver, ptr, 1024).tolist() == [1] * 100 + [255] * 10 + [1] * 914


# -- streams ---------------------------------------------------------------------------------------------


def stream_default_is_the_same_each_time_and_unique(driver: Driver) -> None:
    defaults = [driver.stream_default(i) for i in range(driver.device_count())]
    assert defaults == [driver.stream_default(i) for i in range(driver.device_count())]
    created = [driver.stream_create(i, 0) for i in range(driver.device_count())]
    assert len({*defaults, *created}) == len(defaults) + len(created)


def stream_create_takes_priorities(driver: Driver) -> None:
    low, high = driver.stream_create(0, 0), driver.stream_create(0, -1)
    assert low != high
    for stream in (low, high):
        driver.stream_sync(stream)


def stream_keeps_its_order(driver: Driver) -> None:
    seen: list[int] = []
    stream = driver.stream_create(0, 0)
    for i in range(20):
        driver.host_call(_appender(seen, i), stream)
    driver.stream_sync(stream)
    assert seen == list(range(20))


def stream_destroy_lets_queued_work_run(driver: Driver) -> None:
    seen: list[int] = []
    stream = driver.stream_create(0, 0)
    driver.host_call(_appender(seen, 1), stream)
    driver.stream_destroy(stream)
    driver.device_sync(0)
    assert seen == [1]
    _raises(DriverError, driver.stream_sync, stream)


def stream_native_is_0_for_the_default_stream_alone(driver: Driver) -> None:
    assert driver.stream_native(driver.stream_default(0)) == 0
    streams = [driver.stream_create(0, 0) for _ in range(3)]
    natives = {driver.stream_native(stream) for stream in streams}
    assert len(natives) == 3
    assert 0 not in natives


def stream_adopt_finds_the_drivers_own_streams(driver: Driver) -> None:
    default, stream = driver.stream_default(0), driver.stream_create(0, 0)
    assert driver.stream_adopt(0, driver.stream_native(stream)) == stream
    assert driver.stream_adopt(0, 0) == driver.stream_adopt(0, 1) == default


def stream_query_makes_progress(driver: Driver) -> None:
    stream, other = driver.stream_create(0, 0), driver.stream_create(0, 0)
    ptr = driver.mem_alloc(0, _NBYTES)
    for queue in (other, stream) * 5:
        driver.fill(ptr, 1, _NBYTES, queue)
    while not driver.stream_query(stream):
        driver.fill(ptr, 2, _NBYTES, other)  # newer work on another stream must not delay the loop
    driver.device_sync(0)


def stream_query_true_means_done(driver: Driver) -> None:
    seen: list[int] = []
    stream = driver.stream_create(0, 0)
    assert driver.stream_query(stream)
    driver.host_call(_appender(seen, 1), stream)
    while not driver.stream_query(stream):
        pass
    assert seen == [1]


def stream_sync_waits_for_the_streams_work(driver: Driver) -> None:
    seen: list[int] = []
    stream = driver.stream_create(0, 0)
    driver.host_call(_appender(seen, 1), stream)
    driver.stream_sync(stream)
    assert seen == [1]


def stream_wait_orders_later_work_after_the_event(driver: Driver) -> None:
    seen: list[str] = []
    first, second = driver.stream_create(0, 0), driver.stream_create(driver.device_count() - 1, -1)
    event = driver.event_create(0, False)
    driver.host_call(_appender(seen, "before"), first)
    driver.event_record(event, first)
    driver.stream_wait(second, event)
    driver.host_call(_appender(seen, "after"), second)
    driver.stream_sync(second)
    assert seen == ["before", "after"]


def stream_wait_on_an_event_never_recorded_returns_at_once(driver: Driver) -> None:
    seen: list[int] = []
    stream, event = driver.stream_create(0, 0), driver.event_create(0, False)
    driver.stream_wait(stream, event)
    driver.host_call(_appender(seen, 1), stream)
    driver.stream_sync(stream)
    assert seen == [1]


def stream_wait_captures_the_record_of_the_call(driver: Driver) -> None:
    """Check that recording an event again causes no deadlock, even behind work that waits for the event's first
    waiter.
    """
    first, second = driver.stream_create(0, 0), driver.stream_create(0, 0)
    event, back = driver.event_create(0, False), driver.event_create(0, False)
    driver.event_record(event, first)
    driver.stream_wait(second, event)
    driver.event_record(back, second)
    driver.stream_wait(first, back)
    driver.event_record(event, first)
    driver.stream_sync(second)
    driver.stream_sync(first)


# -- events ----------------------------------------------------------------------------------------------


def event_create_refuses_or_gives_interprocess_events(driver: Driver) -> None:
    try:
        event = driver.event_create(0, False, False, True)
    except NotSupportedError:
        return
    driver.event_destroy(event)
    _raises(DriverError, driver.event_create, 0, True, False, True)


def event_create_handles_are_no_stream_handles(driver: Driver) -> None:
    handles = [driver.event_create(0, False), driver.stream_create(0, 0), driver.event_create(0, True)]
    assert len({*handles, driver.stream_default(0)}) == 4


def event_destroy_leaves_a_recorded_wait_in_force(driver: Driver) -> None:
    seen: list[str] = []
    first, second = driver.stream_create(0, 0), driver.stream_create(0, -1)
    event = driver.event_create(0, False)
    driver.host_call(_appender(seen, "before"), first)
    driver.event_record(event, first)
    driver.stream_wait(second, event)
    driver.event_destroy(event)
    driver.host_call(_appender(seen, "after"), second)
    driver.stream_sync(second)
    assert seen == ["before", "after"]
    _raises(DriverError, driver.event_query, event)


def event_record_refuses_a_stream_of_another_device(driver: Driver) -> None:
    event = driver.event_create(0, False)
    if driver.device_count() > 1:
        _raises(DriverError, driver.event_record, event, driver.stream_default(1))
    assert driver.event_query(event)


def event_query_never_recorded_is_true(driver: Driver) -> None:
    event = driver.event_create(0, False)
    assert driver.event_query(event)
    assert driver.event_query(event, internal=True)


def event_query_makes_progress_and_true_means_done(driver: Driver) -> None:
    seen: list[int] = []
    stream, event = driver.stream_create(0, 0), driver.event_create(0, False)
    driver.host_call(_appender(seen, 1), stream)
    driver.event_record(event, stream)
    while not driver.event_query(event):
        pass
    assert seen == [1]


def event_sync_waits_for_the_recorded_work(driver: Driver) -> None:
    seen: list[int] = []
    stream, event = driver.stream_create(0, 0), driver.event_create(0, False)
    driver.host_call(_appender(seen, 1), stream)
    driver.event_record(event, stream)
    driver.event_sync(event)
    assert seen == [1]
    assert driver.event_query(event)


def event_sync_never_recorded_returns_at_once(driver: Driver) -> None:
    driver.event_sync(driver.event_create(0, False))


def event_elapsed_ns_measures_between_records(driver: Driver) -> None:
    stream, ptr = driver.stream_default(0), driver.mem_alloc(0, _NBYTES)
    start, end = driver.event_create(0, True), driver.event_create(0, True)
    driver.event_record(start, stream)
    driver.fill(ptr, 0, _NBYTES, stream)
    driver.event_record(end, stream)
    driver.event_sync(end)
    assert driver.event_elapsed_ns(start, end) > 0
    assert driver.event_elapsed_ns(end, start) == -driver.event_elapsed_ns(start, end)


def event_elapsed_ns_refuses_events_that_are_not_done(driver: Driver) -> None:
    stream, event, ptr = driver.stream_default(0), driver.event_create(0, True), driver.mem_alloc(0, _LARGE)
    for _ in range(16):
        driver.fill(ptr, 0, _LARGE, stream)
    driver.event_record(event, stream)
    # The device may have finished or not; a driver reports a time only for finished work.
    try:
        assert driver.event_elapsed_ns(event, event) == 0
    except NotReadyError:
        pass
    else:
        assert driver.event_query(event)
    driver.event_sync(event)
    assert driver.event_elapsed_ns(event, event) == 0


def event_elapsed_ns_refuses_events_without_timing_or_record(driver: Driver) -> None:
    stream, timed, bare = (
        driver.stream_default(0),
        driver.event_create(0, True),
        driver.event_create(0, False),
    )
    _raises(DriverError, driver.event_elapsed_ns, timed, timed)
    driver.event_record(timed, stream)
    driver.event_record(bare, stream)
    driver.stream_sync(stream)
    _raises(DriverError, driver.event_elapsed_ns, timed, bare)
    assert driver.event_elapsed_ns(timed, timed) == 0


# -- other processes: contracts that one process can check ---------------------------------------------------


def ipc_memory_is_64_bytes_of_an_allocation(driver: Driver) -> None:
    ptr = driver.mem_alloc(0, _NBYTES)
    if driver.name == "host":
        return _raises(NotSupportedError, driver.ipc_memory, ptr)
    stream = driver.stream_default(0)
    driver.fill(ptr, 3, _NBYTES, stream)
    handle = driver.ipc_memory(ptr)
    assert isinstance(handle, bytes) and len(handle) == 64
    driver.fill(ptr, 4, _NBYTES // 2, stream)
    assert (_read(driver, ptr, _NBYTES) == np.repeat(np.array([4, 3], np.uint8), _NBYTES // 2)).all()
    for other in (ptr + 512, 4096):
        _raises(DriverError, driver.ipc_memory, other)
    driver.mem_free(ptr)
    _raises(DriverError, driver.ipc_memory, ptr)


def ipc_open_refuses_its_own_memory_and_what_is_no_handle(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(NotSupportedError, driver.ipc_open, 0, bytes(64))
    own = driver.ipc_memory(driver.mem_alloc(0, _NBYTES))
    for handle in (own, bytes(64), b"", own[:-1], own + b"0"):
        _raises(DriverError, driver.ipc_open, 0, handle)


def ipc_close_refuses_what_was_not_opened(driver: Driver) -> None:
    ptr = driver.mem_alloc(0, _NBYTES)
    if driver.name == "host":
        return _raises(NotSupportedError, driver.ipc_close, ptr)
    _raises(DriverError, driver.ipc_close, ptr)
    driver.mem_free(ptr)


def ipc_event_wants_one_that_was_created_for_it(driver: Driver) -> None:
    ordinary = driver.event_create(0, False)
    if driver.name == "host":
        return _raises(NotSupportedError, driver.ipc_event, ordinary)
    _raises(DriverError, driver.ipc_event, ordinary)
    event, stream = driver.event_create(0, False, False, True), driver.stream_default(0)
    assert len(driver.ipc_event(event)) == 64
    ptr = driver.mem_alloc(0, _NBYTES)
    driver.fill(ptr, 5, _NBYTES, stream)
    driver.event_record(event, stream)
    driver.event_sync(event)
    assert driver.event_query(event)
    _raises(DriverError, driver.event_elapsed_ns, event, event)


def ipc_event_open_refuses_what_is_no_handle(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(NotSupportedError, driver.ipc_event_open, 0, bytes(64))
    handle = driver.ipc_event(driver.event_create(0, False, False, True))
    for wrong in (b"", handle[:-1], bytes(64), driver.ipc_memory(driver.mem_alloc(0, _NBYTES))):
        _raises(DriverError, driver.ipc_event_open, 0, wrong)


# -- kernels ---------------------------------------------------------------------------------------------


def load_and_launch_run_the_kernels_body(driver: Driver) -> None:
    exe, stream = _adder(driver), driver.stream_default(0)
    a = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    b = _upload(driver, np.full(_COUNT, 2, np.float32))
    out = driver.mem_alloc(0, _NBYTES)
    driver.launch(exe, (out, a, b), (), stream)
    assert (_read(driver, out, _NBYTES).view(np.float32) == np.arange(_COUNT) + 2).all()


def launcher_launches_the_executable_it_was_asked_for(driver: Driver) -> None:
    launcher, stream = driver.launcher(_adder(driver)), driver.stream_default(0)
    a = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    launcher((a, a, a), (), stream)
    assert (_read(driver, a, _NBYTES).view(np.float32) == np.arange(_COUNT) * 2).all()


def generic_launches_as_load_does(driver: Driver) -> None:
    meta = Meta.contiguous_of((_COUNT,), float32, CPU)
    generic = driver.generic(Launch(_ADD, (meta,), (meta, meta)), 0)
    if generic is None:  # the driver loads each launch
        return
    values, launcher_of = generic
    a = _upload(driver, np.arange(_COUNT, dtype=np.float32))
    launcher_of(*values)((a, a, a), (), driver.stream_default(0))
    assert (_read(driver, a, _NBYTES).view(np.float32) == np.arange(_COUNT) * 2).all()


def launch_passes_scalars_by_value_in_their_place(driver: Driver) -> None:
    meta = Meta.contiguous_of((_COUNT,), float32, CPU)
    exe = driver.load(Launch(_SCALE, (meta,), (float32, meta, int64)), 0)
    stream, a = driver.stream_default(0), _upload(driver, np.arange(_COUNT, dtype=np.float32))
    out = driver.mem_alloc(0, _NBYTES)
    driver.launch(exe, (out, a), (3.0, 1), stream)
    assert (_read(driver, out, _NBYTES).view(np.float32) == 3 * np.arange(_COUNT) + 1).all()


def launch_follows_strides(driver: Driver) -> None:
    out = Meta.contiguous_of((3, 4), float32, CPU)
    exe = driver.load(Launch(_ADD, (out,), (out.with_(strides=(0, 2)), out.with_(strides=(1, 3)))), 0)
    a = _upload(driver, np.arange(8, dtype=np.float32))
    b = _upload(driver, np.arange(12, dtype=np.float32))
    ptr = driver.mem_alloc(0, out.nbytes)
    driver.launch(exe, (ptr, a, b), (), driver.stream_default(0))
    expected = np.arange(0, 8, 2) + np.arange(12).reshape(4, 3).T
    assert (_read(driver, ptr, out.nbytes).view(np.float32).reshape(3, 4) == expected).all()


def launch_takes_empty_operands_at_address_0(driver: Driver) -> None:
    meta = Meta.contiguous_of((0, 3), float32, CPU)
    exe = driver.load(Launch(_ADD, (meta,), (meta, meta)), 0)
    driver.launch(exe, (0, 0, 0), (), driver.stream_default(0))
    driver.device_sync(0)


def launch_is_ordered_on_its_stream(driver: Driver) -> None:
    exe, stream = _adder(driver), driver.stream_create(0, 0)
    ptr = _upload(driver, np.ones(_COUNT, np.float32))
    for _ in range(10):
        driver.launch(exe, (ptr, ptr, ptr), (), stream)
    driver.stream_sync(stream)
    assert (_read(driver, ptr, _NBYTES).view(np.float32) == 1024).all()


def unload_after_its_launches_are_queued(driver: Driver) -> None:
    exe, stream = _adder(driver), driver.stream_default(0)
    ptr = _upload(driver, np.ones(_COUNT, np.float32))
    driver.launch(exe, (ptr, ptr, ptr), (), stream)
    driver.unload(exe)
    assert (_read(driver, ptr, _NBYTES).view(np.float32) == 2).all()


def library_handle_is_kept_or_refused(driver: Driver) -> None:
    stream = driver.stream_create(0, 0)
    if driver.name != "cuda":
        return _raises(NotSupportedError, driver.library_handle, "cublas", stream)
    handle = driver.library_handle("cublas", stream)
    assert handle and driver.library_handle("cublas", driver.stream_default(0)) == handle
    _raises(DriverError, driver.library_handle, "no library", stream)


def recurrent_memory_holds_all_parameters_or_none(driver: Driver) -> None:
    memory = driver.recurrent_memory(0, _NETWORK)
    if driver.name != "cuda":  # whose library may be absent
        assert memory is not None
    if memory is not None:
        assert len(memory.offsets) == (4 if memory.weights else 0)
        assert not memory.weights or (min(memory.offsets) >= 0 and memory.weights >= 4 * 8 * (6 + 8 + 2))
        assert memory.reserve > 0
    assert driver.recurrent_memory(0, _NETWORK) == memory


def host_call_holds_its_stream_up(driver: Driver) -> None:
    seen: list[int] = []
    stream, ptr = driver.stream_default(0), driver.mem_alloc(0, 512)
    driver.fill(ptr, 1, 512, stream)
    driver.host_call(_appender(seen, 1), stream)
    driver.host_call(_appender(seen, 2), stream)
    driver.stream_sync(stream)
    assert seen == [1, 2]


# -- graphs ----------------------------------------------------------------------------------------------


def capture_begin_records_instead_of_running(driver: Driver) -> None:
    stream = driver.stream_create(0, 0)
    if driver.name == "host":
        return _raises(NotSupportedError, driver.capture_begin, stream, "global")
    ptr = _upload(driver, np.zeros(_COUNT, np.uint8))
    driver.capture_begin(stream, "global")
    driver.fill(ptr, 7, _COUNT, stream)
    graph = driver.capture_end(stream)
    assert not _read(driver, ptr, _COUNT).any()
    driver.graph_destroy(graph)


def capture_begin_refuses_what_cannot_be_captured(driver: Driver) -> None:
    stream = driver.stream_create(0, 0)
    if driver.name == "host":
        return _raises(DriverError, driver.capture_end, stream)
    _raises(DriverError, driver.capture_begin, driver.stream_default(0), "global")
    _raises(DriverError, driver.capture_begin, stream, "always")
    _raises(DriverError, driver.capture_end, stream)
    event, ptr = driver.event_create(0, False), driver.mem_alloc(0, _NBYTES)
    host = _host(np.zeros(_NBYTES, np.uint8))
    refused: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (driver.stream_sync, (stream,)), (driver.stream_query, (stream,)), (driver.device_sync, (0,)),
        (driver.event_sync, (event,)), (driver.copy_out, (host, ptr, stream)),
        (driver.stream_wait, (driver.stream_default(0), event)),
    ]  # fmt: skip
    for call, args in refused:
        driver.capture_begin(stream, "thread_local")
        driver.event_record(event, stream)
        _raises(DriverError, call, *args)
        if driver.name == "cuda":  # where some refused calls break the capture and others leave it whole
            with suppress(DriverError):
                driver.graph_destroy(driver.capture_end(stream))
        else:
            _raises(DriverError, driver.capture_end, stream)
    driver.fill(ptr, 7, _NBYTES, stream)  # the stream is as it was
    driver.stream_sync(stream)
    assert (_read(driver, ptr, _NBYTES) == 7).all()


def capture_end_refuses_work_that_nobody_waits_for(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(DriverError, driver.capture_end, driver.stream_create(0, 0))
    stream, side = driver.stream_create(0, 0), driver.stream_create(0, 0)
    event, ptr = driver.event_create(0, False), driver.mem_alloc(0, _NBYTES)
    driver.capture_begin(stream, "global")
    driver.event_record(event, stream)
    driver.stream_wait(side, event)
    driver.fill(ptr, 7, _NBYTES, side)
    _raises(DriverError, driver.capture_end, stream)
    driver.stream_sync(side)


def capture_active_of_the_stream_and_those_that_joined(driver: Driver) -> None:
    stream, side = driver.stream_create(0, 0), driver.stream_create(0, 0)
    assert not driver.capture_active(stream)
    if driver.name == "host":
        return
    event, back = driver.event_create(0, False), driver.event_create(0, False)
    driver.capture_begin(stream, "global")
    driver.event_record(event, stream)
    assert driver.capture_active(stream) and not driver.capture_active(side)
    driver.stream_wait(side, event)
    assert driver.capture_active(side)
    driver.event_record(back, side)
    driver.stream_wait(stream, back)
    driver.graph_destroy(driver.capture_end(stream))
    assert not driver.capture_active(stream) and not driver.capture_active(side)


def graph_launch_runs_what_was_recorded_each_time(driver: Driver) -> None:
    """Check that a launch runs on any stream of the device, in order, and waits for joined streams."""
    if driver.name == "host":
        return _raises(DriverError, driver.graph_launch, 1, driver.stream_default(0))
    stream, side, other = (driver.stream_create(0, 0) for _ in range(3))
    event, back = driver.event_create(0, False), driver.event_create(0, False)
    exe, one = _adder(driver), _upload(driver, np.ones(_COUNT, np.float32))
    x, y = (_upload(driver, np.zeros(_COUNT, np.float32)) for _ in range(2))
    driver.capture_begin(stream, "global")
    driver.launch(exe, (x, x, one), (), stream)
    driver.event_record(event, stream)
    driver.stream_wait(side, event)
    driver.launch(exe, (y, x, one), (), side)
    driver.event_record(back, side)
    driver.stream_wait(stream, back)
    driver.launch(exe, (y, y, one), (), stream)
    graph = driver.capture_end(stream)
    for queue in (stream, other, driver.stream_default(0)):
        driver.graph_launch(graph, queue)
    driver.device_sync(0)
    assert (_read(driver, x, _NBYTES).view(np.float32) == 3).all()
    assert (_read(driver, y, _NBYTES).view(np.float32) == 5).all()
    driver.graph_launch(graph, stream)
    driver.graph_destroy(graph)
    driver.stream_sync(stream)
    assert (_read(driver, y, _NBYTES).view(np.float32) == 6).all()


def graph_launch_into_a_capture_makes_it_part_of_that(driver: Driver) -> None:
    if driver.name == "host":
        return
    stream, other = driver.stream_create(0, 0), driver.stream_create(0, 0)
    ptr = _upload(driver, np.zeros(2 * _COUNT, np.uint8))
    driver.capture_begin(stream, "global")
    driver.fill(ptr, 7, _COUNT, stream)
    inner = driver.capture_end(stream)
    driver.capture_begin(other, "global")
    driver.fill(ptr, 1, 2 * _COUNT, other)
    driver.graph_launch(inner, other)
    driver.copy(ptr + _COUNT, ptr, _COUNT // 2, other)
    outer = driver.capture_end(other)
    assert not _read(driver, ptr, 2 * _COUNT).any()
    for _ in range(2):
        driver.graph_launch(outer, stream)
        driver.stream_sync(stream)
        found = _read(driver, ptr, 2 * _COUNT)
        assert (found[: _COUNT + _COUNT // 2] == 7).all() and (found[_COUNT + _COUNT // 2 :] == 1).all()
    driver.graph_destroy(outer)
    driver.graph_destroy(inner)


def graph_dump_writes_it_for_graphviz(driver: Driver) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "graph.dot")
        if driver.name == "host":
            return _raises(DriverError, driver.graph_dump, 1, path)
        stream, ptr = driver.stream_create(0, 0), driver.mem_alloc(0, _NBYTES)
        driver.capture_begin(stream, "global")
        driver.fill(ptr, 7, _NBYTES, stream)
        graph = driver.capture_end(stream)
        driver.graph_dump(graph, path)
        assert os.path.exists(path)
        with open(path) as text:
            assert "digraph" in text.read()
        driver.graph_destroy(graph)


def graph_native_names_it_or_refuses(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(DriverError, driver.graph_native, 1)
    stream = driver.stream_create(0, 0)
    driver.capture_begin(stream, "relaxed")
    graph = driver.capture_end(stream)
    try:
        recorded, launchable = driver.graph_native(graph)
        assert recorded and launchable and driver.graph_native(graph) == (recorded, launchable)
    except NotSupportedError:
        assert driver.name != "cuda"
    driver.graph_destroy(graph)
    _raises(DriverError, driver.graph_native, graph)


def graph_instantiate_makes_it_ready_anew(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(DriverError, driver.graph_instantiate, 1)
    stream = driver.stream_create(0, 0)
    ptr = _upload(driver, np.zeros(_COUNT, np.uint8))
    driver.capture_begin(stream, "global")
    driver.fill(ptr, 7, _COUNT, stream)
    graph = driver.capture_end(stream)
    driver.graph_launch(graph, stream)
    driver.graph_instantiate(graph)
    driver.stream_sync(stream)
    driver.fill(ptr, 0, _COUNT, stream)
    driver.graph_launch(graph, stream)
    driver.stream_sync(stream)
    assert (_read(driver, ptr, _COUNT) == 7).all()
    driver.graph_destroy(graph)
    _raises(DriverError, driver.graph_instantiate, graph)


def graph_destroy_twice_is_refused(driver: Driver) -> None:
    if driver.name == "host":
        return _raises(DriverError, driver.graph_destroy, 1)
    stream = driver.stream_create(0, 0)
    driver.capture_begin(stream, "relaxed")
    graph = driver.capture_end(stream)
    driver.graph_launch(graph, stream)
    driver.graph_destroy(graph)
    _raises(DriverError, driver.graph_destroy, graph)
    _raises(DriverError, driver.graph_launch, graph, stream)


# -- collectives -----------------------------------------------------------------------------------------


def comm_id_is_128_bytes_and_new_each_time(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.comm_id)
    ids = [driver.comm_id() for _ in range(3)]
    assert [len(unique) for unique in ids] == [128] * 3
    assert len({*ids}) == 3


def comm_create_brings_several_members_in_one_call(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.comm_create, bytes(128), 1, [(0, 0)])
    comms = _communicator(driver)
    assert len({*comms}) == driver.device_count()
    for comm in comms:
        driver.comm_destroy(comm)


def comm_create_refuses_two_members_on_one_device(driver: Driver) -> None:
    if not _no_collectives(driver):
        _raises(DriverError, driver.comm_create, driver.comm_id(), 2, [(0, 0), (1, 0)])


def comm_destroy_waits_for_what_was_queued(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.comm_destroy, 1)
    comms = _communicator(driver)
    data = _on_each(driver, lambda rank: np.full(_COUNT, rank + 1.0, np.float32))
    _group(driver, comms, lambda rank: Collective("all_reduce", data[rank], data[rank], _COUNT, float32))
    for comm in comms:
        driver.comm_destroy(comm)
    total = sum(range(1, len(comms) + 1))
    assert all((_floats(driver, ptr, rank) == total).all() for rank, ptr in enumerate(data))


def comm_destroy_at_once_is_an_abort(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.comm_destroy, 1, True)
    for comm in _communicator(driver):
        driver.comm_destroy(comm, abort=True)


def comm_error_is_none_while_all_is_well(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.comm_error, 1)
    comms = _communicator(driver)
    data = _on_each(driver, lambda rank: np.zeros(_COUNT, np.float32))
    _group(driver, comms, lambda rank: Collective("all_reduce", data[rank], data[rank], _COUNT, float32))
    _finish(driver)
    assert [driver.comm_error(comm) for comm in comms] == [None] * len(comms)


def collective_all_reduce_of_each_op(driver: Driver) -> None:
    if _no_collectives(driver):
        return _raises(NotSupportedError, driver.collective, [])
    comms = _communicator(driver)
    values = [np.arange(_COUNT, dtype=np.float32) % 5 + rank for rank in range(len(comms))]
    expected = {
        "sum": np.sum(values, 0), "prod": np.prod(values, 0), "min": np.min(values, 0), "max": np.max(values, 0),
        "avg": np.mean(values, 0),
    }  # fmt: skip
    for op, total in expected.items():
        source = _on_each(driver, values.__getitem__)
        target = _on_each(driver, lambda rank: np.zeros(_COUNT, np.float32))
        _group(driver, comms, _all_reduce(target, source, op))
        for rank in range(len(comms)):
            assert (_floats(driver, target[rank], rank) == total).all(), op
            assert (_floats(driver, source[rank], rank) == values[rank]).all()


def collective_all_reduce_scales_each_ranks_numbers(driver: Driver) -> None:
    if _no_collectives(driver):
        return
    comms = _communicator(driver)
    values = [np.arange(_COUNT, dtype=np.float32) % 5 + rank for rank in range(len(comms))]
    target = _on_each(driver, values.__getitem__)
    _group(
        driver,
        comms,
        lambda rank: Collective(
            "all_reduce", target[rank], target[rank], _COUNT, float32, PreMul(0.5 + rank)
        ),
    )
    total = np.sum([array * (0.5 + rank) for rank, array in enumerate(values)], 0)
    for rank in range(len(comms)):
        assert (_floats(driver, target[rank], rank) == total).all()


def collective_broadcast_and_reduce_have_a_root(driver: Driver) -> None:
    if _no_collectives(driver):
        return
    comms = _communicator(driver)
    root = len(comms) - 1
    values = [np.arange(_COUNT, dtype=np.float32) + rank for rank in range(len(comms))]
    for kind, result in (("broadcast", values[root]), ("reduce", np.sum(values, 0))):
        source = _on_each(driver, values.__getitem__)
        target = _on_each(driver, lambda rank: np.full(_COUNT, -1, np.float32))
        _group(driver, comms, _rooted_collective(kind, target, source, root))
        for rank in range(len(comms)):
            wrote = kind == "broadcast" or rank == root
            assert (_floats(driver, target[rank], rank) == (result if wrote else -1)).all(), kind


def collective_all_gather_and_reduce_scatter_have_parts_by_rank(driver: Driver) -> None:
    if _no_collectives(driver):
        return
    comms = _communicator(driver)
    size = len(comms)
    wide = [np.arange(size * _COUNT, dtype=np.float32) + rank for rank in range(size)]
    whole, part = _on_each(driver, wide.__getitem__), _on_each(driver, lambda rank: wide[0][:_COUNT])
    _group(driver, comms, lambda rank: Collective("reduce_scatter", part[rank], whole[rank], _COUNT, float32))
    total = np.sum(wide, 0).reshape(size, _COUNT)
    for rank in range(size):
        assert (_floats(driver, part[rank], rank) == total[rank]).all()
    _group(driver, comms, lambda rank: Collective("all_gather", whole[rank], part[rank], _COUNT, float32))
    for rank in range(size):
        assert (_floats(driver, whole[rank], rank, size * _COUNT).reshape(size, _COUNT) == total).all()


def collective_sends_and_receives_of_a_group_do_not_wait_for_each_other(driver: Driver) -> None:
    if _no_collectives(driver):
        return
    comms = _communicator(driver)
    size = len(comms)
    source = _on_each(driver, lambda rank: np.full(_COUNT, rank, np.float32))
    target = _on_each(driver, lambda rank: np.full(_COUNT, -1, np.float32))
    streams = [driver.stream_default(rank) for rank in range(size)]
    parts = []
    for rank, comm in enumerate(comms):
        near, far = (rank + 1) % size, (rank - 1) % size
        parts.append((comm, Collective("send", 0, source[rank], _COUNT, float32, peer=near), streams[rank]))
        parts.append((comm, Collective("recv", target[rank], 0, _COUNT, float32, peer=far), streams[rank]))
    driver.collective(parts)
    for rank in range(size):
        assert (_floats(driver, target[rank], rank) == (rank - 1) % size).all()


def collective_is_ordered_on_its_stream(driver: Driver) -> None:
    if _no_collectives(driver):
        return
    comms = _communicator(driver)
    data = _on_each(driver, lambda rank: np.zeros(_COUNT, np.float32))
    for rank, ptr in enumerate(data):
        driver.fill(ptr, 0x40, _NBYTES, driver.stream_default(rank))  # 3.0 and a little
    _group(driver, comms, lambda rank: Collective("all_reduce", data[rank], data[rank], _COUNT, float32))
    for rank, ptr in enumerate(data):
        driver.copy(ptr, ptr + _NBYTES // 2, _NBYTES // 2, driver.stream_default(rank))
    filled = np.full(4, 0x40, np.uint8).view(np.float32)[0]
    for rank, ptr in enumerate(data):
        assert (_floats(driver, ptr, rank) == np.float32(filled * len(comms))).all()


def _no_collectives(driver: Driver) -> bool:
    """Return True if the driver has no collectives: the driver of the CPU, or real GPUs without NCCL."""
    if driver.name == "host":
        return True
    try:
        driver.comm_id()
    except NotSupportedError:
        return True
    return False


def _communicator(driver: Driver) -> list[int]:
    size = driver.device_count()
    return driver.comm_create(driver.comm_id(), size, [(index, index) for index in range(size)])


def _on_each(driver: Driver, values: Callable[[int], np.ndarray[Any, Any]]) -> list[int]:
    return [_upload(driver, values(index), index) for index in range(driver.device_count())]


def _group(driver: Driver, comms: list[int], part: Callable[[int], Collective]) -> None:
    """Issue one part for each rank on its default stream, as one group."""
    driver.collective([(comm, part(rank), driver.stream_default(rank)) for rank, comm in enumerate(comms)])


def _all_reduce(target: list[int], source: list[int], op: str) -> Callable[[int], Collective]:
    return lambda rank: Collective("all_reduce", target[rank], source[rank], _COUNT, float32, op)


def _rooted_collective(
    kind: str, target: list[int], source: list[int], root: int
) -> Callable[[int], Collective]:
    return lambda rank: Collective(kind, target[rank], source[rank], _COUNT, float32, peer=root)


def _finish(driver: Driver) -> None:
    for index in range(driver.device_count()):
        driver.device_sync(index)


def _floats(driver: Driver, ptr: int, index: int, count: int = _COUNT) -> np.ndarray[Any, Any]:
    return _read(driver, ptr, 4 * count, index).view(np.float32)


# -- peers -----------------------------------------------------------------------------------------------


def peer_can_is_false_for_itself(driver: Driver) -> None:
    for index in range(driver.device_count()):
        assert not driver.peer_can(index, index)


def peer_enable_twice_or_not_at_all(driver: Driver) -> None:
    last = driver.device_count() - 1
    if not driver.peer_can(0, last):
        _raises(NotSupportedError, driver.peer_enable, 0, last)
        return
    driver.peer_enable(0, last)
    driver.peer_enable(0, last)


def peer_enable_lets_kernels_reach_the_peer(driver: Driver) -> None:
    if driver.device_count() < 2 or not driver.peer_can(0, 1):
        return
    driver.peer_enable(0, 1)
    exe, stream = _adder(driver), driver.stream_default(0)
    near = _upload(driver, np.ones(_COUNT, np.float32))
    far = driver.mem_alloc(1, _NBYTES)
    driver.copy(far, near, _NBYTES, stream)
    driver.launch(exe, (near, near, far), (), stream)
    assert (_read(driver, near, _NBYTES).view(np.float32) == 2).all()


cases: list[Callable[[Driver], None]] = [
    value
    for name, value in list(globals().items())
    if not name.startswith("_") and getattr(value, "__module__", None) == __name__
]
"""Every case, in the order of the driver's calls."""


# -- what the cases use ----------------------------------------------------------------------------------


def _add(launch: Launch) -> Callable[..., None]:
    def body(outputs: list[Any], inputs: list[Any]) -> None:
        np.add(inputs[0], inputs[1], out=outputs[0])

    return body


def _scale(launch: Launch) -> Callable[..., None]:
    def body(outputs: list[Any], inputs: list[Any]) -> None:
        np.multiply(inputs[1], np.float32(inputs[0]), out=outputs[0])
        outputs[0] += np.float32(inputs[2])

    return body


_ADD = Kernel("add", _add, cuda=Expression("a + b"))
_SCALE = Kernel(
    "scale", _scale, cuda=Expression("b * a + c", lambda launch: (((float32,), (), (float32,)), ()))
)


def _adder(driver: Driver) -> Executable:
    meta = Meta.contiguous_of((_COUNT,), float32, CPU)
    return driver.load(Launch(_ADD, (meta,), (meta, meta)), 0)


def _appender(seen: list[Any], value: Any) -> Callable[[], None]:
    return lambda: seen.append(value)


def _host(array: np.ndarray[Any, Any]) -> HostMemory:
    return HostMemory(address_of(array), array.nbytes, array)


def _allocate_pinned(driver: Driver, nbytes: int) -> HostMemory | None:
    """Return pinned memory, or None if the driver refuses it with the right exception."""
    try:
        return driver.host_alloc(nbytes)
    except NotSupportedError:
        return None


def _upload(driver: Driver, array: np.ndarray[Any, Any], index: int = 0) -> int:
    ptr, stream = driver.mem_alloc(index, array.nbytes), driver.stream_default(index)
    driver.copy_in(ptr, _host(array), stream)
    driver.stream_sync(stream)
    return ptr


def _read(driver: Driver, ptr: int, nbytes: int, index: int = 0) -> np.ndarray[Any, Any]:
    out = np.empty(nbytes, np.uint8)
    driver.copy_out(_host(out), ptr, driver.stream_default(index))
    return out


def _raises(error: type[Exception], call: Callable[..., Any], *args: Any) -> None:
    try:
        call(*args)
    except error:
        return
    name = getattr(call, "__name__", call)
    raise AssertionError(f"{name}{args} should have raised {error.__name__}")

"""Rules of PyTorch that programs lean on and that a naive runtime misses; names, versions, and bad input."""

from __future__ import annotations

import gc
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from cli.cli_kit import environment
from gpus import either, gpus

import flambeau as torch
from flambeau.runtime import system

pytestmark = either

LONG = 10**7  # clock cycles

# Under none of these is the host so late that work is done when it asks.
under_schedules = pytest.mark.parametrize(
    "two_gpus", ["earliest", "random:1", "random:3", "adversarial:1", "pct:1:3"], indirect=True
)


@pytest.fixture(autouse=True)
def two_gpus(request: pytest.FixtureRequest) -> Iterator[None]:
    with gpus(2, schedule=getattr(request, "param", "earliest")):
        yield


@under_schedules
def test_a_copy_between_devices_is_ordered_on_the_current_streams_of_both() -> None:
    here, there = torch.cuda.Stream(0), torch.cuda.Stream(1)
    x = torch.zeros(4, device="cuda:0")
    torch.cuda.synchronize(0)
    with torch.cuda.stream(there), torch.cuda.stream(here):
        torch.cuda._sleep(LONG)
        x.add_(1)
        y = x.to("cuda:1", non_blocking=True)
        assert not there.query()  # it waits for `here`
        x.zero_()  # behind the copy
    there.synchronize()
    assert y.tolist() == [1.0] * 4


@under_schedules
def test_device_to_host_copies() -> None:
    x = torch.ones(1 << 20, device="cuda")
    later = x.to("cpu", non_blocking=True)
    assert later.is_pinned() and not torch.cuda.current_stream().query()
    now = x.to("cpu")
    assert not now.is_pinned() and torch.cuda.current_stream().query()


@under_schedules
def test_cuda_of_its_own_device_is_itself() -> None:
    x = torch.ones(3, device="cuda:1")
    with torch.cuda.device(1):
        assert x.cuda() is x
    assert x.cuda(1) is x and x.cuda() is not x


@under_schedules
def test_stream_guards_switch_the_device_and_restore_both() -> None:
    outer, inner = torch.cuda.Stream(1), torch.cuda.Stream(0)
    with pytest.raises(KeyError), torch.cuda.stream(outer):
        assert torch.cuda.current_device() == 1
        with torch.cuda.stream(inner):
            assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (0, inner)
        assert (torch.cuda.current_device(), torch.cuda.current_stream()) == (1, outer)
        raise KeyError
    assert torch.cuda.current_device() == 0
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)


@under_schedules
def test_leaving_a_device_guard_restores_the_outer_device_after_set_device() -> None:
    with torch.cuda.device(1):
        torch.cuda.set_device(0)
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    with torch.cuda.device(0):
        torch.cuda.set_device(0)
    assert torch.cuda.current_device() == 1


@under_schedules
def test_streams_compare_and_hash_by_device_and_handle() -> None:
    a, b = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(a):
        same = torch.cuda.current_stream()
    assert a == same and hash(a) == hash(same) and a != b
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)
    assert torch.cuda.default_stream(1).cuda_stream == 0
    assert len({a, b, same}) == 2


@under_schedules
def test_an_unrecorded_event() -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(LONG)
    assert event.device is None and event.query() is True
    event.synchronize()
    side = torch.cuda.Stream()
    side.wait_event(event)
    event.wait(side)
    assert side.query()


@under_schedules
def test_synchronizing_lets_other_threads_run() -> None:
    """The stream waits for a thread that can go on only while the host synchronizes."""
    waiting, go = threading.Event(), threading.Event()
    seen: list[bool] = []

    def in_stream() -> None:
        waiting.set()
        seen.append(go.wait(timeout=30))

    def other() -> None:
        if waiting.wait(timeout=30):
            go.set()

    thread = threading.Thread(target=other)
    thread.start()
    context = system.context_of(torch.device("cuda:0"))
    context.driver.host_call(in_stream, context.default_stream.handle)
    torch.cuda.synchronize()
    thread.join()
    assert seen == [True]


@under_schedules
@pytest.mark.parametrize(
    "ask",
    [
        lambda x: repr(x),
        lambda x: x.cpu(),
        lambda x: torch.ones(2).pin_memory(),
        lambda x: torch.cuda.memory_allocated(1),
        lambda x: torch.cuda.get_device_name(1),
        lambda x: torch.cuda.get_device_properties(1),
        lambda x: torch.cuda.can_device_access_peer(0, 1),
        lambda x: torch.cuda.current_stream(1),
    ],
)
def test_no_query_print_or_pin_uses_another_device(ask: Callable) -> None:
    x = torch.ones(2, device="cuda:0")
    ask(x)
    assert torch.cuda.memory_reserved(1) == 0
    assert torch.cuda.current_device() == 0


@under_schedules
def test_a_pinned_block_is_reused_at_once_unless_a_copy_is_pending() -> None:
    def next_is_the_same(copy: bool) -> bool:
        x = torch.ones(1 << 12).pin_memory()
        ptr = x.data_ptr()
        if copy:
            torch.empty(1 << 12, device="cuda")  # a real GPU that is asked for memory waits for its work
            torch.cuda._sleep(LONG)
            x.cuda(non_blocking=True)
        del x
        y = torch.ones(1 << 12).pin_memory()
        found = y.data_ptr() == ptr
        torch.cuda.synchronize()
        return found

    assert next_is_the_same(copy=False)
    assert not next_is_the_same(copy=True)


@under_schedules
@pytest.mark.parametrize(
    "make", [lambda x: x + 1, lambda x: x[1:].t(), lambda x: x.cpu().cuda(), lambda x: x.max(0)]
)
def test_memory_is_back_when_the_name_is_gone(make: Callable) -> None:
    start = torch.cuda.memory_allocated()
    x = torch.ones(4, 4, device="cuda")
    held = torch.cuda.memory_allocated()
    gc.disable()
    try:
        y = make(x)
        del y
        assert torch.cuda.memory_allocated() == held
        del x
        assert torch.cuda.memory_allocated() == start
    finally:
        gc.enable()


@under_schedules
def test_pinning_what_is_pinned_gives_itself() -> None:
    x = torch.ones(4).pin_memory()
    assert x.pin_memory() is x and x.is_pinned()
    assert torch.ones(4).is_pinned() is False


@under_schedules
def test_sleep_occupies_the_current_stream_alone() -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
    assert not side.query() and torch.cuda.current_stream().query()
    side.synchronize()
    assert side.query()


@under_schedules
def test_free_blocks_are_reused_only_on_the_stream_that_allocated_them() -> None:
    side = torch.cuda.Stream()
    x = torch.empty(1 << 10, device="cuda")
    ptr = x.data_ptr()
    del x
    with torch.cuda.stream(side):
        other = torch.empty(1 << 10, device="cuda")
    same = torch.empty(1 << 10, device="cuda")
    assert other.data_ptr() != ptr and same.data_ptr() == ptr


@under_schedules
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[7:9]], ids=["whole", "shifted view"])
def test_record_stream_keeps_the_whole_block_until_its_uses_are_done(view: Callable) -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(1 << 10, device="cuda")
    ptr = x.data_ptr()
    x.sum()  # on a real GPU its kernel is made now, not while the stream sleeps
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LONG)
        total = x.sum()
    view(x).record_stream(side)
    del x
    early = torch.empty(1 << 10, device="cuda")
    assert early.data_ptr() != ptr
    side.synchronize()
    assert total.item() == 0
    late = [torch.empty(1 << 10, device="cuda") for _ in range(4)]
    assert ptr in [y.data_ptr() for y in late]


@under_schedules
def test_operands_on_different_devices_are_refused_and_nothing_changes() -> None:
    a, b, c = torch.ones(3, device="cuda:0"), torch.ones(3, device="cuda:1"), torch.ones(3)
    held = torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)
    for other in (b, c):
        for use in (lambda y: a + y, lambda y: a.add_(y), lambda y: torch.dot(a, y)):
            with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                use(other)
    assert (torch.cuda.memory_allocated(0), torch.cuda.memory_allocated(1)) == held
    assert a.tolist() == [1.0] * 3
    assert (a + torch.tensor(2.0)).tolist() == [3.0] * 3  # but for one number


@under_schedules
def test_memory_functions_take_int_str_and_device() -> None:
    x = torch.ones(100, device="cuda:1")
    for where in (1, "cuda:1", torch.device("cuda:1")):
        assert torch.cuda.memory_allocated(where) == 512
        assert torch.cuda.max_memory_allocated(where) == 512
        assert torch.cuda.memory_reserved(where) == torch.cuda.max_memory_reserved(where) == 2 << 20
        torch.cuda.reset_peak_memory_stats(where)
    assert x.numel() == 100


# -- names ---------------------------------------------------------------------------------------------


def test_the_version_is_like_pytorchs() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\+\w[\w.]*", str(torch.__version__))


def test_reprs_types_and_pickles_say_torch() -> None:
    assert repr(torch.float32) == "torch.float32"
    assert torch.ones(1).type() == "torch.FloatTensor"
    assert torch.ones(1, device="cuda").type() == "torch.cuda.FloatTensor"
    assert repr(torch.cuda.Stream()).startswith("<torch.cuda.Stream device=cuda:0")
    assert pickle.loads(pickle.dumps(torch.float32)) is torch.float32
    assert pickle.loads(pickle.dumps(torch.device("cuda:1"))) == torch.device("cuda:1")
    assert repr(torch.Size([2, 3])) == "torch.Size([2, 3])"


@pytest.mark.parametrize("where", ["", "cuda", "backends", "backends.cuda", "backends.cudnn"])
def test_an_absent_name_is_an_attribute_error_that_says_who_lacks_it(where: str) -> None:
    module = torch
    for part in where.split(".") if where else []:
        module = getattr(module, part)
    assert not hasattr(module, "no_such_name")
    with pytest.raises(AttributeError, match="Flambeau lacks it"):
        module.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "elsewhere",
    [
        "import sys; sys.platform = 'win32'",
        "import os, sys; sys.platform = 'win32'; del os.uname",
        "import os; os.uname = lambda real=os.uname(): type(real)((*real[:4], 'riscv64'))",
    ],
)
def test_other_platforms_are_refused_clearly(elsewhere: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import numpy, ml_dtypes; {elsewhere}; import flambeau"],
        capture_output=True, text=True, env=environment(), timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: Flambeau runs on Linux (x86-64, aarch64) and on macOS, not on ")
    assert ("riscv64" in last) == ("riscv64" in elsewhere)


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: torch.device("gpu"), RuntimeError, "Expected one of"),
        (lambda: torch.ones(2, device="cuda:7"), RuntimeError, "invalid device ordinal"),
        (lambda: torch.cuda.set_device(7), RuntimeError, "invalid device ordinal"),
        (lambda: torch.cuda.Stream(7), RuntimeError, "invalid device ordinal"),
        (lambda: torch.ones(2).cuda("cpu"), RuntimeError, "Invalid device, must be cuda device"),
        (lambda: torch.ones(2, dtype="float"), TypeError, "dtype"),
        (
            lambda: torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda"),
            RuntimeError,
            "cannot be multiplied",
        ),
        (lambda: torch.ones(3, device="cuda")[5], IndexError, "out of bounds"),
        (lambda: torch.ones(3, device="cuda").sum(4), IndexError, "Dimension out of range"),
        (lambda: torch.empty(-1, device="cuda"), RuntimeError, "negative dimension"),
        (lambda: torch.empty(1 << 50, device="cuda"), torch.OutOfMemoryError, "CUDA out of memory"),
        (lambda: torch.randperm(2.5), TypeError, "tuple of ints|randperm"),
        (lambda: torch.tensor([[1], [1, 2]]), ValueError, "expected sequence of length"),
    ],
)
def test_bad_input_raises_pytorchs_error_and_changes_nothing(call: Callable, kind: type, text: str) -> None:
    torch.cuda.init()
    gc.collect()  # on a real GPU, what earlier tests left
    held = torch.cuda.memory_allocated()
    with pytest.raises(kind, match=text):
        call()
    gc.collect()
    assert torch.cuda.memory_allocated() == held
    assert torch.cuda.current_device() == 0


def test_overlapping_out_is_refused() -> None:
    x = torch.arange(10.0, device="cuda")
    with pytest.raises(RuntimeError, match="unsupported operation"):
        torch.add(x[:-1], 1, out=x[1:])
    assert x.tolist() == list(range(10))

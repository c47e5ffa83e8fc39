"""SPEC A: opening, closing, forking, and what there is without a GPU."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import flambeau as torch
from flambeau import observe
from flambeau.core.device import device
from flambeau.runtime import current, system
from flambeau.runtime.devices import machine as machine_module

SOURCE = str(Path(__file__).parents[2] / "src")


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter of its own, with only these of our variables set."""
    ours = ("FLAMBEAU_", "CUDA_")
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", "import flambeau as torch\n" + program],
        env={**inherited, "PYTHONPATH": SOURCE, **environment},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def output(program: str, **environment: str) -> str:
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def machine() -> Iterator[system.VirtualMachine]:
    with torch.virtual(devices=2) as opened:
        yield opened


# -- without a GPU ------------------------------------------------------------------------------------------
def test_a02_importing_opens_nothing() -> None:
    program = """
import sys
assert not torch.cuda.is_initialized()
print([m for m in sys.modules if m.startswith(("flambeau.driver.virtual", "torch", "cuda"))])
"""
    assert output(program) == "[]"


def test_a03_is_available_is_false_without_gpus() -> None:
    assert torch.cuda.is_available() is False
    assert torch.cuda.device_count() == 0
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    "use",
    [
        torch.cuda.init,
        torch.cuda.current_device,
        torch.cuda.current_stream,
        torch.cuda.default_stream,
        torch.cuda.synchronize,
        torch.cuda.Stream,
        torch.cuda.get_device_name,
        torch.cuda.get_device_properties,
        lambda: torch.cuda.Event().record(),
        lambda: torch.cuda.set_device(0),
        lambda: torch.cuda._sleep(1),
        lambda: system.context_of(device("cuda")),
        lambda: system.context_of(device("cuda:1")),
        lambda: torch.cuda.device(0).__enter__(),
    ],
)
def test_without_a_gpu_use_says_so_and_how_to_get_virtual_ones(use: object) -> None:
    with pytest.raises(RuntimeError, match=r"Found no NVIDIA driver on your system.*flambeau\.virtual"):
        use()  # type: ignore[operator]


def test_without_a_gpu_the_no_ops_are_no_ops() -> None:
    with torch.cuda.device(None), torch.cuda.device(-1), torch.cuda.stream(None):
        torch.cuda.set_device(-1)
        torch.cuda.set_stream(None)
    assert torch.cuda.get_device_name(-1) is None
    assert torch.cuda.get_arch_list() == []
    assert torch.cuda.get_gencode_flags() == ""
    assert torch.cuda.is_bf16_supported() is False
    assert torch.cuda.Event().query() is True
    assert not torch.cuda.is_initialized()


def test_zero_devices_means_not_available() -> None:
    with torch.virtual(devices=0):
        assert torch.cuda.device_count() == 0
        assert not torch.cuda.is_available()
        with pytest.raises(RuntimeError, match=r"No CUDA GPUs are available.*0 devices"):
            torch.cuda.init()


# -- initialization -----------------------------------------------------------------------------------------
def test_a04_init_is_lazy_and_may_be_repeated(machine: system.VirtualMachine) -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    assert not torch.cuda.is_initialized()
    torch.cuda.init()
    first = system.context_of(device("cuda:0"))
    torch.cuda.init()
    assert torch.cuda.is_initialized()
    assert system.context_of(device("cuda:0")) is first


def test_each_device_has_one_context(machine: system.VirtualMachine) -> None:
    contexts = [system.context_of(device("cuda", i)) for i in range(2)]
    assert [c.index for c in contexts] == [0, 1]
    assert [c.device for c in contexts] == [device("cuda:0"), device("cuda:1")]
    assert system.context_of(device("cuda")) is contexts[0]
    with torch.cuda.device(1):
        assert system.context_of(device("cuda")) is contexts[1]
        assert system.resolve(device("cuda")) is device("cuda:1")
    assert system.accelerator() is machine.driver


def test_a36_an_index_past_the_last_is_refused_and_changes_nothing(machine: system.VirtualMachine) -> None:
    torch.cuda.set_device(1)
    for use in (
        lambda: torch.cuda.set_device(2),
        lambda: torch.cuda.device(2).__enter__(),
        lambda: torch.cuda.Stream(device=2),
        lambda: torch.cuda.synchronize("cuda:2"),
        lambda: torch.cuda.current_stream(2),
        lambda: torch.cuda.default_stream(device("cuda:2")),
        lambda: system.context_of(device("cuda:2")),
    ):
        with pytest.raises(RuntimeError, match=r"CUDA error: invalid device ordinal.*cuda:2.*2 devices"):
            use()
    assert torch.cuda.current_device() == 1


def test_threads_that_initialize_at_once_open_one_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAMBEAU_VIRTUAL_DEVICES", "3")
    opened: list[object] = []
    real = system.Machine
    monkeypatch.setattr(system, "Machine", lambda *a: opened.append(real(*a)) or opened[-1])
    barrier = threading.Barrier(16)
    seen: list[tuple[int, object]] = []

    def begin() -> None:
        barrier.wait()
        seen.append((torch.cuda.current_device(), system.context_of(device("cuda:2"))))

    threads = [threading.Thread(target=begin) for _ in range(16)]
    try:
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(opened) == 1
        assert len(seen) == 16
        assert len({id(context) for _, context in seen}) == 1
    finally:
        system.close_all()


# -- virtual ------------------------------------------------------------------------------------------------
def test_virtual_may_be_repeated_and_each_time_is_fresh() -> None:
    handles = set()
    for devices in (1, 3, 2):
        with torch.virtual(devices=devices) as machine:
            assert torch.cuda.device_count() == devices
            torch.cuda.set_device(devices - 1)
            torch.cuda._sleep(100)
            handles.add(id(machine.driver))
            assert torch.cuda.current_device() == devices - 1
        assert machine.closed
        assert not torch.cuda.is_available()
        assert current.local.streams == [system.host.default_stream]


def test_virtual_nested_rests_the_outer_machine_and_comes_back_to_it() -> None:
    with torch.virtual(devices=2):
        torch.cuda.set_device(1)
        stream = torch.cuda.Stream()
        torch.cuda.set_stream(stream)
        with torch.virtual(devices=4, profile="v100"):
            assert torch.cuda.device_count() == 4
            assert torch.cuda.current_device() == 0
            assert torch.cuda.get_device_capability() == (7, 0)
            with pytest.raises(RuntimeError, match=r"closed or left"), torch.cuda.stream(stream):
                pass
        assert torch.cuda.device_count() == 2
        assert torch.cuda.current_device() == 1
        assert torch.cuda.current_stream() is stream
        stream.synchronize()


def test_a_plain_call_lasts_and_replaces_the_one_before() -> None:
    first = torch.virtual(devices=1)
    torch.cuda.init()
    second = torch.virtual(devices=2)
    assert torch.cuda.device_count() == 2
    assert not first.closed  # it may yet become a `with` block
    torch.cuda.init()
    assert first.closed
    with pytest.raises(RuntimeError, match=r"closed, or others"):
        first.__enter__()
    second.close()
    second.close()
    assert torch.cuda.device_count() == 0


def test_a_plain_call_followed_by_a_block_comes_back() -> None:
    plain = torch.virtual(devices=1)
    torch.cuda.init()
    with torch.virtual(devices=3):
        torch.cuda.init()
        assert torch.cuda.device_count() == 3
    assert not plain.closed
    assert torch.cuda.device_count() == 1
    plain.close()


def test_an_outer_machine_closed_from_within_does_not_come_back() -> None:
    outer = torch.virtual(devices=1)
    torch.cuda.init()
    with torch.virtual(devices=2):
        torch.cuda.init()
        outer.close()
    assert torch.cuda.device_count() == 0


def use_what_is_left_of_a_closed_machine() -> None:
    with torch.virtual(devices=1):
        tensor = torch.zeros(4, device="cuda")
        stream, event = torch.cuda.Stream(), torch.cuda.Event()
        event.record(stream)
    for use in (stream.synchronize, stream.query, event.synchronize, lambda: event.record(stream)):
        with pytest.raises(RuntimeError):
            use()
    assert "cuda:0" in repr(stream)
    with torch.virtual(devices=1):
        for use in (
            event.wait,  # the new machine has an event of the same handle
            lambda: torch.cuda.current_stream().wait_event(event),
            lambda: torch.cuda.current_stream().wait_stream(stream),
            lambda: torch.cuda.current_stream().record_event(event),
            lambda: torch.cuda.set_stream(stream),
        ):
            torch.cuda.Event().record(torch.cuda.Stream())
            with pytest.raises(RuntimeError, match=r"closed or left"):
                use()
        torch.zeros(4, device="cuda")
        here = torch.ones(4, device="cuda")
        for use in (
            lambda: tensor + tensor,
            lambda: tensor.cpu(),
            lambda: tensor.add_(1),
            lambda: tensor.zero_(),  # of the old memory alone
            lambda: tensor.normal_(),
            lambda: tensor.__setitem__(0, 3.0),
            lambda: torch.add(here, here, out=tensor),
            lambda: tensor.copy_(here),
        ):
            for _ in range(2):
                with pytest.raises(RuntimeError, match=r"closed or left"):
                    use()


def test_what_is_left_of_a_closed_machine_raises_when_used_and_dies_quietly() -> None:
    use_what_is_left_of_a_closed_machine()
    gc.collect()  # a destructor that raises fails the test


def test_a_tensor_of_a_machine_that_rests_raises_until_it_is_back() -> None:
    with torch.virtual(devices=1):
        tensor = torch.ones(4, device="cuda")
        doubled = tensor + tensor
        with torch.virtual(devices=1):
            other = torch.ones(4, device="cuda")
            other + other  # a warm plan of the same layouts
            with pytest.raises(RuntimeError):
                tensor + tensor
        assert (tensor + doubled).cpu().tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"devices": -1}, ValueError, "devices"),
        ({"devices": "2"}, TypeError, "devices"),
        ({"devices": True}, TypeError, "devices"),
        ({"profile": "z9000"}, ValueError, "z9000"),
        ({"schedule": "later"}, ValueError, "later"),
        ({"races": "maybe"}, ValueError, "off, warn, error"),
    ],
)
def test_malformed_arguments_of_virtual(arguments: dict[str, object], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        torch.virtual(**arguments)  # type: ignore[arg-type]
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize("nested", [False, True])
def test_an_observers_warning_that_is_an_error_leaves_everything_closed(nested: bool) -> None:
    def race() -> None:
        x = torch.zeros(100, device="cuda")
        x.fill_(1.0)
        with torch.cuda.stream(torch.cuda.Stream()):
            x.fill_(2.0)

    with pytest.raises(observe.RaceWarning), torch.virtual(devices=1, races="warn") as outer:
        race()
        if nested:
            inner = torch.virtual(devices=1, races="warn")
            race()
    assert outer.closed
    assert not nested or inner.closed
    assert torch.cuda.device_count() == 0
    assert system.host.driver.name == "host"


def test_races_are_looked_for_only_while_the_machine_is_in_use() -> None:
    plain = system.host.driver
    with torch.virtual(devices=1, races="error"):
        x = torch.zeros(100, device="cuda")
        assert system.host.driver is not plain
        x.fill_(1.0)
        with pytest.raises(torch.RaceError), torch.cuda.stream(torch.cuda.Stream()):
            x.fill_(2.0)
    assert system.host.driver is plain


# -- fork and exit ------------------------------------------------------------------------------------------
FORK = """
import os
{before}
pid = os.fork()
if pid == 0:
    try:
        {child}
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.waitpid(pid, 0)
torch.cuda.synchronize()
"""


@pytest.mark.parametrize(
    "child", ["torch.cuda.init()", "print(x + x)", "torch.zeros(1, device='cuda')", "s.query()"]
)
def test_fork_after_initialization_is_refused_in_the_child(child: str) -> None:
    before = "x = torch.ones(2, device='cuda'); x + x; s = torch.cuda.Stream()"
    printed = output(FORK.format(before=before, child=child), FLAMBEAU_VIRTUAL_DEVICES="1")
    assert printed == (
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
        "you must use the 'spawn' start method"
    )


def test_fork_before_initialization_is_allowed() -> None:
    program = FORK.format(
        before="assert torch.cuda.is_available()", child="print(torch.cuda.current_device(), flush=True)"
    )
    assert output(program, FLAMBEAU_VIRTUAL_DEVICES="1") == "0"


def test_a_forked_child_may_ask_what_there_is_and_dies_quietly() -> None:
    child = "del x; print(torch.cuda.is_initialized(), torch.cuda.device_count(), flush=True); os._exit(0)"
    before = "x = torch.ones(2, device='cuda')"
    assert output(FORK.format(before=before, child=child), FLAMBEAU_VIRTUAL_DEVICES="2") == "False 2"


def test_a_forked_child_ends_by_itself() -> None:
    child = "import sys; print('at its end', flush=True); sys.exit(0)"
    before = "x = torch.ones(2, device='cuda')"
    assert output(FORK.format(before=before, child=child), FLAMBEAU_VIRTUAL_DEVICES="1") == "at its end"


def test_a_forked_child_may_use_the_cpu_and_virtual_gpus_of_its_own() -> None:
    child = """print((torch.ones(2) + torch.ones(2)).tolist(), flush=True)
        with torch.virtual(devices=3):
            print(torch.ones(1, device="cuda:2").tolist(), flush=True)"""
    before = "x = torch.ones(2, device='cuda'); torch.ones(2) + torch.ones(2)"
    assert (
        output(FORK.format(before=before, child=child), FLAMBEAU_VIRTUAL_DEVICES="1") == "[2.0, 2.0]\n[1.0]"
    )


def test_the_process_ends_without_noise_with_work_queued_and_objects_alive() -> None:
    program = """
import threading
x = torch.ones(1000, device="cuda")
s, e = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(s):
    torch.cuda._sleep(10**9)
    e.record()
    y = x + x
class Keeper: pass
k = Keeper(); k.self = k; k.held = (x, s, e)  # only the collector can free it
print("done")
"""
    assert output(program, FLAMBEAU_VIRTUAL_DEVICES="1") == "done"


def test_an_absent_name_says_that_flambeau_lacks_it() -> None:
    for module in (torch, torch.cuda, torch.backends):
        assert not hasattr(module, "no_such_name")
        with pytest.raises(AttributeError, match=r"no_such_name.*Flambeau lacks it"):
            module.no_such_name  # noqa: B018


# -- one context per device -----------------------------------------------------------------------------------
ALLOWED_ANYWHERE = {"device_count", "device_properties", "stream_default", "peer_can", "close", "device_sync"}


class Recorded:
    """A driver that notes which devices each call names; calls that make no context are left out."""

    def __init__(self, driver: object) -> None:
        self.driver = driver
        self.touched: set[tuple[str, int]] = set()

    def __getattr__(self, name: str) -> object:
        found = getattr(self.driver, name)
        if not callable(found) or name in ALLOWED_ANYWHERE:
            return found
        by_index = name in ("mem_alloc", "mem_info", "stream_create", "event_create", "peer_enable")

        def call(*args: object, **kwargs: object) -> object:
            if by_index:
                self.touched.add((name, args[0]))  # type: ignore[arg-type]
            elif name == "load":
                self.touched.add((name, args[1]))  # type: ignore[arg-type]
            return found(*args, **kwargs)

        return call


def test_no_query_print_or_pin_makes_a_context_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Recorded] = []
    real = machine_module.open_driver
    monkeypatch.setattr(
        machine_module, "open_driver", lambda *a, **k: opened.append(Recorded(real(*a, **k))) or opened[-1]
    )
    with torch.virtual(devices=3):
        torch.cuda.device_count()
        torch.cuda.get_device_name(2)
        torch.cuda.get_device_properties(2)
        torch.cuda.can_device_access_peer(0, 2)
        with torch.cuda.device(1):
            stream, event = torch.cuda.Stream(), torch.cuda.Event()
            x = torch.zeros(3, device="cuda")
            event.record(stream)
            event.query(), event.device, repr(event)
            stream.query(), stream.wait_event(event), repr(stream)
            repr(torch.cuda.current_stream(2)), torch.cuda.default_stream(0).priority
            repr(x)
            x.cpu().pin_memory()
            torch.cuda.memory_allocated(2)
            torch.cuda.synchronize()
        assert {index for _, index in opened[0].touched} == {1}

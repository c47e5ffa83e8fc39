"""SPEC A: the selected device, its guards, and what is known of a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import product

import pytest

import flambeau as torch


@pytest.fixture(autouse=True)
def three_gpus() -> Iterator[None]:
    with torch.virtual(devices=3):
        yield


def here() -> int:
    return torch.cuda.current_device()


def test_a05_a06_device_0_is_selected_at_first() -> None:
    assert here() == 0
    assert torch.cuda.is_initialized()


@pytest.mark.parametrize("which", [1, "cuda:1", torch.device("cuda:1"), torch.device("cuda", 1)])
def test_a08_a_guard_selects_and_puts_back(which: object) -> None:
    with torch.cuda.device(which):
        assert here() == 1
    assert here() == 0


def test_a08_guards_nest_and_put_back_on_exceptions() -> None:
    with torch.cuda.device(1):
        with pytest.raises(KeyError), torch.cuda.device(2):
            raise KeyError
        assert here() == 1
        with torch.cuda.device(2), torch.cuda.device(0):
            assert here() == 0
        assert here() == 1
    assert here() == 0


def test_a08_leaving_puts_back_the_outer_device_after_set_device_inside() -> None:
    for inner, inside in product(range(3), range(3)):
        torch.cuda.set_device(1)
        with torch.cuda.device(inner):
            torch.cuda.set_device(inside)
        assert here() == 1


def test_a08_a_guard_may_be_entered_again_and_while_it_is_entered() -> None:
    guard = torch.cuda.device(2)
    for start in (0, 1):
        torch.cuda.set_device(start)
        with guard:
            torch.cuda.set_device(1)
            with guard:
                assert here() == 2
            assert here() == 1
        assert here() == start


def test_a08_one_guard_in_several_threads_puts_back_each_ones_own() -> None:
    guard, first, second = torch.cuda.device(2), threading.Event(), threading.Event()
    seen = []

    def other() -> None:
        torch.cuda.set_device(1)
        first.wait()
        with guard:
            second.set()
            seen.append(here())
            done.wait()
        seen.append(here())

    done = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with guard:  # enters first and leaves first: the other's entry lies on top
        first.set()
        second.wait()
    assert here() == 0
    done.set()
    thread.join()
    assert seen == [2, 1]


@pytest.mark.parametrize("which", [None, -1, -7])
def test_a09_none_and_negative_are_no_ops(which: object) -> None:
    torch.cuda.set_device(2)
    with torch.cuda.device(which):
        assert here() == 2
    assert here() == 2


def test_a10_a11_device_of_tensors_and_storages() -> None:
    on_gpu, on_cpu = torch.zeros(2, device="cuda:2"), torch.zeros(2)
    with torch.cuda.device_of(on_gpu):
        assert here() == 2
        with torch.cuda.device_of(on_cpu):
            assert here() == 2
    with torch.cuda.device_of(on_gpu.storage()):
        assert here() == 2
    with torch.cuda.device_of(on_cpu.untyped_storage()):
        assert here() == 0
    assert here() == 0


def test_a12_a13_set_device() -> None:
    for which, expected in [(1, 1), ("cuda:2", 2), (torch.device("cuda:0"), 0), (-1, 0), (-100, 0)]:
        torch.cuda.set_device(which)
        assert here() == expected


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ("cpu", "Expected a cuda device, but got: cpu"),
        ("cuda", "Expected a torch.device with a specified index or an integer, but got:cuda"),
        (None, "Expected a torch.device with a specified index or an integer, but got:None"),
        (1.0, "Expected a torch.device with a specified index or an integer"),
    ],
)
def test_a12_set_device_refuses_what_names_no_device(which: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        torch.cuda.set_device(which)
    assert here() == 0


def test_a15_cuda_without_an_index_follows_the_selection() -> None:
    cuda = torch.device("cuda")
    with torch.cuda.device(1):
        assert torch.zeros(1, device=cuda).device == torch.device("cuda:1")
    assert torch.zeros(1, device=cuda).device == torch.device("cuda:0")


def test_a07_a22_a23_where_tensors_are_made_and_results_lie() -> None:
    x = torch.zeros(2, device="cuda")
    with torch.cuda.device(1):
        y = torch.ones(2, device="cuda")
        z = x + x
        w = torch.zeros(2, device=torch.device("cuda:2"))
    assert [t.device.index for t in (x, y, z, w)] == [0, 1, 0, 2]
    assert repr(z.device) == "device(type='cuda', index=0)"


def test_a24_to_a28_what_is_known_of_a_device() -> None:
    for which in (None, 0, 2, "cuda:1", "cuda", torch.device("cuda:2")):
        assert torch.cuda.get_device_capability(which) == (8, 0)
        assert "A100" in torch.cuda.get_device_name(which)
    properties = torch.cuda.get_device_properties("cuda:1")
    assert (properties.major, properties.minor) == (8, 0)
    assert properties.multi_processor_count == 108
    assert 39 * 2**30 < properties.total_memory <= 40 * 2**30
    assert properties == torch.cuda.get_device_properties(torch.device("cuda:1"))
    assert properties.uuid != torch.cuda.get_device_properties(2).uuid
    assert repr(properties).startswith(
        f"_CudaDeviceProperties(name='{properties.name}', major=8, minor=0, total_memory="
    )
    with pytest.raises(AttributeError, match="gcnArchName"):
        properties.gcnArchName  # noqa: B018


def test_a25_a27_negative_is_a_no_op_for_name_and_capability() -> None:
    assert torch.cuda.get_device_name(-1) is None
    assert torch.cuda.get_device_capability(-1) is None


@pytest.mark.parametrize("which", [-1, 3, 100])
def test_a28_properties_of_no_device(which: int) -> None:
    with pytest.raises(AssertionError, match="Invalid device id"):
        torch.cuda.get_device_properties(which)


def test_name_and_capability_past_the_last() -> None:
    for ask in (torch.cuda.get_device_name, torch.cuda.get_device_capability):
        with pytest.raises(AssertionError, match="Invalid device id"):
            ask(3)


def test_can_device_access_peer() -> None:
    assert torch.cuda.can_device_access_peer(0, 1) is True
    assert torch.cuda.can_device_access_peer("cuda:1", torch.device("cuda:2")) is True
    assert torch.cuda.can_device_access_peer(1, 1) is False
    for index, peer, text in [
        (3, 0, "Invalid device id"),
        (-1, 0, "Invalid device id"),
        (0, 3, "Invalid peer"),
        (0, -1, "Invalid peer"),
    ]:
        with pytest.raises(AssertionError, match=text):
            torch.cuda.can_device_access_peer(index, peer)


@pytest.mark.parametrize("which", [None, 1, "cuda", "cuda:2", torch.device("cuda:0"), torch.device("cuda")])
def test_a29_synchronize_waits_for_all_streams_of_the_device(which: object) -> None:
    index = torch.device(which).index if which not in (None,) else 0
    index = 0 if index is None else index
    streams = [torch.cuda.Stream(device=index) for _ in range(3)]
    for s in streams:
        with torch.cuda.stream(s):
            torch.cuda._sleep(1_000_000)
    assert not streams[0].query()
    torch.cuda.synchronize(which)
    assert all(s.query() for s in streams)


def test_a29_synchronize_leaves_other_devices_alone_and_the_selection() -> None:
    other = torch.cuda.Stream(device=1)
    with torch.cuda.stream(other):
        torch.cuda._sleep(10**9)
    torch.cuda.synchronize(0)
    assert here() == 0
    assert not other.query()
    with pytest.raises(ValueError, match="Expected a cuda device"):
        torch.cuda.synchronize("cpu")


def test_a35_architectures() -> None:
    assert torch.cuda.get_arch_list() == ["sm_80"]
    assert torch.cuda.get_gencode_flags() == "-gencode compute=compute_80,code=sm_80"
    assert torch.cuda.is_bf16_supported()
    with torch.virtual(devices=1, profile="v100"):
        assert torch.cuda.is_bf16_supported()
        assert not torch.cuda.is_bf16_supported(including_emulation=False)


def test_a36_the_selected_device_is_per_thread() -> None:
    torch.cuda.set_device(2)
    seen: list[int] = []

    def other() -> None:
        seen.append(here())
        torch.cuda.set_device(1)
        seen.append(here())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [0, 1]
    assert here() == 2

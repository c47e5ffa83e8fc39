"""torch.accelerator is torch.cuda by other names, and has PyTorch's, but for graphs."""

import pytest
from support import torch as pytorch

import flambeau as torch
from flambeau import accelerator


def test_the_names_are_pytorchs_but_for_graphs():
    assert sorted(accelerator.__all__) == sorted(set(pytorch.accelerator.__all__) - {"Graph"})
    with pytest.raises(AttributeError, match="'Graph': Flambeau lacks it"):
        accelerator.Graph  # noqa: B018


def test_without_a_gpu_there_is_an_accelerator_and_it_is_not_available():
    with torch.virtual(devices=0):
        assert accelerator.current_accelerator() == torch.device("cuda")
        assert accelerator.current_accelerator(check_available=True) is None
        assert not accelerator.is_available() and accelerator.device_count() == 0


def test_before_the_first_use_there_is_nothing_to_wait_for_and_nothing_to_count():
    with torch.virtual(devices=2):
        accelerator.synchronize()
        accelerator.empty_host_cache()
        assert accelerator.memory_stats() == {} and not torch.cuda.is_initialized()


def test_devices_are_chosen_and_come_back():
    with torch.virtual(devices=3):
        accelerator.set_device_index(torch.device("cuda", 1))
        assert accelerator.current_device_index() == torch.cuda.current_device() == 1
        with accelerator.device_index(2):
            assert (
                torch.zeros(1, device=accelerator.current_accelerator(check_available=True)).get_device() == 2
            )
        with accelerator.device_index(None):
            assert accelerator.current_device_index() == 1
        accelerator.set_device_index(-1)
        assert accelerator.current_device_index() == 1
        with pytest.warns(FutureWarning, match="Use `set_device_index` instead"):
            accelerator.set_device_idx(0)
        with pytest.warns(FutureWarning, match="Use `current_device_index` instead"):
            assert accelerator.current_device_idx() == 0
        with pytest.raises(ValueError, match="specified index"):
            accelerator.set_device_index("cuda")


def test_streams_and_memory_are_those_of_cuda():
    with torch.virtual(devices=2, schedule="adversarial:1"):
        side = torch.cuda.Stream(1)
        accelerator.set_stream(side)
        assert accelerator.current_device_index() == 1 and accelerator.current_stream() is side
        x = torch.ones(1000, device="cuda")
        assert accelerator.memory_allocated() == accelerator.memory_allocated("cuda:1") == 4096
        assert accelerator.memory_allocated(0) == 0
        free, total = accelerator.get_memory_info()
        assert (free, total) == torch.cuda.mem_get_info(1) and free < total
        x += 1
        accelerator.synchronize(1)
        assert side.query()


def test_tensors_of_every_supported_dtype_can_be_made():
    with torch.virtual(devices=1):
        for kind in accelerator.get_device_capability("cuda")["supported_dtypes"]:
            assert torch.zeros(3, device="cuda").to(kind).dtype is kind
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            accelerator.get_device_capability(1)


def test_kept_pinned_memory_goes_back():
    with torch.virtual(devices=1):
        torch.empty(1 << 20).pin_memory()
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] > 0
        accelerator.empty_host_cache()
        assert torch.cuda.host_memory_stats()["allocated_bytes.current"] == 0

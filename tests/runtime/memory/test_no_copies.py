"""What owns something of the device is not copied, nor pickled, as in PyTorch."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch as oracle

import flambeau as torch


@pytest.fixture
def gpu() -> Iterator[None]:
    with torch.virtual(devices=1):
        yield


def recorded() -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record()
    return event


def captured() -> torch.cuda.CUDAGraph:
    graph, x = torch.cuda.CUDAGraph(), torch.ones(3, device="cuda")
    with torch.cuda.graph(graph):
        x.mul_(2)
    graph.x = x
    return graph


def used_pool() -> torch.cuda.MemPool:
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        torch.ones(3, device="cuda")
    return pool


def still_works(owner: Any) -> bool:
    if isinstance(owner, torch.cuda.CUDAGraph):
        owner.replay()
    elif isinstance(owner, torch.cuda.MemPool):
        torch.cuda.empty_cache()
        return len(owner.snapshot()) == 1
    else:
        owner.synchronize()
    return True


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("make", [torch.cuda.Stream, recorded, captured, used_pool])
@pytest.mark.usefixtures("gpu")
def test_owners_of_the_devices_things_are_not_copied(
    make: Callable[[], Any], way: Callable[[Any], object]
) -> None:
    owner = make()
    with pytest.raises(TypeError, match=rf"^cannot pickle '{type(owner).__name__}' object$"):
        way(owner)
    gc.collect()
    assert still_works(owner)


@pytest.mark.parametrize("make", [lambda: oracle.Stream(device="cpu"), oracle.Event])
def test_pytorchs_are_not_either(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"^cannot pickle '\S+' object$"):
        copy.copy(make())

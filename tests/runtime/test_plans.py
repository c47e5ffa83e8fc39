"""Plan caches: the least recently used plans give way; `torch.backends.cuda.cufft_plan_cache`."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import flambeau as torch
from flambeau.runtime.devices.library_plans import PlanCache


class Loads:
    """A context whose driver tells what is loaded. Launches are names here."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.closed, self.driver_index = False, 0
        self.driver = self.backing = SimpleNamespace(load=self._load, unload=self.loaded.remove)

    def _load(self, launch: str, index: int) -> str:
        if launch == "bad":
            raise NotImplementedError
        self.loaded.append(launch)
        return launch


@pytest.fixture
def context() -> Any:
    return Loads()


def test_a_plan_is_loaded_once(context: Any) -> None:
    cache = PlanCache(context)
    plan = cache.get("a", "A")
    assert cache.get("a", "A") is plan and plan.exe == "A"
    assert context.loaded == ["A"] and cache.size == 1


def test_the_least_recently_used_gives_way(context: Any) -> None:
    cache = PlanCache(context)
    cache.max_size = 2
    for key in "abac":
        cache.get(key, key)
    assert sorted(context.loaded) == ["a", "c"] and cache.size == 2
    cache.max_size = 1
    assert context.loaded == ["c"]


def test_a_plan_in_use_stays_loaded(context: Any) -> None:
    cache = PlanCache(context)
    held = cache.get("a", "A")
    cache.clear()
    assert cache.size == 0 and context.loaded == ["A"]
    del held
    assert context.loaded == []


def test_capacity_zero_keeps_nothing_and_still_serves(context: Any) -> None:
    cache = PlanCache(context)
    cache.max_size = 0
    plan = cache.get("a", "A")
    assert plan.exe == "A" and cache.size == 0 and context.loaded == ["A"]


def test_an_error_of_loading_leaves_the_cache(context: Any) -> None:
    cache = PlanCache(context)
    cache.get("a", "A")
    with pytest.raises(NotImplementedError):
        cache.get("b", "bad")
    assert cache.size == 1 and context.loaded == ["A"]


def test_nothing_is_unloaded_on_a_closed_device(context: Any) -> None:
    cache = PlanCache(context)
    cache.get("a", "A")
    context.closed = True
    cache.clear()
    assert context.loaded == ["A"]  # its driver took everything with it


# -- the public names ----------------------------------------------------------------------------------

caches = torch.backends.cuda.cufft_plan_cache


@pytest.fixture
def two_gpus() -> Iterator[None]:
    with torch.virtual(devices=2):
        yield


@pytest.mark.usefixtures("two_gpus")
class TestNames:
    @pytest.mark.parametrize("where", [1, "cuda:1", torch.device("cuda:1")])
    def test_r15_set_and_read_back_for_one_device(self, where: Any) -> None:
        assert caches[where].max_size == 4096
        caches[where].max_size = 10
        assert caches[1].max_size == 10 and caches[0].max_size == 4096
        assert caches[where].size == 0
        caches[where].clear()

    def test_without_an_index_it_is_the_current_devices(self) -> None:
        caches.max_size = 7
        with torch.cuda.device(1):
            assert caches.max_size == 4096
            caches.max_size = 8
        assert (caches[0].max_size, caches[1].max_size, caches.max_size) == (7, 8, 7)

    @pytest.mark.parametrize("where", [2, -1, "cuda:5"])
    def test_no_such_device(self, where: Any) -> None:
        with pytest.raises(RuntimeError, match="expected 0 <= device index < 2, but got device with index"):
            caches[where]

    def test_what_cannot_be_set(self) -> None:
        with pytest.raises(RuntimeError, match="read-only"):
            caches.size = 3
        with pytest.raises(RuntimeError, match="non-negative"):
            caches[0].max_size = -1
        with pytest.raises(TypeError):
            caches.max_size = "many"
        with pytest.raises(AttributeError):
            caches.maxsize = 3
        assert caches.max_size == 4096


def test_a_fresh_machine_has_fresh_caches() -> None:
    with torch.virtual(devices=1):
        caches.max_size = 5
        with torch.virtual(devices=1):
            assert caches.max_size == 4096
        assert caches.max_size == 5
    with torch.virtual(devices=1):
        assert caches.max_size == 4096


def test_without_a_gpu() -> None:
    with torch.virtual(devices=0), pytest.raises(RuntimeError):
        caches.max_size  # noqa: B018

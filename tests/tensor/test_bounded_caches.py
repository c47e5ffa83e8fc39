"""Ever new shapes leave no entries behind: no container grows with the number of shapes that calls have had."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import flambeau as torch
from flambeau.core import meta as metas
from flambeau.core.tracing.plan_tree import PlanTree
from flambeau.tensor import call
from flambeau.tensor.autograd import autograd_meta, leaves, recording
from flambeau.tensor.functions import creation

ROOT = Path(__file__).parents[2]
SHAPES = 24
_CACHED = type(cache(lambda: None))


def _calls() -> dict[str, Any]:
    spec = spec_from_file_location("new_shapes", ROOT / "bench" / "new_shapes.py")
    assert spec is not None and spec.loader is not None
    bench = module_from_spec(spec)
    spec.loader.exec_module(bench)
    slow = ("LSTM", "rfft")  # plans of FFTs have PyTorch's cache, with a limit that programs set
    return {name: each for name, each in (bench.CALLS | bench.WIDE).items() if not name.endswith(slow)}


def _lengths() -> dict[int, tuple[int, Any]]:
    """Return the number of entries of each container: its id -> (entries, container)."""
    gc.collect()
    metas._remove_deleted()
    kinds = (dict, list, set, deque)
    return {id(x): (len(x), x) for x in gc.get_objects() if isinstance(x, kinds)}


def _caches() -> Iterator[tuple[str, int]]:
    """Yield the functions whose results are cached without a limit, with the number of results."""
    for name, module in list(sys.modules.items()):
        if name.startswith("flambeau"):
            for value in list(vars(module).values()):
                if isinstance(value, _CACHED) and value.cache_info().maxsize is None:
                    yield f"{name}.{value.__name__}", value.cache_info().currsize


def _has_a_limit(x: Any) -> bool:
    """Return True for tables of `lru_cache`, and those of the allocator, whose limits its compiled code contains."""
    if isinstance(x, list):
        return isinstance(x[0], bytes)  # the event log, which is read out when it is long
    if isinstance(x, set):
        return all(n.__class__ is int and n % 512 == 0 for n in x)  # sizes that were requested lately
    entry = next(iter(x.values())) if isinstance(x, dict) else None
    return type(entry).__name__ == "_lru_list_elem" or isinstance(entry, list)


def test_no_container_grows_with_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (call, autograd_meta, recording):
        monkeypatch.setattr(module, "_LIMIT", SHAPES // 2)
    monkeypatch.setattr(creation, "_MOST", SHAPES // 2)
    monkeypatch.setattr(leaves, "_LAYOUTS", SHAPES // 2)
    calls = _calls()
    with torch.virtual(devices=1):

        def run(lengths: range) -> None:
            for n in lengths:
                for each in calls.values():
                    each(torch, torch.ones(n, 64, device="cuda"))
            torch.cuda.synchronize()

        run(range(17, 28))
        monkeypatch.setattr(
            PlanTree, "learn", lambda *given: None
        )  # trees have a limit that few shapes do not reach
        run(range(28, 30))
        before, cached = _lengths(), dict(_caches())
        run(range(30, 30 + SHAPES))
        after = _lengths()
        grown = {
            key: (before[key][0], size, type(x).__name__, str(x)[:300])
            for key, (size, x) in after.items()
            if key in before
            and size - before[key][0] >= SHAPES
            and before[key][1] is x
            and not _has_a_limit(x)
        }
        assert list(grown.values()) == []
        assert {name: size for name, size in _caches() if size >= cached.get(name, 0) + SHAPES} == {}

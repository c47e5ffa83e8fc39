"""Public functions of torch.cuda say what they raise and in which units they count."""

from __future__ import annotations

import inspect
import re
from collections import ChainMap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import flambeau

LISTED = (Path(__file__).parents[1] / "goldens" / "cuda_names.txt").read_text().split()[1::2]
OWN = ["cuda.elementwise", "cuda.random.set_portable", "cuda.nccl.init_rank", "cuda.profiler.profile"]
TYPES = ("Tensor", "Storage", "CallError")  # told in one place for all, or of no arguments

# What takes any value, or hands its arguments on.
CANNOT_FAIL = {
    "cuda.CudaError",
    "cuda.StreamContext",
    "cuda.MemPool.part_of",
    "cuda.is_bf16_supported",
    "cuda.cudart",
}


def public() -> Iterator[tuple[str, Any]]:
    """(name, function) of each function, and of each method of a class."""
    for name in sorted({*LISTED, *OWN}):
        module, _, last = f"flambeau.{name}".rpartition(".")
        if name.endswith(TYPES):
            continue
        try:
            found = getattr(import_module(module), last)
        except AttributeError:
            continue
        if inspect.isclass(found):
            yield name, found
            own = [found, *({flambeau.Stream, flambeau.Event} & set(found.__mro__))]
            for method, code in ChainMap(*[dict(vars(each)) for each in own]).items():
                if not method.startswith("_") and inspect.isfunction(code):
                    yield f"{name}.{method}", code
        elif inspect.isfunction(found):
            yield name, found


PUBLIC = {name: found for name, found in public() if ".memory." not in name}  # these are there without it too


def text(found: Any) -> str:
    return inspect.getdoc(found) or ""


def arguments(found: Any) -> list[str]:
    return [name for name in inspect.signature(found).parameters if name != "self"]


def names_errors(name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a docstring says what is raised, itself or by "as `other`"."""
    found = PUBLIC.get(name)
    if found is None or name in seen:
        return False
    if re.search(r"[A-Za-z]*Error|Raises", text(found)):
        return True
    others = re.findall(
        r"(?:[Aa]s|like|of|[Ss]ee|Calls|form of|older name of)\s+`(?:torch\.)?([\w.]+)", text(found)
    )
    room = name.rpartition(".")[0]
    return any(
        names_errors(n, seen | {name})
        for other in others
        for n in (other, f"{room}.{other}", f"cuda.{other}")
    )


def test_the_list_is_not_empty() -> None:
    assert len(PUBLIC) > 170


@pytest.mark.parametrize("name", PUBLIC)
def test_it_says_what_it_does(name: str) -> None:
    assert len(text(PUBLIC[name])) > 15
    if arguments(PUBLIC[name]) and name not in CANNOT_FAIL:
        assert names_errors(name), "takes arguments and does not say what it raises"


UNITS = {
    "[Bb]ytes|MiB": "memory_allocated max_memory_allocated memory_reserved max_memory_reserved mem_get_info device_memory_used "
    "list_gpu_processes caching_allocator_alloc host_memory_stats_as_nested_dict comm.broadcast_coalesced "
    "comm.reduce_add_coalesced memory_snapshot",
    "[Pp]ercent": "utilization memory_usage",
    "Celsius": "temperature",
    "milliwatts": "power_draw",
    "MHz": "clock_rate",
    "[Mm]illiseconds": "Event.elapsed_time",
}  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "name"), [(unit, name) for unit, names in UNITS.items() for name in names.split()]
)
def test_it_says_its_unit(unit: str, name: str) -> None:
    assert re.search(unit, text(PUBLIC[f"cuda.{name}"]))


def test_exceptions_are_still_needed() -> None:
    assert sorted(n for n in CANNOT_FAIL if n not in PUBLIC or names_errors(n)) == []


def test_modules_say_what_they_are() -> None:
    rooms = ["cuda", "cuda.comm", "cuda.graphs", "cuda.jiterator", "cuda.memory", "cuda.nccl", "cuda.nvtx", "cuda.profiler",
             "cuda.random", "cuda.streams", "cuda.amp", "backends", "backends.cuda", "backends.cudnn"]  # fmt: skip
    assert [room for room in rooms if not (import_module(f"flambeau.{room}").__doc__ or "").strip()] == []
    assert flambeau.cuda.__doc__

"""Random values of `torch.load(map_location=...)`, compared with PyTorch's CPU build where no device is available.

A checkpoint of PyTorch names a location for each storage, such as "cuda:0" or nonsense. Both packages load it with the
same `map_location`: a name, a device, a dict, a function, or an object that is none of these. The types of exceptions,
the devices of the tensors and their values must be equal.
"""

from __future__ import annotations

import io
import random
import warnings
from functools import cache
from typing import Any, NamedTuple

import torch as theirs
from harness import Failure, Findings

import flambeau

LOCATIONS = (
    "cpu",
    "cuda",
    "cuda:0",
    "cuda:7",
    "meta",
    "xpu:0",
    "mps",
    "hpu:0",
    "cuda:x",
    "cpu:0",
    "",
    "nonsense",
)
_NAMES = (
    *LOCATIONS, "CPU", " cpu", "cpu ", "cuda:-1", "cuda:", "cuda0", "cuda:0:1", "cudafoo", "metal", "meta:0", "mps:0",
    "privateuseone", "cpu\0", "c" * 5000, "é", "cuda:99999999999999999999",
)  # fmt: skip
_DEVICES = (
    "cpu",
    "cpu:0",
    "cuda",
    "cuda:0",
    "cuda:7",
    "meta",
    "xpu",
    "mps",
)  # not "meta:0": PyTorch takes it in one format
_OBJECTS = (
    0, 1, -1, True, False, 1.5, float("nan"), 1j, (), ("cpu",), [], ["cpu"], {1}, object, object(), ..., slice(1),
    b"cpu", b"", b"\xff", b"cuda:0", bytearray(b"cpu"), range(2),
)  # fmt: skip


class Case(NamedTuple):
    """A load.

    Attributes:
        tag: Location that the file names.
        form: Format of the file: zip, or the older one.
        kind: What `map_location` is: its name in `_build`.
        value: From which it is built.
        weights_only: Argument of `load`.
    """

    tag: str
    form: str
    kind: str
    value: Any
    weights_only: bool


def draw(rng: random.Random) -> Case:
    kind = rng.choice(("none", "name", "name", "device", "dict", "dict", "function", "function", "object"))
    value: Any = None
    if kind == "name":
        value = rng.choice(_NAMES)
    elif kind == "device":
        value = rng.choice(_DEVICES)
    elif kind == "dict":
        keys, values = (*LOCATIONS, 0, None), (*_NAMES, 0, None, b"cpu", ("cpu",), 1.5)
        value = {rng.choice(keys): rng.choice(values) for _ in range(rng.randrange(4))}
    elif kind == "function":
        value = rng.choice(sorted(_FUNCTIONS))
    elif kind == "object":
        value = rng.randrange(len(_OBJECTS))
    return Case(
        rng.choice((*LOCATIONS, *["cpu"] * 8)), rng.choice(("zip", "legacy")), kind, value, rng.random() < 0.7
    )


def _raise(storage: Any, location: str) -> None:
    raise LookupError("from the caller's function")


_FUNCTIONS: dict[str, Any] = {
    "storage": lambda storage, location: storage,
    "none": lambda storage, location: None,
    "cpu": lambda storage, location: storage.cpu(),
    "location": lambda storage, location: location,
    "number": lambda storage, location: 1,
    "raises": _raise,
    "one argument": lambda storage: storage,
    "three arguments": lambda storage, location, more: storage,
    "defaults": lambda *args, **kwargs: args[0],
    "clone": lambda storage, location: storage.clone(),
    "bytes": lambda storage, location: b"",
    "a class": dict,
}


def _build(module: Any, case: Case) -> Any:
    match case.kind:
        case "device":
            return module.device(case.value)
        case "function":
            return _FUNCTIONS[case.value]
        case "object":
            return _OBJECTS[case.value]
    return case.value


@cache
def _file(tag: str, form: str) -> bytes:
    """Return PyTorch's checkpoint of two tensors whose storages it says to lie at `tag`."""
    module, own = theirs.serialization, theirs.serialization.location_tag
    module.location_tag = lambda storage: tag
    try:
        made = io.BytesIO()
        shared = theirs.arange(6.0)
        theirs.save({"a": shared, "b": shared[2:4]}, made, _use_new_zipfile_serialization=form == "zip")
    finally:
        module.location_tag = own
    return made.getvalue()


def _load(module: Any, case: Case) -> Any:
    """Return the type of the exception, or the device and the values of each tensor."""
    try:
        where = _build(module, case)
    except (RuntimeError, ValueError) as error:
        return ("no device", type(error).__name__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loaded = module.load(
                io.BytesIO(_file(case.tag, case.form)), map_location=where, weights_only=case.weights_only
            )
            return [(str(t.device), t.device.type != "meta" and t.tolist()) for t in loaded.values()]
        except Exception as error:
            return (type(error).__name__, str(error))


def check(case: Case) -> str:
    """Return how the packages differ; "" if they do not. Words of errors may differ, and must be short."""
    expected, found = _load(theirs, case), _load(flambeau, case)
    if isinstance(found, tuple) and len(found[1]) > 3000:
        return f"an error of {len(found[1])} letters"
    if isinstance(found, tuple) and found[0] == "no device" and isinstance(expected, tuple):
        return ""  # Flambeau has devices of two types; PyTorch's build has no other ones to load to, either
    both = [outcome[0] if isinstance(outcome, tuple) else outcome for outcome in (expected, found)]
    return "" if both[0] == both[1] else f"PyTorch: {expected}, Flambeau: {found}"


def search(seed: int, begin: int, count: int, stop: int = 10) -> Findings:
    """Compare `count` loads of a seed, from number `begin` on."""
    found = Findings("map_locations", seed)
    with flambeau.virtual(devices=0):
        for number in range(begin, begin + count):
            case = draw(random.Random(f"{seed}:{number}"))
            why = check(case)
            refused = isinstance(_load(flambeau, case), tuple)
            found.counts["failed" if why else "refused" if refused else "accepted"] += 1
            if why:
                key = case.kind, case.form, why[:60]
                found.failures.setdefault(key, Failure(number, str(case), why, 0)).times += 1
            if len(found.failures) >= stop:
                break
    return found

"""Damaged checkpoints for `weights_only=False`, and all kinds of `map_location` with both ways of reading.

A pickle that is well-formed may run code there. So these inputs have damage alone: no names of functions that would harm,
and no values that take long to hash.
"""

from __future__ import annotations

import fractions
import pickle
import random
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import checkpoints
from checkpoints import FILE, Named, _archive, _older, _parts, check
from harness import Fuzzer
from mutations import damaged, mutate_bytes, mutate_pickle

import flambeau as torch

_NAMES = ("builtins.int", "builtins.list", "fractions.Fraction", "collections.OrderedDict", "torch.Size", "torch.float32",
          "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter", "torch.FloatStorage", "torch.nn.Linear",
          "torch.device", "torch.nn.Linear.forward", "x.y", "", "torch", "torch.x.y")  # fmt: skip
LOCATIONS: dict[str, Any] = {
    "None": None, "cpu": "cpu", "cpu:0": "cpu:0", "bytes": b"cpu", "device": torch.device("cpu"), "cuda": "cuda",
    "cuda:1": "cuda:1", "cuda:99": "cuda:99", "cuda:-1": "cuda:-1", "cuda:x": "cuda:x", "empty": "", "long": "x" * 5000,
    "cpux": "cpux", "not ASCII": b"\xff", "int": 5, "dict": {"cpu": "cuda"}, "empty dict": {}, "dict of ints": {"cpu": 5},
    "same": lambda storage, location: storage, "nothing": lambda storage, location: None,
    "text": lambda storage, location: "cpu", "tensor": lambda storage, location: torch.ones(2),
    "one argument": lambda storage: storage, "raises": lambda storage, location: {}["x"],
    "cuda of function": lambda storage, location: storage.cuda(0),
}  # fmt: skip
_WRONG = {
    "int": TypeError,
    "text": (TypeError, AttributeError),
    "tensor": (TypeError, AttributeError),
    "one argument": TypeError,
    "raises": KeyError,
    "bytes": TypeError,
    "not ASCII": TypeError,
    "dict of ints": TypeError,
}
"""Locations that are the caller's mistake, and what they raise."""


class Input(NamedTuple):
    """A file and how it is read."""

    data: bytes
    weights_only: bool
    location: str


@cache
def samples() -> tuple[tuple[bytes, dict[str, bytes]], ...]:
    """The pickles of `checkpoints`, and objects that only `weights_only=False` reads."""
    model = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2), torch.nn.ReLU(), torch.nn.LSTM(3, 2))
    values: list[Any] = [
        model,
        [range(3), fractions.Fraction(1, 3), slice(1, 2), frozenset({1}), {1: (2,) * 5}],
    ]
    return checkpoints.samples() + tuple(_parts(value, protocol) for value in values for protocol in (2, 4))


def draw(rng: random.Random) -> Input:
    data, records = rng.choice(samples())
    location = rng.choice(list(LOCATIONS)) if rng.random() < 0.3 else "None"
    if rng.random() < 0.6:
        data = mutate_pickle(rng, data, _NAMES, damaged)
    if rng.random() < 0.4:
        data = mutate_bytes(rng, data)
    build: Callable[..., bytes] = _older if rng.random() < 0.5 else _archive
    return Input(build(rng, data, records), rng.random() < 0.2, location)


def take(one: Input) -> None:
    """Load a checkpoint. A wrong location may raise its own error; only names that are missing may raise theirs."""
    try:
        found = torch.load(Named(one.data), LOCATIONS[one.location], weights_only=one.weights_only)
    except (ImportError, AttributeError) as error:
        if not one.weights_only and FILE in "".join(getattr(error, "__notes__", [])):
            return
        raise
    except Exception as error:
        if isinstance(error, _WRONG.get(one.location, ())):
            return
        raise
    try:
        check(found)
    except (TypeError, RecursionError):  # a damaged pickle may name other types
        if one.weights_only:
            raise


FUZZER = Fuzzer("unpickling", draw, take, (pickle.UnpicklingError, RuntimeError), FILE)

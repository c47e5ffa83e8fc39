"""Checkpoints that a grammar generates: calls of every rebuilder with arguments of right and wrong types.

`checkpoints.py` changes files that `torch.save` wrote. Here each instruction, record and number is drawn, so that values
occur where no saved file has them: tensors as magic numbers, storages as sizes, names as keys.
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable

from checkpoints import FILE, _archive, take
from harness import Fuzzer
from mutations import NUMBERS

from flambeau.serialization import pickle_names
from flambeau.serialization.legacy import MAGIC, VERSION
from flambeau.serialization.pickle_machine import _PLAIN

_UTILS = "torch._utils"
_NAMES = [
    *_PLAIN,
    *pickle_names.REBUILDERS,
    *pickle_names.TYPES,
    *pickle_names.VALUES,
    ("os", "system"),
    ("builtins", "getattr"),
]
_STORAGES = {f"{d.torch_name}Storage": d.itemsize for d in pickle_names.STORAGES}
_DTYPES = [
    name for name in pickle_names.VALUES if name[1] in ("float32", "int64", "bool", "complex64", "float16")
]
_TEXTS = (
    "",
    "cpu",
    "0",
    "storage",
    "torch.strided",
    "torch.sparse_coo",
    "__class__",
    "__dict__",
    "data",
    "é" * 300,
)
_LAYOUTS = ("torch.sparse_coo", "torch.sparse_csr", "torch.sparse_csc", "torch.strided", "torch.sparse_bsr")
_TUPLES = (b")", b"\x85", b"\x86", b"\x87")


class Grammar:
    """Draws the instructions of one pickle.

    Attributes:
        used: The storages that it names: key -> class and number of elements.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._wrong = rng.choice(
            [0.0, 0.03, 0.1, 0.3]
        )  # how often another value stands in place of the right one
        self._left = rng.choice([10, 40, 120])  # values, before all others are plain
        self._memo = 0
        self.used: dict[str, tuple[str, int]] = {}

    def program(self) -> bytes:
        make = self._rng.choice([self._value, self._tensor])
        return b"\x80\x02" + make() + b"."

    def _value(self) -> bytes:
        self._left -= 1
        makes: list[Callable[[], bytes]] = [self._plain]
        if self._left > 0:
            makes += [self._container, self._storage, self._tensor, self._tensor, self._tensor]
        if self._left > 0 and self._rng.random() < 2 * self._wrong:
            makes += [
                lambda: self._call(self._rng.choice(_NAMES), self._value),
                lambda: self._value() + self._state() + b"b",
            ]
        code = self._rng.choice(makes)()
        if self._rng.random() < 0.5:
            return code
        self._memo += 1
        return code + b"r" + struct.pack("<I", self._memo - 1)

    def _or(self, make: Callable[[], bytes]) -> Callable[[], bytes]:
        """Return a function that draws the right value, or any other."""
        return lambda: self._value() if self._rng.random() < self._wrong else make()

    def _plain(self) -> bytes:
        rng = self._rng
        kinds = [lambda: b"N", lambda: self._flag(), lambda: self._int(rng.choice(NUMBERS)), lambda: self._text(rng.choice(_TEXTS)),
                 lambda: b"G" + struct.pack(">d", rng.choice([0.5, float("nan"), 1e308])), lambda: rng.choice([b"]", b"}", b")", b"\x8f"]),
                 lambda: self._name(rng.choice(_NAMES)), lambda: b"j" + struct.pack("<I", rng.randrange(self._memo or 1))]  # fmt: skip
        return rng.choice(kinds)()

    def _int(self, number: int) -> bytes:
        raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        return b"K%c" % number if 0 <= number < 256 else b"\x8a%c" % len(raw) + raw

    def _text(self, text: str) -> bytes:
        raw = text.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw

    def _flag(self) -> bytes:
        return self._rng.choice([b"\x88", b"\x89"])

    def _name(self, name: tuple[str, str]) -> bytes:
        return f"c{name[0]}\n{name[1]}\n".encode()

    def _tuple(self, *makes: Callable[[], bytes]) -> bytes:
        items = b"".join([make() for make in makes])
        return items + _TUPLES[len(makes)] if len(makes) < 4 else b"(" + items + b"t"

    def _call(self, name: tuple[str, str], *makes: Callable[[], bytes]) -> bytes:
        return self._name(name) + self._tuple(*map(self._or, makes)) + b"R"

    def _container(self) -> bytes:
        rng, count = self._rng, self._rng.randrange(4)
        values = [self._value for _ in range(count)]
        match rng.randrange(5):
            case 0:
                return self._tuple(*values)
            case 1:
                return b"](" + b"".join([make() for make in values]) + b"e"
            case 2:
                return b"\x8f(" + b"".join([make() for make in values]) + b"\x90"
            case 3:
                return self._name(("collections", "OrderedDict")) + b")R" + self._state() + b"b"
            case _:
                return self._state()

    def _state(self) -> bytes:
        key = self._or(lambda: self._text(self._rng.choice(_TEXTS)))
        return b"}(" + b"".join([key() + self._value() for _ in range(self._rng.randrange(3))]) + b"u"

    def _storage(self) -> bytes:
        rng, key = self._rng, str(self._rng.randrange(3))
        if key not in self.used:
            self.used[key] = rng.choice(list(_STORAGES)), rng.choice([0, 1, 2, 4, 8, 12, 60])
        kind, count = self.used[key]
        place = rng.choice(["cpu"] * 20 + ["meta", "cuda:1"])
        makes = [lambda: self._text("storage"), lambda: self._name(("torch", kind)), lambda: self._text(key),
                 lambda: self._text(place), lambda: self._int(count)]  # fmt: skip
        return self._tuple(*map(self._or, makes)) + b"Q"

    def _offset(self) -> bytes:
        return self._int(self._rng.choice([0, 0, 0, 1, 2]))

    def _hooks(self) -> bytes:
        return self._name(("collections", "OrderedDict")) + b")R"

    def _dtype(self) -> bytes:
        return self._name(self._rng.choice(_DTYPES))

    def _rebuilder(self) -> bytes:
        return self._name((_UTILS, "_rebuild_tensor_v2"))

    def _kind(self) -> bytes:
        return self._name(self._rng.choice([("torch", "Tensor"), ("torch.nn.parameter", "Parameter")]))

    def _layout(self) -> bytes:
        text = self._text(self._rng.choice(_LAYOUTS))
        return self._call(("torch.serialization", "_get_layout"), lambda: text)

    def _sizes(self, dim: int) -> Callable[[], bytes]:
        sizes = (*NUMBERS[:8], 3, 4) if self._rng.random() < self._wrong else (0, 1, 1, 2, 2, 3, 4)
        return lambda: self._tuple(*[self._or(lambda: self._int(self._rng.choice(sizes)))] * dim)

    def _tensor(self) -> bytes:
        rng = self._rng
        dim = rng.choice([0, 1, 1, 2, 2, 3, 70 if rng.random() < self._wrong else 4])
        inner = self._tensor if self._left > 0 else self._plain
        self._left -= 1
        view = [self._storage, self._offset, self._sizes(dim), self._sizes(dim)]
        own = [*view, self._flag, self._hooks]
        match rng.randrange(9):
            case 0:
                return self._call((_UTILS, "_rebuild_tensor_v3"), *own, self._dtype)
            case 1:
                return self._call(
                    (_UTILS, "_rebuild_meta_tensor_no_storage"), self._dtype, *view[2:], self._flag
                )
            case 2:
                parts = [inner, inner, self._sizes(dim), self._flag][: rng.choice([3, 4])]
                parts = parts if rng.random() < 0.5 else [inner, *parts]
                return self._call(
                    (_UTILS, "_rebuild_sparse_tensor"),
                    self._layout,
                    lambda: self._tuple(*map(self._or, parts)),
                )
            case 3:
                return self._call((_UTILS, "_rebuild_parameter"), inner, self._flag, self._hooks)
            case 4:
                return self._call(
                    (_UTILS, "_rebuild_parameter_with_state"), inner, self._flag, self._hooks, self._state
                )
            case 5:
                made = [self._rebuilder, self._kind, lambda: self._tuple(*map(self._or, own)), self._state]
                return self._call(("torch._tensor", "_rebuild_from_type_v2"), *made)
            case _:
                more = [lambda: self._state()] if rng.random() < 0.1 else []
                return self._call((_UTILS, "_rebuild_tensor_v2"), *own, *more)


def draw(rng: random.Random) -> bytes:
    """Return an archive, a file of the older format, or one whose header is drawn, too."""
    grammar = Grammar(rng)
    data = grammar.program()
    raw = {key: rng.randbytes(count * _STORAGES[kind]) for key, (kind, count) in grammar.used.items()}
    if rng.random() < 0.5:
        return _archive(rng, data, {f"data/{key}": value for key, value in raw.items()})
    parts = [pickle.dumps(part, 2) for part in (MAGIC, VERSION, {"little_endian": True})]
    if rng.random() < 0.2:
        parts[rng.randrange(3)] = Grammar(rng).program()
    ends = [struct.pack("<q", grammar.used[key][1]) + value for key, value in raw.items()]
    return b"".join([*parts, data, pickle.dumps(list(raw), 2), *ends])


FUZZER = Fuzzer("generated", draw, take, (pickle.UnpicklingError, RuntimeError), FILE)

"""Hostile checkpoints: zip archives and files of the older format, changed in their pickles, records and headers."""

from __future__ import annotations

import pickle
import random
import re
import struct
import tempfile
import zipfile
from collections import Counter, OrderedDict
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from harness import Fuzzer
from mutations import NUMBERS, instructions, mutate_bytes, mutate_pickle, nested, shared, value_of

import flambeau as torch
from flambeau.serialization.checkpoint_files import get_unsafe_globals_in_checkpoint
from flambeau.serialization.legacy import MAGIC, VERSION
from flambeau.serialization.pickle_machine import _BY_NAME
from flambeau.tensor.tensor import Tensor

FILE = "hostile.pt"
_NAMES = (*_BY_NAME, "os.system", "builtins.eval", "torch.nn.Linear", "numpy.ndarray", "x.y")


class Named(BytesIO):
    """A file object with a name, as files have one."""

    name = FILE


@cache
def samples() -> tuple[tuple[bytes, dict[str, bytes]], ...]:
    """Pickles with their records, of all that checkpoints commonly hold."""
    base = torch.arange(12.0).reshape(3, 4)
    leaf = torch.nn.Parameter(torch.ones(2, 2))
    leaf.mark = "state"
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    values: list[Any] = [
        base,
        [base[1:], base.t(), base[:, 1:3], torch.tensor(3)],
        {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3},
        [
            leaf,
            torch.Size([2, 3]),
            torch.float16,
            torch.device("cpu"),
            1 + 2j,
            {1, 2},
            b"bytes",
            bytearray(b"x"),
        ],
        [torch.ones(2).to(dtype) for dtype in (torch.bfloat16, torch.bool, torch.complex64, torch.uint8)],
        [
            base.untyped_storage(),
            torch.arange(3).storage(),
            Counter("aab"),
            OrderedDict(a=1),
            2**70,
            -1.5,
            "text",
            (1, (2,)),
        ],
        [base.to_sparse(), base.to_sparse_csr(), torch.nn.Parameter(base.to_sparse_csc())],
    ]
    return tuple([_parts(value, protocol) for value in values for protocol in (2, 4)])


def _parts(value: Any, protocol: int) -> tuple[bytes, dict[str, bytes]]:
    file = BytesIO()
    torch.save(value, file, pickle_protocol=protocol)
    with zipfile.ZipFile(file) as archive:
        records = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    return records.pop("data.pkl"), records


# -- files ------------------------------------------------------------------------------------------------


def draw(rng: random.Random) -> bytes:
    data, records = rng.choice(samples())
    if rng.random() < 0.6:
        data = mutate_pickle(rng, data, _NAMES)
    if rng.random() < 0.2:
        data = _graft(rng, data)
    if rng.random() < 0.1:
        data = mutate_bytes(rng, data)
    if rng.random() < 0.4:
        return _older(rng, data, records)
    return _archive(rng, data, records)


def _graft(rng: random.Random, data: bytes) -> bytes:
    """Put a part of another pickle, or a value made of many shared parts, somewhere into this one."""
    try:
        mine, other = instructions(data), instructions(rng.choice(samples())[0])
    except ValueError:  # it is damaged already
        return data
    at, begin = rng.randrange(len(mine)), rng.randrange(len(other))
    part = other[begin : begin + rng.randrange(1, 12)]
    if rng.random() < 0.5:
        kind = rng.choice([tuple, list])
        part = [value_of(rng.choice([shared, nested])(kind, rng.choice([20, 100, 250])))]
        part += rng.choice([[], [b"Q"], [b"K\x01s"], [b"\x85R"], [b"a"], [b"\x86"]])
    return b"".join([*mine[:at], *part, *mine[at:]])


def _older(rng: random.Random, data: bytes, records: dict[str, bytes]) -> bytes:
    """A file of PyTorch's older format."""
    storages = {name[5:]: raw for name, raw in records.items() if name.startswith("data/")}
    keys: Any = list(storages)
    system: Any = {"protocol_version": VERSION, "little_endian": rng.random() < 0.8}
    version: Any = VERSION
    if rng.random() < 0.3:
        wrong = rng.choice([1, None, [], keys * 2, keys[1:], "x", shared(tuple, 60), 1 << 200, {}])
        match rng.randrange(3):
            case 0:
                keys = wrong
            case 1:
                system = wrong
            case _:
                version = wrong
    out = b"".join(pickle.dumps(part, 2) for part in (MAGIC, version, system)) + data + pickle.dumps(keys, 2)
    for raw in storages.values():
        count = rng.choice(NUMBERS) if rng.random() < 0.1 else len(raw) // rng.choice([1, 2, 4, 4, 4, 8])
        out += struct.pack("<Q", count % (1 << 64)) + raw
    return mutate_bytes(rng, out) or b"." if rng.random() < 0.3 else out


def _archive(rng: random.Random, data: bytes, records: dict[str, bytes]) -> bytes:
    records = {"data.pkl": data} | records
    for _ in range(rng.choice([0, 0, 1, 2])):
        name = rng.choice(list(records))
        match rng.randrange(5):
            case 0:
                del records[name]
            case 1:
                records[name] = mutate_bytes(rng, records[name])
            case 2:
                records[rng.choice(["byteorder", "constants.pkl", "data/9", "é", "../x", "x" * 300])] = (
                    records[name]
                )
            case 3:
                records["byteorder"] = rng.choice([b"big", b"little", b"", b"\xff" * 99])
            case _:
                records[name] = bytes(rng.choice([0, 1, 1 << 22]))
        if not records:
            break
    methods = [zipfile.ZIP_STORED] * 60 + [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    file = BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, raw in records.items():
            archive.writestr(zipfile.ZipInfo(f"archive/{name}"), raw, rng.choice(methods))  # without the time
    out = file.getvalue()
    if rng.random() < 0.3:
        out = _headers_changed(rng, out)
    return mutate_bytes(rng, out) or b"." if rng.random() < 0.2 else out


_FIELDS = {b"PK\x03\x04": "4x5H3I2H", b"PK\x01\x02": "4x6H3I5H2I", b"PK\x05\x06": "4x4H2IH"}


def _headers_changed(rng: random.Random, data: bytes) -> bytes:
    """Write other numbers into the fields of a zip file's headers."""
    raw = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        signature, form = rng.choice(list(_FIELDS.items()))
        places = [found.start() for found in re.finditer(re.escape(signature), raw)]
        if not places:
            continue
        at, form = rng.choice(places), f"<{form}"
        if at + struct.calcsize(form) > len(raw):
            continue
        fields = list(struct.unpack_from(form, raw, at))
        which = rng.randrange(len(fields))
        limit = 1 << (16 if fields[which] < 1 << 16 else 32)
        fields[which] = (
            rng.choice([*NUMBERS, fields[which] + 1, fields[which] ^ 1, rng.choice(fields)]) % limit
        )
        struct.pack_into(form, raw, at, *fields)
    return bytes(raw)


# -- readers ----------------------------------------------------------------------------------------------


def take(data: bytes) -> None:
    """Load a checkpoint, and look at every tensor of it."""
    if len(data) % 7 == 0:  # mapped, for some
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, FILE)
            path.write_bytes(data)
            try:
                check(torch.load(path, mmap=data[:2] == b"PK"))
            except (
                OSError
            ) as error:  # RuntimeError and UnpicklingError are documented; these come from the system
                raise AssertionError(f"{type(error).__name__} gets out") from error
        return
    if data[:2] == b"PK" and len(data) % 5 == 0:
        get_unsafe_globals_in_checkpoint(Named(data))
    check(torch.load(Named(data)))


def check(found: Any) -> None:
    """Raise AssertionError unless each tensor lies within its storage, and all its elements can be read."""
    seen: set[int] = set()
    parts = [found]
    while parts:
        part = parts.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, dict):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, (list, tuple, set)):
            parts += part
        elif isinstance(part, Tensor) and part.layout is not torch.strided:
            _check_sparse(part)
        elif isinstance(part, Tensor) and not part.is_meta:
            begin, end = part.memory.ptr, part.memory.ptr + part.memory.nbytes
            assert not part.numel() or begin <= part.ptr <= part.ptr + part.meta.span <= end, part.meta
            if part.numel() < 1 << 20:
                part.tolist()


def _check_sparse(t: Any) -> None:
    """Raise AssertionError unless each value of a sparse tensor lies within it."""
    if t.is_meta:
        return
    if t.layout is torch.sparse_coo:
        indices = [(row, size) for row, size in zip(t._indices(), t.shape, strict=False)]
        check(t._values())
    else:
        csr = t.layout is torch.sparse_csr
        begins, places = (t.crow_indices(), t.col_indices()) if csr else (t.ccol_indices(), t.row_indices())
        indices = [(begins, places.numel() + 1), (places, t.shape[1 if csr else 0])]
        check(t.values())
    for row, size in indices:
        assert all(0 <= at < size for at in row.tolist()), t
    if t.numel() < 1 << 20:
        t.to_dense()


FUZZER = Fuzzer("checkpoints", draw, take, (pickle.UnpicklingError, RuntimeError), FILE)

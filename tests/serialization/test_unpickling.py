"""`weights_only=False` says of a damaged pickle in which file and where; `map_location` takes what PyTorch's takes."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

import pytest

import flambeau as torch


class Named(io.BytesIO):
    name = "model.pt"


class Failing:
    """An object whose state cannot be restored."""

    def __init__(self) -> None:
        self.one = 1

    def __setstate__(self, state: Any) -> None:
        raise KeyError("the user's own")


def archive_of(data: bytes) -> Named:
    file = Named()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
    file.seek(0)
    return file


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x80\x02]r\xff\xff\xff\xff.", "byte 3 "),  # Python's unpickler takes 64 GiB
        (b"\x80\x02]p99999999999\n.", "byte 3 "),
        (b"\x80\x02X\xff\xff\xff\x7fab.", "byte 2 "),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fab.", "byte 2 "),
        (b"\x80\x02\xff.", r"invalid load key, '\xff'"),
        (b"\x80\x09N.", "unsupported pickle protocol: 9"),
        (b"\x80\x02K", "byte "),
        (b"\x80\x02NN\x85R.", "not callable"),
        (b"\x80\x02cbuiltins\nint\nX\x01\x00\x00\x00x\x85R.", "invalid literal"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "byte "),
        (b"\x80\x02}]Ns.", "unhashable"),
        (b"\x80\x02h\x07.", "Memo value not found"),
        (b"\x80\x02\x84\xff\xff\xff\x7f.", "unregistered extension"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["archive", "older"])
def test_damage_raises_with_file_and_byte(data: bytes, said: str, form: str) -> None:
    file = archive_of(data)
    if form == "older":
        parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        file = Named(b"".join(pickle.dumps(part, 2) for part in parts) + data + pickle.dumps([], 2))
    with pytest.raises(pickle.UnpicklingError) as raised:
        torch.load(file, weights_only=False)
    assert said in str(raised.value) and "(model.pt, byte " in str(raised.value)


def test_errors_of_the_users_classes_stay_and_name_the_file() -> None:
    file = Named()
    torch.save([Failing()], file)
    file.seek(0)
    with pytest.raises(KeyError, match="the user's own") as raised:
        torch.load(file, weights_only=False)
    assert any("model.pt" in note for note in raised.value.__notes__)


def test_missing_modules_and_names_stay_as_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module") as raised:
        torch.load(archive_of(b"\x80\x02cno_such_module\nname\n."), weights_only=False)
    assert any("model.pt" in note for note in raised.value.__notes__)
    with pytest.raises(AttributeError, match="no_such_name"):
        torch.load(archive_of(b"\x80\x02cpickle\nno_such_name\n."), weights_only=False)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_all_protocols_are_read(protocol: int) -> None:
    values = [
        *("x" * n for n in (0, 255, 256, 70_000)), b"y" * 300, bytearray(b"z" * 9), 1 << 70, -(1 << 2000), -1, 2.5, True, None,
        {1: (2, 3, 4, 5)}, {6}, frozenset({7}), slice(1, 2), [[n] for n in range(400)], "é\n'", range(3),
    ]  # fmt: skip
    assert torch.load(archive_of(pickle.dumps(values, protocol)), weights_only=False) == values


def test_the_older_format_goes_on_behind_large_pickles() -> None:
    value = ["x" * 70_000, list(range(100_000))]
    parts = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, value, [])
    assert (
        torch.load(io.BytesIO(b"".join(pickle.dumps(part, 2) for part in parts)), weights_only=False) == value
    )
    storage = struct.pack("<q", 2) + struct.pack("<2f", 1, 2)
    pid = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02NtQ"
    head = b"".join(pickle.dumps(part, 2) for part in parts[:3])
    raw = head + b"\x80\x02" + pid + b"." + pickle.dumps(["0"], 2) + storage
    assert torch.load(io.BytesIO(raw), weights_only=False).tolist() == [1, 2]


LOCATIONS: dict[str, Any] = {
    "none": lambda t: None, "cpu": lambda t: "cpu", "device": lambda t: t.device("cpu"), "cuda": lambda t: "cuda",
    "cuda:99": lambda t: "cuda:99", "cuda:-1": lambda t: "cuda:-1", "cuda:x": lambda t: "cuda:x", "cuda:": lambda t: "cuda:",
    "empty": lambda t: "", "long": lambda t: "x" * 5000, "CPU": lambda t: "CPU", "cpux": lambda t: "cpux", "mps": lambda t: "mps",
    "int": lambda t: 5, "bool": lambda t: True, "float": lambda t: 1.5, "tuple": lambda t: ("cpu",), "list": lambda t: ["cpu"],
    "object": lambda t: object(), "bytearray": lambda t: bytearray(b"cpu"), "not ASCII": lambda t: "é",
    "dict": lambda t: {"cpu": "cuda"}, "other dict": lambda t: {"cuda": "cpu"}, "dict to nowhere": lambda t: {"cpu": "x"},
    "storage": lambda t: lambda storage, location: storage, "nothing": lambda t: lambda storage, location: None,
    "text": lambda t: lambda storage, location: "cpu", "number": lambda t: lambda storage, location: 0,
    "one argument": lambda t: lambda storage: storage, "raises": lambda t: lambda storage, location: {}["x"],
    "clone": lambda t: lambda storage, location: storage.clone(),
}  # fmt: skip


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", LOCATIONS)
def test_locations_are_taken_and_refused_as_by_pytorch(name: str, weights_only: bool) -> None:
    pytorch = pytest.importorskip("torch", reason="oracle PyTorch is not installed")
    raw = io.BytesIO()
    pytorch.save(pytorch.arange(4.0), raw)
    outcomes = []
    for package in (pytorch, torch):
        try:
            found = package.load(
                io.BytesIO(raw.getvalue()), map_location=LOCATIONS[name](package), weights_only=weights_only
            )
            outcomes.append((str(found.device), found.tolist()))
        except Exception as error:
            outcomes.append(type(error).__name__)
    theirs, ours = outcomes
    assert ours == theirs or (
        isinstance(theirs, str) and theirs in ("TypeError", "AttributeError") and ours == "TypeError"
    )


@pytest.mark.parametrize("location", ["cpu:0", {"cpu": "x"}])
def test_locations_that_are_not_places_raise_runtimeerror(location: Any) -> None:
    with pytest.raises(RuntimeError, match="don't know how to restore"):
        torch.load(_saved(), map_location=location)


@pytest.mark.parametrize("location", [b"cpu", {"cpu": 5}, {"cpu": None}, {"cpu": torch.device("cpu")}])
def test_locations_that_are_not_names_raise_typeerror(location: Any) -> None:
    with pytest.raises(TypeError, match="expected a location of type str"):
        torch.load(_saved(), map_location=location)


def _saved() -> io.BytesIO:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    file.seek(0)
    return file


@pytest.mark.parametrize("program", [b"(.", b"(((.", b"]((a.", b"}((K\x01u.", b"(\x85.", b"((\x86."])
def test_marks_are_not_values(program: bytes) -> None:
    file = io.BytesIO()
    torch.save(torch.ones(2), file)
    changed = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"\x80\x02" + program if name.endswith("data.pkl") else old.read(name))
    changed.seek(0)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(changed)

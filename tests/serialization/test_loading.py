"""`torch.save` and `torch.load` without an oracle: places, mapping, damage, and pickles that mean harm."""

from __future__ import annotations

import collections
import io
import pickle
import random
import struct
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.serialization.legacy import MAGIC, VERSION
from flambeau.serialization.pickle_machine import PickleMachine


def saved(obj: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file)
    file.seek(0)
    return file


def checkpoint_of(data: bytes, **records: bytes) -> io.BytesIO:
    """A checkpoint made by hand."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", b"3\n")
        for name, record in records.items():
            archive.writestr(f"archive/data/{name}", record)
    file.seek(0)
    return file


# -- places ---------------------------------------------------------------------------------------------------


def test_every_form_of_map_location() -> None:
    with torch.virtual(devices=2):
        file = saved({"a": torch.arange(3, device="cuda:1"), "c": torch.arange(3)})
        forms: list[tuple[Any, str, str]] = [
            (None, "cuda:1", "cpu"),
            ("cpu", "cpu", "cpu"),
            (torch.device("cpu"), "cpu", "cpu"),
            ("cuda", "cuda:0", "cuda:0"),
            ("cuda:1", "cuda:1", "cuda:1"),
            (torch.device("cuda", 1), "cuda:1", "cuda:1"),
            ({"cuda:1": "cuda:0"}, "cuda:0", "cpu"),
            ({"cpu": "cuda:1"}, "cuda:1", "cuda:1"),
            (lambda storage, location: storage, "cpu", "cpu"),
            (lambda storage, location: storage.cuda(0), "cuda:0", "cuda:0"),
            (lambda storage, location: None, "cuda:1", "cpu"),
        ]
        for weights_only in (True, False):
            for form, a, c in forms:
                file.seek(0)
                found = torch.load(file, map_location=form, weights_only=weights_only)
                assert (str(found["a"].device), str(found["c"].device)) == (a, c), form
                assert found["a"].tolist() == found["c"].tolist() == [0, 1, 2]
        with torch.cuda.device(1):
            file.seek(0)
            assert torch.load(file, map_location="cuda")["c"].device == torch.device("cuda:1")


def test_a_function_sees_each_storage_once_and_on_the_cpu() -> None:
    seen = []

    def place(storage: Any, location: str) -> Any:
        seen.append((storage.tolist()[0], storage.device, location))

    base = torch.arange(4, dtype=torch.uint8)
    torch.load(saved([base, base[1:], base + 5]), map_location=place)
    assert seen == [(0, torch.device("cpu"), "cpu"), (5, torch.device("cpu"), "cpu")]


def test_places_that_are_not_here() -> None:
    with torch.virtual(devices=2):
        file = saved(torch.ones(1, device="cuda:1"))
    with (
        torch.virtual(devices=1),
        pytest.raises(RuntimeError, match="deserialize object on CUDA device 1 but torch"),
    ):
        torch.load(file)
    for form, text in (
        ("foo", "don't know how to restore data location of torch.storage.UntypedStorage .tagged with foo"),
        ("xpu:1", "on a XPU device but torch.xpu.is_available"),
        ("hpu", "The HPU device module is not registered"),
        ("privateuseone", "The PRIVATEUSEONE device module is not registered"),
    ):
        file.seek(0)
        with pytest.raises(RuntimeError, match=text):
            torch.load(file, map_location=form)
    file.seek(0)
    with pytest.raises(RuntimeError, match=r"on a CUDA device but torch\.cuda\.is_available"):
        torch.load(file)
    for wrong in (3, lambda storage, location: 5):
        file.seek(0)
        with pytest.raises(TypeError):
            torch.load(file, map_location=wrong)


def test_views_stay_over_one_storage_on_a_device() -> None:
    with torch.virtual(devices=1):
        base = torch.zeros(4)
        a, b = torch.load(saved([base, base[2:]]), map_location="cuda")
        a[2] = 5
        assert b[0].item() == 5


# -- files ----------------------------------------------------------------------------------------------------


def test_mapped_files_are_read_when_used_and_never_written(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"a": torch.arange(1000), "empty": torch.ones(0), "half": torch.ones(3).bfloat16()}, path)
    before = path.read_bytes()
    found = torch.load(path, mmap=True)
    plain = torch.load(path)
    for name, tensor in plain.items():
        assert found[name].meta is tensor.meta and found[name].tolist() == tensor.tolist()
    found["a"][0] = 99
    path_again = torch.load(str(path), mmap=True)
    assert path_again["a"][0] == 0 and path.read_bytes() == before
    with torch.virtual(devices=1):
        assert torch.load(path, mmap=True, map_location="cuda")["a"].sum().item() == 499_500
    with pytest.raises(ValueError, match="f must be a file path in order to use the mmap argument"):
        torch.load(io.BytesIO(before), mmap=True)


def test_a_mapped_file_may_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.arange(100), path)
    found = torch.load(path, mmap=True)
    path.unlink()
    assert found.sum().item() == 4950


def test_the_same_object_gives_the_same_bytes() -> None:
    assert saved([torch.ones(3)]).getvalue() == saved([torch.ones(3)]).getvalue()


def test_a_stream_that_cannot_seek_is_written() -> None:
    class Stream(io.RawIOBase):
        def __init__(self) -> None:
            self.parts: list[bytes] = []

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.parts.append(bytes(data))
            return len(data)

    stream = Stream()
    torch.save([torch.arange(5)], stream)
    assert torch.load(io.BytesIO(b"".join(stream.parts)))[0].tolist() == [0, 1, 2, 3, 4]


def test_partial_writes_are_continued() -> None:
    class Partial(io.RawIOBase):
        taken = bytearray()
        limit = 1 << 30

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int | None:
            part = bytes(data)[: min(7, self.limit - len(self.taken))]
            self.taken += part
            return len(part) or None

    file = Partial()
    torch.save(torch.arange(50), file)
    assert torch.load(io.BytesIO(file.taken)).tolist() == [*range(50)]
    file.taken, file.limit = bytearray(), 400
    with pytest.raises(BlockingIOError, match="takes no more bytes"):
        torch.save(torch.arange(50), file)


@pytest.mark.parametrize("answer", [None, True, 0, 1 << 40, "yes"])
def test_a_write_may_return_anything(answer: Any) -> None:
    """PyTorch ignores what `write` returns."""

    class Plain:
        taken = b""

        def write(self, data: Any) -> Any:
            self.taken += bytes(data)
            return answer

        def flush(self) -> None:
            pass

    file = Plain()
    torch.save(torch.arange(50), file)
    assert torch.load(io.BytesIO(file.taken)).tolist() == [*range(50)]


@pytest.mark.parametrize("name", ["\udcff.pt", "\u00e9\n.pt"])
def test_names_that_are_not_ascii_stay_out_of_the_archive(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    torch.save(torch.ones(2), path)
    assert torch.load(path).tolist() == [1, 1]
    assert zipfile.ZipFile(path).namelist()[0] == "archive/data.pkl", "as PyTorch"


@pytest.mark.parametrize("place", ["\x1b[31m\r\n::error::", "cuda:\u202e\x00", "\ud800'\\"])
def test_control_characters_of_a_file_are_escaped(place: str) -> None:
    state = (
        pickle.dumps({}, 2)[:-1]
        + b"X"
        + struct.pack("<I", len(raw := place.encode("utf-8", "surrogatepass")))
        + raw
    )
    for instructions in (
        b"X\1\0\0\0x\x93.",
        b"0ctorch\ndevice\nX" + state[state.index(b"X") + 1 :] + b"\x85R.",
    ):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a/data.pkl", state + instructions)
        with pytest.raises((RuntimeError, pickle.UnpicklingError)) as caught:
            torch.load(io.BytesIO(file.getvalue()))
        text = str(caught.value)
        assert all(one.isprintable() or one in "\n\t" for one in text), text
        assert "\n::" not in text and repr(place)[1:-1] in text


@pytest.mark.parametrize("record", ["data.pkl", "byteorder"])
def test_small_files_do_not_unpack_to_large_pickles(record: str) -> None:
    """Reading one byte of these pickles takes a step of the reader and 56 bytes of memory."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        if record != "data.pkl":
            archive.writestr("a/data.pkl", b"N.")
        archive.writestr(f"a/{record}", b"]" * (1 << 22) + b".")
    for weights_only in (True, False):
        with pytest.raises(RuntimeError, match="unpack to 4194305, more than 64 times"):
            torch.load(io.BytesIO(file.getvalue()), weights_only=weights_only)


def test_an_object_that_cannot_be_pickled_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save(torch.ones(1), path)
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        torch.save([torch.ones(2), lambda: 0], path)
    assert torch.load(path).tolist() == [1]


def test_a_full_disk_is_an_error_and_no_noise() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            if self.tell() > 2000:
                raise OSError(28, "No space left on device")
            return super().write(data)

    with pytest.raises(OSError, match="No space left"):
        torch.save(torch.ones(10_000), Full())


def test_picklers_that_are_not_in_python_are_refused() -> None:
    module = ModuleType("fast")
    module.Pickler = pickle.Pickler  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="pickle_module fast is not written in Python"):
        torch.save(1, io.BytesIO(), pickle_module=module)
    with pytest.raises(NotImplementedError, match="writes none"):
        torch.save(1, io.BytesIO(), _use_new_zipfile_serialization=False)


def test_where_torch_is_flambeau_names_are_pytorchs_too() -> None:
    import subprocess
    import sys

    program = (
        "from flambeau.cli.import_hook import install; install()\n"
        "import io, zipfile, torch\n"
        "file = io.BytesIO(); torch.save([torch.nn.Linear(2, 2), torch.utils.data.TensorDataset(torch.ones(1))], file)\n"
        "print(b'flambeau' in file.getvalue())\n"
        "file.seek(0); print(type(torch.load(file, weights_only=False)[0]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["False", "<class 'torch.nn.modules.linear.Linear'>"]


# -- damage ---------------------------------------------------------------------------------------------------


def test_damaged_bytes_are_found_by_their_checksum(tmp_path: Path) -> None:
    raw = bytearray(saved(torch.arange(1000)).getvalue())
    raw[3000] ^= 1
    with pytest.raises(RuntimeError, match="failed reading file data/0: file read failed"):
        torch.load(io.BytesIO(bytes(raw)))


@pytest.mark.parametrize("weights_only", [True, False])
def test_whatever_is_cut_off_or_changed_raises_what_is_documented(weights_only: bool) -> None:
    """Pickles only: those that are run go through Python's machine, whose errors are its own."""
    whole = saved({"a": torch.arange(20), "b": [torch.ones(2, 2)[:, 1], "text"]}).getvalue()
    rng = random.Random(5)
    for _ in range(300):
        raw = bytearray(whole)
        if rng.random() < 0.3:
            raw = raw[: rng.randrange(len(raw))]
        else:
            for _ in range(rng.randrange(1, 4)):
                raw[rng.randrange(len(raw))] = rng.randrange(256)
        try:
            torch.load(io.BytesIO(bytes(raw)), weights_only=weights_only)
        except (RuntimeError, pickle.UnpicklingError, EOFError):
            pass
        except (zipfile.BadZipFile, NotImplementedError) as error:  # what is these is no checkpoint's fault
            pytest.fail(f"{error!r} gets out")


def test_damaged_pickles_raise_what_is_documented() -> None:
    """Straight into the machine: no checksum stands before it."""
    whole = zipfile.ZipFile(
        saved({"a": torch.arange(20), "b": [torch.ones(2, 2)[:, 1], {1, 2}, 1j, b"x"]})
    ).read("archive/data.pkl")
    rng = random.Random(7)
    done = 0
    for _ in range(3000):
        raw = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
        file = checkpoint_of(bytes(raw), **{"0": bytes(160), "1": bytes(16)})
        try:
            torch.load(file)
            done += 1
        except (RuntimeError, pickle.UnpicklingError, EOFError):
            pass
    assert done < 3000


@pytest.mark.parametrize("place", ["x" * 5000, "cuda:" + "9" * 5000])
def test_names_of_places_are_shown_in_brief(place: str) -> None:
    data = zipfile.ZipFile(saved(torch.ones(1))).read("archive/data.pkl")
    changed = data.replace(O.text("cpu"), O.text(place))
    with pytest.raises(RuntimeError, match="don't know how to restore data location") as caught:
        torch.load(checkpoint_of(changed, **{"0": bytes(4)}))
    assert len(str(caught.value)) < 300


def test_missing_and_wrong_storages() -> None:
    data = zipfile.ZipFile(saved(torch.arange(3))).read("archive/data.pkl")
    with pytest.raises(RuntimeError, match="failed locating file data/0: file not found"):
        torch.load(checkpoint_of(data))
    with pytest.raises(
        RuntimeError, match="storage 0 has 20 bytes, and its description says 3 elements of 8 bytes"
    ):
        torch.load(checkpoint_of(data, **{"0": bytes(20)}))


def test_archives_with_an_empty_pickle_are_damaged() -> None:
    with pytest.raises(RuntimeError, match=r"the pickle of the checkpoint is empty .BytesIO, byte 0."):
        torch.load(checkpoint_of(b""))


def test_storages_outside_of_the_object_are_refused_with_the_file() -> None:
    """In the older format, whose parts are pickles of their own."""
    pid = "(X\x07\0\0\0storagectorch\nFloatStorage\nX\1\0\0\x000X\3\0\0\0cpuK\0tQ.".encode("latin-1")
    file = io.BytesIO(pickle.dumps(MAGIC, 2) + pickle.dumps(VERSION, 2) + b"\x80\x02" + pid)
    file.name = "old.pt"
    with pytest.raises(
        pickle.UnpicklingError, match=r"only the object itself may name storages.*old\.pt, byte"
    ):
        torch.load(file)


def test_names_of_a_pickle_that_ends_early_are_not_listed() -> None:
    with pytest.raises(pickle.UnpicklingError, match="the pickle ends early"):
        torch.serialization.get_unsafe_globals_in_checkpoint(checkpoint_of(b"\x80\x02}"))


def test_torchscript_archives_are_named() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", b"")
        archive.writestr("archive/constants.pkl", b"")
    file.seek(0)
    with pytest.raises(RuntimeError, match="TorchScript"):
        torch.load(file)


# -- harm -----------------------------------------------------------------------------------------------------


class Opcodes:
    """Pickles by hand, protocol 2."""

    @staticmethod
    def name(module: str, name: str) -> bytes:
        return f"c{module}\n{name}\n".encode()

    @staticmethod
    def text(value: str) -> bytes:
        return b"X" + struct.pack("<i", len(value)) + value.encode()


O = Opcodes
ORDERED = O.name("collections", "OrderedDict")
REBUILD = O.name("torch._utils", "_rebuild_tensor_v2")
SUBCLASS = O.name("torch._tensor", "_rebuild_from_type_v2")
HARM: dict[str, bytes] = {
    "os.system": O.name("os", "system") + O.text("true") + b"\x85R.",
    "eval": O.name("__builtin__", "eval") + O.text("1") + b"\x85R.",
    "a dotted name": b"\x80\x04\x8c\x0bcollections\x8c\x14OrderedDict.fromkeys\x93.",
    "getattr": O.name("__builtin__", "getattr") + b".",
    "an instance": b"(ios\nsystem\n.",
    "an object": b"(cos\nsystem\no.",
    "an extension": b"\x82\x01.",
    "a persistent name": b"P0\n.",
    "a persistent id that is none": O.text("x") + b"Q.",
    "attributes of a class": ORDERED + b"}" + O.text("x") + b"K\x01s" + b"b.",
    "slots of a class": ORDERED + b"N}" + O.text("fromkeys") + b"K\x01s\x86b.",
    "attributes of a function": REBUILD + b"}" + O.text("__doc__") + b"K\x01s" + b"b.",
    "slots of a tensor class": O.name("torch", "Tensor") + b"N}" + O.text("__add__") + REBUILD + b"s\x86b.",
    "items of a class": O.name("torch", "Size") + b"K\x00K\x01s.",
    "a call of a dtype": O.name("torch", "float32") + b")R.",
    "a call of a storage class": O.name("torch", "FloatStorage") + b")R.",
    "a call of a string": O.text("x") + b")R.",
    "a call of a mark": b"()R.",
    "arguments that are no tuple": ORDERED + b"]R.",
    "a new object of a class": O.name("torch", "Tensor") + b")\x81.",
    "a codec": O.name("_codecs", "encode") + O.text("x") + O.text("rot13") + b"\x86R.",
    "an append to a class": ORDERED + b"K\x01a.",
    "an addition to a tuple": b"\x80\x04)(K\x01\x90.",
    "nothing on the stack": b"R.",
    "no mark": b"K\x01t.",
    "text of protocol 0": b"S'x'\n.",
    "a persistent id of nothing": b"Q.",
    "a memo that is not there": b"h\x05.",
}  # fmt: skip


@pytest.mark.parametrize("what", HARM)
def test_harm_is_refused(what: str) -> None:
    before = dict(vars(torch.Tensor)), dict(vars(collections.OrderedDict))
    with pytest.raises(pickle.UnpicklingError) as caught:
        torch.load(checkpoint_of(HARM[what]))
    assert "Weights only load failed" in str(caught.value)
    assert (dict(vars(torch.Tensor)), dict(vars(collections.OrderedDict))) == before


def test_a_subclass_is_built_by_what_builds_tensors_only() -> None:
    for define, kind, state in (
        (ORDERED, O.name("torch", "Tensor"), b"}"),
        (SUBCLASS, O.name("torch", "Tensor"), b"}"),
        (REBUILD, ORDERED, b"}"),
        (REBUILD, O.name("torch", "Tensor"), b"]"),
        (REBUILD, O.name("torch", "Tensor"), b"}K\x01K\x01s"),
    ):
        with pytest.raises(pickle.UnpicklingError):
            torch.load(checkpoint_of(SUBCLASS + b"(" + define + kind + b")" + state + b"tR."))


class Declared:
    """A class with slots and a state of its own."""

    __slots__ = ("a",)

    def __getstate__(self) -> Any:
        return {"a": self.a}

    def __setstate__(self, state: Any) -> None:
        self.a = state["a"]


class Slotted:
    __slots__ = ("__dict__", "b")


class Pairs(dict):
    """A dict of a class of its own."""


def test_declared_classes() -> None:
    one, two, three = Declared(), Slotted(), Pairs(x=1)
    one.a, two.b, two.c = 1, 2, 3
    file = saved([one, two, three])
    with pytest.raises(pickle.UnpicklingError, match=r"add_safe_globals\(\[test_loading.Declared\]\)"):
        torch.load(file)
    with torch.serialization.safe_globals([Declared, (Slotted, f"{__name__}.Slotted"), Pairs]):
        file.seek(0)
        found = torch.load(file)
    assert found[0].a == 1 and found[1].b == 2 and found[1].c == 3
    assert found[2] == {"x": 1} and type(found[2]) is Pairs


def test_the_list_of_declared_things() -> None:
    safe = torch.serialization
    safe.add_safe_globals([Declared, (Slotted, "other.Name")])
    try:
        assert safe.get_safe_globals() == [Declared, (Slotted, "other.Name")]
        with safe.safe_globals([np.dtype]):
            assert np.dtype in safe.get_safe_globals()
        assert np.dtype not in safe.get_safe_globals()
    finally:
        safe.clear_safe_globals()
    assert safe.get_safe_globals() == []
    with pytest.raises(TypeError, match="functions and classes"):
        safe.add_safe_globals([3])
    with pytest.raises(ValueError, match="Expected a tuple"):
        safe.add_safe_globals([(Declared, 3)])


def test_arrays_once_their_parts_are_declared() -> None:
    array = np.arange(3.0)
    file = saved(array)
    parts = [np._core.multiarray._reconstruct, np.ndarray, np.dtype, type(np.dtype(float))]
    with torch.serialization.safe_globals(parts):
        assert (torch.load(file) == array).all()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_machine_reads_what_python_writes(protocol: int) -> None:
    value = [
        1, -1, 300, 70_000, 2**40, -(2**70), 1.5, True, None, "é" * 300, b"\x00\xff" * 200, bytearray(b"x"), (), (1,),
        (1, 2), (1, 2, 3), tuple(range(9)), {"a": [1]}, {1, 2}, 1 + 2j, collections.OrderedDict(a=1), "a\nb", "",
    ]  # fmt: skip
    found = PickleMachine(lambda pid: pid, {}, 100).load(io.BytesIO(pickle.dumps(value, protocol)))
    assert found == value
    assert [type(x) for x in found] == [type(x) for x in value]


def test_strings_of_python_2() -> None:
    raw = b"\x80\x02](T\x05\x00\x00\x00caf\xc3\xa9U\x02\xc3\xa9e."
    assert torch.load(checkpoint_of(raw)) == ["café", "é"]
    assert torch.load(checkpoint_of(raw), encoding="latin1") == ["cafÃ©", "Ã©"]
    assert torch.load(checkpoint_of(raw), encoding="bytes") == [b"caf\xc3\xa9", b"\xc3\xa9"]
    assert torch.load(checkpoint_of(raw), encoding="bytes", weights_only=False) == [
        b"caf\xc3\xa9",
        b"\xc3\xa9",
    ]

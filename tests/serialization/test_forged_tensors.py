"""Forged tensors of checkpoints: sparse ones, conjugates, attributes, in the zip format and the older one."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from typing import Any

import pytest

import flambeau as torch
from flambeau.serialization.legacy import MAGIC, VERSION

UTILS = "torch._utils"


class Name:
    """A name of PyTorch's, as pickles have them."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Apply:
    """A call in a pickle."""

    def __init__(self, define: Any, *arguments: Any) -> None:
        self.define, self.arguments = define, arguments


class Stored:
    """A storage of a checkpoint."""

    def __init__(self, kind: str, key: str, count: int) -> None:
        self.pid = ("storage", Name("torch", f"{kind}Storage"), key, "cpu", count)


class Forger(pickle._Pickler):
    """Pickles names, calls and storages that are not here."""

    dispatch = pickle._Pickler.dispatch.copy()  # type: ignore[attr-defined]

    def _name(self, name: Name) -> None:
        self.write(f"c{name.module}\n{name.name}\n".encode())  # type: ignore[attr-defined]

    def _apply(self, call: Apply) -> None:
        self.save(call.define)
        self.save(call.arguments)
        self.write(b"R")  # type: ignore[attr-defined]

    def _stored(self, storage: Stored) -> None:
        self.save(storage.pid)
        self.write(b"Q")  # type: ignore[attr-defined]

    dispatch |= {Name: _name, Apply: _apply, Stored: _stored}


def pickled(value: Any) -> bytes:
    file = io.BytesIO()
    Forger(file, 2).dump(value)
    return file.getvalue()


def forged(value: Any, storages: dict[str, bytes], counts: dict[str, int], form: str) -> io.BytesIO:
    """Return a checkpoint of a value with storages of these bytes."""
    file = io.BytesIO()
    if form == "zip":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("a/data.pkl", pickled(value))
            for key, raw in storages.items():
                archive.writestr(f"a/data/{key}", raw)
    else:
        for part in (MAGIC, VERSION, {"little_endian": True}):
            file.write(pickle.dumps(part, 2))
        file.write(pickled(value) + pickle.dumps(list(storages), 2))
        for key, raw in storages.items():
            file.write(struct.pack("<q", counts[key]) + raw)
    file.seek(0)
    return file


def tensor(kind: str, key: str, count: int, shape: Any, strides: Any, *more: Any) -> Apply:
    return Apply(Name(UTILS, "_rebuild_tensor_v2"), Stored(kind, key, count), 0, shape, strides, *more)


FLOATS = struct.pack("<4f", 1, 2, 3, 4)
FORMS = pytest.mark.parametrize("form", ["zip", "older"])


def sparse(layout: str, *parts: Any) -> Apply:
    named = Apply(Name("torch.serialization", "_get_layout"), f"torch.{layout}")
    return Apply(Name(UTILS, "_rebuild_sparse_tensor"), named, parts)


def coo(indices: list[int], size: Any, *flag: Any, form: str) -> io.BytesIO:
    made = sparse(
        "sparse_coo", tensor("Long", "0", 4, (1, 4), (4, 1)), tensor("Float", "1", 4, (4,), (1,)), size, *flag
    )
    return forged(made, {"0": struct.pack("<4q", *indices), "1": FLOATS}, {"0": 4, "1": 4}, form)


def csr(compressed: list[int], plain: list[int], form: str) -> io.BytesIO:
    parts = (
        tensor("Long", "0", 3, (3,), (1,)), tensor("Long", "1", 4, (4,), (1,)), tensor("Float", "2", 4, (4,), (1,)), (2, 2),
    )  # fmt: skip
    storages = {"0": struct.pack("<3q", *compressed), "1": struct.pack("<4q", *plain), "2": FLOATS}
    return forged(sparse("sparse_csr", *parts), storages, {"0": 3, "1": 4, "2": 4}, form)


@FORMS
def test_indices_of_sparse_tensors_are_checked(form: str) -> None:
    assert torch.load(coo([3, 1, 0, 2], (5,), form=form)).to_dense().tolist() == [3, 2, 4, 1, 0]
    for indices, flag in (
        ([0, 1, 2, 5], ()),
        ([0, 1, 2, -1], ()),
        ([0, 1, 2, 1 << 40], ()),
        ([1, 1, 2, 3], (True,)),
    ):
        with pytest.raises(RuntimeError, match=r"index|uncoalesced"):
            torch.load(coo(indices, (5,), *flag, form=form))
    assert torch.load(csr([0, 2, 4], [0, 1, 0, 1], form)).to_dense().tolist() == [[1, 2], [3, 4]]
    for starts, places in ([0, 2, 4], [0, 1, 0, 2]), ([0, 9, 4], [0, 1, 0, 1]), ([0, 2, 4], [0, 1, 0, -1]):
        with pytest.raises(RuntimeError, match="is not satisfied"):
            torch.load(csr(starts, places, form))


@FORMS
def test_indices_of_sparse_tensors_are_not_shared(form: str) -> None:
    """A change of other tensors of the file cannot lead them out of the tensor after the check."""
    indices = tensor("Long", "0", 4, (1, 4), (4, 1))
    values = tensor("Long", "0", 4, (4,), (1,))
    file = forged(
        [sparse("sparse_coo", indices, values, (5,)), values],
        {"0": struct.pack("<4q", 0, 1, 2, 3)},
        {"0": 4},
        form,
    )
    made, other = torch.load(file)
    other.fill_(1000)
    made._values().mul_(2)
    assert made._indices().tolist() == [[0, 1, 2, 3]]


def test_indices_of_few_bytes_are_few() -> None:
    many = 1 << 40
    parts = tensor("Long", "0", 1, (1, many), (0, 0)), tensor("Float", "1", 4, (many,), (0,)), (5,)
    with pytest.raises(pickle.UnpicklingError, match="more work than its size explains"):
        torch.load(forged(sparse("sparse_coo", *parts), {"0": bytes(8), "1": FLOATS}, {}, "zip"))


@pytest.mark.parametrize(
    "bits", [{"conj": True, "x": True}, {"conj": 1}, {"conj": True}, "conj", [1], {"neg": None}]
)
def test_metadata_of_tensors_are_checked(bits: Any) -> None:
    file = forged(tensor("Float", "0", 4, (4,), (1,), False, None, bits), {"0": FLOATS}, {}, "zip")
    with pytest.raises(RuntimeError, match=r"metadata of a tensor|cannot be a conjugate"):
        torch.load(file)


def test_conjugates_of_few_bytes_are_few() -> None:
    one = tensor("ComplexFloat", "0", 1 << 14, (1 << 40,), (0,), False, None, {"conj": True})
    made = torch.load(forged(one, {"0": struct.pack("<2f", 1, 2) * (1 << 14)}, {}, "zip"))
    assert made.shape == (1 << 40,) and made[5].item() == 1 - 2j
    with pytest.raises(pickle.UnpicklingError, match="more work than its size explains"):
        torch.load(forged([one] * 500, {"0": bytes(1 << 17)}, {}, "zip"))


@pytest.mark.parametrize("name", ["numel", "tolist", "__class__", "backward"])
def test_attributes_do_not_hide_methods(name: str) -> None:
    plain = tensor("Float", "0", 4, (4,), (1,))
    state = {name: 1}
    for made in (
        Apply(Name("torch._tensor", "_rebuild_from_type_v2"), plain.define, Name("torch", "Tensor"), plain.arguments, state),
        Apply(Name(UTILS, "_rebuild_parameter_with_state"), plain, True, None, state),
        Apply(
            Name("torch._tensor", "_rebuild_from_type_v2"), Name(UTILS, "_rebuild_parameter_with_state"),
            Name("torch", "Tensor"), (plain, True, None, state), {},
        ),
    ):  # fmt: skip
        with pytest.raises(pickle.UnpicklingError, match="would hide its method"):
            torch.load(forged(made, {"0": FLOATS}, {}, "zip"))


def test_storages_that_only_the_second_reading_names_are_refused() -> None:
    """The older format reads a pickle twice: what its calls return is not known at first."""
    hidden = Stored("Float", "0", 4)
    hidden.pid = (*hidden.pid[:2], Apply(Name("_codecs", "encode"), "0", "latin1"), *hidden.pid[3:])
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        torch.load(forged(hidden, {"0": FLOATS}, {"0": 4}, "older"))


@pytest.mark.parametrize(
    "place, words", [(0, "magic"), (1, "protocol version"), (2, "byte order"), (4, "list of storages")]
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_tensors_in_place_of_numbers_are_refused(place: int, words: str, shape: tuple[int, ...]) -> None:
    strides = (1,) * len(shape)
    forgery = Apply(
        Name(UTILS, "_rebuild_meta_tensor_no_storage"), Name("torch", "int64"), shape, strides, False
    )
    parts: list[Any] = [MAGIC, VERSION, {"little_endian": True}, None, []]
    parts[place] = {"little_endian": forgery} if place == 2 else forgery
    file = io.BytesIO(b"".join(map(pickled, parts)))
    with pytest.raises(RuntimeError, match=words):
        torch.load(file)

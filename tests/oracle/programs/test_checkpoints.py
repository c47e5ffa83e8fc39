"""Checkpoints against PyTorch's: each reads what the other writes, and refuses what the other refuses."""

from __future__ import annotations

import collections
import io
import pickle
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import from_torch, same, to_torch, torch

import flambeau
from flambeau.core.dtype import DTYPES

KINDS = [d.name for d in DTYPES]


def written_by_torch(obj: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(obj, file, **options)
    file.seek(0)
    return file


def written(obj: Any, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    flambeau.save(obj, file, **options)
    file.seek(0)
    return file


def theirs(kind: str, shape: tuple[int, ...] = (2, 3)) -> Any:
    """A PyTorch tensor of small numbers."""
    count = 1
    for n in shape:
        count *= n
    return (
        (torch.arange(count) % 2 if kind == "bool" else torch.arange(count))
        .reshape(shape)
        .to(getattr(torch, kind))
    )


# -- tensors ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_each_dtype_goes_both_ways(kind: str, weights_only: bool) -> None:
    tensor = theirs(kind)
    same(flambeau.load(written_by_torch(tensor), weights_only=weights_only), tensor)
    again = torch.load(written(from_torch(tensor)), weights_only=weights_only)
    same(from_torch(again), tensor)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k not in ("uint16", "uint32", "uint64", "complex32") and "float8" not in k]
)
def test_the_older_format_is_read(kind: str) -> None:
    shared = theirs(kind, (4, 3))
    saved = {"all": shared, "part": shared[1:3, ::2], "other": torch.ones(2)}
    file = written_by_torch(saved, _use_new_zipfile_serialization=False)
    found = flambeau.load(file)
    for name, tensor in saved.items():
        same(found[name], tensor)
    assert found["all"].untyped_storage().data_ptr() == found["part"].untyped_storage().data_ptr()
    assert not file.read(), "the file stands behind the checkpoint"


def test_objects_one_after_another_in_a_file_of_the_older_format() -> None:
    file = io.BytesIO()
    for n in range(3):
        torch.save(torch.full((2,), n), file, _use_new_zipfile_serialization=False)
    file.seek(0)
    assert [flambeau.load(file).tolist() for _ in range(3)] == [[0, 0], [1, 1], [2, 2]]


layouts = st.tuples(
    st.lists(st.integers(0, 4), max_size=3).map(tuple),
    st.lists(st.integers(0, 3), min_size=3, max_size=3),
    st.integers(0, 5),
)


@given(layouts, st.sampled_from(["float32", "int8", "complex64"]))
def test_strided_views_keep_their_layout(layout: Any, kind: str) -> None:
    shape, strides, offset = layout
    strides = strides[: len(shape)]
    base = theirs(kind, (64,))
    view = base.as_strided(shape, strides, offset)
    found = flambeau.load(written_by_torch(view))
    same(found, view)
    assert found.storage_offset() == offset
    back = torch.load(written(found))
    assert back.storage_offset() == offset and back.stride() == view.stride()
    assert torch.equal(back, view)


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("is_zip", [True, False])
def test_conjugates_and_negatives_are_read(is_zip: bool, weights_only: bool) -> None:
    """PyTorch stores the elements of the base, and the operation beside them."""
    base = torch.arange(6.0).to(torch.complex64) * (1 + 2j)
    every = [
        base.conj(), base[1:3].conj(), base.conj().reshape(2, 3).t(), base[:1].expand(4).conj(), torch.view_as_complex(torch.rand(2, 2)).conj().imag,
        torch._neg_view(torch.arange(3)), torch.nn.Parameter(base.conj()), base,
    ]  # fmt: skip
    file = written_by_torch(every, _use_new_zipfile_serialization=is_zip)
    for ours, expected in zip(flambeau.load(file, weights_only=weights_only), every, strict=True):
        same(ours.detach().contiguous(), expected.detach().resolve_conj().resolve_neg().contiguous())
        assert type(ours).__name__ == type(expected).__name__


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("is_zip", [True, False])
def test_sparse_tensors_are_read(is_zip: bool, weights_only: bool) -> None:
    dense = torch.tensor([[0.0, 2, 0], [3, 0, 4]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of CSR, in beta state
        every = [
            dense.to_sparse(),
            dense.to_sparse_csr(),
            dense.to_sparse_csc(),
            torch.nn.Parameter(dense.to_sparse()),
        ]
        file = written_by_torch(every, _use_new_zipfile_serialization=is_zip)
    for ours, expected in zip(flambeau.load(file, weights_only=weights_only), every, strict=True):
        same(ours.detach().to_dense(), expected.detach().to_dense())
        assert str(ours.layout) == str(expected.layout)


def test_views_share_memory_again() -> None:
    base = theirs("float32", (4, 4))
    found = flambeau.load(written_by_torch([base, base[1], base.t()]))
    found[0][1, 2] = 99
    assert found[1][2] == 99 and found[2][2, 1] == 99
    back = torch.load(written(found))
    back[0][1, 2] = -1
    assert back[1][2] == -1 and back[2][2, 1] == -1


def test_one_memory_as_two_types_is_refused_as_by_torch() -> None:
    def save(package: Any) -> None:
        base = package.zeros(4)
        package.save([base, base.view(package.int32)], io.BytesIO())

    with pytest.raises(RuntimeError) as expected:
        save(torch)
    with pytest.raises(RuntimeError) as found:
        save(flambeau)
    assert str(found.value) == str(expected.value)


# -- containers ---------------------------------------------------------------------------------------------

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8), st.binary(min_size=1, max_size=8),
    st.complex_numbers(allow_nan=False),
    st.builds(lambda n: ("tensor", n), st.integers(0, 5)),
)  # fmt: skip
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=4),
        st.dictionaries(st.text(max_size=4), inner, max_size=4).map(collections.OrderedDict),
        st.sets(st.integers(), max_size=4),
    ),
    max_leaves=12,
)


def grown(tree: Any, package: Any) -> Any:
    """A tree with tensors of a package where it says so."""
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] == "tensor":
        return package.arange(tree[1])
    if isinstance(tree, (list, tuple)):
        return type(tree)(grown(x, package) for x in tree)
    if isinstance(tree, dict):
        return type(tree)((k, grown(v, package)) for k, v in tree.items())
    return tree


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, (flambeau.Tensor, torch.Tensor)):
        return type(other).__name__ == "Tensor" and one.tolist() == other.tolist()
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[k], other[k]) for k in one)
    return bool(one == other)


@given(trees, st.booleans(), st.sampled_from([2, 3, 4, 5]))
def test_containers_go_both_ways(tree: Any, weights_only: bool, protocol: int) -> None:
    ours, torchs = grown(tree, flambeau), grown(tree, torch)
    assert alike(flambeau.load(written_by_torch(torchs), weights_only=weights_only), ours)
    assert alike(flambeau.load(written_by_torch(torchs, pickle_protocol=protocol)), ours)
    assert alike(torch.load(written(ours), weights_only=weights_only), torchs)
    assert alike(flambeau.load(written(ours, pickle_protocol=protocol), weights_only=weights_only), ours)


def test_recursive_containers() -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    found = flambeau.load(written_by_torch(loop))
    assert found[1] is found


def test_values_of_the_package() -> None:
    saved = {
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "device": torch.device("cuda", 1),
        "cpu": torch.device("cpu"), "counter": collections.Counter("aab"), "bytes": bytearray(b"abc"),
    }  # fmt: skip
    found = flambeau.load(written_by_torch(saved))
    assert found["size"] == (2, 3) and type(found["size"]) is flambeau.Size
    assert found["dtype"] is flambeau.bfloat16
    assert found["device"] == flambeau.device("cuda:1") and found["cpu"] == flambeau.device("cpu")
    assert found["counter"] == collections.Counter("aab") and type(found["counter"]) is collections.Counter
    assert torch.load(written(found)) == saved


def test_layouts() -> None:
    assert flambeau.load(written_by_torch(torch.strided)) is flambeau.strided
    assert torch.load(written(flambeau.strided)) is torch.strided


def test_storages() -> None:
    tensor = theirs("float64")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch: TypedStorage is deprecated
        typed = flambeau.load(written_by_torch(tensor.storage()))
    assert typed.tolist() == tensor.flatten().tolist() and repr(typed.dtype) == "torch.float64"
    untyped = flambeau.load(written_by_torch(tensor.untyped_storage()))
    assert untyped.nbytes() == 48
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.load(written(typed)).tolist() == typed.tolist()
    assert bytes(torch.load(written(untyped)).tolist()) == bytes(untyped.tolist())


# -- parameters, modules ------------------------------------------------------------------------------------


def test_parameters_and_attributes() -> None:
    parameter, plain, trained = (
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(3),
        torch.ones(3, requires_grad=True),
    )
    parameter.mark, plain.mark = "p", "t"  # type: ignore[attr-defined]
    found = flambeau.load(written_by_torch([parameter, plain, trained, torch.nn.Parameter(plain, False)]))
    assert [type(x).__name__ for x in found] == ["Parameter", "Tensor", "Tensor", "Parameter"]
    assert [x.requires_grad for x in found] == [True, False, True, False]
    assert found[0].mark == "p" and found[1].mark == "t"
    back = torch.load(written(found))
    assert [type(x).__name__ for x in back] == ["Parameter", "Tensor", "Tensor", "Parameter"]
    assert [x.requires_grad for x in back] == [True, False, True, False]
    assert back[0].mark == "p" and back[1].mark == "t"


def test_state_dicts_keep_their_metadata() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    state = module.state_dict()
    found = flambeau.load(written_by_torch(state))
    assert type(found) is collections.OrderedDict and list(found) == list(state)
    assert found._metadata == state._metadata
    for name, tensor in state.items():
        same(found[name], tensor)
    back = torch.load(written(found))
    assert back._metadata == state._metadata
    module.load_state_dict(back)


def test_optimizer_states() -> None:
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    found = flambeau.load(written_by_torch(state))
    assert found["param_groups"] == state["param_groups"]
    same(found["state"][0]["exp_avg"], state["state"][0]["exp_avg"])
    optimizer.load_state_dict(torch.load(written(found)))


# -- the file -----------------------------------------------------------------------------------------------


def test_paths_and_archive_names(tmp_path: Path) -> None:
    path = tmp_path / "model.tar.pt"
    flambeau.save({"x": flambeau.ones(3)}, path)
    torch.save(torch.load(path), tmp_path / "theirs.pt")
    ours, expected = zipfile.ZipFile(path), zipfile.ZipFile(tmp_path / "theirs.pt")
    assert {n.split("/")[0] for n in ours.namelist()} == {"model.tar"}
    assert {n.split("/", 1)[1] for n in expected.namelist()} - {
        n.split("/", 1)[1] for n in ours.namelist()
    } == {".data/serialization_id"}
    assert flambeau.load(str(tmp_path / "theirs.pt"))["x"].tolist() == [1, 1, 1]


def test_records_are_aligned_for_mapping(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    flambeau.save([flambeau.ones(n) for n in range(1, 20)], path)
    raw = path.read_bytes()
    for info in zipfile.ZipFile(path).infolist():
        begin = info.header_offset + 30 + sum(struct.unpack_from("<HH", raw, info.header_offset + 26))
        assert begin % 64 == 0, info.filename
    assert [t.numel() for t in torch.load(path, mmap=True)] == list(range(1, 20))


def test_a_file_of_a_big_endian_machine() -> None:
    """Made by hand from PyTorch's file: its bytes turned around."""
    tensors = [theirs("int32"), theirs("complex64"), theirs("uint8"), theirs("float64")]
    source = zipfile.ZipFile(written_by_torch(tensors))
    turned = io.BytesIO()
    with zipfile.ZipFile(turned, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name.endswith("byteorder"):
                data = b"big"
            elif "/data/" in name:
                size = (4, 4, 1, 8)[int(name.rpartition("/")[2])]
                data = b"".join(data[i : i + size][::-1] for i in range(0, len(data), size))
            target.writestr(name, data)
    turned.seek(0)
    for found, tensor in zip(flambeau.load(turned), tensors, strict=True):
        same(found, tensor)


# -- what is refused ----------------------------------------------------------------------------------------


class Foo:
    """A class of the user's."""

    def __init__(self) -> None:
        self.x = 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foo) and other.__dict__ == self.__dict__


def boom(*arguments: Any) -> None:
    raise AssertionError("the pickle was run")


class Boom:
    def __reduce__(self) -> Any:
        return boom, (1,)


@pytest.mark.parametrize(
    "obj", [Foo(), Boom(), [boom], frozenset([1]), range(3), slice(1), collections.deque([1]), collections.defaultdict(int), len, Path("x")],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_what_torch_refuses_is_refused_in_its_words(obj: Any) -> None:
    file = written_by_torch(obj)
    with pytest.raises(pickle.UnpicklingError) as expected:
        torch.load(file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError) as found:
        flambeau.load(file)
    plain = str(expected.value).replace("\033[1m", "").replace("\033[0m", "")
    assert str(found.value) == plain


def test_declared_classes_are_loaded() -> None:
    file = written_by_torch([Foo(), collections.deque([1])])
    with flambeau.serialization.safe_globals([Foo, collections.deque]):
        assert flambeau.serialization.get_safe_globals() == [Foo, collections.deque]
        assert flambeau.load(file) == [Foo(), collections.deque([1])]
    file.seek(0)
    assert flambeau.serialization.get_safe_globals() == []
    with pytest.raises(pickle.UnpicklingError):
        flambeau.load(file)


def test_the_names_that_would_be_refused() -> None:
    obj = [Foo(), torch.ones(1), Boom(), {1: 2}]
    expected = torch.serialization.get_unsafe_globals_in_checkpoint(written_by_torch(obj))
    for protocol in (2, 4):  # PyTorch looks into protocol 2 only
        file = written_by_torch(obj, pickle_protocol=protocol)
        found = flambeau.serialization.get_unsafe_globals_in_checkpoint(file)
        assert sorted(found) == sorted(expected)


def test_bytes_of_nothing() -> None:
    assert flambeau.load(written([b""])) == [b""]


def test_everything_is_loaded_on_request() -> None:
    file = written_by_torch([Foo(), range(3)])
    assert flambeau.load(file, weights_only=False) == [Foo(), range(3)]
    file.seek(0)
    assert flambeau.load(file, pickle_module=pickle) == [Foo(), range(3)]


FILES: dict[str, bytes] = {
    "empty": b"", "a pickle": pickle.dumps(3, 2), "half an archive": b"PK\x03\x04 garbage",
}  # fmt: skip


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_other_files(name: str, weights_only: bool) -> None:
    """The type of the error is PyTorch's, and its words as far as they do not describe its zip library."""
    with pytest.raises(Exception) as expected:
        torch.load(io.BytesIO(FILES[name]), weights_only=weights_only)
    with pytest.raises(expected.type) as found:
        flambeau.load(io.BytesIO(FILES[name]), weights_only=weights_only)
    assert str(found.value)[:45] == str(expected.value)[:45] or not str(expected.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.load("/nonexistent/x.pt"),
        lambda t: t.save(1, "/nonexistent/x.pt"),
        lambda t: t.save(1, 3),
        lambda t: t.load(3),
        lambda t: t.load(io.BytesIO(b""), mmap=True),
        lambda t: t.load(io.BytesIO(b""), pickle_module=pickle, weights_only=True),
    ],
)
def test_wrong_arguments(call: Any) -> None:
    with pytest.raises(Exception) as expected:
        call(torch)
    with pytest.raises(expected.type) as found:
        call(flambeau)
    assert str(found.value) == str(expected.value)


def test_ours_reads_back_what_support_carries() -> None:
    """The test's own bridge and the file agree."""
    tensor = theirs("float32")
    assert torch.equal(to_torch(flambeau.load(written(from_torch(tensor)))), tensor)

"""Settings of checkpoints and the registry of places, against PyTorch's CPU build."""

from __future__ import annotations

import io
import mmap
import pickle
import types
from typing import Any

import pytest
from support import torch

import flambeau
from flambeau import serialization as ours
from flambeau.core.errors import NotSupportedError
from flambeau.serialization import places


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test registers."""
    monkeypatch.setattr(places, "_registered", [])


def test_registered_functions_name_places_and_find_them(restored: None) -> None:
    here = flambeau.ones(3)
    special = here.untyped_storage().data_ptr()
    moved: list[str] = []

    def deserialize(storage: Any, location: str) -> Any:
        if location != "vault":
            return None
        moved.append(location)
        return storage.clone()

    ours.register_package(5, lambda storage: "vault" if storage.data_ptr() == special else None, deserialize)
    buffer = io.BytesIO()
    flambeau.save({"here": here, "there": flambeau.zeros(2)}, buffer)
    assert b"vault" in buffer.getvalue()
    buffer.seek(0)
    loaded = flambeau.load(buffer)
    assert (loaded["here"].tolist(), loaded["there"].tolist(), moved) == ([1, 1, 1], [0, 0], ["vault"])


def test_lower_priorities_come_first(restored: None) -> None:
    for priority, tag in ((20, "late"), (10, "early")):
        ours.register_package(priority, lambda storage, tag=tag: tag, lambda storage, location: None)
    assert ours.location_tag(flambeau.ones(1).untyped_storage()) == "early"


VERSIONS = [
    ("1.2.3", (1, 2, 3)),
    ("1.2.3", (1, 2, 4)),
    ("1.10", (1, 9)),
    ("2.0a", (2, 0)),
    ("0.9", (1, 0, 0)),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("version, required", VERSIONS)
def test_versions_compare_as_in_pytorch(version: str, required: tuple[int, ...], strict: bool) -> None:
    module = types.ModuleType("m")
    module.__version__ = version  # type: ignore[attr-defined]
    outcomes: list[Any] = []
    for lib in (ours, torch.serialization):
        try:
            outcomes.append(lib.check_module_version_greater_or_equal(module, required, strict))
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_settings_have_pytorchs_defaults_and_refusals() -> None:
    theirs = torch.serialization
    assert ours.get_crc32_options() is theirs.get_crc32_options() is True
    assert ours.get_default_load_endianness() is theirs.get_default_load_endianness() is None
    assert ours.get_default_mmap_options() == theirs.get_default_mmap_options() == mmap.MAP_PRIVATE
    for lib in (ours, theirs):
        with pytest.raises(TypeError, match="Invalid argument type in function set_default_load_endianness"):
            lib.set_default_load_endianness("big")
        with pytest.raises(ValueError, match="Invalid argument in function set_default_mmap_options"):
            lib.set_default_mmap_options(99)
    with ours.set_default_mmap_options(mmap.MAP_PRIVATE):
        pass
    with pytest.raises(NotSupportedError, match="copy-on-write"):
        ours.set_default_mmap_options(mmap.MAP_SHARED)
    with pytest.raises(NotSupportedError, match="skip_data"):
        ours.skip_data()


def test_a_checkpoint_without_byte_order_is_read_in_the_default_one() -> None:
    import zipfile

    buffer, stripped = io.BytesIO(), io.BytesIO()
    flambeau.save(flambeau.tensor([1], dtype=flambeau.int32), buffer)
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(stripped, "w") as target:
        for name in source.namelist():
            if not name.endswith("byteorder"):
                target.writestr(name, source.read(name))
    ours.set_default_load_endianness(ours.LoadEndianness.BIG)
    try:
        stripped.seek(0)
        assert flambeau.load(stripped).tolist() == [1 << 24]
    finally:
        ours.set_default_load_endianness(None)
    stripped.seek(0)
    assert flambeau.load(stripped).tolist() == [1]


def test_small_functions() -> None:
    assert ours.normalize_storage_type(flambeau.FloatStorage) is flambeau.FloatStorage
    assert ours.storage_to_tensor_type(flambeau.FloatStorage()) is flambeau.FloatTensor
    with ours.mkdtemp() as folder:
        assert folder
    with flambeau.virtual(2):
        assert [ours.validate_cuda_device(name) for name in ("cuda", "cuda:1")] == [0, 1]
        with pytest.raises(RuntimeError, match="CUDA device"):
            ours.validate_cuda_device("cuda:7")
    with pytest.raises(RuntimeError, match="HPU"):
        ours.validate_hpu_device("hpu:0")


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("layout", ["to_sparse_coo", "to_sparse_csr", "to_sparse_csc"])
def test_sparse_tensors_on_meta_are_refused_by_name(layout: str, weights_only: bool) -> None:
    buffer = io.BytesIO()
    flambeau.save(getattr(flambeau.eye(2), layout)(), buffer)
    buffer.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="no sparse tensors without data"):
        flambeau.load(buffer, map_location="meta", weights_only=weights_only)

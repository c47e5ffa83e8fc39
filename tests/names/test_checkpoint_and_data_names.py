"""Small names of torch.utils.checkpoint, torch.utils.data and torch.utils.dlpack, beside PyTorch."""

from __future__ import annotations

import importlib
import warnings

import pytest
import torch

import flambeau
from flambeau.core.errors import NotSupportedError

ROOTS = (flambeau, torch)


def each(name):
    return [importlib.import_module(f"{root}.{name}") for root in ("flambeau", "torch")]


def test_device_numbers_are_dlpacks():
    ours, theirs = each("utils.dlpack")
    assert [(x.name, int(x)) for x in ours.DLDeviceType] == [(x.name, int(x)) for x in theirs.DLDeviceType]
    assert flambeau.ones(1).__dlpack_device__()[0] == ours.DLDeviceType.kDLCPU


def test_detached_inputs_require_what_the_originals_require():
    facts = []
    for root, room in zip(ROOTS, each("utils.checkpoint"), strict=True):
        leaf = root.ones(2, requires_grad=True)
        given = (leaf * 2, leaf, root.ones(1), root.ones(1, dtype=root.int64), "text", None)
        found = room.detach_variable(given)
        tensors = [t for t in found if isinstance(t, root.Tensor)]
        facts.append([(t.requires_grad, t.is_leaf, t.tolist()) for t in tensors])
        assert found[4:] == ("text", None) and found[1].data_ptr() == leaf.data_ptr()
        with pytest.raises(RuntimeError, match=r"Only tuple of tensors is supported.*list"):
            room.detach_variable([leaf])
    assert facts[0] == facts[1]


def test_inputs_without_gradients_warn(recwarn):
    warnings.simplefilter("always")  # both libraries warn at one line in the same words
    told = []
    for root, room in zip(ROOTS, each("utils.checkpoint"), strict=True):
        room.check_backward_validity([root.ones(1, requires_grad=True), root.ones(1), 3])
        assert not recwarn.list
        room.check_backward_validity([root.ones(1), 3])
        warning = recwarn.pop(UserWarning)
        told.append((str(warning.message), warning.filename))
    assert told[0] == told[1] and told[0][1] == __file__


def test_datapipes_are_absent_and_say_so():
    ours, theirs = each("utils.data")
    lines = [
        n for n in theirs.__all__ if "DataPipe" in n or "datapipe" in n or "valid" in n or n == "DataChunk"
    ]
    for name in [*lines, "non_deterministic"]:
        assert isinstance(getattr(ours, name), type) == isinstance(getattr(theirs, name), type), name
        with pytest.raises(NotSupportedError, match=rf"{name} can be imported but not used.*IterableDataset"):
            getattr(ours, name)([1])
    assert len(lines) == 9
    assert not isinstance(ours.TensorDataset(flambeau.ones(2)), (ours.IterDataPipe, ours.MapDataPipe))
    kinds = [(room._DatasetKind.Map, room._DatasetKind.Iterable) for room in (ours, theirs)]
    assert kinds[0] == kinds[1]

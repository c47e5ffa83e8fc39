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


def test_debug_lists_the_operators_of_both_runs():
    room = importlib.import_module("flambeau.utils.checkpoint")
    calls = []

    def changes(x):
        calls.append(x)
        return (x.sin() if len(calls) % 2 else x.cos().sin()).exp()

    def error_of(**options):
        x = flambeau.ones(2, requires_grad=True)
        with pytest.raises(room.CheckpointError) as error:
            room.checkpoint(changes, x, use_reentrant=False, early_stop=False, **options).sum().backward()
        return str(error.value)

    assert "pass `debug=True`" in error_of()
    with room.set_checkpoint_debug_enabled(True):
        text = error_of()
        with room.set_checkpoint_debug_enabled(False):
            assert "aten." not in error_of()
    assert text == error_of(debug=True)
    lines = [line.split() for line in text.splitlines() if "aten." in line]
    assert [line[:2] for line in lines] == [
        ["1.", "aten.sin.default"], ["2.", "aten.exp.default"],
        ["1.", "aten.cos.default"], ["2.", "aten.sin.default"], ["3.", "aten.exp.default"],
    ]  # fmt: skip
    assert all(line[-1].startswith("tests/names/") or ".py:" in line[-1] for line in lines)
    assert "differ from operator 1 on" in text


def test_debug_refuses_what_pytorch_refuses():
    texts = []
    for root, room in zip(ROOTS, each("utils.checkpoint"), strict=True):
        for options in ({"use_reentrant": True}, {"use_reentrant": False, "context_fn": lambda: None}):
            with pytest.raises(ValueError, match="debug") as error:
                room.checkpoint(lambda t: t, root.ones(1, requires_grad=True), debug=True, **options)
            texts.append(str(error.value))
    assert texts[:2] == texts[2:]


def test_the_function_of_reentrant_checkpoints_is_pytorchs():
    gradients = []
    for root, room in zip(ROOTS, each("utils.checkpoint"), strict=True):
        x = root.ones(2, requires_grad=True)
        room.CheckpointFunction.apply(lambda t, k: t * k, True, x, 3).sum().backward()
        gradients.append(x.grad.tolist())
    assert gradients[0] == gradients[1] == [3, 3]


def test_the_default_device_type_is_kept():
    ours, theirs = (room.DefaultDeviceType for room in each("utils.checkpoint"))
    assert ours.get_device_type() == theirs.get_device_type() == "cpu"
    for kind in (ours, theirs):
        kind.set_device_type("cuda")
        assert kind.get_device_type() == "cuda"
        kind.set_device_type("cpu")
    with pytest.raises(NotSupportedError, match="types cuda and cpu"):
        ours.set_device_type("xpu")

"""Names that libraries import, next to PyTorch's: errors, switches, weak references, records of checkpoints."""

from __future__ import annotations

import dataclasses
import gc
import inspect
import pickle
from importlib import import_module

import pytest
from support import torch

import flambeau

METADATA = "distributed.checkpoint.metadata"


def test_errors_of_drivers_are_accelerator_errors():
    assert issubclass(flambeau.DriverError, flambeau.AcceleratorError)
    for package in (torch, flambeau):
        assert package.AcceleratorError.__bases__ == (RuntimeError,)
        assert not issubclass(package.OutOfMemoryError, package.AcceleratorError)


def test_warn_always_is_a_switch_of_bools():
    for package in (torch, flambeau):
        assert package.is_warn_always_enabled() is False
        try:
            assert package.set_warn_always(True) is None
            with pytest.raises(RuntimeError, match="setWarnOnlyOnce expects a bool, but got int"):
                package.set_warn_always(0)
            assert package.is_warn_always_enabled() is True
        finally:
            package.set_warn_always(False)


def test_weak_references_of_storages_follow_the_memory():
    for package in (torch, flambeau):
        kind = import_module(f"{package.__name__}.multiprocessing.reductions").StorageWeakRef
        a, b = package.ones(3), package.ones(3)
        first, view, other = (kind(t.untyped_storage()) for t in (a, a[1:], b))
        assert first == view and hash(first) == hash(view) == first.cdata and len({first, view, other}) == 2
        assert first != other and not first.expired()
        del a
        gc.collect()
        assert first.expired() and view.expired() and not other.expired()
        late = kind(package.ones(3).untyped_storage())
        assert late != first  # although the new memory may have the address of the old


def test_inplace_functions_are_functions():
    for package in (torch, flambeau):
        module = import_module(f"{package.__name__}.autograd.function")
        assert issubclass(module.InplaceFunction, package.autograd.Function)

        class Double(module.InplaceFunction):
            @staticmethod
            def forward(ctx, x):
                ctx.mark_dirty(x)
                return x.mul_(2)

            @staticmethod
            def backward(ctx, grad):
                return grad * 2

        x = package.ones(2, requires_grad=True)
        Double.apply(x * 1).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]


def test_stateful_objects_have_both_methods():
    for package in (torch, flambeau):
        stateful = import_module(f"{package.__name__}.distributed.checkpoint.stateful").Stateful
        assert isinstance(package.nn.Linear(1, 1), stateful)
        assert not isinstance(package.ones(1), stateful)


@pytest.mark.parametrize("name", import_module(f"torch.{METADATA}").__all__)
def test_records_of_checkpoints_have_the_fields_of_pytorch(name):
    theirs, ours = (getattr(import_module(f"{p}.{METADATA}"), name) for p in ("torch", "flambeau"))
    assert [
        (f.name, f.hash, f.compare, str(f.default).replace("flambeau", "torch"))
        for f in dataclasses.fields(ours)
    ] == [
        (f.name, f.hash, f.compare, str(f.default).replace("flambeau", "torch"))
        for f in dataclasses.fields(theirs)
    ]
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)


def test_records_of_checkpoints_compare_and_pickle():
    module = import_module(f"flambeau.{METADATA}")
    for kept in (flambeau.contiguous_format, flambeau.channels_last, flambeau.preserve_format):
        properties = module.TensorProperties(flambeau.float16, memory_format=kept)
        assert pickle.loads(pickle.dumps(properties)) == properties
    with pytest.raises(RuntimeError, match=r"Invalid torch.memory_format: torch.channels_last_3d"):
        pickle.dumps(module.TensorProperties(memory_format=flambeau.channels_last_3d))
    assert module.TensorProperties.create_from_tensor(flambeau.ones(2)).dtype is flambeau.float32
    index = module.MetadataIndex("w", [1, 2], 5)
    assert index == module.MetadataIndex("w", (1, 2)) and isinstance(index.offset, flambeau.Size)
    assert len({index, module.MetadataIndex("w", [1, 2])}) == 1 and index != module.MetadataIndex("w")

"""Names of PyTorch's subsystems that Flambeau lacks: importable, true answers of isinstance, an error when used."""

from __future__ import annotations

import importlib
import inspect

import pytest

import flambeau
from flambeau.core.errors import NotSupportedError

MODULES = [
    "_composable.fsdp", "_tensor", "checkpoint", "checkpoint.default_planner", "checkpoint.filesystem",
    "checkpoint.format_utils", "checkpoint.hf_storage", "checkpoint.optimizer", "checkpoint.planner",
    "checkpoint.state_dict", "checkpoint.state_dict_loader", "checkpoint.state_dict_saver", "checkpoint.storage",
    "fsdp", "fsdp.fully_sharded_data_parallel", "fsdp.sharded_grad_scaler", "pipelining", "rpc", "tensor", "tensor.experimental",
    "tensor.parallel", "tensor.placement_types",
]  # fmt: skip


def absent(module: str):
    """Return the names of a module that raise when they are called."""
    found = importlib.import_module(f"flambeau.distributed.{module}")
    values = {name: value for name, value in vars(found).items() if not name.startswith("__")}
    return {
        n: v for n, v in values.items() if "can be imported but not used" in (getattr(v, "__doc__", "") or "")
    }


@pytest.mark.parametrize("module", MODULES)
def test_absent_names_are_pytorchs_and_raise(module):
    theirs = pytest.importorskip(f"torch.distributed.{module}")
    names = absent(module)
    assert names or module in ("tensor.placement_types",)
    for name, value in names.items():
        assert inspect.isclass(getattr(theirs, name)) == inspect.isclass(value), name
        with pytest.raises(
            NotSupportedError, match=rf"{name} can be imported but not used: Flambeau has no torch\."
        ):
            value(flambeau.ones(1))


def test_absent_classes_answer_isinstance_and_can_be_derived_from():
    from flambeau.distributed.fsdp import FSDPModule, FullyShardedDataParallel
    from flambeau.distributed.tensor import DTensor

    net = flambeau.nn.Linear(2, 2)
    assert not isinstance(net, (FullyShardedDataParallel, FSDPModule)) and not isinstance(net.weight, DTensor)
    assert issubclass(FullyShardedDataParallel, flambeau.nn.Module)
    derived = type("Derived", (FullyShardedDataParallel,), {})
    with pytest.raises(NotSupportedError, match="DistributedDataParallel"):
        derived(net)
    with pytest.raises(AttributeError, match=r"DTensor.* can be imported but not used"):
        DTensor.from_local(net.weight)
    assert not hasattr(DTensor, "from_local")


def test_options_are_pytorchs_values():
    theirs = pytest.importorskip("torch.distributed.fsdp")
    from flambeau.distributed import fsdp

    for name in theirs.api.__all__:
        ours, other = getattr(fsdp, name), getattr(theirs, name)
        if hasattr(other, "__members__"):
            assert {k: v.value for k, v in ours.__members__.items()} == {
                k: v.value for k, v in other.__members__.items()
            }
        else:
            assert list(inspect.signature(ours).parameters) == list(inspect.signature(other).parameters), name
    assert fsdp.CPUOffload(True) == fsdp.CPUOffload(offload_params=True)


def test_placements_are_pytorchs_values():
    theirs = pytest.importorskip("torch.distributed.tensor")
    from flambeau.distributed import tensor as ours

    def facts(m):
        values = [m.Shard(0), m.Shard(-1), m.Replicate(), m.Partial(), m.Partial("avg")]
        asked = [
            (str(p), repr(p), p.is_shard(), p.is_shard(0), p.is_replicate(), p.is_partial()) for p in values
        ]
        equal = [[a == b for b in values] for a in values]
        return asked, equal, m.Partial().is_partial("sum"), hash(m.Shard(1)) == hash(m.Shard(1))

    assert facts(ours) == facts(theirs)
    sizes = [(n, k, rank) for n in range(12) for k in range(1, 6) for rank in range(k)]
    ours_, theirs_ = ours.Shard.local_shard_size_and_offset, theirs.Shard.local_shard_size_and_offset
    assert [ours_(*each) for each in sizes] == [theirs_(*each) for each in sizes]


def test_extensions_cannot_be_built_and_say_so():
    theirs = pytest.importorskip("torch.utils.cpp_extension")
    from flambeau.utils import cpp_extension

    names = [name for name in theirs.__all__ if "ninja" not in name]
    for name in [*names, "load", "load_inline"]:
        with pytest.raises(
            NotSupportedError, match=rf"{name} can be imported but not used: .*torch\.library"
        ):
            getattr(cpp_extension, name)("name")
    assert isinstance(cpp_extension.is_ninja_available(), bool) and cpp_extension.CUDA_HOME is None


def test_remote_calls_are_not_available():
    from flambeau.distributed import rpc

    assert rpc.is_available() is False

"""Helpers of private modules that libraries import, against PyTorch's."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import warnings
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

import flambeau

BOTH = [flambeau, torch]
Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Record:
    x: Any
    n: int = 1


def helper(lib: Any, module: str) -> Any:
    return importlib.import_module(f"{lib.__name__}.{module}")


def containers(lib: Any) -> list[Any]:
    t = lib.arange(3.0)
    ragged = lib.nn.utils.rnn.pack_sequence([t, t[:2]])
    return [
        t, (t, 1), [t, "a"], {"a": t, "b": {"c": t}}, OrderedDict(k=t), Pair(t, 2), Record(t), {1}, (), None, ragged,
        [[t], (t, [t])],
    ]  # fmt: skip


def show(value: Any) -> str:
    return repr(value).replace("flambeau", "torch")


def test_tensors_in_containers_are_converted_as_by_pytorch():
    results = []
    for lib in BOTH:
        utils = helper(lib, "distributed.utils")
        results.append([
            [show(utils._apply_to_tensors(lambda x: x + 1, each)) for each in containers(lib)],
            show(utils._cast_forward_inputs(lib.float64, lib.ones(2), 3, k=lib.arange(2))),
            show(utils._cast_forward_inputs(None, 1, k=2)),
            [show(utils._recursive_to(each, lib.device("cpu"), False)) for each in containers(lib)],
            show(utils._to_kwargs((lib.ones(1),), {"k": [lib.ones(1)]}, lib.device("cpu"), False)),
            show(utils._to_kwargs((), {"k": 1}, lib.device("cpu"), False)),
            show(utils._to_kwargs((1,), None, lib.device("cpu"), False)),
            utils._unpack_kwargs(*utils._pack_kwargs(1, 2, a=3, b=4)),
            utils._unpack_kwargs((1,), ()),
        ])  # fmt: skip
    assert results[0] == results[1]


def test_storages_are_freed_and_allocated_as_by_pytorch(capsys):
    for lib in BOTH:
        helper(lib, "distributed._functional_collectives")
        utils, x = helper(lib, "distributed.utils"), lib.arange(6.0)
        assert utils._data_ptr_allocated(x)
        utils._free_storage(x)
        assert x.untyped_storage().nbytes() == 0 and not utils._data_ptr_allocated(x)
        utils._free_storage(x)
        utils._alloc_storage(x, lib.Size([6]))
        assert x.untyped_storage().nbytes() == 24
        with pytest.raises(AssertionError, match="resized to be 0"):
            utils._alloc_storage(x, lib.Size([7]))
        with pytest.raises(AssertionError, match="not the sole occupant"):
            utils._free_storage(x[1:])
    capsys.readouterr()


def test_names_and_roots_of_modules_equal_pytorchs():
    results = []
    for lib in BOTH:
        utils, net = helper(lib, "distributed.utils"), lib.nn.Sequential(lib.nn.Linear(1, 1), lib.nn.ReLU())
        state = {"a.x": 1, "b.x": 2, "a": 3}
        utils._replace_by_prefix(state, "a.", "c.a.")
        with pytest.raises(ValueError, match="must be distinct"):
            utils._replace_by_prefix(state, "a", "a")
        results.append([state, [type(m).__name__ for m in utils._get_root_modules([net[0], net, net[1]])]])
    assert results[0] == results[1]


class Block:
    """Makes a module of either library that counts its calls and draws random numbers."""

    def __new__(cls, lib: Any) -> Any:
        class Net(lib.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.drop, self.calls = lib.nn.Linear(4, 4), lib.nn.Dropout(0.5), 0

            def forward(self, x: Any, *, scale: float = 1.0) -> Any:
                self.calls += 1
                return self.drop(self.a(x).relu()) * scale

        return Net()


@pytest.mark.parametrize("lib", BOTH, ids=["flambeau", "torch"])
def test_composable_checkpoint_computes_again(lib):
    checkpoint = helper(lib, "distributed._composable").checkpoint
    plain = lib.nn.Sequential(Block(lib), Block(lib))
    net = copy.deepcopy(plain)
    assert [checkpoint(each) for each in net] == list(net)
    x = lib.randn(3, 4)
    for each in (net, plain):
        lib.manual_seed(1)
        each(x).sum().backward()
    assert all(lib.equal(p.grad, q.grad) for p, q in zip(net.parameters(), plain.parameters(), strict=True))
    assert [each.calls for each in (*net, *plain)] == [2, 2, 1, 1]
    with pytest.raises(RuntimeError):
        net(lib.ones(3, 5))
    with lib.no_grad():
        net(x)
    net[0](x, scale=2.0).sum().backward()
    assert checkpoint.state(net[0]).enable_hook and net[0].calls == 6 and type(net[0]).__name__ == "Net"
    with pytest.raises(AssertionError, match="can only be applied"):
        checkpoint(net[0])
    with pytest.raises(NotImplementedError, match="use_reentrant"):
        checkpoint(Block(lib), use_reentrant=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: x"):
        checkpoint(Block(lib), x=1)


@pytest.mark.parametrize("lib", BOTH, ids=["flambeau", "torch"])
def test_contracts_keep_states_and_refuse_new_names(lib):
    contract = helper(lib, "distributed._composable").contract
    _get_registry = helper(lib, "distributed._composable")._get_registry

    @contract()
    def mark(module, value=0):
        mark.state(module).value = value

    @contract()
    def rename(module):
        module.extra = lib.nn.Linear(1, 1)

    net = lib.nn.Sequential(lib.nn.Linear(1, 1))
    assert mark(net, value=3) is net and mark.state(net).value == 3 and mark.state(net[0]) is None
    assert list(_get_registry(net)) == ["mark"] and _get_registry(lib.nn.ReLU()) is None
    with pytest.raises(RuntimeError, match="cannot modify FQNs"):
        rename(net)


@pytest.mark.parametrize("lib", BOTH, ids=["flambeau", "torch"])
def test_device_contexts_choose_the_device_of_new_tensors(lib):
    module = helper(lib, "utils._device")
    with module.DeviceContext("meta") as mode:
        made = [
            lib.ones(2), lib.zeros(2, device="cpu"), lib.arange(3), lib.tensor([1.0]), lib.nn.Linear(1, 1).weight,
            lib.as_tensor([1]), lib.fft.fftfreq(3), lib.zeros(2, device="cpu") + 1,
        ]  # fmt: skip
    assert [each.device.type for each in made] == ["meta", "cpu", *["meta"] * 5, "cpu"]
    assert str(mode.device if mode else "meta") == "meta" and lib.ones(1).device.type == "cpu"
    assert module.set_device("meta")(lambda: lib.ones(1).device.type)() == "meta"


def test_constructors_that_take_the_default_device_are_pytorchs():
    names = [
        {each.__name__.removeprefix("fft_") for each in helper(lib, "utils._device")._device_constructors()}
        for lib in BOTH
    ]
    assert names[0] == names[1] - {"empty_quantized"}


SIZES = [
    "guard_int(3)", "guard_int('a')", "guard_bool(True)", "guard_bool(1)", "guard_float(1.5)", "guard_scalar(2)",
    "guard_scalar('a')", "guard_size_oblivious(True)", "guard_or_true(False)", "guard_or_false(True)",
    "is_symbolic(3)", "is_symbolic(2.5)", "is_concrete_int(3)", "is_concrete_bool(True)", "has_static_value(3)",
    "free_symbols(3)", "has_free_symbols([1, 2])", "free_unbacked_symbols(2)", "has_free_unbacked_symbols(2)",
    "sym_eq(3, 3)", "sym_eq((1, 2), (1, 3))", "sym_eq([1], [1, 2])", "sym_eq('a', 1)", "sym_and(True, False)",
    "sym_or(False, True)", "statically_known_true(True)", "statically_known_false(True)", "expect_true(True)",
    "constrain_range(3, min=1, max=4)", "constrain_range(5, min=1, max=4)", "constrain_range(True, min=0, max=1)",
    "canonicalize_bool_expr(True)", "cast_symbool_to_symint_guardless(True)", "optimization_hint(4)",
    "guarding_hint_or_throw(4)", "has_guarding_hint(4)", "is_nested_int(3)",
]  # fmt: skip


@pytest.mark.parametrize("call", SIZES)
def test_questions_about_sizes_have_pytorchs_answers(call):
    results = []
    for lib in BOTH:
        names = vars(helper(lib, "fx.experimental.symbolic_shapes"))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.append(show(eval(call, dict(names))))
        except (AssertionError, ValueError, AttributeError) as error:
            results.append(type(error).__name__)
    assert results[0] == results[1]

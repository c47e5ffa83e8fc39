"""Parametrizations beside PyTorch's: values, gradients, state, errors, and the ready-made ones."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from nn_kit import agree, fails
from support import torch

import flambeau
from flambeau import nn

parametrize = nn.utils.parametrize


def modules(room: Any) -> dict[str, Any]:
    """Parametrizations written as a program would, for one package."""

    class Symmetric(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.triu() + x.triu(1).transpose(-1, -2)

        def right_inverse(self, a: Any) -> Any:
            return a.triu()

    class Doubled(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2

    class Product(room.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a * b

        def right_inverse(self, x: Any) -> Any:
            return x.abs(), x.sign()

    class Wide(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:1]

    class Double(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return x.double()

    class Wrong(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return 3

    class Strange(room.nn.Module):
        def forward(self, x: Any) -> Any:
            return x

        def right_inverse(self, x: Any) -> Any:
            return 3

    return {k.__name__: k for k in (Symmetric, Doubled, Product, Wide, Double, Wrong, Strange)}


def layer(room: Any) -> Any:
    room.manual_seed(0)
    return room.nn.Linear(4, 4).double()


def found(room: Any, module: Any) -> list[Any]:
    x = (room.arange(12, dtype=room.float64) * 0.7).sin().reshape(3, 4)
    out = module(x)
    grads = room.autograd.grad((out**2).sum(), list(module.parameters()))
    return [out, *grads, list(module.state_dict()), *module.state_dict().values(), repr(module)]


def close(run: Any) -> None:
    ours, theirs = run(flambeau), run(torch)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        if hasattr(b, "tolist"):
            assert tuple(a.shape) == tuple(b.shape)
            np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), 1e-8, 1e-9)
        else:
            assert a == b


@pytest.mark.parametrize(
    "names", (["Symmetric"], ["Doubled"], ["Product"], ["Symmetric", "Doubled"], ["Product", "Symmetric"])
)
def test_values_gradients_and_state(names: list[str]) -> None:
    def run(room: Any) -> Any:
        module, kinds = layer(room), modules(room)
        for name in names:
            room.nn.utils.parametrize.register_parametrization(module, "weight", kinds[name]())
        return found(room, module)

    close(run)


def test_assignment_and_removal() -> None:
    for leave in (True, False):

        def run(room: Any, leave: bool = leave) -> Any:
            module, kind = layer(room), modules(room)["Symmetric"]
            room.nn.utils.parametrize.register_parametrization(module, "weight", kind())
            before = type(module).__name__
            module.weight = room.arange(16, dtype=room.float64).reshape(4, 4)
            value = module.weight
            original = module.parametrizations.weight.original
            room.nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=leave)
            assert module.weight is original and isinstance(module.weight, room.nn.Parameter)
            return [before, type(module).__name__, value, *found(room, module)]

        close(run)


def test_several_originals_leave_a_new_parameter() -> None:
    def run(room: Any) -> Any:
        module = layer(room)
        room.nn.utils.parametrize.register_parametrization(module, "weight", modules(room)["Product"]())
        module.weight = module.weight.detach() * 3
        return [
            *found(room, module),
            *found(room, room.nn.utils.parametrize.remove_parametrizations(module, "weight")),
        ]

    close(run)


def test_buffers_and_two_tensors_of_one_module() -> None:
    def run(room: Any) -> Any:
        module, kinds = room.nn.BatchNorm1d(3).double(), modules(room)
        register = room.nn.utils.parametrize.register_parametrization
        register(module, "running_var", kinds["Doubled"]())
        register(module, "weight", kinds["Doubled"]())
        named = [
            [name for name, _ in listed] for listed in (module.named_parameters(), module.named_buffers())
        ]
        room.nn.utils.parametrize.remove_parametrizations(module, "weight")
        still = (
            room.nn.utils.parametrize.is_parametrized(module),
            room.nn.utils.parametrize.is_parametrized(module, "weight"),
        )
        return [named, still, module.running_var, *module.state_dict().values()]

    close(run)


def test_cached_values_are_computed_once() -> None:
    module = layer(flambeau)
    calls = []

    class Counted(nn.Module):
        def forward(self, x: Any) -> Any:
            calls.append(1)
            return x * 1

    parametrize.register_parametrization(module, "weight", Counted(), unsafe=True)
    calls.clear()
    with parametrize.cached():
        first = module.weight
        with parametrize.cached():
            assert module.weight is first
        assert module.weight is first and len(calls) == 1
    assert module.weight is not first and len(calls) == 2


def test_copies_are_apart_and_pickles_are_refused() -> None:
    module = layer(flambeau)
    parametrize.register_parametrization(module, "weight", modules(flambeau)["Symmetric"]())
    again = copy.deepcopy(module)
    assert flambeau.equal(again.weight, module.weight)
    assert again.parametrizations.weight.original is not module.parametrizations.weight.original
    with pytest.raises(RuntimeError, match=r"only supported through state_dict\(\)"):
        pickle.dumps(module)
    assert parametrize.type_before_parametrizations(module) is nn.Linear
    assert parametrize.type_before_parametrizations(nn.Linear(1, 1)) is nn.Linear


def test_transfer() -> None:
    def run(room: Any) -> Any:
        tool, source, target = room.nn.utils.parametrize, layer(room), room.nn.Linear(4, 4).double()
        tool.register_parametrization(source, "weight", modules(room)["Symmetric"]())
        tool.transfer_parametrizations_and_params(source, target)
        assert target.parametrizations.weight.original is source.parametrizations.weight.original
        several = room.nn.Module()
        product = tool.register_parametrization(layer(room), "weight", modules(room)["Product"]())
        tool.transfer_parametrizations_and_params(product, several, "weight")
        return [target.weight, several.weight, list(several.state_dict())]

    close(run)


def register(room: Any, module: Any, *names: str, tensor: str = "weight", **named: Any) -> Any:
    kinds = modules(room)
    for name in names:
        room.nn.utils.parametrize.register_parametrization(module, tensor, kinds[name](), **named)
    return module


def assign(room: Any, name: str, value: Any) -> None:
    module = register(room, room.nn.Linear(2, 2), name)
    module.weight = value


WRONG = {
    "no such tensor": lambda t: register(t, t.nn.Linear(2, 2), "Doubled", tensor="gain"),
    "no tensor": lambda t: register(t, t.nn.Linear(2, 2), "Wrong"),
    "shape": lambda t: register(t, t.nn.Linear(2, 2), "Wide"),
    "dtype": lambda t: register(t, t.nn.Linear(2, 2), "Double"),
    "second: no tensor": lambda t: register(t, t.nn.Linear(2, 2), "Doubled", "Wrong"),
    "second: shape": lambda t: register(t, t.nn.Linear(2, 2), "Doubled", "Wide"),
    "second: dtype": lambda t: register(t, t.nn.Linear(2, 2), "Doubled", "Double"),
    "second: several": lambda t: register(t, t.nn.Linear(2, 2), "Doubled", "Strange"),
    "strange inverse": lambda t: register(t, t.nn.Linear(2, 2), "Strange"),
    "no inverse": lambda t: assign(t, "Doubled", t.ones(2, 2)),
    "inverse of another dtype": lambda t: assign(t, "Symmetric", t.ones(2, 2, dtype=t.float64)),
    "nothing to remove": lambda t: t.nn.utils.parametrize.remove_parametrizations(t.nn.Linear(2, 2), "weight"),
    "several originals": lambda t: t.nn.utils.parametrize.remove_parametrizations(
        register(t, t.nn.Linear(2, 2), "Product"), "weight", leave_parametrized=False
    ),
    "no modules": lambda t: t.nn.utils.parametrize.ParametrizationList([], t.ones(2)),
    "orthogonal: no tensor": lambda t: t.nn.utils.parametrizations.orthogonal(t.nn.ReLU()),
    "orthogonal: vector": lambda t: t.nn.utils.parametrizations.orthogonal(t.nn.Linear(2, 2), "bias"),
    "orthogonal: map": lambda t: t.nn.utils.parametrizations.orthogonal(t.nn.Linear(2, 2), orthogonal_map="none"),
    "spectral: no tensor": lambda t: t.nn.utils.parametrizations.spectral_norm(t.nn.ReLU()),
    "spectral: dim": lambda t: t.nn.utils.parametrizations.spectral_norm(t.nn.Linear(2, 2), dim=2),
    "spectral: iterations": lambda t: t.nn.utils.parametrizations.spectral_norm(
        t.nn.Linear(2, 2), n_power_iterations=0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_errors(name: str) -> None:
    fails(WRONG[name])


# -- the ready-made ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ("weight_norm", "spectral_norm"))
@pytest.mark.parametrize("dim", (0, 1))
def test_norms(name: str, dim: int) -> None:
    def run(room: Any) -> Any:
        module = layer(room)
        getattr(room.nn.utils.parametrizations, name)(module, dim=dim)
        before = found(room, module)
        conv = room.nn.utils.parametrizations.spectral_norm(room.nn.ConvTranspose1d(3, 2, 2).double())
        vector = room.nn.utils.parametrizations.spectral_norm(room.nn.Linear(3, 2).double(), "bias")
        return [*before, *found(room, module.eval()), *found(room, module), conv.weight, vector.bias]

    close(run)


def test_states_of_the_older_weight_norm_load() -> None:
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(3, 2))
    new = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    assert not new.load_state_dict(old.state_dict()).missing_keys
    assert flambeau.equal(new.weight, old.weight)


@pytest.mark.parametrize("shape", ((4, 4), (5, 3), (3, 5)))
@pytest.mark.parametrize("how", ("matrix_exp", "cayley", "householder", None))
@pytest.mark.parametrize("trivial", (True, False))
def test_orthogonal(shape: tuple[int, int], how: str | None, trivial: bool) -> None:
    def run(room: Any) -> Any:
        room.manual_seed(0)
        module = room.nn.Linear(shape[1], shape[0], bias=False).double()
        room.nn.utils.parametrizations.orthogonal(module, orthogonal_map=how, use_trivialization=trivial)
        with room.no_grad():
            original = module.parametrizations.weight.original
            numbers = (room.arange(original.numel(), dtype=room.float64) * 0.7).sin().reshape(
                original.shape
            ) * 0.1
            original.add_(numbers.tril(-1) + numbers.triu(1))
        w = module.weight
        gram = w.mT @ w if shape[0] >= shape[1] else w @ w.mT
        assert float((gram - room.eye(len(gram), dtype=room.float64)).detach().abs().max()) < 1e-12
        grads = room.autograd.grad((w**3).sum(), [module.parametrizations.weight.original])
        return [w, *grads, list(module.state_dict())]

    close(run)


def test_orthogonal_matrices_can_be_assigned() -> None:
    module = nn.utils.parametrizations.orthogonal(nn.Linear(3, 3).double())
    start = nn.init.orthogonal_(flambeau.empty(3, 3, dtype=flambeau.float64))
    module.weight = start
    assert float((module.weight - start).abs().max()) < 1e-12
    for how in ("cayley", "matrix_exp"):
        module = nn.utils.parametrizations.orthogonal(
            nn.Linear(3, 3), orthogonal_map=how, use_trivialization=False
        )
        with pytest.raises(NotImplementedError, match="It is not possible to assign"):
            module.weight = flambeau.eye(3)


def test_unitary_matrices() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(flambeau.randn(3, 3, dtype=flambeau.complex128))
    nn.utils.parametrizations.orthogonal(module)
    w = module.weight
    assert float((w.mH @ w - flambeau.eye(3)).abs().max()) < 1e-12
    with pytest.raises(ValueError, match="does not support complex"):
        other = nn.Module()
        other.weight = nn.Parameter(flambeau.randn(3, 3, dtype=flambeau.complex64))
        nn.utils.parametrizations.orthogonal(other, orthogonal_map="householder")


def test_parametrized_modules_move_to_gpus_and_train() -> None:
    with flambeau.virtual(devices=1):
        module = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)).cuda()
        module(flambeau.ones(2, 4, device="cuda")).sum().backward()
        assert (
            {p.device.type for p in module.parameters()}
            == {p.grad.device.type for p in module.parameters()}
            == {"cuda"}
        )
    agree(lambda t: repr(t.nn.utils.parametrizations.spectral_norm(t.nn.Linear(4, 3))))

"""The functional optimizers (`torch.optim.adam.adam` and its like) against PyTorch's on the CPU, on drawn lists."""

from __future__ import annotations

import importlib
import inspect
import random

import pytest
from support import from_torch, to_torch, torch

import flambeau

NAMES = [
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "asgd",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sgd",
]
NUMBERS = {
    "rho": (0.5, 0.9), "eps": (1e-3, 1e-8), "lr_decay": (0.0, 0.1), "beta1": (0.5, 0.9), "beta2": (0.9, 0.999),
    "momentum_decay": (4e-3, 0.1), "lambd": (1e-4, 0.1), "alpha": (0.75, 0.9), "t0": (1, 1e6), "momentum": (0, 0.9),
    "dampening": (0.0, 0.25), "step_size_min": (1e-6,), "step_size_max": (50.0, 0.1), "etaminus": (0.5,),
    "etaplus": (1.2,), "lr": (0.1, 0.01), "weight_decay": (0.0, 0.1),
}  # fmt: skip
SHAPES = ((3, 4), (5,), (), (2, 3, 2), (0, 2))
ONES = {"mus", "mu_products"}  # these counters begin at 1, and etas at the learning rate


@pytest.fixture(autouse=True)
def gpu():
    with flambeau.virtual(devices=1):
        yield


def function(package, name):
    return getattr(importlib.import_module(f"{package}.optim.{name}"), name)


def draw(name, seed):
    """Return the lists and options of a call, as PyTorch's tensors."""
    rng, generator = random.Random(f"{name}{seed}"), torch.Generator().manual_seed(seed)
    kind = rng.choice([torch.float32, torch.float64, torch.complex64])
    shapes = rng.choices(SHAPES, k=rng.randint(1, 4))
    options, lists = {}, {}
    for key, parameter in inspect.signature(function("torch", name)).parameters.items():
        if key in NUMBERS:
            options[key] = rng.choice(NUMBERS[key])
        elif key in ("maximize", "amsgrad", "centered", "decoupled_weight_decay"):
            options[key] = rng.random() < 0.5
        elif key == "nesterov":
            options[key] = options["momentum"] > 0 and options["dampening"] == 0
        elif key == "has_complex":
            options[key] = kind.is_complex
        elif parameter.default is inspect.Parameter.empty:
            lists[key] = key
    for key in lists:
        if key == "momentum_buffer_list" and name == "sgd":
            lists[key] = [None for _ in shapes]
        elif key in ("state_steps", "mus", "etas", "mu_products"):
            start = 1.0 if key in ONES else options["lr"] if key == "etas" else 0.0
            lists[key] = [torch.tensor(start) for _ in shapes]
        else:
            made = [torch.randn(shape, generator=generator, dtype=kind) for shape in shapes]
            if key == "step_sizes":
                made = [torch.full_like(t, complex(0.1, 0.1) if kind.is_complex else 0.1) for t in made]
            elif key not in ("params", "grads", "d_p_list"):
                made = [torch.zeros_like(t) for t in made]
            lists[key] = made
    return lists, options


def moved(lists, device):
    here = {"state_steps", "mus", "etas", "mu_products"}
    return {
        key: [t if t is None else from_torch(t).to("cpu" if key in here else device) for t in tensors]
        for key, tensors in lists.items()
    }


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", NAMES)
def test_functions_step_lists_as_pytorch(name, seed):
    theirs, options = draw(name, seed)
    ours = moved(theirs, ["cpu", "cuda"][seed % 2])
    held = {key: list(tensors) for key, tensors in ours.items()}
    grads = "d_p_list" if name == "sgd" else "grads"
    for _ in range(3):
        function("torch", name)(*theirs.values(), foreach=False, **options)
        function("flambeau", name)(*ours.values(), **options)
        for a, b in zip(theirs[grads], ours[grads], strict=True):
            a.mul_(-0.5)
            b.mul_(-0.5)
    for key, tensors in theirs.items():
        for a, b, before in zip(tensors, ours[key], held[key], strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(
                    to_torch(b), a, rtol=1e-5, atol=1e-6, msg=lambda m, k=key: f"{k}: {m}"
                )
                assert before is None or before is b


@pytest.mark.parametrize("name", NAMES)
def test_functions_have_the_signature_of_pytorch(name):
    theirs, ours = (inspect.signature(function(p, name)).parameters for p in ("torch", "flambeau"))
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_steps_on_a_gpu_count_there():
    lists, options = draw("adam", 0)
    ours = moved(lists, "cuda")
    for capturable in (False, True):
        ours["state_steps"] = steps = [t.cuda() for t in ours["state_steps"]]
        function("flambeau", "adam")(*ours.values(), capturable=capturable, **options)
        assert [(t.item(), t.device.type) for t in steps] == [(1.0 + capturable, "cuda")] * len(steps)


def test_recording_follows_pytorch():
    options = {"weight_decay": 0.1, "momentum": 0.0, "lr": 0.1, "dampening": 0.0}
    options |= {"nesterov": False, "maximize": False}
    grads = []
    for package in (torch, flambeau):
        w = package.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="leaf"):
            function(package.__name__, "sgd")([w], [package.ones(3)], [None], **options)
        p = w * 2
        function(package.__name__, "sgd")([p], [package.full((3,), 2.0)], [None], **options)
        (p * p).sum().backward()
        grads.append(w.grad.tolist())
    assert grads[1] == pytest.approx(grads[0])


def test_fused_steps_unscale_gradients_and_skip_overflows():
    lists, options = draw("adam", 0)
    ours, plain = moved(lists, "cuda"), moved(lists, "cuda")
    scale, found = flambeau.tensor(4.0, device="cuda"), flambeau.tensor(1.0, device="cuda")
    before = [t.clone() for t in ours["params"]]
    call = function("flambeau", "adam")
    with pytest.raises(AssertionError, match="grad_scale"):
        call(*ours.values(), grad_scale=scale, **options)
    call(*ours.values(), fused=True, found_inf=found, grad_scale=scale, **options)
    assert all(flambeau.equal(a, b) for a, b in zip(before, ours["params"], strict=True))
    assert [t.item() for t in ours["state_steps"]] == [0.0] * len(before)
    for grad in ours["grads"]:
        grad.mul_(4)
    call(*ours.values(), fused=True, found_inf=found * 0, grad_scale=scale, **options)
    call(*plain.values(), **options)
    assert all(flambeau.equal(a, b) for a, b in zip(plain["params"], ours["params"], strict=True))


def test_bad_lists_raise_and_change_nothing():
    lists, options = draw("adam", 0)
    ours = moved(lists, "cpu")
    before = [t.clone() for tensors in ours.values() for t in tensors]
    call = function("flambeau", "adam")
    with pytest.raises(IndexError, match="exp_avg"):
        call(*(ours | {"exp_avgs": []}).values(), **options)
    with pytest.raises(RuntimeError, match="API has changed"):
        call(*(ours | {"state_steps": [0.0] * len(ours["params"])}).values(), **options)
    twice = {key: [tensors[0]] * 2 for key, tensors in ours.items()}
    with pytest.raises(ValueError, match="listed twice"):
        call(*twice.values(), **options)
    after = [t for tensors in ours.values() for t in tensors]
    assert all(flambeau.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_foreach_refuses_a_tensor_as_the_rate(name):
    for package in ("torch", "flambeau"):
        step, module = function(package, name), importlib.import_module(package)
        tensors = [[module.ones(2)] for _ in range(4)]
        given = {
            "amsgrad": False,
            "beta1": 0.9,
            "beta2": 0.99,
            "weight_decay": 0.0,
            "eps": 1e-8,
            "maximize": False,
        }
        with pytest.raises(
            RuntimeError, match="lr as a Tensor is not supported for capturable=False and foreach=True"
        ):
            step(*tensors, [], [module.tensor(1.0)], foreach=True, lr=module.tensor(0.1), **given)
        assert tensors[0][0].tolist() == [1, 1]
        step(*tensors, [], [module.tensor(1.0)], foreach=None, lr=module.tensor(0.1), **given)
        assert tensors[0][0].tolist() != [1, 1]

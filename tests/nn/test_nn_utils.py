"""torch.nn.utils beside PyTorch's: clipping, vectors of parameters, normalized weights, fused layers."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from launches import launches
from nn_kit import agree, fails, outcome
from support import torch

import flambeau
from flambeau import nn


def numbers(room: Any, *shape: int, seed: int = 0, kind: str = "float64") -> Any:
    values = np.random.default_rng(seed + sum(shape)).uniform(-2, 2, shape)
    return room.tensor(values.tolist(), dtype=getattr(room, kind)).reshape(shape)


def parameters(room: Any, kinds: Any = ("float64",) * 3) -> list[Any]:
    made = []
    for i, (shape, kind) in enumerate(zip(((3, 4), (), (2, 1, 5)), kinds, strict=True)):
        p = room.nn.Parameter(numbers(room, *shape, seed=i, kind=kind))
        p.grad = numbers(room, *shape, seed=10 + i, kind=kind)
        made.append(p)
    return [*made, room.nn.Parameter(room.ones(2))]  # the last has no gradient


def close(run: Any, tolerance: float = 1e-9) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = run(flambeau), run(torch)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert tuple(a.shape) == tuple(b.shape) and str(a.dtype) == str(b.dtype)
        np.testing.assert_allclose(np.array(a.tolist()), np.array(b.tolist()), tolerance, tolerance)


# -- clipping -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", (2, 1, 0.5, 3, 0, math.inf, -math.inf))
@pytest.mark.parametrize("most", (0.7, 1e3))
def test_clip_grad_norm(order: float, most: float) -> None:
    def run(room: Any) -> Any:
        made = parameters(room)
        total = room.nn.utils.clip_grad_norm_(iter(made), most, norm_type=order)
        return [total, *[p.grad for p in made[:-1]]]

    close(run)


def test_clipping_gradients_of_several_dtypes_and_one_tensor() -> None:
    def run(room: Any) -> Any:
        made = parameters(room, ("float32", "float64", "float32"))
        total = room.nn.utils.clip_grad_norm_(made, 1.0)
        one = parameters(room)[0]
        room.nn.utils.clip_grad_norm_(one, 0.5)
        halves = parameters(room, ("bfloat16",) * 3)[:-1]
        return [
            total,
            *[p.grad for p in made[:-1]],
            one.grad,
            room.nn.utils.get_total_norm(p.grad for p in halves),
        ]

    close(run, 1e-6)


def test_the_parts_of_clipping() -> None:
    def run(room: Any) -> Any:
        made = parameters(room)
        total = room.nn.utils.get_total_norm([p.grad for p in made[:-1]], 3.0)
        room.nn.utils.clip_grads_with_norm_(made, 0.3, total)
        again = parameters(room)
        room.nn.utils.clip_grad_value_(again, 0.6)
        return [total, *[p.grad for p in (*made[:-1], *again[:-1])], room.nn.utils.get_total_norm([])]

    close(run)


def test_clipping_keeps_the_gradients_tensors_and_strides() -> None:
    p = nn.Parameter(flambeau.ones(3, 4).t())
    p.grad = grad = flambeau.ones(3, 4).t() * 2
    nn.utils.clip_grad_norm_([p], 1.0)
    assert p.grad is grad and grad.stride() == (1, 4)
    assert abs(float(grad.norm()) - 1) < 1e-5
    p.grad = flambeau.ones(8, 6)[::2, ::2]  # with gaps
    nn.utils.clip_grad_value_(p, 0.25)
    assert p.grad.tolist() == [[0.25] * 3] * 4


def test_norms_that_are_not_finite() -> None:
    def run(room: Any) -> Any:
        made = parameters(room)
        made[0].grad[0, 0] = math.nan
        total = room.nn.utils.clip_grad_norm_(made, 1.0)
        before = made[1].grad.clone()
        with pytest.raises(RuntimeError, match="non-finite"):
            room.nn.utils.clip_grad_norm_(made, 1.0, error_if_nonfinite=True)
        return [total, before, made[1].grad]

    close(run)


def test_clipping_warns_as_pytorch_does() -> None:
    agree(lambda t: t.nn.utils.clip_grad_norm_((p for p in ()), 1.0))
    agree(lambda t: t.nn.utils.clip_grad_norm_([], 1.0))
    ours, theirs = (
        outcome(lambda t: t.nn.utils.clip_grad_norm([t.nn.Parameter(t.ones(2))], 1.0), room)[1]
        for room in (flambeau, torch)
    )
    assert ours == theirs != []


def test_clipping_many_gradients_is_a_few_launches() -> None:
    with flambeau.virtual(devices=1):
        made = [nn.Parameter(flambeau.ones(3 + i % 5, 2, device="cuda")) for i in range(200)]
        for p in made:
            p.grad = flambeau.ones_like(p)
        with launches() as names:
            nn.utils.clip_grad_norm_(made, 1.0)
        assert names == ["foreach_norm", "norm", "_foreach_clip"]
        assert abs(float(nn.utils.get_total_norm([p.grad for p in made])) - 1) < 1e-4


@pytest.mark.parametrize("order", (2, 1, math.inf))
def test_clipping_on_a_virtual_gpu_is_the_cpus(order: float) -> None:
    def run(where: str) -> Any:
        made = [p.to(where).detach().requires_grad_() for p in parameters(flambeau)]
        for i, p in enumerate(made[:-1]):
            p.grad = numbers(flambeau, *p.shape, seed=i).to(where)
        total = nn.utils.clip_grad_norm_(made, 0.5, order)
        assert total.device.type == where
        return [total.tolist(), *[p.grad.tolist() for p in made[:-1]]]

    wanted = run("cpu")
    with flambeau.virtual(devices=2):
        assert run("cuda") == wanted
        on_two = [nn.Parameter(flambeau.ones(2, device=f"cuda:{i}")) for i in range(2)]
        for p in on_two:
            p.grad = flambeau.full_like(p, 2.0)
        assert nn.utils.clip_grad_norm_(on_two, 1.0).tolist() == 4.0
        assert [float(p.grad.norm().cpu()) for p in on_two] == pytest.approx([0.5**0.5] * 2, 1e-5)


# -- vectors ------------------------------------------------------------------------------------------------


def test_parameters_as_a_vector() -> None:
    def run(room: Any) -> Any:
        made = parameters(room)[:3]
        vector = room.nn.utils.parameters_to_vector(made)
        grads = room.autograd.grad((vector * vector).sum(), made)
        room.nn.utils.vector_to_parameters(vector.detach() * 2, made)
        assert all(isinstance(p, room.nn.Parameter) for p in made)
        return [vector, *grads, *made]

    close(run)


WRONG = {
    "no tensor": lambda t: t.nn.utils.vector_to_parameters([1.0], []),
    "skip_init of no module": lambda t: t.nn.utils.skip_init(int),
    "skip_init without device": lambda t: t.nn.utils.skip_init(t.nn.ReLU),
    "weight_norm twice": lambda t: t.nn.utils.weight_norm(t.nn.utils.weight_norm(t.nn.Linear(2, 3))),
    "no weight_norm": lambda t: t.nn.utils.remove_weight_norm(t.nn.Linear(2, 3)),
    "weight_norm of lazy": lambda t: t.nn.utils.weight_norm(t.nn.LazyConv1d(2, 3)),
    "spectral_norm twice": lambda t: t.nn.utils.spectral_norm(t.nn.utils.spectral_norm(t.nn.Linear(2, 3))),
    "no spectral_norm": lambda t: t.nn.utils.remove_spectral_norm(t.nn.Linear(2, 3)),
    "no iterations": lambda t: t.nn.utils.spectral_norm(t.nn.Linear(2, 3), n_power_iterations=0),
    "spectral_norm of nothing": lambda t: t.nn.utils.spectral_norm(t.nn.Linear(2, 3, bias=False), "bias"),
    "fuse in training": lambda t: t.nn.utils.fuse_conv_bn_eval(t.nn.Conv2d(2, 3, 1), t.nn.BatchNorm2d(3)),
    "fuse without statistics": lambda t: t.nn.utils.fuse_linear_bn_eval(
        t.nn.Linear(2, 3).eval(), t.nn.BatchNorm1d(3, track_running_stats=False).eval()
    ),
    "fuse other features": lambda t: t.nn.utils.fuse_linear_bn_eval(
        t.nn.Linear(2, 3).eval(), t.nn.BatchNorm1d(4).eval()
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_errors(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fails(WRONG[name])


# -- normalized weights -------------------------------------------------------------------------------------

LAYERS = {
    "Linear": (lambda t: t.nn.Linear(4, 3), (5, 4)),
    "Conv2d": (lambda t: t.nn.Conv2d(4, 3, 2), (2, 4, 5, 5)),
    "ConvTranspose1d": (lambda t: t.nn.ConvTranspose1d(4, 3, 2), (2, 4, 5)),
}


def trained(room: Any, layer: Any, shape: Any) -> list[Any]:
    """Outputs in training and evaluation, gradients and state."""
    x = numbers(room, *shape).requires_grad_()
    outs = [layer(x), layer(x)]
    grads = room.autograd.grad(sum((o**2).sum() for o in outs), [x, *layer.parameters()])
    return [*outs, layer.eval()(x), *grads, *layer.state_dict().values()]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dim", (0, 1, None, -1))
def test_weight_norm(name: str, dim: int | None) -> None:
    make, shape = LAYERS[name]

    def run(room: Any, remove: bool = False) -> Any:
        room.manual_seed(0)
        layer = room.nn.utils.weight_norm(make(room).double(), dim=dim)
        found = trained(room, layer, shape)
        layer = room.nn.utils.remove_weight_norm(layer)
        return [*found, *layer.state_dict().values(), *trained(room, layer, shape)]

    if dim == -1 and name != "Linear":
        dim = None
    close(run)
    assert list(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)).state_dict()) == [
        "bias", "parametrizations.weight.original0", "parametrizations.weight.original1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("iterations", (1, 3))
def test_spectral_norm(name: str, iterations: int) -> None:
    make, shape = LAYERS[name]

    def run(room: Any) -> Any:
        room.manual_seed(0)
        layer = room.nn.utils.spectral_norm(make(room).double(), n_power_iterations=iterations)
        found = trained(room, layer, shape)
        other = room.nn.utils.spectral_norm(make(room).double())
        assert not other.load_state_dict(layer.state_dict()).missing_keys
        found += [other.eval()(numbers(room, *shape))]
        layer = room.nn.utils.remove_spectral_norm(layer)
        left = [layer._forward_pre_hooks, layer._state_dict_hooks, layer._load_state_dict_pre_hooks]
        assert room is torch or not any(left)  # PyTorch forgets one of them
        return [*found, *layer.state_dict().values()]

    close(run)


def test_states_of_normalized_weights_travel_both_ways() -> None:
    for name in ("weight_norm", "spectral_norm"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = (getattr(t.nn.utils, name)(t.nn.Linear(4, 3)) for t in (flambeau, torch))
        state = {k: torch.tensor(v.tolist()) for k, v in ours.state_dict().items()}
        assert theirs.load_state_dict(state).missing_keys == []
        assert ours.state_dict()._metadata == theirs.state_dict()._metadata
        assert list(ours.state_dict()) == list(theirs.state_dict())


# -- fused layers and other utilities -----------------------------------------------------------------------


@pytest.mark.parametrize("bias, affine", list(itertools.product((True, False), repeat=2)))
def test_fused_layers_do_what_the_two_did(bias: bool, affine: bool) -> None:
    cases = [
        (nn.Conv2d(4, 3, 2, bias=bias), nn.BatchNorm2d(3, affine=affine), (2, 4, 5, 5), {}),
        (
            nn.ConvTranspose2d(4, 3, 2, bias=bias),
            nn.BatchNorm2d(3, affine=affine),
            (2, 4, 5, 5),
            {"transpose": True},
        ),
    ]
    for layer, norm, shape, more in cases:
        layer, norm, x = layer.double(), norm.double(), numbers(flambeau, *shape)
        for _ in range(3):
            norm(layer(x))  # gives it statistics
        layer.eval(), norm.eval()
        fused = nn.utils.fuse_conv_bn_eval(layer, norm, **more)
        assert float((fused(x) - norm(layer(x))).abs().max()) < 1e-12
        assert isinstance(fused.weight, nn.Parameter) and fused.weight.requires_grad


def test_fused_linear_maps_and_weights_are_pytorchs() -> None:
    def run(room: Any) -> Any:
        room.manual_seed(0)
        linear, norm = room.nn.Linear(4, 3).double(), room.nn.BatchNorm1d(3).double()
        x = numbers(room, 6, 4)
        norm(linear(x))
        fused = room.nn.utils.fuse_linear_bn_eval(linear.eval(), norm.eval())
        weights = room.nn.utils.fuse_conv_bn_weights(
            numbers(room, 3, 4, 2), None, norm.running_mean, norm.running_var, norm.eps, None, None
        )
        return [fused.weight, fused.bias, fused(x), *weights]

    close(run)


def test_skip_init_draws_no_numbers() -> None:
    flambeau.manual_seed(0)
    wanted = flambeau.rand(3)
    flambeau.manual_seed(0)
    made = nn.utils.skip_init(nn.Linear, 4, 3)
    assert made.weight.shape == (3, 4) and made.bias.requires_grad
    assert flambeau.equal(flambeau.rand(3), wanted)
    with flambeau.virtual(devices=1):
        assert nn.utils.skip_init(nn.Linear, 4, 3, device="cuda", bias=False).weight.is_cuda


def test_prefixes_of_states_are_taken_away() -> None:
    states = []
    for room in (flambeau, torch):
        inner = room.nn.Sequential(room.nn.Linear(2, 2), room.nn.BatchNorm1d(2))
        state = room.nn.ModuleDict({"module": inner, "other": room.nn.Linear(2, 1)}).state_dict()
        room.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
        bare = {"module.a": 1, "b": 2}
        room.nn.modules.utils.consume_prefix_in_state_dict_if_present(bare, "module.")
        states.append((list(state), dict(state._metadata), bare))
    assert states[0] == states[1] and states[0][2] == {"b": 2, "a": 1}


def test_weights_in_another_memory_format() -> None:
    def run(room: Any) -> Any:
        model = room.nn.Sequential(room.nn.Conv2d(2, 3, 2), room.nn.Conv1d(2, 3, 2), room.nn.Conv3d(2, 3, 2))
        weight = model[0].weight
        assert room.nn.utils.convert_conv2d_weight_memory_format(model, room.channels_last) is model
        assert model[0].weight is weight
        strides = [m.weight.stride() for m in model]
        room.nn.utils.convert_conv3d_weight_memory_format(model, room.channels_last_3d)
        return strides, model[2].weight.stride()

    agree(run)


def called(t: Any, module: Any, given: Any, x: Any, **named: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return t.nn.utils.stateless.functional_call(module, given, x, **named)


def test_modules_called_with_other_tensors() -> None:
    def run(t: Any) -> Any:
        t.manual_seed(0)
        module = t.nn.Sequential(t.nn.Linear(3, 3), t.nn.BatchNorm1d(3), t.nn.Linear(3, 3)).double()
        module[2].weight = module[0].weight
        own = {k: v.clone() for k, v in module.state_dict().items()}
        weight = numbers(t, 3, 3).requires_grad_()
        given = {
            "0.weight": weight,
            "1.running_mean": t.zeros(3, dtype=t.float64),
            "1.num_batches_tracked": t.tensor(4),
        }
        out = called(t, module, given, numbers(t, 4, 3))
        grads = t.autograd.grad((out**2).sum(), [weight, module[0].bias])
        assert all(t.equal(own[k], v) for k, v in module.state_dict().items() if k != "1.running_var")
        apart = called(t, module, {"0.weight": weight}, (numbers(t, 4, 3),), tie_weights=False)
        return [out, *grads, given["1.running_mean"], given["1.num_batches_tracked"], apart]

    close(run)


WRONG_CALLS = {
    "unexpected": lambda t: called(
        t, t.nn.Linear(2, 2, bias=False), {"gain": t.ones(2)}, t.ones(1, 2), strict=True
    ),
    "missing": lambda t: called(t, t.nn.Linear(2, 2), {"bias": t.ones(2)}, t.ones(1, 2), strict=True),
    "tied": lambda t: called(t, tied(t), {"0.weight": t.ones(2, 2), "1.weight": t.zeros(2, 2)}, t.ones(1, 2)),
}


def tied(t: Any) -> Any:
    module = t.nn.Sequential(t.nn.Linear(2, 2), t.nn.Linear(2, 2))
    module[1].weight = module[0].weight
    return module


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls(name: str) -> None:
    fails(WRONG_CALLS[name])


def test_a_call_that_raises_leaves_the_module_as_it_was() -> None:
    module = nn.Linear(2, 2)
    weight = module.weight
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        called(
            flambeau, module, {"weight": flambeau.ones(2, 5), "more": flambeau.ones(1)}, flambeau.ones(1, 2)
        )
    assert module.weight is weight and not hasattr(module, "more")
    with pytest.warns(FutureWarning, match="deprecated"):
        nn.utils.stateless.functional_call(module, {}, flambeau.ones(1, 2))


def test_functions_keep_their_names_beside_files_of_the_same_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import flambeau.nn.utils.spectral_norm, flambeau.nn.utils.parametrizations\n"
         "from flambeau import nn; assert callable(nn.utils.spectral_norm) and callable(nn.utils.weight_norm)"],
        check=False,
    )  # fmt: skip
    assert done.returncode == 0


def test_the_names() -> None:
    theirs = set(torch.nn.utils.__all__)
    assert theirs == set(nn.utils.__all__)
    for name in theirs:
        assert getattr(nn.utils, name) is not None
    for room in ("rnn", "parametrize", "parametrizations", "stateless"):
        ours, names = getattr(nn.utils, room), getattr(torch.nn.utils, room).__all__
        assert set(ours.__all__) == set(names)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        nn.utils.nothing  # noqa: B018

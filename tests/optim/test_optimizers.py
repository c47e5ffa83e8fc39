"""Optimizers against PyTorch's on the CPU: 100 steps, states, checkpoints, options, refusals."""

from __future__ import annotations

import copy
import pickle

import pytest
from launches import launches
from support import from_torch, to_torch, torch

import flambeau
from flambeau import optim

SHAPES = ((3, 4), (5,), (), (2, 3, 2), (0, 2))
CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}),
    ("Adam", {"maximize": True, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("AdamW", {"lr": 0.01, "amsgrad": True}),
    ("RMSprop", {}),
    ("RMSprop", {"centered": True, "momentum": 0.9, "weight_decay": 0.1}),
    ("RMSprop", {"centered": True, "maximize": True}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.1}),
    ("Adadelta", {"weight_decay": 0.1}),
    ("Adamax", {"weight_decay": 0.1, "maximize": True}),
    ("NAdam", {"weight_decay": 0.1}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1}),
    ("RAdam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"t0": 10, "weight_decay": 0.1}),
    ("Rprop", {}),
    ("Rprop", {"maximize": True, "lr": 0.1}),
]
NAMES = sorted({name for name, _ in CASES})
IDS = [f"{name}-{'-'.join(given)}" for name, given in CASES]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12, torch.complex64: 1e-6}


class Twins:
    """The same parameters and gradients for PyTorch and for Flambeau, each in its own optimizer."""

    def __init__(self, name, given, kind=torch.float32, device="cpu", seed=0):
        self.random = torch.Generator().manual_seed(seed)
        self.kind, self.device = kind, device
        self.theirs = [
            torch.randn(shape, generator=self.random, dtype=kind).requires_grad_() for shape in SHAPES
        ]
        self.ours = [self.moved(p.detach()).requires_grad_() for p in self.theirs]
        self.a = getattr(torch.optim, name)(self.theirs, **given)
        self.b = getattr(optim, name)(self.ours, **given)

    def moved(self, tensor):
        return from_torch(tensor).to(self.device)

    def step(self, times=1, without=()):
        for _ in range(times):
            for i, (p, q) in enumerate(zip(self.theirs, self.ours, strict=True)):
                grad = torch.randn(p.shape, generator=self.random, dtype=self.kind)
                p.grad = None if i in without else grad
                q.grad = None if i in without else self.moved(grad)
            self.a.step()
            self.b.step()

    def agree(self, tolerance):
        assert set(self.a.param_groups[0]) == set(self.b.param_groups[0])
        for p, q in zip(self.theirs, self.ours, strict=True):
            close(q, p.detach(), tolerance)
            if p not in self.a.state:
                assert q not in self.b.state
                continue
            assert list(self.a.state[p]) == list(self.b.state[q])
            for key, value in self.a.state[p].items():
                close(self.b.state[q][key], value, tolerance)


def close(ours, theirs, tolerance):
    ours = to_torch(ours)
    assert ours.dtype is theirs.dtype
    assert ours.shape == theirs.shape
    if theirs.numel():
        assert (ours - theirs).abs().max() <= tolerance * theirs.abs().max(), (ours, theirs)


@pytest.mark.parametrize("kind", TOLERANCE, ids=str)
@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_a_hundred_steps_are_pytorchs(name, given, kind):
    twins = Twins(name, given, kind)
    twins.step(100)
    # The variance of `centered` is the difference of two averages: it keeps fewer digits than either.
    twins.agree(TOLERANCE[kind] * (10 if given.get("centered") and kind is torch.float32 else 1))


@pytest.mark.parametrize(("name", "given"), CASES, ids=IDS)
def test_virtual_gpus_compute_the_cpus_bits(name, given):
    here = Twins(name, given)
    here.step(5)
    with flambeau.virtual(devices=1):
        there = Twins(name, given, device="cuda")
        there.step(5)
        for p, q in zip(here.ours, there.ours, strict=True):
            assert p.tolist() == q.cpu().tolist()
            for key, value in here.b.state.get(p, {}).items():
                assert value.tolist() == there.b.state[q][key].cpu().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_without_gradients_wait_and_come_later(name):
    given = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}
    twins = Twins(name, given)
    twins.step(3, without=(0, 3))
    twins.step(3)
    twins.step(2, without=(1,))
    twins.agree(1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_continues(name):
    twins = Twins(name, {"momentum": 0.9} if name in ("SGD", "RMSprop") else {})
    twins.step(3)
    saved = copy.deepcopy(twins.b.state_dict())
    theirs = twins.a.state_dict()
    assert saved["param_groups"] == theirs["param_groups"]
    assert {k: list(v) for k, v in saved["state"].items()} == {k: list(v) for k, v in theirs["state"].items()}
    fresh = getattr(optim, name)(twins.ours)
    fresh.load_state_dict(saved)
    assert fresh.state_dict()["param_groups"] == saved["param_groups"]
    twins.b = fresh
    twins.step(3)
    twins.agree(1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_of_pytorch_continues(name):
    twins = Twins(name, {"momentum": 0.9} if name in ("SGD", "RMSprop") else {})
    twins.step(3)
    saved = twins.a.state_dict()
    states = {
        k: {n: from_torch(v) if isinstance(v, torch.Tensor) else v for n, v in s.items()}
        for k, s in saved["state"].items()
    }
    twins.b = getattr(optim, name)(twins.ours)
    twins.b.load_state_dict({"state": states, "param_groups": saved["param_groups"]})
    twins.step(3)
    twins.agree(1e-5)


def test_states_follow_their_parameter_but_steps_do_not():
    p = flambeau.ones(2, dtype=flambeau.float64, requires_grad=True)
    p.grad = flambeau.ones(2, dtype=flambeau.float64)
    first = optim.Adam([p])
    first.step()
    q = flambeau.ones(2, requires_grad=True)
    second = optim.Adam([q])
    second.load_state_dict(first.state_dict())
    assert second.state[q]["exp_avg"].dtype is flambeau.float32
    assert second.state[q]["step"].item() == 1


@pytest.mark.parametrize("name", ["Adam", "NAdam", "ASGD", "Adadelta"])
def test_counters_that_a_checkpoint_brings_to_a_gpu_come_back_to_the_cpu(name):
    """`torch.load(..., map_location="cuda")` puts them there; PyTorch reads them where they lie."""

    def stepped(device, state, times):
        p = flambeau.ones(3, device=device, requires_grad=True)
        opt = getattr(optim, name)([p], lr=0.1)
        if state is not None:
            opt.load_state_dict(state)
        for _ in range(times):
            p.grad = flambeau.full((3,), 0.5, device=device)
            opt.step()
        return p.tolist(), opt.state_dict()

    with flambeau.virtual(devices=1):
        _, state = stepped("cpu", None, 2)
        moved = copy.deepcopy(state)
        moved["state"][0] = {k: v.cuda() for k, v in moved["state"][0].items()}
        assert stepped("cuda", moved, 2)[0] == stepped("cpu", state, 2)[0]


def test_groups_have_options_of_their_own():
    random = torch.Generator().manual_seed(3)
    theirs = [torch.randn(3, generator=random).requires_grad_() for _ in range(3)]
    ours = [from_torch(p.detach()).requires_grad_() for p in theirs]
    grads = [torch.randn(3, generator=random) for _ in range(3)]
    both = []
    for lib, params in ((torch, theirs), (flambeau, ours)):
        groups = [{"params": params[:1], "lr": 0.5}, {"params": params[1], "momentum": 0.9}]
        both.append(lib.optim.SGD(groups, lr=0.1))
        both[-1].add_param_group({"params": params[2:], "weight_decay": 0.3})
    for p, q, g in zip(theirs, ours, grads, strict=True):
        p.grad, q.grad = g, from_torch(g)
    for _ in range(3):
        both[0].step()
        both[1].step()
    for p, q in zip(theirs, ours, strict=True):
        close(q, p.detach(), 1e-6)
    assert repr(both[0]) == repr(both[1])


@pytest.mark.parametrize("name", NAMES)
def test_defaults_and_repr_are_pytorchs(name):
    a = getattr(torch.optim, name)([torch.ones(1, requires_grad=True)])
    b = getattr(optim, name)([flambeau.ones(1, requires_grad=True)])
    assert a.defaults == b.defaults
    assert list(a.param_groups[0]) == list(b.param_groups[0])
    assert repr(a) == repr(b)


def refusals(lib):
    p, q = lib.ones(2, requires_grad=True), lib.ones(2, requires_grad=True)
    o, one = lib.optim, [lib.ones(2, requires_grad=True)]
    named = o.SGD([("a", p)], lr=1)
    return [
        lambda: o.SGD([], lr=1), lambda: o.SGD(p, lr=1), lambda: o.SGD([1], lr=1), lambda: o.SGD([1.5], lr=1),
        lambda: o.SGD([{"params": {p}}], lr=1), lambda: o.SGD([p * 2], lr=1),
        lambda: o.SGD([{"params": [p]}, {"params": [p]}], lr=1), lambda: o.SGD([("a", p), q], lr=1),
        lambda: named.add_param_group({"params": [q]}), lambda: named.add_param_group([q]),
        lambda: o.SGD(one, lr=-1), lambda: o.SGD(one, momentum=-1), lambda: o.SGD(one, weight_decay=-1),
        lambda: o.SGD(one, nesterov=True), lambda: o.SGD(one, lr=lib.ones(2)),
        lambda: o.SGD(one, fused=True, foreach=True), lambda: o.SGD(one, fused=True, differentiable=True),
        lambda: o.Adam(one, lr=-1), lambda: o.Adam(one, eps=-1), lambda: o.Adam(one, betas=(1.0, 0.9)),
        lambda: o.Adam(one, betas=(0.9, -0.1)), lambda: o.Adam(one, weight_decay=-1),
        lambda: o.Adam(one, betas=(0.5, lib.tensor(0.5))), lambda: o.Adam(one, lr=lib.tensor(0.1), foreach=True),
        lambda: o.Adam(one, betas=(lib.tensor(0.5), lib.tensor(0.5)), foreach=True),
        lambda: o.AdamW(one, fused=True, foreach=True), lambda: o.RMSprop(one, alpha=-1),
        lambda: o.RMSprop(one, momentum=-1), lambda: o.RMSprop(one, eps=-1), lambda: o.Adagrad(one, lr_decay=-1),
        lambda: o.Adagrad(one, initial_accumulator_value=-1), lambda: o.Adadelta(one, rho=1.5),
        lambda: o.Adadelta(one, eps=-1), lambda: o.Adamax(one, betas=(2, 0.9)),
        lambda: o.NAdam(one, momentum_decay=-1), lambda: o.RAdam(one, weight_decay=-1),
        lambda: o.ASGD(one, weight_decay=-1), lambda: o.Rprop(one, etas=(1.5, 2)), lambda: o.Rprop(one, lr=-1),
        lambda: o.Optimizer(one, {}).step(),
        lambda: o.SGD(one).load_state_dict({"state": {}, "param_groups": []}),
        lambda: o.SGD(one).load_state_dict({"state": {}, "param_groups": [{"params": [0, 1]}]}),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(len(refusals(flambeau))))
def test_refusals_are_pytorchs_word_for_word(which):
    with pytest.raises(Exception) as theirs:
        refusals(torch)[which]()
    with pytest.raises(type(theirs.value)) as ours:
        refusals(flambeau)[which]()
    assert str(ours.value) == str(theirs.value)


def test_a_parameter_named_twice_warns():
    p = flambeau.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="optimizer contains a parameter group with duplicate parameters"):
        optim.SGD([p, p])


def test_names_of_parameters_are_kept():
    p, q = flambeau.ones(1, requires_grad=True), flambeau.ones(1, requires_grad=True)
    o = optim.SGD([("weight", p), ("bias", q)])
    assert o.param_groups[0]["params"][1] is q
    assert o.state_dict()["param_groups"][0]["param_names"] == ["weight", "bias"]


def test_zero_grad_drops_or_fills():
    p = flambeau.ones(2, requires_grad=True)
    o = optim.SGD([p])
    p.grad = grad = flambeau.ones(2)
    o.zero_grad(set_to_none=False)
    assert p.grad is grad
    assert grad.tolist() == [0, 0]
    o.zero_grad()
    assert p.grad is None


def test_a_closure_runs_with_recording_on_and_gives_the_loss():
    p = flambeau.ones(2, requires_grad=True)
    o = optim.SGD([p], lr=0.5)
    seen = []

    def closure():
        seen.append(flambeau.is_grad_enabled())
        o.zero_grad()
        loss = (p * p).sum()
        loss.backward()
        return loss

    with flambeau.no_grad():
        loss = o.step(closure)
        assert not flambeau.is_grad_enabled()
    assert seen == [True]
    assert loss.item() == 2
    assert p.tolist() == [0, 0]


def test_hooks_run_in_pytorchs_order_and_go():
    p = flambeau.ones(1, requires_grad=True)
    p.grad = flambeau.ones(1)
    o = optim.SGD([p], lr=0.5)
    seen = []
    handles = [
        o.register_step_pre_hook(lambda *_: seen.append("before")),
        o.register_step_post_hook(lambda *_: seen.append("after")),
        optim.optimizer.register_optimizer_step_pre_hook(lambda *_: seen.append("every before")),
        optim.optimizer.register_optimizer_step_post_hook(lambda *_: seen.append("every after")),
    ]
    o.step()
    assert seen == ["every before", "before", "after", "every after"]
    for handle in handles:
        handle.remove()
    o.step()
    assert len(seen) == 4
    o.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    o.register_load_state_dict_pre_hook(lambda _, state: {k: v for k, v in state.items() if k != "more"})
    state = o.state_dict()
    assert state["more"] == 1
    o.load_state_dict(state)


def test_a_hook_before_may_change_the_arguments_only_as_a_pair():
    p = flambeau.ones(1, requires_grad=True)
    o = optim.SGD([p])
    o.register_step_pre_hook(lambda *_: 5)
    with pytest.raises(RuntimeError, match="must return None or a tuple of"):
        o.step()


def test_optimizers_pickle_and_copy():
    p = flambeau.ones(2, requires_grad=True)
    p.grad = flambeau.ones(2)
    o = optim.Adam([p], lr=0.1)
    o.step()
    back = pickle.loads(pickle.dumps(o))
    (q,) = back.param_groups[0]["params"]
    assert q.tolist() == p.tolist()
    assert back.state[q]["step"].item() == 1
    q.grad = flambeau.ones(2)
    back.step()
    o.step()
    assert q.tolist() == p.tolist()


def test_a_subclass_with_a_step_of_its_own_has_hooks():
    class Plain(optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 1.0})

        def step(self, closure=None):
            with flambeau.no_grad():
                for p in self.param_groups[0]["params"]:
                    p -= p.grad

    p = flambeau.ones(1, requires_grad=True)
    p.grad = flambeau.ones(1)
    o, seen = Plain([p]), []
    o.register_step_post_hook(lambda *_: seen.append(1))
    o.step()
    assert p.tolist() == [0]
    assert seen == [1]


def test_a_rate_may_be_a_tensor():
    p = flambeau.ones(1, requires_grad=True)
    p.grad = flambeau.ones(1)
    lr = flambeau.tensor(0.25)
    o = optim.SGD([p], lr=lr)
    o.step()
    lr.fill_(0.5)
    o.step()
    assert p.tolist() == [0.25]


def test_layouts_other_than_contiguous():
    random = torch.Generator().manual_seed(1)
    theirs = torch.randn(4, 3, generator=random).t().detach().requires_grad_()
    ours = from_torch(theirs.detach()).requires_grad_()
    wide = torch.randn(3, 8, generator=random)
    a, b = torch.optim.Adam([theirs]), optim.Adam([ours])
    for _ in range(3):
        theirs.grad, ours.grad = wide[:, ::2], from_torch(wide)[:, ::2]
        a.step()
        b.step()
    close(ours, theirs.detach(), 1e-6)
    assert ours.stride() == theirs.stride()


def test_large_parameters_are_taken_in_parts():
    theirs = torch.linspace(-1, 1, 50_001).requires_grad_()
    ours = from_torch(theirs.detach()).requires_grad_()
    a, b = torch.optim.AdamW([theirs], lr=0.1), optim.AdamW([ours], lr=0.1)
    theirs.grad = torch.linspace(3, -2, 50_001)
    ours.grad = from_torch(theirs.grad)
    for _ in range(3):
        a.step()
        b.step()
    close(ours, theirs.detach(), 1e-6)


@pytest.mark.parametrize("kind", [flambeau.float16, flambeau.bfloat16])
def test_half_precision_rounds_once(kind):
    p = flambeau.tensor([1.0, -2.0, 3.0], dtype=kind, requires_grad=True)
    p.grad = flambeau.tensor([0.5, 0.25, -1.0], dtype=kind)
    want = (p.detach().float() - 0.1 * p.grad.float()).to(kind)
    optim.SGD([p], lr=0.1).step()
    assert p.tolist() == want.tolist()


def test_a_step_is_one_launch_for_all_parameters():
    with flambeau.virtual(devices=1):
        params = [flambeau.ones(n + 1, device="cuda", requires_grad=True) for n in range(40)]
        o = optim.Adam(params)
        for p in params:
            p.grad = flambeau.ones_like(p)
        o.step()
        with launches() as names:
            o.step()
        assert names == ["_adam"]


def test_an_optimizer_around_another_need_not_be_initialized() -> None:
    class Around(flambeau.optim.Optimizer):
        def __init__(self, inner: optim.SGD) -> None:
            self.inner, self.steps = inner, 0

        def step(self, closure: None = None) -> None:
            self.inner.step()
            self.steps += 1

    p = flambeau.nn.Parameter(flambeau.ones(1))
    p.sum().backward()
    around = Around(flambeau.optim.SGD([p], lr=0.25))
    around.step()
    assert around.steps == 1 and p.item() == 0.75


DIFFERENTIABLE = [
    ("SGD", {}), ("SGD", {"weight_decay": 0.1}), ("Adam", {"weight_decay": 0.1}), ("AdamW", {}), ("RMSprop", {"momentum": 0.9}),
    ("Adagrad", {}), ("Adadelta", {}), ("NAdam", {}), ("RAdam", {}), ("ASGD", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), DIFFERENTIABLE)
def test_a_step_is_differentiable(name, options):  # to the precision of PyTorch's counters, which are float32
    found = []
    for lib in (torch, flambeau):
        w = lib.tensor([0.5, 1.0, 2.0], dtype=lib.float64, requires_grad=True)
        scale = lib.tensor(2.0, dtype=lib.float64, requires_grad=True)
        p = w.clone()
        stepper = getattr(lib.optim, name)([p], lr=0.1, differentiable=True, **options)
        for _ in range(3):
            (p.grad,) = lib.autograd.grad((p.clone() ** 3 * scale).sum(), p, create_graph=True)
            stepper.step()
        found.append([p.detach(), *lib.autograd.grad(p.sum(), (w, scale))])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(to_torch(ours), theirs, rtol=2e-5, atol=1e-10)

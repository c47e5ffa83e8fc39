"""Schedulers against PyTorch's: each rate to the last bit, states, warnings, refusals."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest
from support import torch

import flambeau


class Halving:
    """A callable object: its attributes are saved."""

    def __init__(self):
        self.base = 0.5

    def __call__(self, epoch):
        return self.base**epoch


def pairs(lib):
    """Every scheduler by a name, made on an optimizer."""
    s = lib.optim.lr_scheduler
    return {
        "lambda": lambda o: s.LambdaLR(o, lambda e: 0.9**e),
        "lambdas": lambda o: s.LambdaLR(o, [lambda e: 0.9**e, Halving()]),
        "multiplicative": lambda o: s.MultiplicativeLR(o, lambda e: 0.95),
        "step": lambda o: s.StepLR(o, 3, 0.5),
        "multistep": lambda o: s.MultiStepLR(o, [3, 7, 7, 20], 0.1),
        "constant": lambda o: s.ConstantLR(o, 0.25, 4),
        "linear": lambda o: s.LinearLR(o, 0.1, 0.9, 7),
        "exponential": lambda o: s.ExponentialLR(o, 0.9),
        "polynomial": lambda o: s.PolynomialLR(o, 8, 2.0),
        "cosine": lambda o: s.CosineAnnealingLR(o, 7, 0.01),
        "restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 4, 2, 0.01),
        "restarts by one": lambda o: s.CosineAnnealingWarmRestarts(o, 4),
        "cyclic": lambda o: s.CyclicLR(o, 0.01, 0.1, 4, 6),
        "cyclic 2": lambda o: s.CyclicLR(o, [0.01, 0.02], [0.1, 0.3], 5, mode="triangular2", base_momentum=0.7),
        "cyclic range": lambda o: s.CyclicLR(o, 0.01, 0.1, 5, mode="exp_range", gamma=0.97, cycle_momentum=False),
        "cyclic by": lambda o: s.CyclicLR(o, 0.01, 0.1, 5, scale_fn=lambda x: 1 / x, scale_mode="cycle"),
        "cyclic by step": lambda o: s.CyclicLR(o, 0.01, 0.1, 5, scale_fn=lambda x: 0.9**x, scale_mode="iterations"),
        "one cycle": lambda o: s.OneCycleLR(o, [0.1, 0.2], 40),
        "one cycle linear": lambda o: s.OneCycleLR(o, 0.1, epochs=4, steps_per_epoch=10, anneal_strategy="linear"),
        "one cycle in three": lambda o: s.OneCycleLR(o, 0.1, 40, three_phase=True, cycle_momentum=False),
        "chained": lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9)]),
        "sequential": lambda o: s.SequentialLR(
            o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 10), s.ExponentialLR(o, 0.9)], [5, 15]
        ),
        "nested": lambda o: s.SequentialLR(
            o, [s.ChainedScheduler([s.ConstantLR(o, 0.1, 2), s.StepLR(o, 2)]), s.StepLR(o, 3)], [6]
        ),
    }  # fmt: skip


NAMES = list(pairs(flambeau))
CLOSED = ["step", "multistep", "constant", "linear", "exponential", "polynomial", "cosine"]


def optimizer(lib, name="SGD", **given):
    groups = [
        {"params": [lib.ones(1, requires_grad=True)]},
        {"params": [lib.ones(1, requires_grad=True)], "lr": 0.7},
    ]
    return getattr(lib.optim, name)(groups, lr=0.5, **given)


def both(name, kind="SGD"):
    given = {"momentum": 0.9} if kind == "SGD" else {}
    optimizers = [optimizer(lib, kind, **given) for lib in (torch, flambeau)]
    return optimizers, [pairs(lib)[name](o) for lib, o in zip((torch, flambeau), optimizers, strict=True)]


def options(o):
    return [{k: v for k, v in g.items() if k not in ("params",)} for g in o.param_groups]


@pytest.mark.filterwarnings("ignore:Detected call of")  # "nested" makes it warn in PyTorch too
@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("name", NAMES)
def test_every_rate_is_pytorchs(name, kind):
    optimizers, schedulers = both(name, kind)
    for _ in range(40):
        assert options(optimizers[1]) == options(optimizers[0])
        assert schedulers[1].get_last_lr() == schedulers[0].get_last_lr()
        for o, s in zip(optimizers, schedulers, strict=True):
            o.step()
            s.step()


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("name", NAMES)
def test_states_are_pytorchs_and_continue(name):
    optimizers, schedulers = both(name)
    for _ in range(6):
        for o, s in zip(optimizers, schedulers, strict=True):
            o.step()
            s.step()
    theirs, ours = (s.state_dict() for s in schedulers)
    assert sorted(ours) == sorted(theirs)
    if "schedulers" not in "".join(ours):
        assert ours == theirs
    fresh = pairs(flambeau)[name](optimizer(flambeau, momentum=0.9))
    fresh.optimizer.load_state_dict(optimizers[1].state_dict())
    fresh.load_state_dict(ours)
    for _ in range(6):
        optimizers[0].step()
        schedulers[0].step()
        fresh.optimizer.step()
        fresh.step()
        assert fresh.get_last_lr() == schedulers[0].get_last_lr()


@pytest.mark.parametrize("name", CLOSED)
def test_an_epoch_given_takes_the_closed_form(name):
    optimizers, schedulers = both(name)
    for epoch in (3, 1, 9, 0):
        for o, s in zip(optimizers, schedulers, strict=True):
            o.step()
            with pytest.warns(UserWarning, match="The epoch parameter in"):
                s.step(epoch)
        assert schedulers[1].get_last_lr() == schedulers[0].get_last_lr()


def test_restarts_at_parts_of_epochs():
    for mult in (1, 2):
        schedulers = [
            lib.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer(lib), 3, mult)
            for lib in (torch, flambeau)
        ]
        for epoch in (0.5, 2.25, 3, 7.75, 20.5, 1):
            for s in schedulers:
                s.step(epoch)
            assert schedulers[1].get_last_lr() == schedulers[0].get_last_lr()


@pytest.mark.parametrize("given", [
    {}, {"mode": "max", "factor": 0.5, "patience": 2}, {"threshold_mode": "abs", "threshold": 0.3, "patience": 1},
    {"mode": "max", "threshold_mode": "abs", "threshold": 0.1, "patience": 0, "cooldown": 2},
    {"patience": 0, "min_lr": [0.1, 0.2]}, {"patience": 0, "min_lr": 0.3, "eps": 0.05},
])  # fmt: skip
def test_plateaus(given):
    optimizers = [optimizer(lib) for lib in (torch, flambeau)]
    schedulers = [
        lib.optim.lr_scheduler.ReduceLROnPlateau(o, **given)
        for lib, o in zip((torch, flambeau), optimizers, strict=True)
    ]
    measures = torch.rand(60, generator=torch.Generator().manual_seed(2)).cumsum(0).sin().tolist()
    for measure in measures:
        for s in schedulers:
            s.step(measure)
        assert options(optimizers[1]) == options(optimizers[0])
        ours, theirs = schedulers[1].state_dict(), schedulers[0].state_dict()
        assert ours == theirs
    other = flambeau.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1], **given)
    other.load_state_dict(schedulers[1].state_dict())
    assert other.state_dict() == schedulers[1].state_dict()


def test_a_rate_that_is_a_tensor_is_changed_in_place():
    lr = flambeau.tensor(0.5)
    o = flambeau.optim.SGD([flambeau.ones(1, requires_grad=True)], lr=lr)
    s = flambeau.optim.lr_scheduler.StepLR(o, 1, 0.5)
    o.step()
    s.step()
    assert o.param_groups[0]["lr"] is lr
    assert lr.item() == 0.25
    assert o.param_groups[0]["initial_lr"].item() == 0.5


def warned(run):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run()
    return [(w.category, str(w.message)) for w in seen]


def test_warnings_are_pytorchs():
    def early(lib):
        s = lib.optim.lr_scheduler.StepLR(optimizer(lib), 2)
        return s.step

    def overridden(lib):
        o = optimizer(lib)
        s = lib.optim.lr_scheduler.StepLR(o, 2)
        o.step = lambda: None
        return s.step

    def asked(lib):
        return lib.optim.lr_scheduler.StepLR(optimizer(lib), 2).get_lr

    for make in (early, overridden, asked):
        theirs, ours = warned(make(torch)), warned(make(flambeau))
        assert len(theirs) == 1
        assert ours == theirs


def test_the_warning_points_at_the_program():
    s = flambeau.optim.lr_scheduler.StepLR(optimizer(flambeau), 2)
    with pytest.warns(UserWarning, match="Detected call") as seen:
        s.step()
    assert seen[0].filename == __file__


def refusals(lib):
    s, o = lib.optim.lr_scheduler, optimizer(lib)
    plain = lib.optim.Adagrad([lib.ones(1, requires_grad=True)])
    step, plateau = s.StepLR(o, 2), s.ReduceLROnPlateau(o)

    def too_far():
        cycle = s.OneCycleLR(o, 0.1, 2)
        for _ in range(4):
            o.step()
            cycle.step()

    def more_groups():
        short = s.ReduceLROnPlateau(o, min_lr=[0.0, 0.0], patience=0)
        o.add_param_group({"params": [lib.ones(1, requires_grad=True)]})
        for _ in range(3):
            short.step(1.0)

    return [
        lambda: s.StepLR(3, 2), lambda: s.StepLR(plain, 2, last_epoch=3), lambda: s.LambdaLR(o, [abs]),
        lambda: s.MultiplicativeLR(o, [abs]), lambda: s.MultiplicativeLR(o, 3), lambda: s.ConstantLR(o, 1.5),
        lambda: s.LinearLR(o, 0), lambda: s.LinearLR(o, 0.5, 2), lambda: s.SequentialLR(o, [], []),
        lambda: s.SequentialLR(o, [step], [3]), lambda: s.SequentialLR(o, [3], []),
        lambda: s.SequentialLR(o, [plateau], []), lambda: s.ChainedScheduler([]),
        lambda: s.ChainedScheduler([3], o), lambda: s.ChainedScheduler([plateau]),
        lambda: s.ReduceLROnPlateau(o, factor=1.0), lambda: s.ReduceLROnPlateau(3),
        lambda: s.ReduceLROnPlateau(o, "most"), lambda: s.ReduceLROnPlateau(o, threshold_mode="x"),
        lambda: s.ReduceLROnPlateau(o, min_lr=[0.1]), more_groups,
        lambda: s.CyclicLR(plain, 0.1, 0.2), lambda: s.CyclicLR(o, 0.1, 0.2, mode="square"),
        lambda: s.CyclicLR(o, [0.1], 0.2), lambda: s.CyclicLR(3, 0.1, 0.2),
        lambda: s.OneCycleLR(o, 0.1), lambda: s.OneCycleLR(o, 0.1, 0), lambda: s.OneCycleLR(o, 0.1, 1.5),
        lambda: s.OneCycleLR(o, 0.1, epochs=0, steps_per_epoch=3), lambda: s.OneCycleLR(o, 0.1, 9, pct_start=2),
        lambda: s.OneCycleLR(o, 0.1, epochs=3, steps_per_epoch=-1), lambda: s.OneCycleLR(plain, 0.1, 9),
        lambda: s.OneCycleLR(o, 0.1, 9, anneal_strategy="x"), too_far,
        lambda: s.CosineAnnealingWarmRestarts(o, 0), lambda: s.CosineAnnealingWarmRestarts(o, 3, 0),
        lambda: s.CosineAnnealingWarmRestarts(o, 3, eta_min="x"),
        lambda: s.CosineAnnealingWarmRestarts(o, 3).step(-1),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(len(refusals(flambeau))))
def test_refusals_are_pytorchs_word_for_word(which):
    with pytest.raises(Exception) as theirs:
        refusals(torch)[which]()
    with pytest.raises(type(theirs.value)) as ours:
        refusals(flambeau)[which]()
    assert str(ours.value) == str(theirs.value)


WRONG = [b"x", "x", None, [], ["x"], 1j, {}, (0.1,), [None], len, np.array([0.1]), 2**64, float("nan"), True]
REQUIRED = {
    "CyclicLR": {"base_lr": np.array([0.1]), "max_lr": 0.2, "mode": "exp_range"},
    "OneCycleLR": {"max_lr": 0.2, "total_steps": 9}, "StepLR": {"step_size": 1},
    "ExponentialLR": {"gamma": 0.5}, "PolynomialLR": {}, "CosineAnnealingLR": {"T_max": 2}, "ConstantLR": {},
    "CosineAnnealingWarmRestarts": {"T_0": 2}, "ReduceLROnPlateau": {"patience": 0}, "LinearLR": {},
}  # fmt: skip
LISTED = {("OneCycleLR", "pct_start", "ndarray")}  # ValueError as for every other number; PyTorch: TypeError


def outcome(lib, name, argument, value, lr):
    """Return the type of the error of three steps, of which NumPy's are TypeErrors, or None."""
    try:
        o = lib.optim.SGD([lib.ones(2, requires_grad=True)], lr=lr, momentum=0.5)
        s = getattr(lib.optim.lr_scheduler, name)(o, **REQUIRED[name] | {argument: value})
        for _ in range(3):
            s.step(*[1.0][: name == "ReduceLROnPlateau"])
    except Exception as error:
        assert lib is torch or not type(error).__module__.startswith("numpy")
        return TypeError if isinstance(error, TypeError) else type(error)
    return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REQUIRED)
def test_arguments_of_wrong_types_are_refused_as_by_pytorch(name):
    for argument in list(inspect.signature(getattr(flambeau.optim.lr_scheduler, name)).parameters)[1:]:
        for value in WRONG:
            for lr in (0.1, np.array([0.1])):
                call = name, argument, value, lr
                if (name, argument, type(value).__name__) not in LISTED:
                    assert outcome(flambeau, *call) is outcome(torch, *call), call


def test_a_scheduler_of_another_optimizer_is_refused():
    s, o = flambeau.optim.lr_scheduler, optimizer(flambeau)
    other = s.StepLR(optimizer(flambeau), 2)
    with pytest.raises(
        ValueError, match="SequentialLR expects all schedulers to belong to the same optimizer, but got"
    ):
        s.SequentialLR(o, [other], [])


def test_a_group_added_later_has_a_rate_of_its_own():
    o = optimizer(flambeau)
    s = flambeau.optim.lr_scheduler.StepLR(o, 1, 0.5)
    o.add_param_group({"params": [flambeau.ones(1, requires_grad=True)], "lr": 4.0})
    o.step()
    s.step()
    assert s.get_last_lr() == [0.25, 0.35, 2.0]

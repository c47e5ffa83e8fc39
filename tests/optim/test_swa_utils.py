"""Averaged weights, `update_bn` and `SWALR` against PyTorch's on the CPU."""

from __future__ import annotations

import warnings

import pytest
from support import from_torch, to_torch, torch

import flambeau


def model(m):
    nn = m.nn
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def twins():
    torch.manual_seed(1)
    a, b = model(torch), model(flambeau)
    b.load_state_dict({name: from_torch(t) for name, t in a.state_dict().items()})
    return a, b


def averages(m, which, start, **given):
    swa = m.optim.swa_utils
    rule = {
        "mean": {},
        "ema": {"avg_fn": swa.get_ema_avg_fn(0.9)},
        "swa": {"avg_fn": swa.get_swa_avg_fn()},
        "multi ema": {"multi_avg_fn": swa.get_ema_multi_avg_fn(0.9)},
        "multi swa": {"multi_avg_fn": swa.get_swa_multi_avg_fn()},
    }[which]
    return swa.AveragedModel(start, **rule, **given)


@pytest.mark.parametrize(
    ("which", "use_buffers"),
    [  # PyTorch's rule for lists refuses integer buffers
        (which, use_buffers)
        for which in ("mean", "ema", "swa", "multi ema", "multi swa")
        for use_buffers in (False, True)
        if not (use_buffers and which == "multi swa")
    ],
)
def test_averages_are_pytorchs(which, use_buffers):
    a, b = twins()
    theirs, ours = (averages(m, which, x, use_buffers=use_buffers) for m, x in ((torch, a), (flambeau, b)))
    for _ in range(5):
        with torch.no_grad():
            for p in [*a.parameters(), *a.buffers()]:
                p.copy_((torch.rand(p.shape) * 8).to(p.dtype))
        b.load_state_dict({name: from_torch(t) for name, t in a.state_dict().items()})
        theirs.update_parameters(a)
        ours.update_parameters(b)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, t in theirs.state_dict().items():
        assert torch.allclose(to_torch(ours.state_dict()[name]), t, rtol=1e-5), name
    x = torch.rand(4, 3)
    theirs.eval(), ours.eval()
    assert torch.allclose(to_torch(ours(from_torch(x)).detach()), theirs(x).detach(), rtol=1e-4)


def test_averages_may_live_on_another_device():
    with flambeau.virtual(devices=1):
        net = model(flambeau)
        found = flambeau.optim.swa_utils.AveragedModel(net, device="cuda")
        for _ in range(2):
            found.update_parameters(net)
        assert found.n_averaged.item() == 2 and found.n_averaged.device.type == "cuda"
        for p, q in zip(net.parameters(), found.module.parameters(), strict=True):
            assert flambeau.allclose(p, q.cpu())


@pytest.mark.parametrize("pairs", [False, True])
def test_update_bn_finds_pytorchs_statistics(pairs):
    a, b = twins()
    b.eval(), a.eval()
    batches = [torch.rand(6, 3) for _ in range(4)]
    wrap = (lambda x: (x, 0)) if pairs else lambda x: x
    torch.optim.swa_utils.update_bn([wrap(x) for x in batches], a)
    flambeau.optim.swa_utils.update_bn([wrap(from_torch(x)) for x in batches], b)
    for name, t in a.state_dict().items():
        assert torch.allclose(to_torch(b.state_dict()[name]), t, rtol=1e-5), name
    assert not b.training and b[1].momentum == a[1].momentum


def rates(m, **given):
    p = [m.ones(2).requires_grad_(), m.ones(3).requires_grad_()]
    optimizer = m.optim.SGD([{"params": [p[0]]}, {"params": [p[1]], "lr": 0.5}], lr=0.1)
    schedule = m.optim.swa_utils.SWALR(optimizer, **given)
    found = []
    for _ in range(8):
        optimizer.step()
        schedule.step()
        found.append(schedule.get_last_lr())
    return found


@pytest.mark.parametrize("epochs", [0, 1, 5])
@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("last", [0.01, [0.02, 0.3]])
def test_rates_are_pytorchs(last, strategy, epochs):
    given = {"swa_lr": last, "anneal_strategy": strategy, "anneal_epochs": epochs}
    for ours, theirs in zip(rates(flambeau, **given), rates(torch, **given), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)


def refusals(m):
    swa = m.optim.swa_utils
    return [
        lambda: rates(m, swa_lr=[0.1]),
        lambda: rates(m, swa_lr=0.1, anneal_strategy="square"),
        lambda: rates(m, swa_lr=0.1, anneal_epochs=-1),
        lambda: swa.get_ema_avg_fn(1.5),
        lambda: swa.get_ema_multi_avg_fn(-0.5),
        lambda: swa.AveragedModel(model(m), avg_fn=len, multi_avg_fn=len),
    ]


@pytest.mark.parametrize("which", range(len(refusals(flambeau))))
def test_refusals_are_pytorchs_word_for_word(which):
    with pytest.raises(Exception) as theirs:
        refusals(torch)[which]()
    with pytest.raises(theirs.type) as ours:
        refusals(flambeau)[which]()
    assert str(ours.value) == str(theirs.value)


def test_a_state_is_saved_and_the_warning_points_at_the_program():
    p = flambeau.ones(2).requires_grad_()
    schedule = flambeau.optim.swa_utils.SWALR(flambeau.optim.SGD([p], lr=0.1), 0.01, anneal_epochs=3)
    other = flambeau.optim.swa_utils.SWALR(flambeau.optim.SGD([p], lr=0.1), 0.01)
    other.load_state_dict(schedule.state_dict())
    assert other.anneal_epochs == 3
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        schedule.get_lr()
    assert [w.filename for w in caught] == [__file__]

"""`GradScaler` against PyTorch's on the CPU, step by step; on virtual GPUs its waits, devices and memory."""

from __future__ import annotations

import pickle

import pytest
from support import from_torch, to_torch, torch

import flambeau

GIVEN = {"init_scale": 8.0, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2}
# What becomes of each step's first gradient.
EVENTS = ["", "", "inf", "", "nan", "inf", "", "", "", "-inf", "", ""]


class Run:
    """A model with its optimizer and scaler, in PyTorch or in Flambeau."""

    def __init__(self, m, device="cpu", **given):
        self.m, self.device = m, device
        self.weight = self.of(torch.arange(6.0).reshape(2, 3) / 3).requires_grad_()
        self.bias = self.of(torch.ones(2)).requires_grad_()
        self.optimizer = m.optim.Adam([self.weight, self.bias], lr=0.1)
        self.scaler = m.amp.GradScaler(device, **(given or GIVEN))

    def of(self, tensor):
        return tensor.clone() if self.m is torch else from_torch(tensor).to(self.device)

    def backward(self, event=""):
        self.optimizer.zero_grad()
        x = self.of(torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 0.25]]))
        loss = ((x @ self.weight.t() + self.bias) ** 2).mean()
        self.scaler.scale(loss).backward()
        if event:
            self.weight.grad[0, 0] = float(event)

    def step(self, event="", unscale=False):
        self.backward(event)
        if unscale:
            self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("unscale", [False, True])
def test_scales_skips_and_weights_are_pytorchs(unscale, device):
    with flambeau.virtual(devices=1):
        a, b = Run(torch), Run(flambeau, device)
        for event in EVENTS:
            a.step(event, unscale)
            b.step(event, unscale)
            assert b.scaler.state_dict() == a.scaler.state_dict()
            near = 1e-5 if device == "cpu" else 1e-2  # TF32
            assert torch.allclose(to_torch(b.weight.detach()), a.weight.detach(), rtol=near)
        assert b.weight.grad is not None


def test_the_gradients_are_unscaled_in_place():
    run = Run(flambeau)
    run.backward()
    scaled = run.weight.grad.clone()
    run.scaler.unscale_(run.optimizer)
    assert flambeau.equal(run.weight.grad * 8, scaled)


def test_states_go_both_ways_and_pickles_keep_them():
    a, b = Run(torch), Run(flambeau)
    for event in EVENTS[:4]:
        a.step(event)
    fresh = flambeau.amp.GradScaler("cpu", init_scale=2.0)
    fresh.load_state_dict(a.scaler.state_dict())
    b.scaler.load_state_dict(a.scaler.state_dict())
    assert fresh.state_dict() == b.scaler.state_dict() == a.scaler.state_dict()
    b.step()
    assert pickle.loads(pickle.dumps(b.scaler)).state_dict() == b.scaler.state_dict()
    torch.amp.GradScaler("cpu").load_state_dict(b.scaler.state_dict())


def test_only_the_step_waits_for_the_device():
    """`scale`, `unscale_` and `update` ask the device nothing: simulated time at the host goes on by launches only."""
    with flambeau.virtual(devices=1):
        run = Run(flambeau, "cuda")
        run.step()
        flambeau.cuda.synchronize()
        run.backward()
        flambeau.cuda._sleep(10**9)
        run.scaler.unscale_(run.optimizer)
        run.scaler.update()
        assert not flambeau.cuda.current_stream().query()


def test_losses_on_several_devices_and_lists():
    with flambeau.virtual(devices=2):
        scaler = flambeau.amp.GradScaler(init_scale=4.0)
        losses = [flambeau.ones((), device=f"cuda:{i}") for i in (0, 1)]
        scaled = scaler.scale((losses[0], [losses[1]]))
        assert isinstance(scaled, tuple) and isinstance(scaled[1], list)
        assert [scaled[0].item(), scaled[1][0].item()] == [4.0, 4.0]
        assert scaled[1][0].device == losses[1].device


def refusals(m):
    def doing(do, **given):
        def run():
            one = Run(m, **given)
            do(one)

        return run

    def twice(one):
        one.backward()
        one.scaler.unscale_(one.optimizer)
        one.scaler.unscale_(one.optimizer)

    def step_twice(one):
        one.backward()
        one.scaler.step(one.optimizer)
        one.scaler.step(one.optimizer)

    def unscale_late(one):
        one.backward()
        one.scaler.step(one.optimizer)
        one.scaler.unscale_(one.optimizer)

    def half(one):
        one.scaler.scale(one.bias.detach())
        p = one.of(torch.ones(2)).to(m.float16).requires_grad_()
        p.grad = m.ones(2, dtype=m.float16)
        one.scaler.unscale_(m.optim.SGD([p], lr=0.1))

    def other_scale(one):
        one.step()
        one.scaler.update(one.of(torch.ones(2)))

    return [
        doing(lambda one: one.scaler.update()),
        doing(lambda one: one.scaler.step(one.optimizer)),
        doing(lambda one: one.scaler.unscale_(one.optimizer)),
        doing(lambda one: one.scaler.step(one.optimizer, closure=print)),
        doing(lambda one: one.scaler.scale(3)),
        doing(lambda one: one.scaler.load_state_dict({})),
        doing(lambda one: (one.backward(), one.scaler.update())),
        doing(lambda one: None, growth_factor=1.0),
        doing(lambda one: None, backoff_factor=1.0),
        doing(twice),
        doing(step_twice),
        doing(unscale_late),
        doing(half),
        doing(other_scale),
    ]


@pytest.mark.parametrize("which", range(len(refusals(flambeau))))
def test_refusals_are_pytorchs_word_for_word(which):
    with pytest.raises(Exception) as theirs:
        refusals(torch)[which]()
    with pytest.raises(theirs.type) as ours:
        refusals(flambeau)[which]()
    assert str(ours.value) == str(theirs.value)


def test_disabled_it_does_nothing():
    run = Run(flambeau, enabled=False)
    run.step()
    assert run.scaler.state_dict() == {} and run.scaler.get_scale() == 1.0
    assert not run.scaler.is_enabled()
    x = flambeau.ones(2)
    assert run.scaler.scale(x) is x


def test_without_cuda_it_warns_and_is_disabled():
    with flambeau.virtual(devices=0), pytest.warns(UserWarning, match="CUDA is not available.  Disabling."):
        assert not flambeau.amp.GradScaler().is_enabled()


def test_a_scale_may_be_given():
    run = Run(flambeau)
    run.step()
    run.scaler.update(3.0)
    assert run.scaler.get_scale() == 3.0
    run.scaler.update(flambeau.tensor(5.0))
    assert run.scaler.get_scale() == 5.0


def test_mixed_precision_trains_and_leaves_nothing():
    with flambeau.virtual(devices=1, races="error"):
        net = flambeau.nn.Sequential(
            flambeau.nn.Linear(8, 16), flambeau.nn.GELU(), flambeau.nn.Linear(16, 3)
        ).cuda()
        optimizer = flambeau.optim.AdamW(net.parameters(), lr=0.05)
        scaler = flambeau.amp.GradScaler()
        x = flambeau.rand(32, 8, device="cuda")
        y = x[:, :3].argmax(1)
        losses = []
        for _ in range(40):
            with flambeau.autocast("cuda"):
                loss = flambeau.nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        assert losses[-1] < 0.3 * losses[0]
        del net, optimizer, scaler, x, y, loss
        assert flambeau.cuda.memory_allocated() == 0

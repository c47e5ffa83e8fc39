"""The three examples of PyTorch 1.8's notes on streams of backward passes, word for word (SPEC rows G05 to G07)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.runtime import system

SAFE = """
# Safe, populating initial_grad and invoking backward are in the same stream context
with torch.cuda.stream(strm):
    loss.backward(gradient=torch.ones_like(loss))
"""
UNSAFE = """
# Unsafe, populating initial_grad and invoking backward are in different stream contexts,
# without synchronization
initial_grad = torch.ones_like(loss)
with torch.cuda.stream(strm):
    loss.backward(gradient=initial_grad)
"""
SYNCHRONIZED = """
# Safe, with synchronization
initial_grad = torch.ones_like(loss)
strm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(strm):
    initial_grad.record_stream(strm)
    loss.backward(gradient=initial_grad)
"""
SCHEDULES = ["earliest", *[f"random:{n}" for n in range(4)], *[f"adversarial:{n}" for n in range(4)]]


def run(example: str, schedule: str, far: bool) -> tuple[Any, Any]:
    """The gradient after an example whose forward pass ran on `strm`, and the certificate.

    `far`: the parameter lies on another device than the loss.
    """
    with torch.virtual(devices=2, profile="a100", schedule=schedule, races="warn"):
        where = 1 if far else 0
        w = torch.full((64, 64), 0.5, device="cuda:0", requires_grad=True)
        with torch.cuda.device(where):
            strm = torch.cuda.Stream()
            strm.wait_stream(torch.cuda.default_stream(0))
            with torch.cuda.stream(strm):
                loss = (w.to(f"cuda:{where}") * 2).exp()
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            exec(example, {"torch": torch, "strm": strm, "loss": loss})
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        return w.grad.cpu().numpy(), system.accelerator().detector.certificate()


@pytest.mark.parametrize("far", [False, True], ids=["one device", "two devices"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("example", [SAFE, SYNCHRONIZED], ids=["safe", "synchronized"])
def test_the_safe_examples_are_race_free(example: str, schedule: str, far: bool) -> None:
    value, certificate = run(example, schedule, far)
    assert certificate.race_free, str(certificate)
    np.testing.assert_allclose(value, 2 * np.exp(1.0), rtol=1e-6)


@pytest.mark.parametrize("far", [False, True], ids=["one device", "two devices"])
def test_the_unsafe_example_is_reported(far: bool) -> None:
    _, certificate = run(UNSAFE, "earliest", far)
    assert not certificate.race_free
    assert any(race.fix.call == "wait_stream" for race in certificate.races), str(certificate)

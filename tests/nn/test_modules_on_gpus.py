"""Modules on GPUs: what they compute on the CPU, TF32 aside; and they leave no memory behind."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import gpus
import numpy as np
import pytest
from module_cases import CASES, Case, carried, flat
from support import values

import flambeau
from flambeau import nn
from flambeau.runtime import system

pytestmark = gpus.either
DRAWS = (
    "Dropout",
    "dropout",
    "RReLU",
    "FractionalMaxPool",
    "Lazy",
    "network",
)  # their numbers are the device's own


@pytest.fixture
def no_tf32() -> Iterator[None]:
    flags = flambeau.backends.cuda.matmul, flambeau.backends.cudnn
    for flag in flags:
        flag.allow_tf32 = False
    yield
    for flag in flags:
        flag.allow_tf32 = True


def computed(case: Case, where: str) -> list[Any]:
    """Results, gradients of parameters, and buffers, after one step of training."""
    flambeau.manual_seed(3)
    carry = carried(flambeau)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = case.make(nn, carry).to(where)
        given = [x.to(where) if isinstance(x, flambeau.Tensor) else x for x in map(carry, case.inputs)]
        out = module(*given)
        outs = flat(out)
        if case.gradients and outs[0].requires_grad:
            outs[0].sum().backward()
    grads = [p.grad for p in module.parameters() if p.grad is not None]
    found = [x.detach().cpu() for x in (*outs, *grads, *module.buffers())]
    if where != "cpu":
        assert {x.device.type for x in (*outs, *module.parameters(), *module.buffers())} == {"cuda"}
    return found


@pytest.mark.parametrize(
    "case", [c for c in CASES if not any(word in c.name for word in DRAWS)], ids=lambda c: c.name
)
def test_a_gpu_computes_what_the_cpu_does(case: Case, no_tf32: None) -> None:
    """Virtual GPUs to the last bit; and there without races, or reads of memory that was never written."""
    wanted = computed(case, "cpu")
    with gpus.gpus(1, races="error"):
        held = flambeau.cuda.memory_allocated()
        found = computed(case, "cuda")
        if not gpus.real:
            assert not system.accelerator().detector.certificate().violated
        gc.collect()
        assert flambeau.cuda.memory_allocated() == held
    for a, b in zip(found, wanted, strict=True):
        if gpus.real and b.dtype.is_floating_point:
            np.testing.assert_allclose(values(a), values(b), 2e-4, 2e-5)
        else:
            assert values(a).tobytes() == values(b).tobytes()


@pytest.mark.parametrize("name", ("Linear", "Conv2d", "ConvTranspose1d"))
def test_c10_c11_linear_maps_and_convolutions_follow_the_tf32_flags(name: str) -> None:
    flags = flambeau.backends.cuda.matmul if name == "Linear" else flambeau.backends.cudnn
    before = flags.allow_tf32
    flambeau.manual_seed(0)
    module, x = {
        "Linear": (nn.Linear(64, 8), flambeau.randn(5, 64)),
        "Conv2d": (nn.Conv2d(8, 4, 3), flambeau.randn(2, 8, 9, 9)),
        "ConvTranspose1d": (nn.ConvTranspose1d(8, 4, 3), flambeau.randn(2, 8, 9)),
    }[name]
    exact = module.double()(x.double()).detach()
    errors = {}
    try:
        for on in (True, False):
            flags.allow_tf32 = on
            with gpus.gpus(1, profile="a100"):
                out = module.float().cuda()(x.cuda()).detach().cpu().double()
                module.cpu()
            errors[on] = float((out - exact).abs().max())
    finally:
        flags.allow_tf32 = before
    assert errors[False] < 1e-5
    assert gpus.real or errors[True] > 1e-4  # real GPUs multiply small convolutions exactly in any case


def test_a_step_of_training_leaves_no_memory_behind() -> None:
    with gpus.gpus(1):
        start = flambeau.cuda.memory_allocated()
        module = nn.Sequential(
            nn.Linear(6, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3)
        ).cuda()
        loss = nn.CrossEntropyLoss()
        x, y = flambeau.randn(16, 6, device="cuda"), flambeau.zeros(16, dtype=flambeau.int64, device="cuda")
        before = flambeau.cuda.memory_allocated()
        for _ in range(3):
            loss(module(x), y).backward()
            module.zero_grad()
            assert flambeau.cuda.memory_allocated() == before
        del module, loss, x, y
        assert flambeau.cuda.memory_allocated() == start

"""SPEC C: TF32: which operators round their inputs, by which flag, how, and what it costs."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau as torch
from flambeau.core.meta import Meta
from flambeau.driver.protocol import Launch
from flambeau.nn import functional as F
from flambeau.ops.linalg.matmul import matmul
from flambeau.runtime import system

MATMUL, CUDNN = "matmul", "cudnn"


@pytest.fixture(autouse=True)
def a100() -> Iterator[None]:
    with torch.virtual(devices=1, profile="a100-40g"):
        yield
    allow(True, True)


def allow(matmul: bool, cudnn: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = matmul
    torch.backends.cudnn.allow_tf32 = cudnn


def normal(*shape: int, **options: Any) -> Any:
    return torch.randn(*shape, device="cuda", **options)


def image(*shape: int) -> Any:
    return normal(2, 3, *shape)


AFFECTED: dict[str, tuple[str, Callable[[], Any]]] = {
    "c04 mm": (MATMUL, lambda: normal(20, 30) @ normal(30, 20)),
    "c04 addmm": (MATMUL, lambda: torch.addmm(normal(20, 20), normal(20, 30), normal(30, 20))),
    "c04 bmm": (MATMUL, lambda: torch.bmm(normal(4, 5, 6), normal(4, 6, 5))),
    "c04 baddbmm": (MATMUL, lambda: torch.baddbmm(normal(4, 5, 5), normal(4, 5, 6), normal(4, 6, 5))),
    "c04 einsum": (MATMUL, lambda: torch.einsum("ij,kj->ik", normal(5, 6), normal(4, 6))),
    "c10 Linear": (MATMUL, lambda: torch.nn.Linear(30, 20, device="cuda")(normal(4, 30))),
    "c11 Conv1d": (CUDNN, lambda: torch.nn.Conv1d(3, 4, 3, device="cuda")(image(9))),
    "c11 Conv2d": (CUDNN, lambda: torch.nn.Conv2d(3, 4, 3, device="cuda")(image(9, 9))),
    "c11 Conv3d": (CUDNN, lambda: torch.nn.Conv3d(3, 4, 3, device="cuda")(image(5, 5, 5))),
    "c11 ConvTranspose2d": (CUDNN, lambda: torch.nn.ConvTranspose2d(3, 4, 3, device="cuda")(image(5, 5))),
    "c12 cdist": (MATMUL, lambda: torch.cdist(normal(40, 30), normal(50, 30))),
    "c13 tensordot": (MATMUL, lambda: torch.tensordot(normal(3, 4, 5), normal(4, 5, 6))),
    "c14 affine_grid": (MATMUL, lambda: F.affine_grid(normal(2, 2, 3), (2, 3, 5, 5), align_corners=False)),
    "c14 grid_sample": (
        MATMUL,
        lambda: F.grid_sample(image(5, 5), F.affine_grid(normal(2, 2, 3), (2, 3, 5, 5), align_corners=False), align_corners=False),
    ),
    "c15 adaptive log softmax": (
        MATMUL,
        lambda: torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, [5, 10], device="cuda").log_prob(normal(6, 16)),
    ),
    "c16 GRU": (CUDNN, lambda: torch.nn.GRU(8, 9, device="cuda")(normal(4, 3, 8))[0]),
    "c16 LSTM": (CUDNN, lambda: torch.nn.LSTM(8, 9, device="cuda")(normal(4, 3, 8))[0]),
    "attention": (MATMUL, lambda: F.scaled_dot_product_attention(normal(2, 4, 8), normal(2, 4, 8), normal(2, 4, 8))),
}  # fmt: skip
UNTOUCHED: dict[str, Callable[[], Any]] = {
    "product": lambda: normal(100) * normal(100),
    "sum": lambda: normal(100).sum(),
    "softmax": lambda: normal(5, 20).softmax(1),
    "layer_norm": lambda: F.layer_norm(normal(5, 20), (20,)),
    "avg_pool": lambda: F.avg_pool2d(image(6, 6), 2),
    "interpolate": lambda: F.interpolate(image(5, 5), size=7, mode="bilinear"),
    "grid_sample": lambda: F.grid_sample(image(5, 5), normal(2, 4, 4, 2), align_corners=False),
    "cdist without products": lambda: torch.cdist(
        normal(4, 8), normal(5, 8), compute_mode="donot_use_mm_for_euclid_dist"
    ),
    "fft": lambda: torch.fft.fft(normal(64)),
    "cumsum": lambda: normal(100).cumsum(0),
    "norm": lambda: normal(100).norm(),
    "double": lambda: normal(20, 30, dtype=torch.float64) @ normal(30, 20, dtype=torch.float64),
    "half": lambda: normal(20, 30).half() @ normal(30, 20).half(),
    "complex": lambda: normal(20, 30, dtype=torch.complex64) @ normal(30, 20, dtype=torch.complex64),
    "on the CPU": lambda: normal(20, 30).cpu() @ normal(30, 20).cpu(),
    "convolution on the CPU": lambda: F.conv2d(image(9, 9).cpu(), normal(4, 3, 3, 3).cpu()),
    "solve": lambda: torch.linalg.solve(normal(6, 6), normal(6, 2)),
    "matrix and vector": lambda: normal(20, 30) @ normal(30),
    "matrices and vector": lambda: normal(3, 20, 30) @ normal(30),
    "addmv": lambda: torch.addmv(normal(20), normal(20, 30), normal(30)),
    "dot": lambda: torch.dot(normal(100), normal(100)),
    "gradients of matrix and vector": lambda: _gradients(normal(20, 30), normal(30)),
    "gradients of dot": lambda: _gradients(normal(30), normal(30)),
}


def _gradients(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.requires_grad_(), b.requires_grad_()
    result = a @ b
    result.backward(normal(result.numel()).reshape(result.shape))
    return torch.cat([a.grad.flatten(), b.grad.flatten()])


def outcomes(run: Callable[[], Any]) -> list[np.ndarray]:
    """What it gives with no flag, matmul's, cuDNN's."""
    found = []
    for flags in ((False, False), (True, False), (False, True)):
        allow(*flags)
        torch.manual_seed(3)
        found.append(run().detach().cpu().numpy())
    return found


@pytest.mark.parametrize("name", AFFECTED)
def test_c03_to_c05_c10_to_c16_each_flag_touches_its_own(name: str) -> None:
    flag, run = AFFECTED[name]
    full, by_matmul, by_cudnn = outcomes(run)
    rounded, other = (by_matmul, by_cudnn) if flag == MATMUL else (by_cudnn, by_matmul)
    np.testing.assert_array_equal(other, full)
    worst = np.abs(rounded - full).max() / np.abs(full).max()
    assert 1e-6 < worst < 5e-2


@pytest.mark.parametrize("name", UNTOUCHED)
def test_c09_nothing_else_is_touched(name: str) -> None:
    full, by_matmul, by_cudnn = outcomes(UNTOUCHED[name])
    np.testing.assert_array_equal(by_matmul, full)
    np.testing.assert_array_equal(by_cudnn, full)


def test_c01_c02_both_are_allowed_by_default_and_can_be_set() -> None:
    assert torch.backends.cuda.matmul.allow_tf32 is True and torch.backends.cudnn.allow_tf32 is True
    assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")
    assert torch.backends.cuda.matmul.allow_tf32 is False and torch.backends.cudnn.allow_tf32 is True
    torch.backends.cuda.matmul.allow_tf32 = True
    assert torch.get_float32_matmul_precision() == "high"
    for bad in (1, "yes", None):
        with pytest.raises(RuntimeError, match="expects a bool"):
            torch.backends.cuda.matmul.allow_tf32 = bad
        with pytest.raises(RuntimeError, match="expects a bool"):
            torch.backends.cudnn.allow_tf32 = bad


def times_one(value: float) -> float:
    return (torch.tensor([[value]], device="cuda") @ torch.ones(1, 1, device="cuda")).item()


def test_c06_c08_ten_bits_of_mantissa_ties_away_and_all_of_the_range() -> None:
    step = 2.0**-10
    for value, kept in (
        (1 + step, 1 + step),
        (1 + step / 2, 1 + step),
        (1 + 0.49 * step, 1),
        (-1 - step / 2, -1 - step),
    ):
        assert times_one(value) == kept
    for value in (2.0**127, 2.0**-126, 2.0**-149 * 2**13, float("inf"), 0.0):
        assert times_one(value) == value


def test_c07_sums_are_float32() -> None:
    """2^13 + 1 needs 14 bits: the sum keeps what no input would."""
    ones = torch.ones(1, 8193, device="cuda")
    assert (ones @ ones.t()).item() == 8193


def experiment(size: int) -> tuple[float, float, float]:
    """The notes' experiment: the mean of |ab|, and the relative errors with TF32 and without."""
    torch.manual_seed(0)
    a_full, b_full = (torch.randn(size, size, dtype=torch.double, device="cuda") for _ in range(2))
    ab_full = a_full @ b_full
    mean = ab_full.abs().mean()
    a, b = a_full.float(), b_full.float()
    errors = []
    for allowed in (True, False):
        torch.backends.cuda.matmul.allow_tf32 = allowed
        errors.append(((a @ b - ab_full).abs().max() / mean).item())
    return mean.item(), errors[0], errors[1]


def worst_of(count: int) -> float:
    """About how many standard deviations the largest of so many normal errors is."""
    return math.sqrt(2 * math.log(count))


def test_c17_c18_c20_the_documentation_s_experiment() -> None:
    """At 1024. An error is a maximum, over a hundredth of the elements, so at 10240 it is larger by what that makes."""
    mean, rounded, full = experiment(1024)
    assert mean == pytest.approx(80.7277 / math.sqrt(10), rel=0.02)
    assert rounded * worst_of(10240**2) / worst_of(1024**2) == pytest.approx(0.0022, rel=0.15)
    assert full < 0.00004 and rounded > 10 * full


@pytest.mark.parametrize(("allowed", "seconds"), [(True, 0.016), (False, 0.11)])
def test_c19_the_documentation_s_times(allowed: bool, seconds: float) -> None:
    driver = system.accelerator()
    where = torch.device("cuda", 0)
    square = Meta.contiguous_of((10240, 10240), torch.float32, where)
    signature = matmul.rule((square, square), (allowed,))
    exe = driver.load(Launch(matmul.kernel, signature.outputs, signature.inputs, signature.params), 0)
    assert exe.work / 1e9 == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize(("profile", "changes"), [("v100-16g", False), ("a100-80g", True), ("rtx4090", True)])
def test_c21_it_needs_ampere(profile: str, changes: bool) -> None:
    with torch.virtual(devices=1, profile=profile):
        full, by_matmul, _ = outcomes(AFFECTED["c04 mm"][1])
        assert (by_matmul != full).any() == changes


def test_c23_backward_products_follow_the_flag() -> None:
    def gradient() -> Any:
        x, y = normal(20, 30).requires_grad_(), normal(30, 20)
        grad = normal(20, 20)
        (x @ y).backward(grad)
        return x.grad

    full, by_matmul, by_cudnn = outcomes(gradient)
    assert (by_matmul != full).any() and (by_cudnn == full).all()


def test_c19_the_example_prints_both(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[2] / "examples" / "tf32.py"
    monkeypatch.setattr(sys, "argv", [str(path), "256"])
    source = path.read_text().replace("import torch\n", "import flambeau as torch\n")
    exec(compile(source, str(path), "exec"), {})
    name, on, off = capsys.readouterr().out.splitlines()
    assert name.startswith("NVIDIA A100-SXM4-40GB: 256 x 256, mean of |ab| 12.")
    figures = [re.fullmatch(r"TF32 o.. ?: error / mean ([\d.]+), ([\d.]+) s", line) for line in (on, off)]
    assert figures[0] and figures[1]
    assert float(figures[0][1]) > 10 * float(figures[1][1])

"""Tests that `--float32-precision` decides whether products round to TF32, and that reports say it."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import flambeau as torch
from flambeau.cli.output.run_report import write_screen
from flambeau.report.recorder import machine_fields, machine_report

PROGRAM = """
import torch
a = torch.full((2, 3), 1 + 2**-13, device="cuda")  # TF32 has 10 bits
x = torch.full((1, 1, 3, 3), 1 + 2**-13, device="cuda")
print((a @ a.T).tolist()[0][0] > 3, torch.nn.functional.conv2d(x, x).item() > 9)
print(torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.conv.fp32_precision)
torch.backends.cuda.matmul.allow_tf32 = True
print((a @ a.T).tolist()[0][0] > 3)
"""
HIGHEST = ["True True", "highest False ieee", "False"]
HIGH = ["False False", "high True tf32", "False"]


def run(*options: str, program: str = PROGRAM, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FLAMBEAU_")}
    command = [sys.executable, "-m", "flambeau", "run", "--driver", "virtual", *options]
    return subprocess.run(command, env=clean | environment, capture_output=True, text=True)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize(
    ("options", "environment", "expected"),
    [
        ((), {}, HIGH),
        (("--float32-precision", "highest"), {}, HIGHEST),
        ((), {"FLAMBEAU_FLOAT32_PRECISION": "highest"}, HIGHEST),
        (("--float32-precision", "high"), {"FLAMBEAU_FLOAT32_PRECISION": "highest"}, HIGH),
    ],
)
def test_one_switch_decides_for_the_run(
    program: str, options: tuple[str, ...], environment: dict[str, str], expected: list[str]
) -> None:
    done = run("--quiet", *options, program, **environment)
    assert done.stdout.splitlines() == expected, done.stderr


def test_a_malformed_variable_raises(program: str) -> None:
    done = run(program, FLAMBEAU_FLOAT32_PRECISION="most")
    assert (
        done.returncode != 0
        and "FLAMBEAU_FLOAT32_PRECISION='most': must be one of highest, high, medium" in done.stderr
    )
    assert run("--float32-precision", "most", program).returncode == 2


def test_the_pytest_plugin_has_the_option(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import torch\ndef test_it():\n    assert torch.get_float32_matmul_precision() == 'highest'\n"
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "flambeau.cli.plugin",
        "--virtual-gpus=1",
        "--float32-precision=highest",
        "test_it.py",
    ]
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("FLAMBEAU_", "PYTEST_"))
    }
    done = subprocess.run(
        [c for c in command if c not in ("-p", "flambeau.cli.plugin")],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
    )
    if "unrecognized arguments" in done.stderr:  # the plugin is not installed here
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def multiply(kind: torch.dtype = torch.float32, device: str = "cuda") -> torch.Tensor:
    return torch.ones(4, 4, dtype=kind, device=device) @ torch.ones(4, 4, dtype=kind, device=device)


def convolve() -> torch.Tensor:
    return torch.nn.functional.conv2d(*[torch.ones(1, 1, 3, 3, device="cuda") for _ in range(2)])


def attend() -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(*[torch.ones(1, 2, 4, device="cuda")] * 3)


def recur() -> object:
    return torch.nn.GRU(2, 3, device="cuda")(torch.ones(4, 1, 2, device="cuda"))


@contextmanager
def precise() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = True


def multiply_precisely() -> torch.Tensor:
    with precise():
        return multiply()


@pytest.mark.parametrize(
    ("work", "profile", "rounds"),
    [
        (multiply, "a100-40g", True), (convolve, "h100", True), (attend, "h100", True), (recur, "h100", True),
        (multiply, "v100-16g", False), (lambda: multiply(torch.float64), "h100", False),
        (lambda: multiply(torch.float16), "h100", False), (lambda: multiply(device="cpu"), "h100", False),
        (lambda: torch.ones(4, 4, device="cuda") @ torch.ones(4, device="cuda"), "h100", False),
        (multiply_precisely, "h100", False), (lambda: torch.ones(4, device="cuda") + 1, "h100", False),
    ],
)  # fmt: skip
def test_a_report_says_when_products_rounded_to_tf32(
    work: Callable[[], object], profile: str, rounds: bool
) -> None:
    with torch.virtual(profile=profile) as machine:
        torch.ones(1, device="cuda")
        work()
        report = machine_report(machine._machine)
    assert report.rounds_to_tf32 is rounds
    text = io.StringIO()
    write_screen({"machines": [machine_fields(report)], "processes": []}, text, [], failed=False)
    assert ("--float32-precision highest" in text.getvalue()) is rounds

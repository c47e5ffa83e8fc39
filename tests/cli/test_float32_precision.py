"""`--float32-precision` and FLAMBEAU_FLOAT32_PRECISION: products round to TF32 or not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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

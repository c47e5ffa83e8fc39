"""`flambeau fit`: what the table says of memory and steps, and what the command refuses."""

import os
import re

import pytest
from warm_start import run_module

import flambeau as torch
from flambeau.cli.fit import _measure
from flambeau.cli.main import build_parser, main

PROGRAM = """
import sys, torch
layer = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.ones(int(sys.argv[1]), 64, device="cuda")
for _ in range(10):
    optimizer.zero_grad()
    loss = layer(x).square().mean()
    {after}
    loss.backward()
    optimizer.step()
"""


@pytest.fixture
def program(tmp_path):
    def write(after="pass"):
        file = tmp_path / "program.py"
        file.write_text(PROGRAM.format(after=after))
        return str(file)

    return write


def fit(*arguments):
    return run_module("flambeau", "fit", *arguments, env=dict(os.environ))


def test_the_table_says_what_fits_and_how_long_a_step_is(program):
    rows = 1 << 26  # x has 16 GiB: too much for a V100 with 16 GB
    done = fit("--profiles", "v100-16g,h200", "--steps", "2", program(), str(rows))
    assert done.returncode == 0, done.stderr
    head, small, large, error = done.stdout.splitlines()
    assert head.split() == ["profile", "memory", "peak", "allocated", "reserved", "fits", "step"]
    assert small.split()[0] == "v100-16g" and small.split()[-2:] == ["no", "-"]
    name, *_, fits, step, unit = large.split()
    assert (name, fits, unit) == ("h200", "yes", "ms")
    assert re.fullmatch(
        r"Expected error: \d+% in the median, at most \d+% in 9 of 10 cases \(measured on an H100\)\.", error
    )
    least = (
        3 * 4 * 64 * rows / 4.8e12 * 1e3
    )  # three passes over x-sized tensors at the datasheet's bandwidth, in ms
    assert least < float(step) < 20 * least


def test_a_step_and_a_peak_are_those_of_the_machine(program):
    options = build_parser("fit").parse_args(["fit", "--steps", "3", program(), "8"])
    result = _measure(options, "h100")
    assert len(result["steps"]) == 3 and not result["data"]
    with torch.virtual(devices=1, profile="h100", data=False):
        layer, x = torch.nn.Linear(64, 64, device="cuda"), torch.ones(8, 64, device="cuda")
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()
        assert torch.cuda.max_memory_allocated() == result["allocated"]


def test_a_program_that_reads_values_runs_with_data(program):
    done = fit("--profiles", "a100", "--steps", "0", program("loss.item()"), "8")
    assert done.returncode == 0 and done.stdout.splitlines()[1].endswith("ran with data"), done.stderr


def test_a_program_that_fails_is_named(program):
    done = fit("--profiles", "a100", program("1 / 0"), "8")
    assert done.returncode == 1
    assert done.stderr == "flambeau fit: the program failed on a100: ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--profiles", "b9000", __file__], "no profile is called 'b9000'"),
        (["--steps", "-1", __file__], "--steps must not be negative, got -1"),
        (["no/such/file.py"], "no such file"),
        (["--devices", "many", __file__], "devices must be"),
    ],
)
def test_a_wrong_command_line_is_refused(arguments, why, capsys):
    assert main(["fit", *arguments]) == 2
    assert why in capsys.readouterr().err

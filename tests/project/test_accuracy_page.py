"""docs/accuracy.md: it is what its data say, its data are what virtual GPUs take now, and what was measured."""

import json
from pathlib import Path
from random import Random

import pytest
from seeds import session_seed

from bench.accuracy.__main__ import FAMILIES, HELD_OUT, OTHER, simulate, simulated_file
from bench.accuracy.page import held_out, load, page_text, scatter

DOCS = Path(__file__).parents[2] / "docs"
AGAIN = "run `python -m bench.accuracy page`"


def test_the_page_and_its_picture_are_written_from_the_data():
    data, other = (load(simulated_file(file)) for file in (HELD_OUT, OTHER))
    assert (DOCS / "accuracy.md").read_text() == page_text(data, other), AGAIN
    assert (DOCS / "assets" / "accuracy.svg").read_text() == scatter([*held_out(data), *held_out(other)]), (
        AGAIN
    )


@pytest.mark.parametrize("file", [HELD_OUT, OTHER], ids=lambda file: file.stem)
def test_the_data_have_every_workload_that_was_measured(file):
    measured = [row for row in json.loads(file.read_text())["workloads"] if "error" not in row]
    rows = load(simulated_file(file))["rows"]
    assert [(row["family"], row["held"], row["params"], row["peak"]) for row in measured] == [
        (row["family"], row["held"], row["params"], row["real"]["peak"]) for row in rows
    ]


def test_simulated_times_are_those_of_today():
    """A change of an operator may move a workload; many of them mean that the page is out of date."""
    data = load(simulated_file(HELD_OUT))
    rows = [row for row in data["rows"] if not FAMILIES[row["family"]].reads(row["params"])]
    drawn = Random(session_seed()).sample(rows, 40)
    moved = []
    for row in drawn:
        found = simulate(FAMILIES[row["family"]], row["params"], "h100")
        if not 0.8 < found["ns"] / row["simulated"]["ns"] < 1.25:
            moved.append((row["family"], row["params"]))
    assert len(moved) <= 4, f"{moved}: {AGAIN}"

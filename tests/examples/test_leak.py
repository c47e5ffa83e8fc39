"""A program that runs out of memory: the error and the page name the line that holds it, and fixing that line helps."""

from __future__ import annotations

import re

from cli.cli_kit import EXAMPLES, flambeau_run
from cli.memory_kit import stack_of

from flambeau.cli import memory
from flambeau.cli.output import memory_page

LEAK = EXAMPLES / "leak.py"
LINE = next(i for i, text in enumerate(LEAK.read_text().splitlines(), 1) if "loss = (model(x) - x)" in text)


def test_the_error_and_the_page_name_the_line_that_holds_the_memory(tmp_path):
    done = flambeau_run(tmp_path, LEAK)
    assert done.status == 1 and "OutOfMemoryError: CUDA out of memory." in done.err
    most = re.search(
        r"The lines whose tensors hold the most:\n +[\d.]+ MiB  in \d+ tensors of (\S+) in (\w+)", done.err
    )
    assert most is not None and most[1].endswith(f"leak.py:{LINE}") and most[2] == "validate"
    found = memory_page.picture(memory.load(tmp_path / "leak.pickle"))
    first = found["devices"][0]["top"]["holders"][0]
    assert stack_of(found, first["place"])[0] == f"{LEAK}:{LINE} in validate"


def test_fixed_it_runs_to_its_end(tmp_path):
    done = flambeau_run(tmp_path, LEAK, "--fixed")
    assert (
        done.status == 0 and re.fullmatch(r"mean loss 1\.0\d+\n", done.out) and done.certificate["race_free"]
    )
    assert not (tmp_path / "leak.pickle").exists()

"""Random programs run compiled as they run eagerly: bits, side effects, errors, races; and with no more memory."""

from __future__ import annotations

import random
import warnings

import pytest
from random_programs import observed
from seeds import EXHAUSTIVE, session_seed

import flambeau as torch
from flambeau.tensor.fusion import collecting

SEEDS = [*range(8), *[f"{session_seed()} {k}" for k in range(1000 if EXHAUSTIVE else 6)]]


@pytest.mark.parametrize("seed", SEEDS)
def test_compiled_program_equals_eager_program(seed: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_LEAST_ROW", 2)  # the programs' rows are short
    monkeypatch.setattr(collecting, "LEAST_NBYTES", random.Random(str(seed)).choice([0, 0, 50, 100]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log, peak, races = observed(str(seed), lambda function: function)
        compiled_log, compiled_peak, compiled_races = observed(str(seed), torch.compile)
    for number, (eager, compiled) in enumerate(zip(log, compiled_log, strict=True)):
        assert eager == compiled, f"seed {seed}: observation {number}"
    assert compiled_peak <= peak
    assert compiled_races == races == ""

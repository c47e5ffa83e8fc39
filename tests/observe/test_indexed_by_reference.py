"""The race detector on random programs with indexed access, against element sets worked out with NumPy."""

import os

import pytest
from indexed_programs import Program, reported

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
PROGRAMS = 20_000 if EXHAUSTIVE else 120
KINDS = [{"steps": 6}, {"steps": 10}, {"steps": 14, "streams": 2}]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_verdicts_and_lines_are_the_references(kind):
    verdicts = set()
    for seed in range(PROGRAMS // len(KINDS)):
        program = Program(1000 * kind + seed, **KINDS[kind])
        expected, certificate = program.racing(), program.run()
        found, label = (
            reported(certificate),
            f"Program({1000 * kind + seed}, **{KINDS[kind]})\n{program.text}",
        )
        assert bool(found) == bool(expected), label
        assert found <= expected, label
        assert certificate.race_free == (not expected), label
        verdicts.add(certificate.race_free)
    assert verdicts == {True, False}

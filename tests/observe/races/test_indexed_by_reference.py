"""The race detector on random programs with indexed access, against element sets worked out with NumPy."""

import os

import pytest
from indexed_programs import Program, mistake

EXHAUSTIVE = os.environ.get("FLAMBEAU_TESTS") == "exhaustive"
PROGRAMS = 20_000 if EXHAUSTIVE else 120
KINDS = [
    {"steps": 6},
    {"steps": 14, "streams": 2},
    {"steps": 8, "changing": True},
    {"steps": 6, "graphs": True},
    {"steps": 6, "empty": True, "streams": 2},
]


@pytest.mark.parametrize("kind", range(len(KINDS)))
def test_verdicts_and_lines_are_the_references(kind):
    verdicts = set()
    for number in range(PROGRAMS // len(KINDS)):
        seed = 100_000 * kind + number
        program = Program(seed, **KINDS[kind])
        schedule = ("earliest", f"random:{seed}", f"adversarial:{seed}")[number % 3]
        certificate = program.run(schedule)
        wrong = mistake(program, certificate)
        assert not wrong, f"Program({seed}, **{KINDS[kind]}).run({schedule!r}): {wrong}\n{program.text}"
        verdicts.add(certificate.race_free)
    assert verdicts == {True, False}

"""A program of two host threads has one verdict, whichever order the operating system gives its threads.

Each day has other programs (`seeds.py`); a failure names the seed.
"""

import random
import sys

import pytest
from interleavings import draw_order, run
from seeds import EXHAUSTIVE, session_seed

from flambeau.testing.soundness.executor import Executor
from flambeau.testing.soundness.program_generator import generate

PROGRAMS, ORDERS, RUNS = (3000, 12, 700) if EXHAUSTIVE else (40, 5, 8)


def test_all_orders_of_two_threads_have_one_verdict():
    rng = random.Random(session_seed())
    for number in range(PROGRAMS):
        seed = f"{session_seed()}:{number}"
        program = generate(seed, layout="threads")
        results = [run(program, draw_order(program, rng)) for _ in range(ORDERS)]
        verdicts = {certificate.race_free for certificate, _, _ in results}
        texts = "\n".join({str(certificate) for certificate, _, _ in results})
        assert len(verdicts) == 1, f"program {seed}:\n{program.source}\n{texts}"
        if verdicts == {True}:
            assert len({repr(values) for _, values, _ in results}) == 1, f"program {seed}:\n{program.source}"


@pytest.mark.parametrize("interval", [5e-3, 1e-4, 1e-6])
def test_autocast_blocks_have_one_verdict_at_any_switch_interval(interval):
    executor, before = Executor(generate("7:167")), sys.getswitchinterval()
    sys.setswitchinterval(interval)
    try:
        certificates = [executor.run("earliest", "warn").certificate for _ in range(RUNS)]
    finally:
        sys.setswitchinterval(before)
    assert not any(certificate.race_free for certificate in certificates)

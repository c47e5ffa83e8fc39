"""No record without a test against PyTorch."""

from __future__ import annotations

from pathlib import Path

from oracle_records import RECORDS, read

from flambeau.ops.op import table

AGAIN = f"python -m pytest -p oracle_records tests/oracle  # writes {RECORDS.name}"


def test_every_record_is_run_beside_pytorch() -> None:
    """The list is what the oracle tests ran when it was written; a new record is not on it until one of them runs it."""
    known = read()
    assert not set(table) - set(known), f"no oracle test, or an old list: {AGAIN}"
    assert not set(known) - set(table), f"records that are gone: {AGAIN}"


def test_the_modules_of_the_list_are_there() -> None:
    oracle = Path(__file__).parents[1] / "oracle"
    named = set().union(*read().values())
    assert named <= {path.stem for path in oracle.rglob("test_*.py")}, AGAIN

"""Means of parameters over ranks beside PyTorch's own, in four processes with gloo."""

from __future__ import annotations

import averaging_cases
import oracle_ranks
import pytest

import flambeau
from flambeau.testing.ranks import ranks

SIZE = 4


@pytest.fixture(scope="module")
def pytorchs():
    return oracle_ranks.pytorchs("averaging_cases")


@pytest.mark.parametrize(
    ("device", "backend", "options"), [("cpu", "gloo", {}), ("cuda", "nccl", {"schedule": "random:4"})]
)
def test_parameters_step_by_step(pytorchs, device, backend, options):
    mine = ranks(
        oracle_ranks.answers, SIZE, flambeau, "averaging_cases", device, backend, races="error", **options
    )
    for case in averaging_cases.CASES:
        assert [rank[case] for rank in mine] == [rank[case] for rank in pytorchs], case
    assert all(rank[case][0] == "value" for rank in pytorchs for case in averaging_cases.CASES)


def test_names_where_programs_look_for_them():
    algorithms = flambeau.distributed.algorithms
    assert algorithms.Join is algorithms.join.Join
    assert algorithms.model_averaging.averagers.PeriodicModelAverager

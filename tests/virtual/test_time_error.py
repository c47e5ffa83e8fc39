"""The expected error of simulated times: weights, unknown kernels, and what the report shows."""

import json
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flambeau as torch
from flambeau.driver.virtual.time_error import expected_error

FILE = Path(expected_error.__code__.co_filename).with_name("time_errors.json")
DATA = json.loads(FILE.read_text())
FOLDER = Path(__file__).parents[2] / "bench/results/accuracy"
MEASURED = [FOLDER / f"{name}_simulated.json" for name in ("h100_seed_27", "h200_seed_32")]
KERNELS = sorted(DATA["families"])


def test_the_errors_are_those_of_the_stored_results():
    errors = {}
    rows = [row for file in MEASURED for row in json.loads(file.read_text())["rows"] if row["held"]]
    for row in rows:
        ratio = row["simulated"]["ns"] / row["real"]["ns"]
        errors.setdefault(row["family"], []).append(round(abs(ratio - 1), 3))
    assert DATA["errors"] == {family: sorted(values) for family, values in errors.items()}


def test_one_family_has_its_own_median():
    for kernel in ("matmul", "convolution", "copy_in", "_softmax"):
        if kernel in DATA["families"]:
            errors = DATA["errors"][DATA["families"][kernel]]
            error = expected_error({kernel: 5}, 0.0)
            assert error.median == statistics.median_low(errors)
            assert error.tenth >= error.median


@given(
    st.dictionaries(st.sampled_from([*KERNELS, "of a user"]), st.integers(1, 10**9), min_size=1),
    st.floats(0, 1),
)
def test_an_error_lies_between_those_of_its_families(busy, host):
    error = expected_error(busy, host)
    parts = [expected_error({name: 1}, 0.0) for name in busy] + [expected_error(busy, 1.0)]
    slack = 1e-9
    assert (
        min(part.median for part in parts) - slack
        <= error.median
        <= max(part.median for part in parts) + slack
    )
    assert (
        min(part.tenth for part in parts) - slack <= error.tenth <= max(part.tenth for part in parts) + slack
    )


@pytest.mark.parametrize(("share", "weights"), [(0.25, (3, 3, 2)), (0.75, (1, 1, 6))])
def test_families_weigh_as_much_as_their_share_of_the_time(share, weights):
    """Repeat each error as often as its weight says, and compare with plain quantiles. matmul is a half of the
    device's time.
    """
    matmul, add = DATA["errors"][DATA["families"]["matmul"]], DATA["errors"][DATA["families"]["add"]]
    alike = next(k for k in KERNELS if k != "add" and DATA["families"][k] == DATA["families"]["add"])
    host = DATA["errors"]["small calls"] + DATA["errors"]["step"]
    busy = {"matmul": 30, "add": 10, alike: 20}
    whole = len(matmul) * len(add) * len(host)
    repeated = []
    for errors, weight in zip((matmul, add, host), weights, strict=True):
        repeated += [error for error in errors for _ in range(weight * whole // len(errors))]
    repeated.sort()
    error = expected_error(busy, share)
    assert error.median == statistics.median_low(repeated)
    assert error.tenth == repeated[-(-9 * len(repeated) // 10) - 1]


def test_scaling_all_times_changes_nothing():
    busy = {"matmul": 300, "add": 200, "of a user": 7}
    assert expected_error(busy, 0.2) == expected_error({name: 1000 * ns for name, ns in busy.items()}, 0.2)


def test_a_program_that_ran_nothing_has_no_error():
    assert expected_error({}, 1.0) is None
    with torch.virtual(devices=1) as machine:
        torch.cuda.init()
        assert machine.driver.time_error() is None
        x = torch.ones(1 << 20, device="cuda")
        torch.cuda.synchronize()
        first = machine.driver.time_error()
        assert 0 < first.median <= first.tenth
        assert (x + x)[0].item() == 2


@pytest.mark.parametrize("kernel", ["add", "matmul", "sum", "copy_in"])
def test_common_kernels_belong_to_a_measured_family(kernel):
    assert DATA["families"][kernel] in DATA["errors"]

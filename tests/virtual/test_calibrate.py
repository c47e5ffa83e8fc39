"""`flambeau calibrate`: a virtual GPU of a known profile is the oracle, because its constants must be found again."""

import json
import re
from random import Random

import pytest

import flambeau as torch
from flambeau.cli.calibrate import base_profile, write_measurements
from flambeau.cli.calibration.constant_fit import GROUPS, fit, simulate, value_of, with_value
from flambeau.cli.calibration.microbenchmarks import BENCHMARKS, Sizes, draw, measure_all
from flambeau.cli.calibration.profile_text import profile_text
from flambeau.cli.main import main
from flambeau.driver.driver_registry import profile_table, virtual_models, why_no_gpu

ENOUGH = 1 << 20  # bytes; longer copies whose bytes really move make the tests slow
DEVICE = (
    "name", "major", "minor", "memory", "reserved", "sms", "threads_per_sm", "shared_memory_per_sm", "clock_khz", "l2",
)  # fmt: skip


def rows_of(profile, seed, benchmarks=BENCHMARKS):
    """Return rows for the fit with the times that a virtual GPU of the profile takes."""
    rows = draw(seed, Sizes(profile["l2"], profile["memory"]))
    rows = [row | {"calls": 3} for row in rows if row["benchmark"] in benchmarks and not row["held"]]
    for row in rows:
        if BENCHMARKS[row["benchmark"]].reads:
            row["params"]["nbytes"] = min(row["params"]["nbytes"], ENOUGH)
    return [row | {"ns": ns} for row, ns in zip(rows, simulate(profile, rows), strict=True)]


def changed(profile, seed):
    """Return a profile whose fitted constants differ by factors of up to 1.6."""
    random = Random(seed)
    profile = profile | {"host_factor": 1.0}
    for key in [key for group in GROUPS for key in group.keys]:
        low = 0.7 if key.startswith("efficiency") else 1.6
        profile = with_value(profile, key, value_of(profile, key) * random.uniform(0.6, low))
    return profile


def data_of(profile, rows):
    return {"device": {key: profile[key] for key in DEVICE}, "seed": 1, "rows": rows}


@pytest.mark.parametrize(("name", "seed"), [("h100", 1), ("rtx4090", 2)])
def test_the_constants_of_a_virtual_gpu_are_found(name, seed):
    start = profile_table(name) | {"host_factor": 1.0}
    truth = changed(start, seed)
    found, fitted = fit(start, rows_of(truth, seed), is_known=True)
    assert set(fitted) == {key for group in GROUPS for key in group.keys}
    for key in fitted:
        assert value_of(found, key) == pytest.approx(value_of(truth, key), rel=0.01), key


def test_noise_and_an_outlier_change_little():
    start = profile_table("h100") | {"host_factor": 1.0}
    truth, random = changed(start, 4), Random(4)
    rows = rows_of(truth, 4, [name for name in BENCHMARKS if "product" not in name and "page" not in name])
    for row in rows:
        row["ns"] *= random.lognormvariate(0, 0.03)
    next(row for row in rows if row["benchmark"] == "in memory")["ns"] *= 4
    found, fitted = fit(start, rows, is_known=True)
    for key in fitted:
        assert value_of(found, key) == pytest.approx(value_of(truth, key), rel=0.15), key


def test_the_peaks_of_an_unknown_model_are_fitted_instead_of_shares():
    truth = changed(profile_table("a100-40g"), 5) | {"name": "NVIDIA A30X", "sms": 56}
    start, base, is_known = base_profile({key: truth[key] for key in DEVICE})
    assert (base, is_known) == ("a100-40g", False)
    assert start["rates"]["float16"] == pytest.approx(312e12 * 56 / 108)
    start["host_factor"] = 1.0
    products = rows_of(truth, 5, [name for name in BENCHMARKS if name.startswith("product")])
    found, fitted = fit(start, products, is_known)
    for key in fitted:
        share = f"efficiency.{key.removeprefix('rates.')}"
        reached = value_of(found, key) * value_of(found, share)
        assert reached == pytest.approx(value_of(truth, key) * value_of(truth, share), rel=0.01), key


def test_volta_has_no_tf32_to_fit():
    start = profile_table("v100-16g") | {"host_factor": 1.0}
    _, fitted = fit(start, rows_of(start, 6, ["product, tf32", "poll"]), is_known=True)
    assert list(fitted) == ["costs.poll_ns"]


def test_a_machine_is_measured_and_its_file_gives_a_profile(tmp_path, capsys):
    truth = changed(profile_table("h100"), 7) | {"host": "flambeau"}
    file, measured, output = (tmp_path / name for name in ("truth.toml", "raw.json", "got.toml"))
    file.write_text(profile_text(truth, {}, []))
    with torch.virtual(devices=1, profile=str(file), data=False, races="off") as machine:
        data = measure_all(torch, machine.driver.time_ns, 7, rounds=1)
    failed = [row for row in data["rows"] if "error" in row]
    assert {row["benchmark"] for row in failed} == {n for n, b in BENCHMARKS.items() if b.reads}
    write_measurements(measured, data)
    assert main(["calibrate", "--from", str(measured), "-o", str(output)]) == 0
    printed, text = capsys.readouterr().out, output.read_text()
    found = profile_table(str(output))
    for key in DEVICE:
        assert found[key] == truth[key], key
    for key in ("l2_bandwidth", "costs.kernel_ns", "efficiency.tf32", "costs.node_ns", "host_factor"):
        assert value_of(found, key) == pytest.approx(value_of(truth, key), rel=0.01), key
    assert re.search(r"^kernel_ns = \d+  # measured, error 0%$", text, re.M)
    assert re.search(r"^sms = 132  # of the device$", text, re.M)
    assert re.search(r"^all +\d+ .* 0\.\d%", printed, re.M)
    assert {row["benchmark"] for row in failed} == set(
        re.findall(r"not measured: (.*?), \d+ rows: NotSupp", printed)
    )
    assert json.loads(measured.read_text())["rows"] == data["rows"]


@pytest.mark.parametrize("name", virtual_models())
def test_a_written_profile_is_read_back(name, tmp_path):
    table = profile_table(name) | {"host_factor": 0.5, "name": 'a "GPU" \\ é'}
    file = tmp_path / "copy.toml"
    file.write_text(profile_text(table, {"sms": "of the device"}, ["a comment", ""]))
    assert profile_table(str(file)) == table


def test_host_times_scale_with_the_profiles_factor(tmp_path):
    file = tmp_path / "slow.toml"
    times = []
    for factor in (1.0, 2.5):
        file.write_text(profile_text(profile_table("h100") | {"host_factor": factor}, {}, []))
        with torch.virtual(devices=1, profile=str(file), data=False) as machine:
            x = torch.ones(8, device="cuda")
            begin = machine.driver.time_ns()
            x.view(-1).add_(1)
            times.append(machine.driver.time_ns() - begin)
    assert times[1] == pytest.approx(2.5 * times[0], abs=2)


def test_the_seed_draws_the_sizes_and_held_rows_are_others():
    sizes = Sizes(50 << 20, 80 << 30)
    assert draw(1, sizes) == draw(1, sizes) != draw(2, sizes)
    rows = [row for row in draw(1, sizes) if row["params"].get("numel", 0) > 4096]
    fitted, held = ([row["params"] for row in rows if row["held"] is which] for which in (False, True))
    assert len(fitted) == len(held)
    assert not [params for params in held if params in fitted]


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_a_machine_without_a_gpu_is_named(tmp_path, capsys):
    assert main(["calibrate", "-o", str(tmp_path / "p.toml")]) == 1
    message = capsys.readouterr().err
    assert "there is no GPU to measure" in message and "--from FILE" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not a file of `flambeau calibrate`"),
        ("[]", "not a file of"),
        ('{"rows": [], "device": {}}', "not a file of"),
        ('{"rows": [{"ns": 0, "calls": 1, "held": true}], "device": {}}', "not a file of"),
        (
            '{"rows": [{"ns": 1, "calls": 1, "held": true, "benchmark": "x"}], "device": {"nme": "x"}}',
            "not a file of",
        ),
        (
            '{"rows": [{"ns": 1, "calls": 1, "held": true, "benchmark": "x"}], "device": {"name": 3}}',
            "not a file of",
        ),
        ("[" * 100_000, "not a file of"),
        (None, "no such file"),
    ],
)
def test_wrong_measurements_are_refused(content, why, tmp_path, capsys):
    file = tmp_path / "raw.json"
    if content is not None:
        file.write_text(content)
    assert main(["calibrate", "--from", str(file), "-o", str(tmp_path / "p.toml")]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "why"), [("p.json", "must end with .toml"), ("no/p.toml", "its folder does not exist")]
)
def test_a_wrong_output_is_refused(output, why, tmp_path, capsys):
    assert main(["calibrate", "-o", str(tmp_path / output)]) == 2
    assert why in capsys.readouterr().err

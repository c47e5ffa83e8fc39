"""Real digits on two virtual GPUs, certified; and what deleting its one `wait_stream` does."""

from __future__ import annotations

import re

import pytest
from cli.cli_kit import EXAMPLES, flambeau_run

pytest.importorskip("sklearn", reason="scikit-learn is not installed: it ships the digits")
REGRESSION = EXAMPLES / "regression.py"
WAIT = "            self.compute.wait_stream(self.copies)\n"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return flambeau_run(tmp_path_factory.mktemp("regression"), REGRESSION)


@pytest.fixture
def without_wait(tmp_path):
    text = REGRESSION.read_text()
    assert text.count(".wait_stream(") == 1 and WAIT in text
    script = tmp_path / "regression.py"
    script.write_text(text.replace(WAIT, "").replace("EPOCHS, BATCH, RATE = 12,", "EPOCHS, BATCH, RATE = 2,"))
    return script


def test_more_than_nine_of_ten_are_recognized(done):
    assert done.status == 0, done.err
    right, of, percent = re.fullmatch(
        r"(\d+) of (\d+) unseen digits recognized: ([\d.]+)%\n", done.out
    ).groups()
    assert int(of) == 297
    assert int(right) / int(of) == pytest.approx(float(percent) / 100, abs=1e-3)
    assert int(right) / int(of) > 0.9


def test_it_is_race_free_under_every_schedule(done):
    assert done.certificate["race_free"] is True
    assert done.certificate["races"] == [] and done.certificate["violated"] == []


def test_both_gpus_work_and_give_everything_back(done):
    devices = done.machine["devices"]
    assert [device["peak_allocated"] > 16_000 for device in devices] == [True, True]
    assert [device["left_allocated"] for device in devices] == [0, 0]
    assert done.machine["time_ns"] > 1_000_000


def test_it_repeats_exactly(done, tmp_path):
    again = flambeau_run(tmp_path, REGRESSION)
    assert again.machine["trace_hash"] == done.machine["trace_hash"]
    assert again.machine["time_ns"] == done.machine["time_ns"]
    assert again.out == done.out


def test_other_schedules_give_the_same_answer(done, tmp_path):
    """What the certificate says. Adversarial starves one stream for as long as it may."""
    other = flambeau_run(tmp_path, "--schedule", "adversarial:1", REGRESSION)
    assert other.machine["trace_hash"] != done.machine["trace_hash"]
    assert other.out == done.out


def test_without_its_wait_the_report_names_the_race(without_wait, tmp_path):
    done = flambeau_run(tmp_path, without_wait)
    assert done.status == 0
    lines = REGRESSION.read_text().splitlines()
    copies = lines.index("                x = images.to(self.device, non_blocking=True)") + 1
    race = done.certificate["races"][0]
    assert race["first"]["place"] == f"regression.py:{copies}"
    assert (race["first"]["kind"], race["second"]["kind"]) == ("writes", "reads")
    assert race["fix"]["call"] == "wait_stream" and race["fix"]["verified"] is True
    assert race["fix"]["code"] == "self.compute.wait_stream(self.copies)"
    assert {race["fix"]["call"] for race in done.certificate["races"]} == {"wait_stream"}
    assert "of 1 kind\n" in done.err


def test_without_its_wait_some_schedule_gives_another_answer(without_wait, tmp_path):
    text = without_wait.read_text()
    without_wait.write_text(
        text.replace("    right = ", "    print(first.weights.sum().item())\n    right = ", 1)
    )
    outs = {
        flambeau_run(tmp_path, "--races", "off", "--schedule", schedule, without_wait).out
        for schedule in ("earliest", "pct:1:3")
    }
    assert len(outs) == 2


def test_without_its_wait_error_mode_ends_with_3(without_wait, tmp_path):
    done = flambeau_run(tmp_path, "--races", "error", without_wait)
    assert done.status == 3
    assert "RaceError" in done.err and done.out == ""

"""`make demo`: a network learns real digits on two virtual GPUs, certified; and what deleting its `wait_stream` does."""

from __future__ import annotations

import re

import pytest
from cli.cli_kit import EXAMPLES, flambeau_run

pytest.importorskip("sklearn", reason="scikit-learn is not installed: it ships the digits")
DIGITS = EXAMPLES / "digits.py"
WAIT = "                compute.wait_stream(self.copies)\n"


@pytest.fixture
def without_wait(tmp_path):
    text = DIGITS.read_text()
    assert text.count(".wait_stream(") == 1 and WAIT in text
    script = tmp_path / "digits.py"
    script.write_text(text.replace(WAIT, ""))
    return script


def test_more_than_19_of_20_are_recognized_and_the_run_is_certified(tmp_path):
    trace, picture = tmp_path / "digits.json", tmp_path / "digits.svg"
    done = flambeau_run(tmp_path, "--trace", trace, "--picture", picture, DIGITS)
    assert done.status == 0, done.err
    right, of, percent = re.search(r"(\d+) of (\d+) unseen digits recognized: ([\d.]+)%\n", done.out).groups()
    assert int(of) == 297
    assert int(right) / int(of) == pytest.approx(float(percent) / 100, abs=1e-3)
    assert int(right) / int(of) > 0.95
    assert done.certificate["race_free"] is True
    assert done.certificate["races"] == [] and done.certificate["violated"] == []
    devices = done.machine["devices"]
    assert [device["peak_allocated"] > 1_000_000 for device in devices] == [True, True]
    assert [device["left_allocated"] for device in devices] == [0, 0]
    assert trace.stat().st_size > 100_000 and picture.read_text().startswith("<svg")


def test_without_its_wait_the_report_names_the_race(without_wait, tmp_path):
    done = flambeau_run(tmp_path, without_wait, "--steps", "3")
    assert done.status == 0, done.err
    lines = DIGITS.read_text().splitlines()
    copies = lines.index(
        "                images, labels = [t.to(self.device, non_blocking=True) for t in batch]"
    )
    race = done.certificate["races"][0]
    assert race["first"]["place"] == f"digits.py:{copies + 1}"
    assert (race["first"]["kind"], race["second"]["kind"]) == ("writes", "reads")
    assert race["fix"]["call"] == "wait_stream" and race["fix"]["verified"] is True
    assert race["fix"]["code"] == "torch.cuda.default_stream(self.copies.device).wait_stream(self.copies)"
    assert {race["fix"]["call"] for race in done.certificate["races"]} == {"wait_stream"}


def test_without_its_wait_error_mode_ends_with_3(without_wait, tmp_path):
    done = flambeau_run(tmp_path, "--races", "error", without_wait)
    assert done.status == 3
    assert "RaceError" in done.err and done.out == ""


def test_it_runs_on_the_cpu(tmp_path):
    done = flambeau_run(tmp_path, DIGITS, "--devices", "cpu", "--steps", "3", "--every", "1")
    assert done.status == 0, done.err
    assert len(re.findall(r"loss [\d.]+\n", done.out)) == 3


def test_without_its_wait_some_schedule_gives_other_losses(without_wait, tmp_path):
    outs = {
        flambeau_run(
            tmp_path, "--races", "off", "--schedule", schedule, without_wait, "--steps", "3", "--every", "1"
        ).out
        for schedule in ("earliest", "adversarial:2")
    }
    assert len(outs) == 2

"""`python -m bench` lists the programs of bench/ and writes what a run measured as data."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module `bench.__main__` over a folder that has three programs and a helper."""
    spec = importlib.util.spec_from_file_location("bench_entry", ROOT / "bench" / "__main__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    programs = {
        "adds": '"""Time of an addition.\n\nMore."""\nimport sys\nif __name__ == "__main__":\n    print("units", *sys.argv[1:])\n    print("add of 1,024    12.5 us  1.5e-3")\n',
        "fails": '"""Nothing."""\nif __name__ == "__main__":\n    print("1 us")\n    raise SystemExit(3)\n',
        "helper": '"""Part of the others."""\n',
    }
    (tmp_path / "bench").mkdir()
    for name, text in programs.items():
        (tmp_path / "bench" / f"{name}.py").write_text(text)
    monkeypatch.setattr(module, "FOLDER", tmp_path / "bench")
    monkeypatch.setattr(module, "RUNS", tmp_path / "bench" / "runs")
    return module


def test_programs_are_listed_with_what_they_measure(
    entry: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert entry.main([]) == 0
    assert capsys.readouterr().out == "adds   Time of an addition.\nfails  Nothing.\n"


def test_a_run_is_written_with_machine_and_date(entry: ModuleType, tmp_path: Path) -> None:
    assert entry.main(["adds", "--", "--driver", "null"]) == 0
    result = json.loads((tmp_path / "bench" / "runs" / "adds.json").read_text())
    assert result["command"] == "python bench/adds.py --driver null"
    assert date.fromisoformat(result["date"]) and result["machine"] and result["software"]["numpy"]
    assert result["rows"] == [{"text": "add of 1,024    12.5 us  1.5e-3", "values": [1024, 12.5, 0.0015]}]


def test_a_failed_run_writes_no_result(entry: ModuleType, tmp_path: Path) -> None:
    assert entry.main(["fails", "adds"]) == 1
    assert [path.name for path in (tmp_path / "bench" / "runs").iterdir()] == ["adds.json"]


def test_an_unknown_name_is_refused(entry: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        entry.main(["adds", "helper"])
    assert "there is no benchmark helper; there are adds, fails" in capsys.readouterr().err


def test_each_program_of_the_repository_is_listed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = [line.split()[0] for line in done.stdout.splitlines()]
    programs = {path.stem for path in (ROOT / "bench").glob("*.py")}
    assert set(listed) == programs - {"__main__", "null", "gpu_operators"}
    assert all(line.endswith(".") for line in done.stdout.splitlines())

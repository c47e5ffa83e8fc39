"""The calls of `bench/operators.py --driver cuda` run, small, on a virtual GPU: a GPU's minutes are not for typing errors."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import flambeau

BENCH = Path(__file__).parents[2] / "bench" / "gpu_operators.py"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("FLAMBEAU_DRIVER", "virtual")  # the module asks for real GPUs where nothing else does
    spec = importlib.util.spec_from_file_location("gpu_operators", BENCH)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_call_runs(bench: ModuleType) -> None:
    with flambeau.virtual(devices=1):
        operands = bench.Tensors(flambeau, part=64)
        for call in (bench.SMALL | bench.LARGE).values():
            call(flambeau, operands)
        flambeau.cuda.synchronize()


def test_it_counts_the_calls_that_the_issue_names(bench: ModuleType) -> None:
    assert len(bench.SMALL) + len(bench.LARGE) >= 60
    named = ["conv2d 64x64x56x56 k3, TF32", "conv2d 64x64x56x56 k3", "fft2 4096x4096 complex64"]
    assert list(bench.LARGE)[:3] == named  # first, should the time run out


def test_a_failing_call_does_not_end_the_run(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "import_module", _absent)
    monkeypatch.setattr(bench, "SMALL", {"bad": lambda m, t: m.no_such_name, "a + b": lambda m, t: t.a + t.b})
    monkeypatch.setattr(bench, "LARGE", {})
    for switches in (flambeau.backends.cuda.matmul, flambeau.backends.cudnn):
        monkeypatch.setattr(switches, "allow_tf32", True)  # `main` sets them, and leaves them
    with flambeau.virtual(devices=1):
        bench.main(smaller=64)
    said = capsys.readouterr().out
    assert "bad: flambeau: AttributeError" in said
    assert "a + b" in said
    with flambeau.virtual(devices=1):
        bench.main(limit_s=-1, smaller=64)
    assert "not measured, for want of time: a + b" in capsys.readouterr().out


def _absent(name: str) -> ModuleType:
    raise ImportError(name)

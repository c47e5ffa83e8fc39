"""Small modules of PyTorch: window functions, versions, timers; modules that can be imported and raise when used."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from support import torch

import flambeau
from flambeau.core.errors import NotSupportedError
from flambeau.torch_version import TorchVersion
from flambeau.utils.benchmark import Compare, Measurement, Timer

WINDOWS: list[tuple[str, dict[str, Any]]] = [
    ("bartlett", {}), ("blackman", {}), ("cosine", {}), ("exponential", {"tau": 2.0}),
    ("exponential", {"center": 1.0, "sym": False}), ("gaussian", {"std": 0.7}), ("general_cosine", {"a": [0.5, 0.3]}),
    ("general_hamming", {"alpha": 0.3}), ("hamming", {}), ("hann", {}), ("kaiser", {"beta": 5.0}), ("nuttall", {}),
    ("gaussian", {"std": 0}), ("exponential", {"tau": -1}), ("exponential", {"center": 1.0}), ("kaiser", {"beta": -1}),
    ("general_cosine", {"a": []}), ("hann", {"dtype": "int64"}), ("hann", {"dtype": "float16"}),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [None, "float32", "float64"])
@pytest.mark.parametrize("sym", [True, False])
@pytest.mark.parametrize("length", [-1, 0, 1, 2, 7, 8])
@pytest.mark.parametrize("name, options", WINDOWS)
def test_windows_are_pytorchs(
    name: str, options: dict[str, Any], length: int, sym: bool, dtype: str | None
) -> None:
    results: list[Any] = []
    for lib in (flambeau, torch):
        given: dict[str, Any] = {"sym": sym, "dtype": dtype, **options}
        if given["dtype"]:
            given["dtype"] = getattr(lib, given["dtype"])
        try:
            results.append(getattr(lib.signal.windows, name)(length, **given))
        except (ValueError, TypeError) as error:
            results.append(type(error))
    if isinstance(results[1], type):
        assert results[0] is results[1]
        return
    assert str(results[0].dtype) == str(results[1].dtype)
    np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), rtol=1e-5, atol=1e-6)


def test_windows_lie_where_they_are_asked_for() -> None:
    with flambeau.virtual(1):
        window = flambeau.signal.windows.hann(4, device="cuda", requires_grad=True)
        assert (str(window.device), window.requires_grad) == ("cuda:0", True)


VERSIONS = [
    "1.2",
    "1.2.0",
    "1.10",
    "1.2.1",
    "2.0.0a0",
    "2.0.0rc1",
    "2.0.0",
    "2.0.0+cu121",
    "2.1.dev3",
    "2.0.post1",
    "x",
]


@pytest.mark.parametrize("other", [*VERSIONS, (1, 2), (1, 10, 0), (2, 0, 1)])
@pytest.mark.parametrize("version", VERSIONS)
def test_versions_are_ordered_as_by_pytorch(version: str, other: Any) -> None:
    theirs = torch.torch_version.TorchVersion
    for compare in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"):
        expected = getattr(theirs(version), compare)(other)
        assert getattr(TorchVersion(version), compare)(other) == expected, compare


def test_the_version_of_torch_compares_with_tuples() -> None:
    assert isinstance(flambeau.__version__, TorchVersion)
    assert (2, 0) < flambeau.__version__ < (3,)
    assert str(flambeau.__version__) == flambeau.version.__version__


ABSENT = [
    ("export", "export"), ("export", "Dim"), ("export", "ExportedProgram"), ("nested", "nested_tensor"),
    ("masked", "sum"), ("masked", "masked_tensor"), ("masked", "MaskedTensor"),
]  # fmt: skip


@pytest.mark.parametrize("module, name", ABSENT)
def test_absent_modules_import_and_raise_with_advice(module: str, name: str) -> None:
    found = importlib.import_module(f"flambeau.{module}")
    assert getattr(flambeau, module) is found
    with pytest.raises(NotSupportedError, match=f"torch.{module}.{name} can be imported but not used"):
        getattr(found, name)(flambeau.ones(2))


@pytest.mark.parametrize("module", ["export", "nested", "masked", "signal.windows"])
def test_absent_modules_have_all_of_pytorchs_names(module: str) -> None:
    theirs, ours = (importlib.import_module(f"{lib}.{module}") for lib in ("torch", "flambeau"))
    assert [name for name in theirs.__all__ if not hasattr(ours, name)] == []


class Clock:
    """A timer that advances by one second a call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_timers_run_the_statement_and_count() -> None:
    calls: list[int] = []
    made = Timer("run(1)", globals={"run": calls.append}, timer=Clock(), label="append")
    measured = made.timeit(10)
    assert len(calls) == 12  # two to warm up
    assert (measured.number_per_run, measured.times, measured.mean, measured.median) == (10, [0.1], 0.1, 0.1)
    blocks: list[tuple[int, float]] = []
    again = made.blocked_autorange(lambda number, time: blocks.append((number, time)), min_run_time=3.0)
    assert again.raw_times == [1.0, 1.0, 1.0]
    assert blocks == [(1, 1.0)] * 3
    assert made.adaptive_autorange(max_run_time=2.0).raw_times[:2] == [1.0, 1.0]
    assert "append" in repr(measured) and "10 runs per measurement" in repr(measured)
    assert "append" in str(Compare([measured]))


def test_statistics_of_a_measurement() -> None:
    measured = Measurement(2, [2.0, 4.0, 6.0, 8.0])
    assert (measured.times, measured.mean, measured.median) == ([1, 2, 3, 4], 2.5, 2.5)
    assert measured.iqr == pytest.approx(1.5)


@pytest.mark.parametrize("options", [{"num_threads": 4}, {"language": "c++"}, {"global_setup": "int x;"}])
def test_timers_refuse_what_they_cannot_do(options: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match="Flambeau"):
        Timer("pass", **options)
    with pytest.raises(NotImplementedError, match="instructions"):
        Timer("pass").collect_callgrind()


def test_timers_wait_for_devices() -> None:
    with flambeau.virtual(1) as machine:
        x = flambeau.ones(64, 64, device="cuda")
        Timer("x @ x", globals={"x": x}).timeit(3)
        assert flambeau.cuda.current_stream().query()
        assert machine is not None

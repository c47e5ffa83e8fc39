"""Modules that programs import and rarely use: stubs of quantization, fake tensors, ONNX, TensorBoard's event files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from both import run, run_both

import flambeau as torch

PROGRAM = """
import warnings
warnings.simplefilter("ignore")
import torch, torch.onnx, torch.quantization, torch.ao.quantization
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, is_fake, maybe_get_fake_mode

x = torch.arange(4.0)
print(torch.onnx.is_in_onnx_export(), is_fake(x), is_fake(3), maybe_get_fake_mode(x), isinstance(x, FakeTensor))
from torch.ao.quantization import DeQuantStub, QuantStub, QuantWrapper
print(QuantStub()(x), DeQuantStub()(x), QuantWrapper(torch.nn.ReLU())(x - 1), QuantWrapper(torch.nn.ReLU()))
print(torch.quantization.QuantStub is QuantStub, issubclass(torch.onnx.OnnxExporterError, RuntimeError))
print(list(QuantWrapper(torch.nn.Linear(1, 1)).state_dict()))
"""

EVENTS = """
import glob, sys, torch
from torch.utils.tensorboard import SummaryWriter
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

torch.manual_seed(0)
values = (torch.arange(101) - 50) / 16
with SummaryWriter(sys.argv[0] + ".events", filename_suffix=".x") as writer:
    for step in range(3):
        writer.add_scalar("loss", torch.tensor(step * 0.5), step, walltime=step)
    writer.add_scalar("new", 2, 1, walltime=1, new_style=True)
    writer.add_scalar("double", 2.5, 1, walltime=1, new_style=True, double_precision=True)
    writer.add_scalars("pair", {"a": 1, "b": torch.tensor([2.0])}, 4, walltime=2)
    writer.add_histogram("h", values, 3, walltime=3)
    writer.add_histogram("h", values, 3, bins=5, walltime=3)
    writer.add_histogram("h", values, 3, bins=10, max_bins=4, walltime=3)
    writer.add_text("t", "words", 5, walltime=4)
    print(writer.get_logdir() == sys.argv[0] + ".events")
for path in sorted(glob.glob(sys.argv[0] + ".events/**/*tfevents*", recursive=True)):
    print(path.endswith(".x"))
    for event in EventFileLoader(path).Load():
        print(event.step, [str(v) for v in event.summary.value])
"""


def test_importable_modules_agree_with_pytorch(tmp_path: Path) -> None:
    run_both(tmp_path, PROGRAM, 7)


def test_event_files_equal_those_of_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    ours, theirs = tmp_path / "ours.py", tmp_path / "theirs.py"
    for program in (ours, theirs):
        program.write_text(EVENTS)
    expected = run(tmp_path, str(theirs))
    assert len(expected) > 15
    assert run(tmp_path, "-m", "flambeau", "run", "--races", "off", str(ours)) == expected


def test_tensorboard_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    monkeypatch.delitem(sys.modules, "flambeau.utils.tensorboard", raising=False)
    with pytest.raises(ImportError, match="tensorboard"):
        __import__("flambeau.utils.tensorboard")


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: torch.onnx.export(None, (), "file"), "Export with PyTorch"),
        (lambda: torch.quantization.quantize_dynamic(None), "Quantize with PyTorch"),
        (lambda: torch._subclasses.FakeTensorMode(shape_env=object()), "symbolic shapes"),
    ],
)
def test_use_of_importable_modules_raises(call, advice: str) -> None:
    with pytest.raises(torch.NotSupportedError, match=advice):
        call()

"""Modules that programs import and rarely use: stubs of quantization, fake tensors, ONNX, TensorBoard's event files."""

from __future__ import annotations

import importlib
import inspect
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
    labels, guesses = (torch.rand(40) > 0.5).long(), torch.rand(40)
    writer.add_pr_curve("pr", labels, guesses, 1, walltime=5)
    writer.add_pr_curve("pr", labels, guesses, 1, 20, weights=torch.rand(40).numpy(), walltime=5)
    writer.add_pr_curve_raw("raw", *[[k, 2.0] for k in range(6)], 1, 2, walltime=5)
    writer.add_tensor("x", values[:6].reshape(2, 3), 1, walltime=5)
    for kind in (torch.float64, torch.int32, torch.int64, torch.uint8, torch.bool, torch.float16, torch.bfloat16):
        writer.add_tensor("kind", values[47:53].to(kind), 1, walltime=5)
    writer.add_tensor("complex", torch.tensor([1 + 2j, -3j]), 1, walltime=5)
    writer.add_audio("sound", values.div(4), 1, 8000, walltime=5)
    writer.add_images("images", torch.rand(9, 3, 5, 4), 1, walltime=5)
    writer.add_images("gray", (torch.rand(2, 5, 4, 1) * 255).to(torch.uint8), 1, walltime=5, dataformats="NHWC")
    writer.add_mesh("mesh", torch.rand(1, 4, 3), faces=torch.zeros(1, 2, 3), config_dict={"a": 1}, walltime=5)
    writer.add_histogram_raw("hr", 0, 3, 4, 5.0, 9.0, [1, 2, 3], [1, 1, 2], 1, walltime=5)
    writer.add_custom_scalars({"c": {"one": ["Multiline", ["a", "b"]], "two": ["Margin", ["a", "b", "c"]]}})
    writer.add_custom_scalars_multilinechart(["a"])
    writer.add_custom_scalars_marginchart(["a", "b", "c"], "category", "title")
    settings = {"lr": 0.1, "n": 3, "name": "adam", "flag": True, "tensor": torch.tensor([2.0]), "none": None}
    for name, value in settings.items():  # one at a time: protobuf orders entries at random
        domain = {name: [value, value]} if name in ("n", "name", "flag") else None
        writer.add_hparams({name: value}, {"loss": 0.5, "accuracy": 1}, domain, run_name=name, global_step=2)
    for bad in [dict(hparam_dict=[], metric_dict={}), dict(hparam_dict={"a": []}, metric_dict={}),
                dict(hparam_dict={"a": 1}, metric_dict={}, hparam_domain_discrete={"a": ["b"]})]:
        try:
            writer.add_hparams(**bad)
        except (TypeError, ValueError) as error:
            print(type(error), error)
    writer.add_embedding(torch.arange(6.0).reshape(3, 2), ["a", "b", "c"], torch.rand(3, 3, 4, 4), tag="e")
    writer.add_embedding(torch.arange(4.0).reshape(2, 2), [["a", 1], ["b", 2]], None, 7, "f/g", ["x", "y"])
    print(writer.get_logdir() == sys.argv[0] + ".events")
for path in sorted(glob.glob(sys.argv[0] + ".events/**/*.*", recursive=True)):
    if path.endswith((".tsv", ".pbtxt", ".png")):
        print(path[len(sys.argv[0]) :], open(path, "rb").read())
    if "tfevents" not in path:
        continue
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


@pytest.mark.parametrize("name", ["ao.quantization", "quantization", "onnx", "backends.mps"])
def test_public_names_of_pytorch_exist(name: str) -> None:
    theirs, ours = importlib.import_module(f"torch.{name}"), importlib.import_module(f"flambeau.{name}")
    names = getattr(theirs, "__all__", None) or [
        n for n in vars(theirs) if n.startswith(("default_", "get_"))
    ]
    values = {n: getattr(theirs, n, None) for n in names}
    public = {n for n, value in values.items() if value is not None and not inspect.ismodule(value)}
    assert len(public) > 4
    assert public - set(dir(ours)) == set()


def test_apple_gpus_are_absent() -> None:
    mps = torch.backends.mps
    assert [mps.is_macos13_or_newer(), mps.is_macos_or_newer(12, 3)] == [False, False]


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: torch.onnx.export(None, (), "file"), "Export with PyTorch"),
        (lambda: torch.quantization.quantize_dynamic(None), "Quantize with PyTorch"),
        (lambda: torch.quantization.default_observer(), "Quantize with PyTorch"),
        (lambda: torch.backends.mps.get_name(), "is_available"),
        (lambda: torch._subclasses.FakeTensorMode(shape_env=object()), "symbolic shapes"),
    ],
)
def test_use_of_importable_modules_raises(call, advice: str) -> None:
    with pytest.raises(torch.NotSupportedError, match=advice):
        call()

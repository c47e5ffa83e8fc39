"""SPEC Q: what the notes link to. Q03 (ONNX) is left out; Q13 and Q14 are lists of names: what is absent says so."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as oracle
from hypothesis import given
from hypothesis import strategies as st

import flambeau as torch

SHAPES = st.lists(st.sampled_from([1, 1, 2, 3, 5, 0]), max_size=4).map(tuple)


@given(a=SHAPES, b=SHAPES)
def test_q01_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    """NumPy's rule is the one that the note states."""
    try:
        want = np.broadcast_shapes(a, b)
    except ValueError:
        with pytest.raises(RuntimeError, match="must match the size of tensor"):
            torch.zeros(a) + torch.zeros(b)
        return
    x, y = torch.zeros(a), torch.ones(b)
    assert (x + y).shape == torch.broadcast_shapes(a, b) == want
    assert torch.broadcast_tensors(x, y)[0].data_ptr() == x.data_ptr(), "without making copies of the data"
    if want != a:
        with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape|must match the size"):
            x.add_(y)


def test_q01_the_notes_own_cases() -> None:
    assert (torch.empty(5, 7, 3) + torch.empty(5, 7, 3)).shape == (5, 7, 3)
    assert (torch.empty(5, 3, 4, 1) + torch.empty(3, 1, 1)).shape == (5, 3, 4, 1)
    with pytest.raises(RuntimeError):
        torch.empty(5, 2, 4, 1) + torch.empty(3, 1, 1)


def test_q02_the_page_of_torch_cuda() -> None:
    with torch.virtual(devices=1):
        assert torch.cuda.is_available() and not torch.cuda.is_initialized(), "initialized lazily"
        assert torch.cuda.current_device() == 0 and torch.cuda.is_initialized()
        assert torch.cuda.FloatTensor(3).device == torch.device("cuda:0")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_q04_finfo(name: str) -> None:
    mine, its = torch.finfo(getattr(torch, name)), oracle.finfo(getattr(oracle, name))
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(mine, field) == getattr(its, field), field


@pytest.mark.parametrize("name", ["uint8", "int8", "int16", "int32", "int64"])
def test_q05_iinfo(name: str) -> None:
    mine, its = torch.iinfo(getattr(torch, name)), oracle.iinfo(getattr(oracle, name))
    for field in ("bits", "max", "min", "dtype"):
        assert getattr(mine, field) == getattr(its, field), field


@pytest.mark.parametrize(
    "options", [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"groups": 2}, {"padding": "same"}]
)
def test_q06_conv1d(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    arrays = [
        rng.random(shape, np.float32) for shape in ((2, 4, 9), (6, 4 // options.get("groups", 1), 3), (6,))
    ]
    mine, its = (
        m.nn.functional.conv1d(*[m.from_numpy(a) for a in arrays], **options) for m in (torch, oracle)
    )
    assert (
        torch.nn.functional.conv1d(*[torch.from_numpy(a) for a in arrays[:2]], **options).shape == mine.shape
    )
    np.testing.assert_allclose(mine.numpy(), its.numpy(), 1e-5, 1e-6)


def test_q07_a_flag_for_cudnns_choices() -> None:
    assert torch.backends.cudnn.deterministic is False
    try:
        torch.backends.cudnn.deterministic = True
        assert torch.backends.cudnn.deterministic is True
    finally:
        torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize(
    "name", ["linear", "conv1d", "conv2d", "conv3d", "sigmoid", "tanh", "relu", "leaky_relu", "selu"]
)
def test_q08_calculate_gain(name: str) -> None:
    assert torch.nn.init.calculate_gain(name) == oracle.nn.init.calculate_gain(name)
    if name == "leaky_relu":
        assert torch.nn.init.calculate_gain(name, 0.3) == oracle.nn.init.calculate_gain(name, 0.3)


def test_q09_an_output_needs_a_gradient_if_an_input_does() -> None:
    x, y, z = torch.randn(5, 5), torch.randn(5, 5), torch.randn(5, 5, requires_grad=True)
    a = x + y
    b = a + z
    assert (a.requires_grad, b.requires_grad) == (False, True)
    b.sum().backward()
    assert x.grad is None and z.grad.tolist() == torch.ones(5, 5).tolist()


KINDS = ["Float", "Double", "Half", "Byte", "Char", "Short", "Int", "Long"]
NAMES = ["float32", "float64", "float16", "uint8", "int8", "int16", "int32", "int64"]
OTHERS = {
    "float32": "float",
    "float64": "double",
    "float16": "half",
    "int16": "short",
    "int32": "int",
    "int64": "long",
}


@pytest.mark.parametrize("kind, name", list(zip(KINDS, NAMES, strict=True)))
def test_q10_eight_types_here_and_there(kind: str, name: str) -> None:
    dtype = getattr(torch, name)
    assert getattr(torch, OTHERS.get(name, name)) is dtype
    host = getattr(torch, f"{kind}Tensor")([1, 2])
    assert host.dtype is dtype and host.type() == f"torch.{kind}Tensor" and not host.is_cuda
    with torch.virtual(devices=1):
        there = getattr(torch.cuda, f"{kind}Tensor")([1, 2])
        assert there.dtype is dtype and there.type() == f"torch.cuda.{kind}Tensor"
        assert isinstance(there, getattr(torch.cuda, f"{kind}Tensor")) and there.tolist() == [1, 2]


def test_q11_in_place_of_multiprocessing() -> None:
    import multiprocessing

    import flambeau.multiprocessing as mp

    missing = [name for name in multiprocessing.__all__ if not hasattr(mp, name)]
    assert not missing


SHARES = """
import flambeau as torch
import flambeau.multiprocessing as mp

def add(x, done):
    x += 1
    done.put(x.is_shared())

if __name__ == "__main__":
    context = mp.get_context("spawn")
    x, done = torch.zeros(3).share_memory_(), context.SimpleQueue()
    others = [context.Process(target=add, args=(x, done)) for _ in range(2)]
    for other in others:
        other.start()
        assert done.get()
        other.join()
    print(x.tolist(), x.storage().is_shared())
"""


def test_q12_processes_see_one_memory(tmp_path: Path) -> None:
    program = tmp_path / "shares.py"
    program.write_text(SHARES)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[2.0, 2.0, 2.0] True\n", 0), done.stderr


MODULES = [
    "nn", "nn.functional", "autograd", "cuda", "cuda.amp", "backends", "distributed", "distributions", "fft", "futures",
    "hub", "jit", "linalg", "nn.init", "onnx", "optim", "quantization", "distributed.rpc", "random", "sparse", "Storage",
    "utils.bottleneck", "utils.checkpoint", "utils.cpp_extension", "utils.data", "utils.dlpack", "utils.mobile_optimizer",
    "utils.model_zoo", "utils.tensorboard", "__config__",
]  # fmt: skip
DOCS = Path(__file__).parents[2] / "docs"
LISTED = (DOCS / "contents.md").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_q13_each_module_is_there_or_says_that_it_is_not(name: str) -> None:
    (line,) = (line for line in LISTED.splitlines() if line.startswith(f"| `torch.{name}` |"))
    found: Any = torch
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        assert part in str(error) and "| no: " in line
    else:
        assert re.search(r"\| (yes|as with [^|]+|names only: [^|]+) \|", line)


@pytest.mark.parametrize(
    "note",
    [
        "Automatic mixed precision examples", "Autograd mechanics", "Broadcasting semantics",
        "CPU threading and TorchScript inference", "Distributed Data Parallel", "Extending PyTorch",
        "Frequently Asked Questions", "Features for large-scale deployments", "Multiprocessing best practices",
        "Reproducibility", "Serialization semantics", "Windows FAQ",
    ],
)  # fmt: skip
def test_q14_the_notes_and_our_pages(note: str) -> None:
    (line,) = (line for line in LISTED.splitlines() if line.lower().startswith(f"| {note.lower()} |"))
    page = re.search(r"\]\((.*?)\)", line)
    assert "| none |" in line or (page is not None and (DOCS / page[1]).exists())


def test_q15_what_the_text_links_to() -> None:
    names = [
        "Tensor.copy_", "Tensor.to", "Tensor.cuda", "Tensor.pin_memory", "ones_like", "zeros_like", "fft.fft",
        "utils.data.DataLoader", "multiprocessing.spawn", "nn.DataParallel", "nn.parallel.DistributedDataParallel",
        "distributed.launch",
    ]  # fmt: skip
    for name in names:
        found: Any = torch
        for part in name.split("."):
            found = getattr(found, part)
        assert found is not None

"""The CUDA notes of PyTorch 1.8 as one program, from top to bottom, and slips of other versions of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from autograd.test_backward_examples import SAFE, SYNCHRONIZED, UNSAFE
from cli.cli_kit import EXAMPLES
from gpus import either, gpus, needs

import flambeau

pytestmark = either
NOTES = EXAMPLES / "notes"
LOSS = """
strm = torch.cuda.Stream()
w = torch.full((8,), 0.5, device=cuda0, requires_grad=True)
strm.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(strm):
    loss = (w * 2).exp()
    loss.retain_grad()
torch.cuda.synchronize()
"""
NETWORK = """
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(42, 3)
"""
CREATION = """
x = torch.empty((8, 42), device=args.device)
net = Network().to(device=args.device)
assert net.fc(x).shape == (8, 3)
"""
ORDER = [
    "placement", "tf32_flags", "tf32_error", "tf32_off", "event_timing", "incorrect_stream", LOSS, SAFE, LOSS, UNSAFE,
    LOSS, SYNCHRONIZED, "plan_cache", NETWORK, "device_agnostic", CREATION, "loader", "visible_devices", "new_tensors", "ones_like",
]  # fmt: skip


@pytest.fixture(autouse=True)
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", ["notes.py"])
    matmul, cudnn = flambeau.backends.cuda.matmul, flambeau.backends.cudnn
    with gpus(devices=3, races="off"):
        yield
    matmul.allow_tf32 = cudnn.allow_tf32 = True


def block(part: str) -> str:
    """A block of the notes: a file of examples/notes, or the text itself."""
    text = part if "\n" in part else (NOTES / f"{part}.py").read_text()
    return text.replace("import torch\n", "import flambeau as torch\n")


def test_all_blocks_in_one_process() -> None:
    """R09, R16: top to bottom, with a network, a loader and a loss supplied."""
    needs(3)
    found: dict[str, Any] = {"__name__": "__main__"}
    for part in ORDER:
        exec(compile(block(part), part if "\n" not in part else "notes", "exec"), found)
        if part in (SAFE, SYNCHRONIZED):
            flambeau.cuda.synchronize()
            want = (2 * (found["w"] * 2).exp()).tolist()
            assert found["w"].grad.tolist() == pytest.approx(want, rel=1e-6)
    assert found["net"].fc.weight.device == flambeau.device("cuda:0")
    assert found["x"].device == flambeau.device("cuda:0")
    assert flambeau.cuda.current_device() == 0


def test_r02_placement_of_the_translation() -> None:
    """Without z, d, e and f, and with two GPUs."""
    needs(2)
    text = block("placement").replace("device('cuda:2')", "device('cuda:1')").split("    z = x + y")[0]
    found: dict[str, Any] = {}
    exec(text, found)
    assert [found[name].device.index for name in ("x", "y", "a", "b", "b2", "c")] == [0, 0, 1, 1, 1, 1]


def test_r08_a_stream_context_needs_its_stream() -> None:
    """The slip of the notes of 1.0."""
    with pytest.raises(TypeError), flambeau.cuda.stream():
        pass

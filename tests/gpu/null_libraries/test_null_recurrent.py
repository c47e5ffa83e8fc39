"""Recurrent networks over a cuDNN that does nothing: which calls are made, with which memory, and when none is.

What cuDNN computes is checked on real GPUs, in hardware/test_recurrent_gpu.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import null_gpu
import pytest

PROGRAM = """
import ctypes
import flambeau as torch

library = ctypes.CDLL("libcudnn.so.9")
count = lambda name: ctypes.c_int.in_dll(library, "null_rnn_" + name).value
counts = lambda: [count(name) for name in ("forwards", "backwards", "weights")]

def changed(run):
    before = counts()
    result = run()
    return [after - b for after, b in zip(counts(), before)], result

nn = torch.nn
shapes = []
for net in (
    nn.LSTM(6, 8, 2), nn.GRU(6, 8, bidirectional=True), nn.RNN(6, 8, 3, bias=False), nn.LSTM(6, 8, proj_size=5),
    nn.RNN(6, 8, nonlinearity="relu", batch_first=True), nn.LSTM(6, 8, 2, bidirectional=True, dtype=torch.float16),
):
    net = net.cuda()
    x = torch.randn(5, 3, 6, device="cuda", dtype=net.weight_ih_l0.dtype, requires_grad=True)
    times, (out, last) = changed(lambda: net(x))
    lstm = isinstance(net, nn.LSTM)
    assert times == [1, 0, 0], times
    assert count("given") == (0b111111111 if lstm else 0b111001111), bin(count("given"))
    times, grads = changed(lambda: torch.autograd.grad(out.sum(), [x, *net.parameters()], retain_graph=True))
    assert times == [0, 1, 1], times
    assert count("given") == 0b111000101111 | (0b101000000 if lstm else 0), bin(count("given"))
    for grad, leaf in zip(grads, [x, *net.parameters()]):
        assert grad.shape == leaf.shape
    # Parameters of a network have separate places in the buffer of gradients, which they fill.
    places = sorted((g.data_ptr(), g.data_ptr() + g.nbytes) for g in grads[1:])
    assert all(end == start for (_, end), (start, _) in zip(places, places[1:]))
    # The reserve was overwritten: the second way back runs the forward pass again.
    assert changed(lambda: torch.autograd.grad(out.sum(), x))[0] == [1, 1, 1]
    states = [t.detach().requires_grad_() for t in (last if lstm else [last])]
    out, ends = net(x, tuple(states) if lstm else states[0])
    found = torch.autograd.grad((ends[1] if lstm else ends).sum(), states, create_graph=False)
    assert [g.shape for g in found] == [t.shape for t in states]
    with torch.no_grad():
        assert changed(lambda: net(x))[0] == [1, 0, 0] and count("given") >> 8 == 0  # nothing is kept

net = nn.LSTM(6, 8, 2, dropout=0.5).cuda()
x = torch.randn(5, 3, 6, device="cuda")
packed = nn.utils.rnn.pack_padded_sequence(x, [5, 2, 1])
assert changed(lambda: net(x))[0] == [2, 0, 0]  # with dropout between the layers, one by one
assert changed(lambda: net(packed)[0].data.sum().backward())[0] == [2, 2, 2]
assert all(p.grad is not None for p in net.parameters())
net.eval()
assert changed(lambda: net(x))[0] == [1, 0, 0]
# Ways without the library: switched off, a second derivative, what it does not have.
with torch.backends.cudnn.flags(enabled=False):
    assert changed(lambda: net(x)[0].sum().backward())[0] == [0, 0, 0]
x.requires_grad_()
out = net(x)[0]
times, (first,) = changed(lambda: torch.autograd.grad(out.square().sum(), x, create_graph=True))
assert times == [0, 0, 0] and first.requires_grad
first.sum().backward()
try:
    net(torch.randn(5, 3, 7, device="cuda"))
except RuntimeError as error:
    assert "input_size" in str(error)
del net, x, out, first, packed, grads, found, states, ends, last, grad, leaf
torch.cuda.synchronize()
print("memory", torch.cuda.memory_allocated())
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("null")
    null_gpu.build(folder)
    (installed,) = [path for path in map(Path, sys.path) if any(path.glob("nvidia/*/lib/libnvrtc.so.*"))]
    return null_gpu.environment(folder, installed, {"FLAMBEAU_KERNEL_CACHE": "0"})


def run(program: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_networks_run_in_single_calls(environment: dict[str, str]) -> None:
    assert run(PROGRAM, environment) == "memory 0\n"


def test_a_refusal_leaves_the_layers_to_our_steps(environment: dict[str, str]) -> None:
    program = """
import ctypes
import flambeau as torch
net = torch.nn.LSTM(6, 8).cuda()
net(torch.randn(5, 3, 6, device="cuda"))[0].sum().backward()
print(ctypes.c_int.in_dll(ctypes.CDLL("libcudnn.so.9"), "null_rnn_forwards").value, net.weight_hh_l0.grad.abs().sum().item() > 0)
"""
    assert run(program, environment | {"NULL_CUDNN_NO_RNN": "1"}) == "0 True\n"

"""The example programs that train: their losses beside PyTorch's, races, memory after them and in a step."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import re
import runpy
import sys
from pathlib import Path

import gpus
import pytest
from support import torch

import flambeau

pytest.importorskip("sklearn", reason="scikit-learn is not installed: it ships the digits")
EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = ["--steps", "50", "--every", "1"]
PROGRAMS = {
    "digits": ["--devices", "DEVICE", "--batch-size", "16"],
    "gpt": ["--device", "DEVICE", "--batch-size", "8", "--context", "32", "--width", "32", "--write", "4"],
    "tagger": ["--device", "DEVICE", "--batch-size", "4"],
    "vae": ["--device", "DEVICE"],
}
MODULES = ["", ".nn", ".nn.functional", ".nn.utils", ".nn.utils.rnn", ".utils", ".utils.data"]


def run(program, device, steps=STEPS):
    """A program's names after a run as `python program.py arguments`, and what it printed."""
    given = [device if word == "DEVICE" else word for word in [*PROGRAMS[program], *steps]]
    path, out = EXAMPLES / f"{program}.py", io.StringIO()
    argv, sys.argv = sys.argv, [str(path), *given]
    try:
        with contextlib.redirect_stdout(out):
            names = runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv = argv
    return names, out.getvalue()


def losses(printed):
    return [float(x) for x in re.findall(r"step +\d+  loss ([\d.]+)", printed)]


@pytest.fixture(scope="module")
def theirs():
    """PyTorch's losses on the CPU, each program run once, on one core: on busy ones its threads wait for each other."""
    threads, found = torch.get_num_threads(), {}
    torch.set_num_threads(1)

    def of(program):
        if program not in found:
            kept = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            found[program] = losses(run(program, "cpu")[1])
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = kept
        return found[program]

    yield of
    torch.set_num_threads(threads)


@contextlib.contextmanager
def as_torch():
    """`import torch` finds Flambeau, as under `flambeau run`; what programs switch is switched back."""
    flags = flambeau.backends.cuda.matmul, flambeau.backends.cudnn
    before = [f.allow_tf32 for f in flags]
    ours = {f"torch{name}": importlib.import_module(f"flambeau{name}") for name in MODULES}
    theirs = {name: importlib.import_module(name) for name in ours}
    sys.modules.update(ours)  # not `mock.patch.dict`: it would forget what is imported meanwhile
    try:
        yield
    finally:
        sys.modules.update(theirs)
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


@gpus.either
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_losses_are_pytorchs_for_50_steps(program, device, theirs):
    wanted = theirs(program)
    assert len(wanted) == 50
    with as_torch(), gpus.gpus(1):
        assert losses(run(program, device)[1]) == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("program", PROGRAMS)
def test_they_are_race_free_and_give_all_memory_back(program):
    with as_torch(), flambeau.virtual(devices=1, races="error"):
        names, printed = run(program, "cuda:0", ["--steps", "4", "--every", "1"])
        assert len(losses(printed)) == 4
        assert flambeau.cuda.max_memory_allocated(0) > 0
        names.clear()
        assert flambeau.cuda.memory_allocated(0) == 0


def test_the_regression_gives_all_memory_back_on_two_gpus(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["regression"])
    with as_torch(), flambeau.virtual(devices=2), contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(EXAMPLES / "regression.py"), run_name="__main__")
        names.clear()
        gc.collect()
        assert [flambeau.cuda.memory_allocated(index) for index in range(2)] == [0, 0]


# -- memory in a step: what PyTorch saves for backward is its count -----------------------------------------------


def digits(m, names):
    images, labels = m.rand(32, 1, 8, 8), m.randint(10, (32,))
    return names["Net"](), [images, labels], lambda net, x, y: m.nn.functional.cross_entropy(net(x), y)


def gpt(m, names):
    x, y = m.randint(60, (4, 32)), m.randint(60, (4 * 32,))
    loss = lambda net, x, y: m.nn.functional.cross_entropy(net(x).view(-1, 60), y)  # noqa: E731
    return names["GPT"](60, 32, 32, 4, 2), [x, y], loss


def vae(m, names):
    def loss(net, x, noise):
        logits, mean, logvar = net(x, noise)
        return names["loss_of"](logits, x, mean, logvar)

    return names["VAE"](), [m.rand(64, 64), m.rand(64, 8)], loss


def tagger(m, names):
    codes, tags, lengths = m.randint(128, (4, 40)), m.randint(7, (4, 40)), m.tensor([40, 30, 20, 9])
    return (
        names["Tagger"](),
        [codes, tags],
        lambda net, x, y: m.nn.functional.cross_entropy(net(x, lengths).flatten(0, 1), y[:, :40].flatten()),
    )


def defined(program):
    """What a program defines, without running it."""
    return runpy.run_path(str(EXAMPLES / f"{program}.py"), run_name="examples")


def saved_by_pytorch(program):
    """Bytes that PyTorch saves for backward besides parameters and inputs: each storage once, in 512-byte blocks."""
    net, inputs, loss = globals()[program](torch, defined(program))
    known = {t.untyped_storage().data_ptr() for t in [*net.parameters(), *inputs]}
    kept = {}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = t, -(-storage.nbytes() // 512) * 512
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss(net, *inputs)
    sizes = [size for _, size in kept.values()]
    return sum(sizes), max(sizes)


WORKSPACES = {"tagger": 17 << 20}  # of cuDNN: 8 MiB for each direction, and a copy of the weights


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_step_holds_no_more_than_pytorch_saves(program):
    theirs, largest = saved_by_pytorch(program)
    with as_torch(), flambeau.virtual(devices=1):
        net, inputs, loss = globals()[program](flambeau, defined(program))
        net, inputs = net.cuda(), [t.cuda() for t in inputs]
        before = flambeau.cuda.memory_allocated()
        parameters = sum(-(-p.numel() * 4 // 512) * 512 for p in net.parameters())
        found = loss(net, *inputs)
        held = flambeau.cuda.memory_allocated() - before
        flambeau.cuda.reset_peak_memory_stats()
        found.backward()
        peak = flambeau.cuda.max_memory_allocated() - before
    assert held <= 1.05 * theirs + 512
    # During the walk: what was saved, the gradients, those of one operation's input and output, and cuDNN's workspace.
    assert peak <= theirs + parameters + 2 * largest + WORKSPACES.get(program, 0)

"""The names of operators in race reports: what users call them, with the direction of copies and the host's calls."""

import importlib
import pkgutil

import pytest
from fix_kit import certificate_of, write

import flambeau as torch
import flambeau.nn.functional as F
from flambeau.driver.protocol import AUTOCAST, Kernel
from flambeau.observe.reporting.operator_names import kernel_name

SETUP = """
import flambeau.nn as nn
from flambeau.nn import functional
from flambeau.nn.functional import embedding
side = torch.cuda.Stream()
x = torch.ones(8, 8, device="cuda", requires_grad=True)
h, i = torch.zeros(8, 8).pin_memory(), torch.arange(4, device="cuda")
optimizers = [kind([x], lr=0.1) for kind in (torch.optim.SGD, torch.optim.Adam)]
x.sum().backward()
torch.cuda.synchronize()
def write(t):
    with torch.no_grad(), torch.cuda.stream(side):
        t.mul_(2)
def fetch(t):
    with torch.no_grad(), torch.cuda.stream(side):
        h.copy_(t, non_blocking=True)
with torch.no_grad():
"""
NAMES = {
    "write(x); F.embedding(i, x)": ("mul_", "reads and writes", "F.embedding", "reads"),
    "write(x); functional.cross_entropy(x, x)": ("mul_", "reads and writes", "F.cross_entropy", "reads"),
    "write(x); embedding(i, x)": ("mul_", "reads and writes", "F.embedding", "reads"),
    "write(x); torch.add(x, 1)": ("mul_", "reads and writes", "add", "reads"),
    "write(x); x + 1": ("mul_", "reads and writes", "add", "reads"),
    "write(x); x.add_(1)": ("mul_", "reads and writes", "add_", "reads and writes"),
    "write(x); x += 1": ("mul_", "reads and writes", "add_", "reads and writes"),
    "write(x); x.zero_()": ("mul_", "reads and writes", "zero_", "writes"),
    "write(x); x.clone()": ("mul_", "reads and writes", "clone", "reads"),
    "write(x); x.tolist()": ("mul_", "reads and writes", "copy to the host (tolist)", "reads"),
    "write(x); x[0, 0].item()": ("mul_", "reads and writes", "copy to the host (item)", "reads"),
    "write(x); float(x[0, 0])": ("mul_", "reads and writes", "copy to the host (float)", "reads"),
    "write(x); print(x)": ("mul_", "reads and writes", "copy to the host (print)", "reads"),
    "write(x); x.copy_(h)": ("mul_", "reads and writes", "copy to the device (copy_)", "writes"),
    "write(x.grad); nn.utils.clip_grad_norm_([x], 1.0)": (
        "mul_",
        "reads and writes",
        "clip_grad_norm_",
        "reads and writes",
    ),
    "write(x); optimizers[0].step()": ("mul_", "reads and writes", "SGD.step", "reads and writes"),
    "write(x); optimizers[1].step()": ("mul_", "reads and writes", "Adam.step", "reads and writes"),
    "write(x); nn.Linear(8, 8, device='cuda')(x)": ("mul_", "reads and writes", "addmm", "reads"),
    "fetch(x); h.sum()": ("copy to the host (copy_)", "writes", "sum", "reads"),
    "fetch(x); h[0, 0].item()": ("copy to the host (copy_)", "writes", "item", "reads"),
    "fetch(x); h.tolist()": ("copy to the host (copy_)", "writes", "tolist", "reads"),
    "fetch(x); print(h)": ("copy to the host (copy_)", "writes", "print", "reads"),
    "fetch(x); h.add_(1)": ("copy to the host (copy_)", "writes", "add_", "reads and writes"),
}


@pytest.mark.parametrize("line", NAMES)
def test_operators_have_their_public_names(tmp_path, line, capsys):
    race = certificate_of(write(tmp_path, f"{SETUP}    {line}")).races[0]
    first, second = race.first, race.second
    assert (first.name, first.kind, second.name, second.kind) == NAMES[line]
    assert race.fix.lines and race.fix.edits


def kernels():
    package = importlib.import_module("flambeau.ops")  # `flambeau.ops` is PyTorch's `torch.ops`
    modules = [
        importlib.import_module(m.name) for m in pkgutil.walk_packages(package.__path__, "flambeau.ops.")
    ]
    values = [value for module in modules for value in vars(module).values()]
    return {k.name for v in values if isinstance(k := getattr(v, "kernel", v), Kernel)} - {AUTOCAST}


# Public names end with the number of dimensions, or the program's text has the name.
OTHERS = """
/ _counted_adam _foreach_scaled _sleep adaptive_avg_pool adaptive_avg_pool_backward adaptive_max_pool adaptive_max_pool_backward avg_pool
avg_pool_backward index max_pool max_pool_backward max_unpool max_unpool_backward
sparse_csr_mm
"""


def test_every_kernel_has_a_public_name():
    rooms = (torch, torch.Tensor, F, torch.linalg, torch.special, torch.optim, torch.amp, torch.nn.utils)
    unknown = []
    for kernel in sorted(kernels()):
        holder, _, name = kernel_name(kernel).removesuffix(" backward").rpartition(".")
        found = getattr(torch, holder, None) or getattr(torch.optim, holder, None) if holder else None
        if not any(
            hasattr(room, name) or hasattr(room, f"{name}_") for room in ([found] if holder else rooms)
        ):
            unknown.append(kernel)
    assert set(unknown) == set(OTHERS.split()), " ".join(unknown)


def test_a_use_of_a_previous_iteration_is_named(tmp_path):
    text = """
    x, streams = torch.zeros(8, device="cuda"), [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for s in streams:
        with torch.cuda.stream(s):
            x.add_(1)
    """
    (race,) = certificate_of(write(tmp_path, text)).races
    assert (race.first.when, race.second.when) == ("of a previous iteration", "")
    assert f"at {race.first.place} of a previous iteration" in str(race)


def test_a_use_of_a_previous_call_is_named(tmp_path):
    text = """
    x, streams = torch.zeros(8, device="cuda"), [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    def step(s):
        with torch.cuda.stream(s):
            x.add_(1)
    step(streams[0])
    step(streams[1])
    """
    (race,) = certificate_of(write(tmp_path, text)).races
    assert (race.first.when, race.second.when) == ("of a previous call", "")


def test_two_uses_in_order_have_no_such_words(tmp_path):
    text = """
    x, side = torch.zeros(8, device="cuda"), torch.cuda.Stream()
    for _ in range(2):
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            x.add_(1)
        x.sum()
    """
    (race,) = certificate_of(write(tmp_path, text)).races
    assert (race.first.when, race.second.when) == ("", "")

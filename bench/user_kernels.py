"""Device time of a chain of pointwise calls, compared with one `torch.cuda.elementwise` kernel.

`python bench/user_kernels.py` on a virtual H100, with `--driver cuda` on the machine's GPU, with PyTorch's times if it
is installed. The best of several runs, each of enough calls to outlast the host.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import flambeau

SIZES = (1 << 10, 1 << 20, 1 << 24)
TEXTS = {
    "x * y + z": lambda m, x, y, z: x * y + z,
    "0.5 * x * (1 + tanh(0.79788456 * (x + 0.044715 * x * x * x)))": lambda m, x, y, z: (
        0.5 * x * (1 + m.tanh(0.79788456 * (x + 0.044715 * x * x * x)))
    ),
    "lambda x, y, z: where(x > y, x * exp(-z), sqrt(y * y + z * z))": lambda m, x, y, z: m.where(
        x > y, x * m.exp(-z), m.sqrt(y * y + z * z)
    ),
}


def microseconds(module: Any, run: Callable[[], Any], calls: int) -> float:
    """Return the device's time of one call, in microseconds."""
    best = float("inf")
    for _ in range(5):
        start, end = (module.cuda.Event(enable_timing=True) for _ in range(2))
        module.cuda.synchronize()
        start.record()
        for _ in range(calls):
            run()
        end.record()
        module.cuda.synchronize()
        best = min(best, start.elapsed_time(end))
    return best / calls * 1e3


def step(module: Any, forward: Callable[..., Any], operands: list[Any]) -> Callable[[], Any]:
    """Run the forward pass, and compute the gradients of all operands."""
    wanted = [x.detach().requires_grad_() for x in operands]
    grad = module.ones_like(operands[0])
    return lambda: module.autograd.grad(forward(*wanted), wanted, grad, allow_unused=True)


def row(module: Any, text: str, size: int, fused: Any) -> list[float]:
    operands = [module.rand(size, device="cuda") for _ in range(3)]
    chain = TEXTS[text]
    forms = [lambda *xyz: chain(module, *xyz)]
    if fused is not None:
        forms.append(lambda *xyz: fused(*xyz[: len(fused.names)]))
    calls = 20 if size < 1 << 24 else 3
    times = []
    for form in forms:
        times.append(microseconds(module, lambda form=form: form(*operands), calls))
        times.append(microseconds(module, step(module, form, operands), calls))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", choices=["virtual", "cuda"], default="virtual")
    real = parser.parse_args().driver == "cuda"
    other = None
    if real:
        try:
            other = importlib.import_module("torch")
        except ImportError:
            print("PyTorch is not installed")
    heads = ["chain", "with gradients", "one kernel", "with gradients"]
    heads += ["PyTorch", "with gradients"] if other is not None else []
    print(f"{'elements':>10} " + " ".join([f"{head:>15}" for head in heads]))
    with nullcontext() if real else flambeau.virtual(profile="h100"):
        for text in TEXTS:
            print(text)
            fused = flambeau.cuda.elementwise(text, differentiable=True)
            for size in SIZES:
                times = row(flambeau, text, size, fused)
                times += row(other, text, size, None) if other is not None else []
                print(f"{size:>10} " + " ".join([f"{t:>15.1f}" for t in times]))


if __name__ == "__main__":
    main()

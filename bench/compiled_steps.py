"""Steps of training as compiled functions: eager, `torch.compile`, and `mode="reduce-overhead"`.

    python bench/compiled_steps.py                # on a GPU: milliseconds of a step, microseconds of the host
    python bench/compiled_steps.py --null         # over the null CUDA libraries: the host's time alone
    python bench/compiled_steps.py mlp            # some of the steps

A step is forward, backward and Adam. Each mode runs in the same process on an equal network; the losses must be equal.
The host's time is that of the call; the step's is that between two waits for the device, divided by the steps.
PyTorch is measured as well, if it is installed and has a GPU. The last line is JSON with all figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

MODES = {"eager": None, "default": "default", "reduce-overhead": "reduce-overhead"}
ROUNDS, CALLS = 7, 20


def mlp(m: Any) -> Any:
    layers = [m.nn.Linear(256, 256), m.nn.ReLU(), m.nn.Linear(256, 256), m.nn.ReLU(), m.nn.Linear(256, 10)]
    return m.nn.Sequential(*layers), *_images(m, 64, 256)


def deep(m: Any) -> Any:
    layers = [each for _ in range(16) for each in (m.nn.Linear(256, 256), m.nn.LayerNorm(256), m.nn.GELU())]
    return m.nn.Sequential(*layers, m.nn.Linear(256, 10)), *_images(m, 64, 256)


def cnn(m: Any) -> Any:
    layers = [each for k in (1, 16, 32) for each in (m.nn.Conv2d(k, 16 if k == 1 else 32, 3), m.nn.ReLU())]
    return m.nn.Sequential(*layers, m.nn.Flatten(), m.nn.Linear(32 * 22 * 22, 10)), *_images(m, 32, 1, 28, 28)


def _images(m: Any, *shape: int) -> tuple[Any, Any]:
    return m.randn(*shape), m.randint(0, 10, shape[:1])


def gpt(m: Any, batch: int, length: int, width: int = 384, heads: int = 6, vocabulary: int = 256) -> Any:
    """Return a decoder of 6 layers in bfloat16, and tokens."""
    nn, functional = m.nn, m.nn.functional

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.heads, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            split = (batch, length, heads, width // heads)
            parts = [y.view(split).transpose(1, 2) for y in self.heads(self.before(x)).chunk(3, -1)]
            found = functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.join(found.transpose(1, 2).reshape(batch, length, width))
            return x + self.down(functional.gelu(self.up(self.between(x)), approximate="tanh"))

    layers = [nn.Embedding(vocabulary, width), *[Block() for _ in range(6)], nn.LayerNorm(width)]
    net = nn.Sequential(*layers, nn.Linear(width, vocabulary), nn.Flatten(0, 1)).bfloat16()
    tokens = m.randint(0, vocabulary, (batch, length + 1))
    return net, tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()


STEPS: dict[str, Callable[[Any], Any]] = {
    "mlp": mlp, "deep": deep, "cnn": cnn, "gpt": lambda m: gpt(m, 2, 64), "gpt16k": lambda m: gpt(m, 64, 256),
}  # fmt: skip


def build(m: Any, name: str) -> tuple[Callable[[Any, Any], Any], Any, Any]:
    """Return a step and its arguments."""
    m.manual_seed(0)
    net, x, labels = [each.cuda() for each in STEPS[name](m)]
    optimizer = m.optim.Adam(net.parameters(), lr=1e-3, capturable=True)

    def step(x: Any, labels: Any) -> Any:
        optimizer.zero_grad()
        loss = m.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step, x, labels


def measure(m: Any, name: str, mode: str | None) -> dict[str, Any]:
    """Return microseconds of the host and milliseconds of a step, seconds of the first steps, and the last loss."""
    step, x, labels = build(m, name)
    run = step if mode is None else m.compile(step, mode=mode)
    begin = time.perf_counter()
    for _ in range(4):
        run(x, labels)
    m.cuda.synchronize()
    first = time.perf_counter() - begin
    host, whole = [], []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            loss = run(x, labels)
        middle = time.perf_counter()
        m.cuda.synchronize()
        host.append((middle - begin) / CALLS * 1e6)
        whole.append((time.perf_counter() - begin) / CALLS * 1e3)
    return {
        "host_us": statistics.median(host), "step_ms": statistics.median(whole), "first_s": first, "loss": loss.item()
    }  # fmt: skip


def libraries() -> dict[str, Any]:
    """Return Flambeau, and PyTorch if it is installed and has a GPU."""
    found = {"flambeau": import_module("flambeau")}
    try:
        peer = import_module("torch")
    except ImportError:
        return found
    return found | ({"torch": peer} if peer.cuda.is_available() else {})


def main() -> int:
    """Measure the named steps, print the table, and return 1 if losses differ between modes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(STEPS)}")
    parser.add_argument("--null", action="store_true", help="use the null CUDA libraries")
    arguments = parser.parse_args()
    if arguments.null:
        import_module("null").libraries()
    os.environ.setdefault("FLAMBEAU_DRIVER", "cuda")
    rows: dict[str, Any] = {}
    wrong = []
    print(f"{'step':8}{'library':10}{'mode':18}{'host us':>10}{'step ms':>10}{'first s':>10}")
    for name in arguments.names or STEPS:
        for library, m in libraries().items():
            row = {mode: measure(m, name, setting) for mode, setting in MODES.items()}
            rows[f"{name} {library}"] = row
            for mode, figures in row.items():
                print(
                    f"{name:8}{library:10}{mode:18}{figures['host_us']:10.1f}{figures['step_ms']:10.3f}"
                    f"{figures['first_s']:10.2f}",
                    flush=True,
                )
            if library == "flambeau" and len({figures["loss"] for figures in row.values()}) > 1:
                wrong.append(name)
    print(f"losses that differ between modes: {wrong}")
    print(json.dumps(rows))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

"""Host time of calls with a new shape and with a known one, here and in PyTorch.

`python bench/new_shapes.py [--device cuda|cpu] [--null] [--alone] [--only TEXT] [--memory]`.

Each call runs once for each of 400 shapes, and 400 times with one shape; the lower quartile of the single times is
printed, in microseconds. Training steps have a batch of another length each time. The worst ratio is first: to
PyTorch's time of a new shape, or with `--alone` to the time of one shape. `--null` runs over CUDA libraries that do
nothing (bench/null.py), which needs no GPU, and no PyTorch. `--memory` counts objects over 200,000 shapes instead.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import random
import time
from collections.abc import Callable
from typing import Any

SHAPES, WARMUP = 400, 12
WIDTH = 64
Call = Callable[[Any, Any], Any]

CALLS: dict[str, Call] = {
    "x + x": lambda m, x: x + x,
    "x * 2.0": lambda m, x: x * 2.0,
    "x + row": lambda m, x: x + x[0],
    "x.relu()": lambda m, x: x.relu(),
    "F.gelu(x)": lambda m, x: m.nn.functional.gelu(x),
    "torch.where": lambda m, x: m.where(x > 0, x, 0.5),
    "x.add_(x)": lambda m, x: x.add_(x),
    "x.to(half)": lambda m, x: x.to(m.float16),
    "x.clone()": lambda m, x: x.clone(),
    "torch.empty": lambda m, x: m.empty(x.shape[0] * 3 + 1, device=x.device),
    "torch.zeros": lambda m, x: m.zeros(x.shape[0], 3, device=x.device),
    "torch.arange": lambda m, x: m.arange(x.shape[0], device=x.device),
    "torch.rand": lambda m, x: m.rand(x.shape[0], 3, device=x.device),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "x.view(-1)": lambda m, x: x.view(-1),
    "x.t()": lambda m, x: x.t(),
    "x[1:]": lambda m, x: x[1:],
    "x[:, :5] + 1": lambda m, x: x[:, :5] + 1,
    "x.t().contiguous()": lambda m, x: x.t().contiguous(),
    "x[None].expand": lambda m, x: x[None].expand(3, -1, -1),
    "x.split(8)": lambda m, x: x.split(8),
    "x.sum()": lambda m, x: x.sum(),
    "x.sum(0)": lambda m, x: x.sum(0),
    "x.mean(-1)": lambda m, x: x.mean(-1),
    "x.amax(-1)": lambda m, x: x.amax(-1),
    "x.argmax(-1)": lambda m, x: x.argmax(-1),
    "x.var(0)": lambda m, x: x.var(0),
    "x.cumsum(0)": lambda m, x: x.cumsum(0),
    "x.sort(0)": lambda m, x: x.sort(0),
    "x.topk(3)": lambda m, x: x.topk(3),
    "x.softmax(-1)": lambda m, x: x.softmax(-1),
    "F.log_softmax": lambda m, x: m.nn.functional.log_softmax(x, -1),
    "F.layer_norm": lambda m, x: m.nn.functional.layer_norm(x, (WIDTH,)),
    "F.dropout": lambda m, x: m.nn.functional.dropout(x, 0.5),
    "F.pad": lambda m, x: m.nn.functional.pad(x, (1, 2)),
    "F.mse_loss": lambda m, x: m.nn.functional.mse_loss(x, x),
    "F.cross_entropy": lambda m, x: m.nn.functional.cross_entropy(x, x[:, 0].long()),
    "x @ w": lambda m, x: x @ x[:1].t(),
    "F.linear": lambda m, x: m.nn.functional.linear(x, _fixed(m, x, WIDTH, WIDTH), _fixed(m, x, WIDTH)),
    "torch.bmm": lambda m, x: m.bmm(x[None], _fixed(m, x, 1, WIDTH, WIDTH)),
    "attention": lambda m, x: m.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, -1, WIDTH)] * 3),
    "F.conv1d": lambda m, x: m.nn.functional.conv1d(x.t()[None], _fixed(m, x, 8, WIDTH, 3), padding=1),
    "F.max_pool2d": lambda m, x: m.nn.functional.max_pool2d(x.view(1, 1, -1, WIDTH), 2),
    "F.interpolate": lambda m, x: m.nn.functional.interpolate(x.view(1, 1, -1, WIDTH), scale_factor=2),
    "torch.cat": lambda m, x: m.cat([x, x]),
    "torch.stack": lambda m, x: m.stack([x, x]),
    "x[index]": lambda m, x: x[x[:, 0].long()],
    "x.index_select": lambda m, x: x.index_select(0, x[:, 0].long()),
    "x.gather": lambda m, x: x.gather(1, x[:, :2].long()),
    "F.embedding": lambda m, x: m.nn.functional.embedding(x[:, 0].long(), _fixed(m, x, 100, WIDTH)),
    "F.one_hot": lambda m, x: m.nn.functional.one_hot(x[:, 0].long(), 4),
    "x.masked_fill": lambda m, x: x.masked_fill(x > 0, 0.0),
    "x.tril()": lambda m, x: x.tril(),
    "torch.fft.rfft": lambda m, x: m.fft.rfft(x),
    "backward of gelu": lambda m, x: m.nn.functional.gelu(x.detach().requires_grad_()).sum().backward(),
}
NEED_LIBRARIES = {"torch.fft.rfft"}  # of which there is no null one


def _fixed(m: Any, x: Any, *shape: int) -> Any:
    """Return a tensor of a shape that does not change from call to call."""
    key = (m.__name__, str(x.device), shape)
    if key not in _tensors:
        _tensors[key] = m.ones(*shape, device=x.device)
    return _tensors[key]


_tensors: dict[Any, Any] = {}


# -- training steps ---------------------------------------------------------------------------------------


def mlp_step(m: Any, device: str) -> tuple[Callable[[int], Any], Callable[[Any], Any]]:
    """Return a function that makes a batch of a given length, and a training step of an MLP with LayerNorm and Adam."""
    nn = m.nn
    layers = [
        nn.Linear(64, 128),
        nn.LayerNorm(128),
        nn.GELU(),
        nn.Linear(128, 128),
        nn.LayerNorm(128),
        nn.GELU(),
    ]
    model = nn.Sequential(*layers, nn.Linear(128, 10)).to(device)
    optimizer = m.optim.Adam(model.parameters())

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    def make(length: int) -> Any:
        return m.ones(length, 64, device=device), m.zeros(length, dtype=m.int64, device=device)

    return make, step


def sequence_step(m: Any, device: str) -> tuple[Callable[[int], Any], Callable[[Any], Any]]:
    """Return what makes a batch of sequences of a length, and a step of a block of a transformer with SGD."""
    nn = m.nn
    embedding = nn.Embedding(100, 64).to(device)
    block = nn.TransformerEncoderLayer(64, 2, 128, dropout=0.1, batch_first=True).to(device)
    head = nn.Linear(64, 100).to(device)
    parameters = [*embedding.parameters(), *block.parameters(), *head.parameters()]
    optimizer = m.optim.SGD(parameters, lr=1e-3, momentum=0.9)

    def step(tokens: Any) -> None:
        optimizer.zero_grad()
        logits = head(block(embedding(tokens[:, :-1])))
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()

    return lambda length: m.zeros(2, length, dtype=m.int64, device=device), step


STEPS = {"MLP step": mlp_step, "transformer step": sequence_step}


# -- measuring --------------------------------------------------------------------------------------------


def lower_quartile(times: list[int]) -> float:
    """Return the time below which a quarter of the single times lies, in microseconds."""
    return sorted(times)[len(times) // 4] / 1e3


def single(call: Callable[[Any], Any], x: Any) -> int:
    """Return the nanoseconds of one call."""
    start = time.perf_counter_ns()
    call(x)
    return time.perf_counter_ns() - start


def measure(
    m: Any, make: Callable[[int], Any], call: Callable[[Any], Any], device: str, shapes: int
) -> tuple[float, float]:
    """Return the time of a call with one shape, and with ever new ones in random order."""
    lengths = random.Random(0).sample(range(17, 17 + shapes + WARMUP), shapes + WARMUP)
    inputs = [make(length) for length in lengths]
    for x in inputs[:WARMUP]:
        call(x)
    gc.collect()
    again = [single(call, inputs[0]) for _ in range(shapes)]
    new = [single(call, x) for x in inputs[WARMUP:]]
    if device == "cuda":
        m.cuda.synchronize()
    return lower_quartile(again), lower_quartile(new)


def measured(m: Any, name: str, device: str) -> tuple[float, float]:
    """Return the two times of a call or a step of this name."""
    if name in STEPS:
        make, step = STEPS[name](m, device)
        return measure(m, make, step, device, SHAPES // 4)
    call = CALLS[name]
    return measure(m, lambda n: m.ones(n, WIDTH, device=device), lambda x: call(m, x), device, SHAPES)


def count_objects(m: Any, device: str, shapes: int = 200_000) -> None:
    """Print how many objects the process has while calls have ever new shapes: the number must not grow."""
    print(f"{'shapes':>10}{'objects':>12}{'device bytes':>16}")
    for n in range(shapes):
        x = m.empty(1 + n % 997, 1 + n // 997, device=device)
        y = (x + x).sum(0)
        m.cat([y, y]).view(2, -1)
        if (n + 1) % (shapes // 8) == 0:
            del x, y
            gc.collect()
            held = m.cuda.memory_allocated() if device == "cuda" else 0
            print(f"{n + 1:10,}{len(gc.get_objects()):12,}{held:16,}", flush=True)


def main() -> None:
    """Print a line for each call, the worst ratio of new shapes first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    for flag in ("--null", "--alone", "--memory"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.null:
        import null

        null.libraries()
    device = options.device or ("cuda" if options.null else "cpu")
    libraries = ["flambeau"] if options.alone or options.null else ["flambeau", "torch"]
    modules = [importlib.import_module(name) for name in libraries]
    if options.memory:
        count_objects(modules[0], device)
        return
    rows = []
    for name in (*CALLS, *STEPS):
        if options.only in name and not (options.null and name in NEED_LIBRARIES):
            found = [time for m in modules for time in measured(m, name, device)]
            rows.append((found[1] / found[-1 if len(modules) > 1 else 0], name, found))
    heads = [f"{m}, {kind}" for m in libraries for kind in ("one shape", "new shapes")]
    print(f"{'call':20}" + "".join(f"{head:>22}" for head in heads) + f"{'new, ratio':>12}{'new / one':>12}")
    for ratio, name, found in sorted(rows, reverse=True):
        again = found[1] / found[0]
        print(f"{name:20}" + "".join(f"{each:22.1f}" for each in found) + f"{ratio:12.2f}{again:12.2f}")


if __name__ == "__main__":
    main()

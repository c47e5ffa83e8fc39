"""Host time of calls with a new shape and with a known one, here and in PyTorch.

`python bench/new_shapes.py [--device cuda|cpu] [--null] [--alone] [--wide] [--only TEXT] [--memory]`.

Each call runs once for each of 400 shapes, and 400 times with one shape; the lower quartile of the single times is
printed, in microseconds. Training steps have a batch of another length each time. `--wide` adds more calls, and each
differentiable call with its gradient. The worst ratio is first: to PyTorch's time of a new shape, or with `--alone` to
the time of one shape. The last line has the median and the maximum. `--null` runs over CUDA libraries that do nothing
(bench/null.py), which needs no GPU, and no PyTorch. `--memory` counts objects over 1,000,000 shapes instead: of each, a
tensor is created and added to itself, and one of all calls has a length that it never had.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import random
import resource
import statistics
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
WIDE: dict[str, Call] = {
    "x.clamp": lambda m, x: x.clamp(0, 1),
    "x.pow(2)": lambda m, x: x.pow(2),
    "torch.lerp": lambda m, x: m.lerp(x, x, 0.5),
    "x / x.norm()": lambda m, x: x / x.norm(),
    "where, broadcast": lambda m, x: m.where(x[:, :1] > 0, x, x[:1]),
    "x == x": lambda m, x: x == x,
    "x.copy_(x)": lambda m, x: m.empty_like(x).copy_(x),
    "torch.full": lambda m, x: m.full((x.shape[0], 3), 2.0, device=x.device),
    "x.new_zeros": lambda m, x: x.new_zeros(x.shape[0], 5),
    "torch.randn": lambda m, x: m.randn(x.shape[0], 4, device=x.device),
    "torch.linspace": lambda m, x: m.linspace(0, 1, x.shape[0], device=x.device),
    "x.repeat": lambda m, x: x.repeat(2, 1),
    "x.flip": lambda m, x: x.flip(0),
    "x.roll": lambda m, x: x.roll(1, 0),
    "x.narrow": lambda m, x: x.narrow(0, 3, x.shape[0] - 4),
    "x.chunk(3)": lambda m, x: x.chunk(3),
    "x.unfold": lambda m, x: x.unfold(0, 4, 2),
    "x.t().reshape": lambda m, x: x.t().reshape(-1),
    "x.flatten": lambda m, x: x[None].flatten(0, 1),
    "x[2:-2] = 0": lambda m, x: x[2:-2].zero_(),
    "x.diagonal": lambda m, x: x.diagonal(),
    "x.std(-1)": lambda m, x: x.std(-1),
    "softmax of new length": lambda m, x: x.view(WIDTH, -1).softmax(-1),
    "amax of new length": lambda m, x: x.view(WIDTH, -1).amax(-1),
    "var of new length": lambda m, x: x.view(WIDTH, -1).var(-1),
    "layer_norm of new length": lambda m, x: m.nn.functional.layer_norm(x.view(WIDTH, -1), (x.shape[0],)),
    "cumsum of new length": lambda m, x: x.view(WIDTH, -1).cumsum(-1),
    "sort of new length": lambda m, x: x.view(WIDTH, -1).sort(-1),
    "x.logsumexp": lambda m, x: x.logsumexp(-1),
    "x.prod(-1)": lambda m, x: x.prod(-1),
    "x.max(0)": lambda m, x: x.max(0),
    "x.any(-1)": lambda m, x: (x > 0).any(-1),
    "x.median(-1)": lambda m, x: x.median(-1),
    "x.cumprod(-1)": lambda m, x: x.cumprod(-1),
    "x.argsort": lambda m, x: x.argsort(-1),
    "torch.cdist": lambda m, x: m.cdist(x, x[:5]),
    "torch.einsum": lambda m, x: m.einsum("bd,cd->bc", x, _fixed(m, x, 8, WIDTH)),
    "torch.addmm": lambda m, x: m.addmm(x, x, _fixed(m, x, WIDTH, WIDTH)),
    "large F.linear": lambda m, x: m.nn.functional.linear(x, _fixed(m, x, 1024, WIDTH), _fixed(m, x, 1024)),
    "large x @ x.t()": lambda m, x: x.repeat(1, 8) @ x.repeat(1, 8).t(),
    "F.batch_norm": lambda m, x: m.nn.functional.batch_norm(x, None, None, training=True),
    "F.group_norm": lambda m, x: m.nn.functional.group_norm(x.t()[None], 4),
    "F.smooth_l1_loss": lambda m, x: m.nn.functional.smooth_l1_loss(x, x),
    "F.kl_div": lambda m, x: m.nn.functional.kl_div(x, x, reduction="batchmean"),
    "F.bce_with_logits": lambda m, x: m.nn.functional.binary_cross_entropy_with_logits(x, x),
    "F.interpolate, size": lambda m, x: m.nn.functional.interpolate(
        x.view(1, 1, -1, WIDTH), size=(x.shape[0] + 3, 9)
    ),
    "F.interpolate, linear": lambda m, x: m.nn.functional.interpolate(
        x.t()[None], scale_factor=1.5, mode="linear"
    ),
    "F.pad, reflect": lambda m, x: m.nn.functional.pad(x.t()[None], (2, 2), mode="reflect"),
    "F.unfold": lambda m, x: m.nn.functional.unfold(x.view(1, 1, -1, WIDTH), 3),
    "F.avg_pool1d": lambda m, x: m.nn.functional.avg_pool1d(x.t()[None], 3),
    "F.adaptive_avg_pool1d": lambda m, x: m.nn.functional.adaptive_avg_pool1d(x.t()[None], 4),
    "masked attention": lambda m, x: m.nn.functional.scaled_dot_product_attention(
        *[x.view(1, 1, -1, WIDTH)] * 3, attn_mask=(x[:, :1] > 0) & (x[:, 0] > 0)
    ),
    "causal attention": lambda m, x: m.nn.functional.scaled_dot_product_attention(
        *[x.view(1, -1, 4, 16).transpose(1, 2)] * 3, is_causal=True
    ),
    "x.scatter": lambda m, x: x.scatter(1, x[:, :2].long(), 0.0),
    "x.index_add": lambda m, x: x.index_add(0, x[:, 0].long(), x),
    "x[index] = x": lambda m, x: x.index_put((x[:, 0].long(),), x),
    "x[i, j]": lambda m, x: x[x[:, 0].long(), x[:, 1].long()],
    "x.take_along_dim": lambda m, x: x.take_along_dim(x[:, :1].long(), 1),
    "F.embedding_bag": lambda m, x: m.nn.functional.embedding_bag(x[:, :4].long(), _fixed(m, x, 100, WIDTH)),
    "torch.bucketize": lambda m, x: m.bucketize(x, _fixed(m, x, 8)),
    "LSTM": lambda m, x: _module(m, x, "LSTM", WIDTH, 32, batch_first=True)(x[None]),
    "packed LSTM": lambda m, x: _module(m, x, "LSTM", WIDTH, 32, batch_first=True)(
        m.nn.utils.rnn.pack_padded_sequence(x[None].expand(2, -1, -1), [x.shape[0], 9], batch_first=True)
    ),
}
BACKWARD = (
    "x + row", "x * 2.0", "torch.where", "x.t().contiguous()", "x[1:]", "x.split(8)", "x[None].expand", "x.sum(0)",
    "softmax of new length", "layer_norm of new length",
    "x.mean(-1)", "x.amax(-1)", "x.cumsum(0)", "x.softmax(-1)", "F.log_softmax", "F.layer_norm", "F.dropout", "F.pad",
    "F.mse_loss", "F.cross_entropy", "x @ w", "F.linear", "torch.bmm", "attention", "F.conv1d", "F.max_pool2d",
    "F.interpolate", "torch.cat", "torch.stack", "x[index]", "x.gather", "x.masked_fill", "torch.einsum",
    "large F.linear", "F.batch_norm", "F.group_norm", "F.smooth_l1_loss", "x.repeat", "x.unfold", "x.index_add",
    "F.interpolate, linear", "F.avg_pool1d", "causal attention", "LSTM",
)  # fmt: skip


def _backward(name: str) -> Call:
    """Return the call with this name followed by the gradient of its input."""
    call = {**CALLS, **WIDE}[name]

    def forward_and_backward(m: Any, x: Any) -> None:
        result = call(m, x.detach().requires_grad_())
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()

    return forward_and_backward


WIDE |= {f"backward of {name}": _backward(name) for name in BACKWARD}
NEED_LIBRARIES = {"torch.fft.rfft"}  # of which there is no null one


def _fixed(m: Any, x: Any, *shape: int) -> Any:
    """Return a tensor of a shape that does not change from call to call."""
    key = (m.__name__, str(x.device), shape)
    if key not in _tensors:
        _tensors[key] = m.ones(*shape, device=x.device)
    return _tensors[key]


def _module(m: Any, x: Any, name: str, *sizes: int, **options: Any) -> Any:
    """Return a module that is the same in each call."""
    key = (m.__name__, str(x.device), name)
    if key not in _tensors:
        _tensors[key] = getattr(m.nn, name)(*sizes, **options).to(x.device)
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
    call = (CALLS | WIDE)[name]
    return measure(m, lambda n: m.ones(n, WIDTH, device=device), lambda x: call(m, x), device, SHAPES)


def count_objects(m: Any, device: str, calls: dict[str, Call], shapes: int = 1_000_000) -> None:
    """Print objects and memory of the process while calls have ever new shapes: they must not grow."""
    print(f"{'shapes':>10}{'objects':>12}{'device bytes':>16}{'most memory, MiB':>20}")
    slow = ("LSTM", "split", "unfold", "masked attention")  # by their steps, views or quadratic sizes
    listed = [call for name, call in calls.items() if not any(part in name for part in slow)]
    for n in range(shapes):
        x = m.empty(n + 1, 2, device=device)
        x + x
        rows = 17 + n // len(listed) * 619 % 20_011  # a prime, so that no call has a length twice
        listed[n % len(listed)](m, m.ones(rows, WIDTH, device=device))
        if (n + 1) % (shapes // 10) == 0:
            gc.collect()
            held = m.cuda.memory_allocated() if device == "cuda" else 0
            most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
            print(f"{n + 1:10,}{len(gc.get_objects()):12,}{held:16,}{most:20,}", flush=True)


def main() -> None:
    """Print a line for each call, the worst ratio of new shapes first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device")
    for flag in ("--null", "--alone", "--memory", "--wide"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    if options.null:
        import null

        null.libraries()
    device = options.device or ("cuda" if options.null else "cpu")
    libraries = ["flambeau"] if options.alone or options.null else ["flambeau", "torch"]
    modules = [importlib.import_module(name) for name in libraries]
    left_out = NEED_LIBRARIES if options.null else set()
    calls = {n: call for n, call in (CALLS | WIDE).items() if options.only in n and n not in left_out}
    if options.memory:
        count_objects(modules[0], device, calls)
        return
    rows = []
    for name in (*CALLS, *(WIDE if options.wide else ()), *STEPS):
        if options.only in name and name not in left_out:
            found = [time for m in modules for time in measured(m, name, device)]
            rows.append((found[1] / found[-1 if len(modules) > 1 else 0], name, found))
    heads = [f"{m}, {kind}" for m in libraries for kind in ("one shape", "new shapes")]
    print(f"{'call':32}" + "".join(f"{head:>22}" for head in heads) + f"{'new, ratio':>12}{'new / one':>12}")
    for ratio, name, found in sorted(rows, reverse=True):
        again = found[1] / found[0]
        print(f"{name:32}" + "".join(f"{each:22.1f}" for each in found) + f"{ratio:12.2f}{again:12.2f}")
    ratios = [row[0] for row in rows if row[1] not in STEPS]
    if ratios:
        print(f"{len(ratios)} calls: median {statistics.median(ratios):.2f}, maximum {max(ratios):.2f}")


if __name__ == "__main__":
    main()

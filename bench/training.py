"""Time, host time and peak memory of training steps, next to PyTorch on the same device.

    python bench/training.py --driver cuda          # on a real GPU, compared with PyTorch's CUDA build if there is one
    python bench/training.py --driver cpu           # the CPU, one thread each
    python bench/training.py --driver virtual       # Flambeau alone, on a virtual H100
    python bench/training.py --driver null          # the host's share alone: launches that do nothing
    python bench/training.py --driver null --profile mlp
    python bench/training.py --driver cuda --kernels cnn        # each library's kernels, as CUPTI times them

A step is zero_grad, forward, loss, backward, optimizer. Times are medians of blocks of steps, after warm-up; the null
driver's are the best of many steps in processor time, which other work on the machine disturbs least. TF32 is on or
off (`--tf32`) for both libraries alike.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import math
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):  # before NumPy is imported
    os.environ.setdefault(_name, "1")

import flambeau  # noqa: E402
from flambeau.tensor import call  # noqa: E402

WARM_UP = 10
Step = Callable[[], Any]


def mlp(m: Any, device: str) -> Step:
    """64-128-128-10, a batch of 64, Adam."""
    nn = m.nn
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(
        device
    )
    x, y = m.rand(64, 64).to(device), m.randint(10, (64,)).to(device)
    return stepping(m, net, m.optim.Adam(net.parameters()), x, y)


def cnn(m: Any, device: str) -> Step:
    """Return a training step of the network of PyTorch's MNIST example, a batch of 64, Adadelta."""
    nn = m.nn
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    x, y = m.rand(64, 1, 28, 28).to(device), m.randint(10, (64,)).to(device)
    return stepping(m, net, m.optim.Adadelta(net.parameters()), x, y)


def gpt(m: Any, device: str) -> Step:
    """Return a training step of a GPT of 6 layers, 384 wide, 6 heads, 64 times 256 characters of 65 kinds."""
    net = gpt_of(m, 65, 256, 384, 6, 6).to(device)
    x, y = m.randint(65, (64, 256)).to(device), m.randint(65, (64 * 256,)).to(device)
    return stepping(m, net, m.optim.AdamW(net.parameters()), x, y, lambda scores: scores.view(-1, 65))


def small_gpt(m: Any, device: str) -> Step:
    """Return a training step of a GPT that is small enough for a CPU: 32 wide, 4 times 32 characters."""
    net = gpt_of(m, 65, 32, 32, 4, 6).to(device)
    x, y = m.randint(65, (4, 32)).to(device), m.randint(65, (4 * 32,)).to(device)
    return stepping(m, net, m.optim.AdamW(net.parameters()), x, y, lambda scores: scores.view(-1, 65))


PROGRAMS = {"mlp": mlp, "cnn": cnn, "gpt": gpt, "small_gpt": small_gpt}
USUAL = {
    "cuda": ["mlp", "cnn", "gpt"],
    "cpu": ["mlp", "cnn", "small_gpt"],
    "virtual": ["mlp", "cnn", "small_gpt"],
}
USUAL["null"] = USUAL["virtual"]


def stepping(
    m: Any, net: Any, optimizer: Any, x: Any, y: Any, rows: Callable[[Any], Any] = lambda scores: scores
) -> Step:
    def step() -> Any:
        optimizer.zero_grad()
        loss = m.nn.functional.cross_entropy(rows(net(x)), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def gpt_of(m: Any, symbols: int, context: int, width: int, heads: int, layers: int) -> Any:
    """Return the model of examples/gpt.py, in the library `m`."""
    nn, functional = m.nn, m.nn.functional

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            batch, length, _ = x.shape
            parts = self.qkv(x).view(batch, length, 3, heads, width // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(), nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(symbols, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)

        def forward(self, x: Any) -> Any:
            places = m.arange(x.shape[1], device=x.device)
            return self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))

    return GPT()


# -- measuring ----------------------------------------------------------------------------------------------


def host_time(build: Callable[[Any, str], Step], seconds: float) -> float:
    """Microseconds of processor time of one step whose launches do nothing."""
    step = build(flambeau, "cuda")
    for _ in range(WARM_UP):
        step()
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.process_time()
        step()
        best = min(best, time.process_time() - start)
    return best * 1e6


def measure(
    m: Any, build: Callable[[Any, str], Step], device: str, seconds: float
) -> tuple[float, float, int]:
    """Return a step's microseconds, the host's part of them, and the peak of allocated bytes."""
    m.manual_seed(0)
    on_gpu = device == "cuda"
    wait = m.cuda.synchronize if on_gpu else lambda: None
    step = build(m, device)
    for _ in range(WARM_UP):
        step()
    wait()
    if on_gpu:
        m.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step()
    wait()
    steps = max(1, math.ceil(seconds / 10 / (time.perf_counter() - start)))
    blocks, hosts = [], []
    for _ in range(10):
        start = time.perf_counter()
        for _ in range(steps):
            step()
        hosts.append((time.perf_counter() - start) / steps)
        wait()
        blocks.append((time.perf_counter() - start) / steps)
    peak = m.cuda.max_memory_allocated() if on_gpu else 0
    return statistics.median(blocks) * 1e6, statistics.median(hosts) * 1e6, peak


@contextlib.contextmanager
def machine(driver: str) -> Iterator[str]:
    """Open the machine that Flambeau runs on and return the name of its device."""
    if driver in ("virtual", "null"):
        with flambeau.virtual(devices=1, profile="h100"):
            yield "cuda"
    else:
        yield driver


def without_launches(build: Callable[[Any, str], Step]) -> Callable[[Any, str], Step]:
    """Return `build` with steps that first run a few times, which creates call plans; then launches do nothing."""

    def null_launch(ptrs: Any, scalars: Any, stream: int) -> None:
        pass

    def built(m: Any, device: str) -> Step:
        step = build(m, device)
        for _ in range(1 if build is gpt else 3):
            step()
        m.cuda.synchronize()
        for plan in call.plans.values():
            plan.launch = null_launch
        return step

    return built


def oracle(driver: str, tf32: bool) -> Any:
    """PyTorch, where it can run on the same device; None where not."""
    if driver in ("virtual", "null"):
        return None
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    return torch if driver == "cpu" or torch.cuda.is_available() else None


def profile(build: Callable[[Any, str], Step], device: str) -> None:
    """Print the functions that take the host's time in a hundred steps."""
    step = build(flambeau, device)
    for _ in range(WARM_UP):
        step()
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(100):
        step()
    profiler.disable()
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(25)


def kernels(torch: Any, m: Any, build: Callable[[Any, str], Step], rows: int = 24) -> None:
    """Print the kernels of a step of library `m`, the longest first, as PyTorch's profiler reports them."""
    step = build(m, "cuda")
    for _ in range(WARM_UP):
        step()
    m.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(WARM_UP):
            step()
        m.cuda.synchronize()
    found = [(e.device_time_total / WARM_UP, e.count / WARM_UP, e.key) for e in profiler.key_averages()]
    found = sorted((line for line in found if line[0] > 0), reverse=True)
    print(
        f"{m.__name__}: {sum(us for us, _, _ in found):.1f} us in {sum(n for _, n, _ in found):.0f} kernels"
    )
    for us, count, name in found[:rows]:
        print(f"{us:10.1f} us {count:6.1f} times  {name[:110]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--driver", choices=["cuda", "cpu", "virtual", "null"], default="cpu")
    parser.add_argument("--tf32", choices=["on", "off"], default="off")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each program is measured")
    parser.add_argument("--profile", action="store_true", help="print where the host's time goes instead")
    parser.add_argument("--kernels", action="store_true", help="print the kernels of a step instead")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    given = parser.parse_args()
    tf32 = given.tf32 == "on"
    flambeau.backends.cuda.matmul.allow_tf32 = flambeau.backends.cudnn.allow_tf32 = tf32
    torch = oracle(given.driver, tf32)
    print(
        f"driver {given.driver}, TF32 {given.tf32}, beside {'PyTorch ' + torch.__version__ if torch else 'nothing'}"
    )
    head = f"{'':12}{'step us':>12}"
    if given.driver != "null":
        head += f"{'host us':>12}{'peak MiB':>10}{'PyTorch us':>12}{'host us':>12}{'peak MiB':>10}"
        head += f"{'time':>8}{'memory':>8}"
    print(head)
    for name in given.programs or USUAL[given.driver]:
        build = without_launches(PROGRAMS[name]) if given.driver == "null" else PROGRAMS[name]
        with machine(given.driver) as device:
            if given.profile:
                profile(build, device)
                continue
            if given.kernels:
                if torch is None:
                    parser.error("--kernels needs PyTorch's CUDA build: its profiler reads CUPTI")
                for library in (flambeau, torch):
                    kernels(torch, library, build)
                continue
            if given.driver == "null":
                print(f"{name:12}{host_time(build, given.seconds):12.1f}", flush=True)
                continue
            ours = measure(flambeau, build, device, given.seconds)
        line = f"{name:12}{ours[0]:12.1f}{ours[1]:12.1f}{ours[2] / 2**20:10.2f}"
        if torch is not None:
            theirs = measure(torch, PROGRAMS[name], device, given.seconds)
            memory = f"{ours[2] / theirs[2]:8.2f}" if theirs[2] else ""
            line += f"{theirs[0]:12.1f}{theirs[1]:12.1f}{theirs[2] / 2**20:10.2f}{ours[0] / theirs[0]:8.2f}{memory}"
        print(line, flush=True)


if __name__ == "__main__":
    main()

"""all_reduce from 1 KiB to 1 GiB and steps of DistributedDataParallel on several GPUs, next to PyTorch.

    python bench/distributed.py --gpus 4                  # real GPUs; also PyTorch with NCCL if it is installed
    python bench/distributed.py --gpus 2 --driver virtual # simulated time of virtual H200s, Flambeau alone
    python bench/distributed.py --gpus 4 --only mlp,resnet,gpt --json out.json
    python bench/distributed.py --gpus 2 --torch-python /opt/torch/bin/python

It starts one process per GPU by itself, for one library after the other and in turn (`--rounds`), and takes the best
median of each figure, as seen by rank 0. On real GPUs a time is the host's, from a synchronization to the next:
what the host takes counts. A step is zero_grad, forward, loss, backward, SGD with momentum; every GPU has the batch of
one GPU alone (weak scaling), and scaling is the time of one, not wrapped, over the time of all. TF32 is on in both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIB = 1024
SIZES = [KIB << n for n in range(0, 21, 2)]  # bytes: 1 KiB, 4 KiB, ... 1 GiB
DEVICE_BOUND = 16 << 20  # bytes: what is smaller takes the host's time
SWEEPS = 20  # over those: a shared host has phases, in which the same calls take up to twice as long
STEP_SWEEPS = 5  # over the same step
MODELS = ("mlp", "resnet", "gpt")
Figures = dict[str, float]
"""Microseconds by what was measured."""


# -- what is measured, in either library ------------------------------------------------------------------------


def mlp(m: Any) -> tuple[Any, Callable[[str], tuple[Any, Any]], Any]:
    """Five layers, 2,048 wide (21 M parameters); 256 rows."""
    nn = m.nn
    layers = [layer for _ in range(5) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    net = nn.Sequential(*layers, nn.Linear(2048, 10))
    return (
        net,
        lambda d: (m.rand(256, 2048, device=d), m.randint(10, (256,), device=d)),
        lambda scores: scores,
    )


def resnet(m: Any) -> tuple[Any, Callable[[str], tuple[Any, Any]], Any]:
    """Return a ResNet-18 for images of 32 by 32 (11 M parameters); 128 of them."""
    nn, functional = m.nn, m.nn.functional

    class Block(nn.Module):
        def __init__(self, taken: int, given: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(taken, given, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(given, given, 3, 1, 1, bias=False)
            self.bn1, self.bn2 = nn.BatchNorm2d(given), nn.BatchNorm2d(given)
            self.way = None
            if stride != 1 or taken != given:
                self.way = nn.Sequential(
                    nn.Conv2d(taken, given, 1, stride, bias=False), nn.BatchNorm2d(given)
                )

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.bn1(self.conv1(x)))
            return functional.relu(self.bn2(self.conv2(y)) + (x if self.way is None else self.way(x)))

    widths = (64, 64, 128, 256, 512)
    blocks: list[Any] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for n in range(4):
        blocks += [
            Block(widths[n], widths[n + 1], 1 if n == 0 else 2),
            Block(widths[n + 1], widths[n + 1], 1),
        ]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))
    return (
        net,
        lambda d: (m.rand(128, 3, 32, 32, device=d), m.randint(10, (128,), device=d)),
        lambda scores: scores,
    )


def gpt(m: Any) -> tuple[Any, Callable[[str], tuple[Any, Any]], Any]:
    """Six layers, 384 wide, 6 heads (10.6 M parameters); 64 times 256 characters."""
    sys.path.insert(0, str(Path(__file__).parent))
    net = importlib.import_module("training").gpt_of(m, 65, 256, 384, 6, 6)
    data = lambda d: (m.randint(65, (64, 256), device=d), m.randint(65, (64 * 256,), device=d))  # noqa: E731
    return net, data, lambda scores: scores.view(-1, 65)


PROGRAMS = {"mlp": mlp, "resnet": resnet, "gpt": gpt}


def step_of(m: Any, name: str, device: str, local: int) -> Callable[[], None]:
    """Return a training step of a model, which is wrapped in DistributedDataParallel on several GPUs."""
    m.manual_seed(0)
    net, data, rows = PROGRAMS[name](m)
    model = net.to(device)
    if m.distributed.get_world_size() > 1:
        model = m.nn.parallel.DistributedDataParallel(model, device_ids=[local])
    return stepping(m, model, *data(device), rows)


def stepping(m: Any, model: Any, x: Any, y: Any, rows: Callable[[Any], Any]) -> Callable[[], None]:
    """Return a training step of a model: zero_grad, forward, loss, backward, optimizer."""
    optimizer = m.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        m.nn.functional.cross_entropy(rows(model(x)), y).backward()
        optimizer.step()

    return step


def median_us(m: Any, call: Callable[[], Any], virtual: bool, calls: int, blocks: int = 7) -> float:
    """Return the microseconds of a call: the median of blocks of calls, after a block to warm up."""
    times = []
    for block in range(blocks + 1):
        m.cuda.synchronize()
        if virtual:
            begin, end = (m.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        if virtual:
            end.record()
        m.cuda.synchronize()
        took = begin.elapsed_time(end) * 1e3 if virtual else (time.perf_counter() - started) * 1e6
        if block:
            times.append(took / calls)
    return statistics.median(times)


def figures(m: Any, only: list[str], largest: int, virtual: bool) -> Figures:
    """Measure this rank and return all its figures."""
    dist, local = m.distributed, int(os.environ.get("LOCAL_RANK", 0))
    if virtual:
        local = m.cuda.current_device()
    m.cuda.set_device(local)
    device = f"cuda:{local}"
    m.backends.cuda.matmul.allow_tf32 = m.backends.cudnn.allow_tf32 = True
    dist.init_process_group("nccl")
    found: Figures = {}
    if "all_reduce" in only and dist.get_world_size() > 1:
        sizes = [nbytes for nbytes in SIZES if nbytes <= largest]
        small = [nbytes for nbytes in sizes if nbytes < DEVICE_BOUND and not virtual]
        for nbytes in [*sizes, *small * SWEEPS]:
            t = m.zeros(nbytes // 4, device=device)
            calls = max(min((1 << 28) // nbytes, 50), 5)
            took = median_us(m, lambda t=t: dist.all_reduce(t), virtual, calls)
            name = f"all_reduce {label(nbytes)}"
            found[name] = min(took, found.get(name, took))
            del t
    for name in MODELS:
        if name in only:
            calls, blocks = (1, 2) if virtual else (10, 7)
            step = step_of(m, name, device, local)
            step(), step()  # buckets are rebuilt after the first
            sweeps = range(1 if virtual else STEP_SWEEPS)
            found[f"step {name}"] = min(median_us(m, step, virtual, calls, blocks) for _ in sweeps)
            del step
            m.cuda.empty_cache()
    dist.destroy_process_group()
    return found


def label(nbytes: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if nbytes >= size:
            return f"{nbytes // size} {unit}"
    return f"{nbytes // KIB} KiB"


# -- one process per GPU ----------------------------------------------------------------------------------------


def measured(library: str, gpus: int, args: argparse.Namespace) -> Figures:
    """Return a library's figures on a number of GPUs."""
    if args.driver == "virtual":
        return simulated(gpus, args)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    python = args.torch_python if library == "torch" else sys.executable
    command = [
        python,
        __file__,
        "--worker",
        library,
        "--only",
        ",".join(args.only),
        "--largest",
        str(args.largest),
    ]
    shared = {**os.environ, "WORLD_SIZE": str(gpus), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared.update({"LOCAL_WORLD_SIZE": str(gpus), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"})
    if library == "flambeau":
        shared["FLAMBEAU_DRIVER"] = "cuda"
    own = [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(gpus)]
    workers = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for env in own]
    return json.loads(outcome(workers, f"{library} on {gpus} GPUs").splitlines()[-1])


def outcome(workers: list[subprocess.Popen[str]], what: str) -> str:
    """Return what rank 0 printed; if a rank fails, end all ranks."""
    try:
        while any(w.poll() is None for w in workers):
            bad = [r for r, w in enumerate(workers) if w.poll() not in (None, 0)]
            if bad:
                raise SystemExit(f"{what}: rank {bad[0]} failed with status {workers[bad[0]].returncode}")
            time.sleep(0.05)
        bad = [r for r, w in enumerate(workers) if w.returncode]
        if bad:
            raise SystemExit(f"{what}: rank {bad[0]} failed with status {workers[bad[0]].returncode}")
        assert workers[0].stdout is not None
        return workers[0].stdout.read()
    finally:
        for worker in workers:
            if worker.poll() is None:
                worker.kill()


def simulated(gpus: int, args: argparse.Namespace) -> Figures:
    """Return simulated figures on virtual GPUs without data: one rank runs, and the others mirror it."""
    import flambeau
    from flambeau.testing.cluster import cluster

    with cluster(gpus, args.profile):
        return figures(_TwoBackends(flambeau), args.only, args.largest, True)


class _TwoBackends:
    """Flambeau, whose groups have a backend for the CPU too: virtual GPUs without data have nothing to read."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        return _TwoBackends(found) if name == "distributed" else found

    def init_process_group(self, backend: str) -> None:
        self._library.init_process_group(f"cpu:gloo,cuda:{backend}")


def worker(library: str, only: list[str], largest: int) -> None:
    m = importlib.import_module(library)
    found = figures(m, only, largest, False)
    if os.environ["RANK"] == "0":
        print(json.dumps(found), flush=True)


# -- the table --------------------------------------------------------------------------------------------------


def best(rounds: list[Figures]) -> Figures:
    return {name: min(r[name] for r in rounds) for name in rounds[0]}


def table(results: dict[str, dict[int, Figures]], gpus: int) -> str:
    """Lines of a Markdown table: times on all GPUs and, of steps, on one; the ratio to PyTorch's."""
    ours, theirs = results["flambeau"], results.get("torch")
    lines = [
        f"| {gpus} GPUs | Flambeau us | PyTorch us | ratio | Flambeau scaling | PyTorch scaling |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, mine in ours[gpus].items():
        other = theirs[gpus].get(name) if theirs else None
        beside = " |" if other is None else f"{other:,.1f} | {mine / other:.3f}"
        ways = f"{scaling(ours, gpus, name)} | {scaling(theirs, gpus, name)}"
        lines.append(f"| {name} | {mine:,.1f} | {beside} | {ways} |")
    return "\n".join(lines)


def scaling(of: dict[int, Figures] | None, gpus: int, name: str) -> str:
    if of is None or name not in of.get(1, {}) or gpus == 1:
        return ""
    return f"{of[1][name] / of[gpus][name]:.1%}"


def libraries(args: argparse.Namespace) -> list[str]:
    """Flambeau, and PyTorch where its Python has it with CUDA."""
    if args.driver == "virtual":
        return ["flambeau"]
    test = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 1)"
    there = subprocess.run([args.torch_python, "-c", test], capture_output=True, check=False).returncode == 0
    if not there:
        print(f"PyTorch with CUDA is not there ({args.torch_python}): Flambeau alone", file=sys.stderr)
    return ["flambeau", "torch"] if there else ["flambeau"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--driver", choices=("cuda", "virtual"), default="cuda")
    parser.add_argument("--profile", default="dgx-h200", help="of virtual GPUs")
    parser.add_argument("--only", default="all_reduce,mlp,resnet,gpt", help="what is measured, with commas")
    parser.add_argument("--largest", type=int, default=1 << 30, help="bytes of the largest all_reduce")
    parser.add_argument("--rounds", type=int, default=2, help="how often, library by library in turn")
    parser.add_argument("--torch-python", default=sys.executable, help="the Python that has PyTorch")
    parser.add_argument("--json", help="a file for all figures")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.only = args.only.split(",")
    if args.worker:
        worker(args.worker, args.only, args.largest)
        return
    results: dict[str, dict[int, Figures]] = {}
    names = libraries(args)
    for size in dict.fromkeys((1, args.gpus)):
        rounds: dict[str, list[Figures]] = {name: [] for name in names}
        for _ in range(1 if args.driver == "virtual" else args.rounds):
            for name in names:
                rounds[name].append(measured(name, size, args))
        for name in names:
            results.setdefault(name, {})[size] = best(rounds[name])
    print(table(results, args.gpus))
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

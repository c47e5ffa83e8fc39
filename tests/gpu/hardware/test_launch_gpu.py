"""Ranks that are processes on real GPUs: `flambeau launch`, `multiprocessing.spawn`, NCCL and MPI side by side.

They are worth most on a machine with several GPUs; on one the world has one rank.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

from gpu_kit import alone, needs_gpu, path_with_src

import flambeau

PROGRAM = """
import os, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("cpu:gloo,cuda:nccl" if "cpu" in sys.argv else "nccl")
rank, size, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
assert not torch.cuda.get_device_name().startswith("virtual"), torch.cuda.get_device_name()
for device in sys.argv[1:]:
    x = torch.arange(1000.0, device=device) + rank
    dist.all_reduce(x)
    expected = size * torch.arange(1000.0) + sum(range(size))
    assert torch.equal(x.cpu(), expected), device
model = DistributedDataParallel(torch.nn.Linear(4, 2).cuda(), device_ids=[local])
model(torch.full((3, 4), float(rank), device="cuda")).sum().backward()
mean = 3 * sum(range(size)) / size
assert torch.allclose(model.module.weight.grad, torch.full((2, 4), mean, device="cuda"))
dist.barrier(device_ids=[local] if "cpu" not in sys.argv else None)
dist.destroy_process_group()
print(f"rank {rank} is through\\n", end="")
"""

SPAWNS = """
import sys
import torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, size, url):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=url, rank=rank, world_size=size)
    x = torch.ones(10, device="cuda") * (rank + 1)
    dist.all_reduce(x)
    assert x.tolist() == [size * (size + 1) / 2] * 10
    dist.destroy_process_group()

if __name__ == "__main__":
    size = torch.cuda.device_count()
    mp.spawn(work, (size, f"file://{sys.argv[1]}"), nprocs=size)
    print("through")
"""


MPICH = any(distributions(name="mpich"))


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flambeau", *args],
        env={**os.environ, "PYTHONPATH": path_with_src()},
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip


def written(folder: Path, text: str) -> str:
    path = folder / "program.py"
    path.write_text(text)
    return str(path)


@alone
@needs_gpu
def test_a_rank_per_gpu(tmp_path: Path) -> None:
    devices = ("cuda", "cpu") if MPICH else ("cuda",)  # of other MPIs ranks need their own mpiexec
    said = command(
        "launch", "--driver", "cuda", "--nproc-per-node", "gpu", written(tmp_path, PROGRAM), *devices
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.count("is through") == flambeau.cuda.device_count()


@alone
@needs_gpu
def test_spawned_ranks(tmp_path: Path) -> None:
    said = command("run", "--driver", "cuda", "--quiet", written(tmp_path, SPAWNS), str(tmp_path / "meeting"))
    assert (said.returncode, said.stdout) == (0, "through\n"), said.stderr

"""DistributedDataParallel over NCCL: one process per real GPU; on a machine with one the world has one rank."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_kit import alone, needs_gpu, path_with_src

import flambeau

PROGRAM = """
import hashlib, json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

options = json.loads(sys.argv[1])
hook = options.pop("hook", None)
dist.init_process_group("nccl")
rank, size, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
torch.backends.cuda.matmul.allow_tf32 = False
torch.manual_seed(rank)
net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 256), nn.LayerNorm(256), nn.Linear(256, 8))
net = nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda()
model = DistributedDataParallel(net, device_ids=[local], **options)
if hook == "power":
    model.register_comm_hook(powerSGD_hook.PowerSGDState(None, 1, 2), powerSGD_hook.powerSGD_hook)
elif hook:
    model.register_comm_hook(None, getattr(default_hooks, hook))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(3)
losses = []
for step in range(30):
    x = torch.randn(16 * size, 64, generator=generator)[rank::size].cuda()
    loss = (model(x) - x[:, :8]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
bits = hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest()
seen = [None] * size
dist.all_gather_object(seen, bits)
assert len(set(seen)) == 1, seen
total = torch.tensor([losses[0], losses[-1]], device="cuda")
dist.all_reduce(total, op=dist.ReduceOp.AVG)
dist.destroy_process_group()
if rank == 0:
    print(json.dumps(total.tolist()))
"""

CASES = [
    {},
    {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.1},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"hook": "fp16_compress_hook"},
    {"hook": "bf16_compress_hook"},
    {"hook": "power"},
]


@needs_gpu
@alone
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_keep_the_same_bits_and_learn(case: dict[str, object], tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    count = flambeau.cuda.device_count()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "flambeau", "launch", "--driver", "cuda", "--nproc-per-node", str(count)),
            *(str(script), json.dumps(case)),
        ],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": path_with_src()},
    )
    assert done.returncode == 0, done.stderr
    first, last = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert last < 0.8 * first

"""Scaling of DistributedDataParallel to thousands of GPUs, by simulation, for a GPT of 124 M parameters.

    python bench/cluster.py                                   # 8, 64, 512 and 4,096 GPUs of DGX H200s
    python bench/cluster.py --sizes 8,4096 --profile dgx-h100 --batch 4 --bucket-cap-mb 100 --algorithm tree

One rank runs, with its kernels' times and no data, and the others do the same (`flambeau.testing.cluster`). Columns:
a step; the step of one GPU alone, without DistributedDataParallel; what the GPUs' sums and copies add; the bytes'
mean bandwidth in a ring's terms (2 (n - 1) / n of the bytes over the time that the network is busy); samples a
second of all GPUs over those of one, times n.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flambeau as torch
from flambeau import distributed as dist
from flambeau import nn
from flambeau.nn import functional as F
from flambeau.nn.parallel import DistributedDataParallel
from flambeau.testing.cluster import cluster

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = (
    50304,
    1024,
    768,
    12,
    12,
)  # GPT-2's smallest, padded as nanoGPT has it
STEPS = 4  # the first shows the order of gradients, the second is in new buckets; the last is timed


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, HEADS, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, ids: Any, targets: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).view(-1, VOCABULARY), targets.view(-1))


@dataclass
class Row:
    """One size: ms of a step, of a step alone, of collectives; bytes that were reduced."""

    size: int
    step: float
    alone: float
    busy: float
    nbytes: int
    wall_s: float

    @property
    def exposed(self) -> float:
        return self.step - self.alone

    @property
    def bus(self) -> float:
        """GB/s of a ring's traffic while collectives run."""
        return 2 * (self.size - 1) / self.size * self.nbytes / self.busy / 1e6 if self.busy else 0.0


def timed(model: Any, batch: int, machine: Any) -> tuple[float, float, int]:
    """Return the last step's milliseconds, and the milliseconds and bytes of its collectives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, fused=True)
    ids = torch.zeros(batch, CONTEXT, dtype=torch.int64, device="cuda")
    ran: list[Any] = []
    for step in range(STEPS):
        torch.cuda.synchronize()
        if step == STEPS - 1:
            machine.driver.on_command = ran.append
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        end.record()
        torch.cuda.synchronize()
    sums = [c for c in ran if c.name == "all_reduce" and c.end_ns > c.start_ns]
    return (
        begin.elapsed_time(end),
        sum(c.end_ns - c.start_ns for c in sums) / 1e6,
        sum(c.nbytes for c in sums),
    )


def simulated(size: int, profile: str, batch: int, options: dict[str, Any]) -> Row:
    began = time.perf_counter()
    with cluster(1, profile) as machine, torch.device("cuda"):
        alone, _, _ = timed(GPT(), batch, machine)
    with cluster(size, profile) as machine:
        dist.init_process_group("cpu:gloo,cuda:nccl")
        with torch.device("cuda"):
            model = GPT()
        step, busy, nbytes = timed(DistributedDataParallel(model, device_ids=[0], **options), batch, machine)
    return Row(size, step, alone, busy, nbytes, time.perf_counter() - began)


def table(rows: list[Row], batch: int) -> str:
    lines = [
        "| GPUs | step ms | alone ms | exposed ms | busy ms | bus GB/s | efficiency | tokens/s | simulated in |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for r in rows:
        tokens = r.size * batch * CONTEXT / r.step * 1e3
        lines.append(
            f"| {r.size:,} | {r.step:.2f} | {r.alone:.2f} | {r.exposed:.2f} | {r.busy:.2f} | {r.bus:.0f} | "
            f"{r.alone / r.step:.1%} | {tokens / 1e6:,.2f} M | {r.wall_s:.1f} s |"
        )
    return "\n".join(lines)


def with_algorithm(profile: str, algorithm: str | None, folder: str) -> str:
    """Return a profile that uses another algorithm for all_reduce."""
    if algorithm is None:
        return profile
    from flambeau.driver.virtual import profile as profiles

    text = (Path(profiles.__file__).parent / "profiles" / f"{profile}.toml").read_text()
    path = Path(folder) / f"{profile}-{algorithm}.toml"
    path.write_text(text.replace('algorithm = "nccl"', f'algorithm = "{algorithm}"'))
    return str(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="8,64,512,4096", help="how many GPUs, several with commas")
    parser.add_argument("--profile", default="dgx-h200")
    parser.add_argument("--batch", type=int, default=12, help="sequences of 1,024 tokens a GPU")
    parser.add_argument("--bucket-cap-mb", type=float, default=None)
    parser.add_argument("--gradient-as-bucket-view", action="store_true")
    ways = ("ring", "tree", "hierarchical")
    parser.add_argument("--algorithm", choices=ways, help="of all_reduce; default: NCCL's choice")
    args = parser.parse_args()
    options = {"bucket_cap_mb": args.bucket_cap_mb, "gradient_as_bucket_view": args.gradient_as_bucket_view}
    with tempfile.TemporaryDirectory() as folder:
        profile = with_algorithm(args.profile, args.algorithm, folder)
        rows = [simulated(int(size), profile, args.batch, options) for size in args.sizes.split(",")]
    print(table(rows, args.batch))


if __name__ == "__main__":
    main()

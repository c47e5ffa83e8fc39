"""Data-parallel training as PyTorch's tutorial has it, on as many GPUs as there are ranks.

    flambeau launch --nproc-per-node 4 examples/ddp.py          # on virtual GPUs, or on real ones
    flambeau launch --driver virtual --nproc-per-node 2 examples/ddp.py
    python -c "import sys; sys.path.insert(0, 'examples'); import ddp; print(ddp.on_threads(4))"

Each rank learns from its own part of the data; gradients are averaged while backward runs, so all ranks hold the
same parameters after every step. Rank 0 writes a checkpoint, which the others read.
"""

import os
import tempfile
from typing import Any

try:
    import torch
    import torch.distributed as dist
except ImportError:
    import flambeau as torch  # type: ignore[no-redef]
    import flambeau.distributed as dist  # type: ignore[no-redef]

nn = torch.nn
EPOCHS, BATCH, SAMPLES = 6, 16, 512


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 32)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.net2(self.relu(self.net1(x)))
        return y


def dataset() -> torch.utils.data.TensorDataset:
    """Inputs, and what another network of the same kind makes of them."""
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(SAMPLES, 10, generator=generator)
    torch.manual_seed(99)
    with torch.no_grad():
        return torch.utils.data.TensorDataset(inputs, ToyModel()(inputs))


def train(folder: str) -> tuple[list[float], list[Any]]:
    """Train as one rank; return its losses by epoch and its parameters as numbers."""
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    local = rank % max(torch.cuda.device_count(), 1)
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(rank)  # every rank begins elsewhere: DDP gives all of them rank 0's parameters
    model = ToyModel().to(device)
    ddp_model = nn.parallel.DistributedDataParallel(
        model, device_ids=[local] if device.type == "cuda" else None
    )
    optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.05, momentum=0.9)
    data = dataset()
    sampler = torch.utils.data.DistributedSampler(data, seed=1)
    loader = torch.utils.data.DataLoader(data, BATCH, sampler=sampler)

    losses = []
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        total = torch.zeros(2, device=device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(ddp_model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            total += torch.stack([loss.detach(), torch.ones_like(loss.detach())])
        dist.all_reduce(total)
        losses.append((total[0] / total[1]).item())
        if rank == 0:
            print(f"epoch {epoch}: loss {losses[-1]:.4f} on {dist.get_world_size()} ranks", flush=True)

    checkpoint = os.path.join(folder, "model.pt")
    if rank == 0:
        torch.save(ddp_model.state_dict(), checkpoint)
    dist.barrier()  # the others read when it is written
    ddp_model.load_state_dict(torch.load(checkpoint, map_location=device))
    parameters = [p.detach().flatten().tolist() for p in ddp_model.parameters()]
    dist.destroy_process_group()
    return losses, parameters


def on_threads(ranks: int) -> list[Any]:
    """Train in one process: ranks are threads, each with a virtual GPU, in an order that repeats."""
    from flambeau.testing.ranks import ranks as run

    with tempfile.TemporaryDirectory() as folder:
        return run(train, ranks, folder, races="error")


if __name__ == "__main__":
    train(os.environ.get("DDP_FOLDER") or tempfile.gettempdir())

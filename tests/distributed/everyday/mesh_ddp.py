"""DistributedDataParallel along "dp" of a mesh, a multilayer perceptron cut by columns and rows along "tp"."""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class CopyToParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Perceptron(torch.nn.Module):
    def __init__(self, dim, hidden, mesh):
        super().__init__()
        self.group = mesh.get_group()
        count, mine = mesh.size(), mesh.get_local_rank()
        numbers = torch.Generator().manual_seed(0)
        first = torch.randn(hidden, dim, generator=numbers) / dim**0.5
        second = torch.randn(dim, hidden, generator=numbers) / hidden**0.5
        self.first = torch.nn.Parameter(first.chunk(count, 0)[mine].clone())
        self.second = torch.nn.Parameter(second.chunk(count, 1)[mine].clone())

    def forward(self, x):
        x = F.gelu(F.linear(CopyToParts.apply(x, self.group), self.first))
        return SumOfParts.apply(F.linear(x, self.second), self.group)


def main():
    local = int(os.environ["LOCAL_RANK"])
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    assert torch.cuda.current_device() == local  # which the mesh has selected
    dp, tp = mesh["dp"], mesh["tp"]
    torch.manual_seed(dp.get_local_rank())
    model = DistributedDataParallel(Perceptron(16, 32, tp).cuda(), device_ids=[local], device_mesh=dp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, torch.sin(x))
    sampler = DistributedSampler(data, num_replicas=dp.size(), rank=dp.get_local_rank())
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device="cuda")
        for a, b in DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True):
            a, b = a.cuda(non_blocking=True), b.cuda(non_blocking=True)
            loss = F.mse_loss(model(a), b)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.AVG, group=dp.get_group())
        losses.append(total.item())
    assert losses[1] < losses[0] * 0.7
    for p in model.parameters():
        others = [torch.empty_like(p) for _ in range(dp.size())]
        dist.all_gather(others, p.detach(), group=dp.get_group())
        assert all(torch.equal(other, p) for other in others)
    dist.destroy_process_group()
    print("well\n", end="", flush=True)


main()

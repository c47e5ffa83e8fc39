"""A transformer's block whose sequence lies on all ranks: attention by all_to_all (Ulysses), beside the block on one."""

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as distF
from torch import nn
from torch.nn import functional as F


def to_heads(x):
    """[batch, part of the sequence, heads, dim] to [batch, sequence, part of the heads, dim]."""
    count = dist.get_world_size()
    parts = [part.contiguous() for part in x.chunk(count, dim=2)]
    return torch.cat(distF.all_to_all([torch.empty_like(parts[0]) for _ in parts], parts), dim=1)


def to_sequence(x):
    count = dist.get_world_size()
    parts = [part.contiguous() for part in x.chunk(count, dim=1)]
    return torch.cat(distF.all_to_all([torch.empty_like(parts[0]) for _ in parts], parts), dim=2)


class Block(nn.Module):
    def __init__(self, dim, heads, parallel):
        super().__init__()
        self.heads, self.parallel = heads, parallel
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, self.heads, -1) for t in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        if self.parallel:
            q, k, v = to_heads(q), to_heads(k), to_heads(v)
        a = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        a = a.transpose(1, 2)
        if self.parallel:
            a = to_sequence(a.contiguous())
        x = x + self.proj(a.reshape(b, s, d))
        return x + self.mlp(self.ln2(x))


def close(found, wanted):
    """To what is lost where sums are taken in other orders, which processors do."""
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model, whole_model = Block(32, 4, True).cuda(), Block(32, 4, False).cuda()
    whole_model.load_state_dict(model.state_dict())
    x = torch.randn(2, 8 * count, 32, device="cuda")
    mine = x.chunk(count, 1)[rank].contiguous().requires_grad_()
    y = model(mine)
    whole = funcol.all_gather_single(y, 1, dist.group.WORLD)
    (whole**2).mean().backward()  # on each rank the whole loss: gradients come `count` times
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= count
    everything = x.clone().requires_grad_()
    wanted = whole_model(everything)
    (wanted**2).mean().backward()
    close(whole, wanted)
    close(mine.grad / count, everything.grad.chunk(count, 1)[rank])
    for p, q in zip(model.parameters(), whole_model.parameters(), strict=True):
        close(p.grad, q.grad)
    mean = funcol.reduce_scatter_single(whole.detach(), "avg", 1, dist.group.WORLD)
    close(mean, y.detach())
    dist.destroy_process_group()
    print("well\n", end="", flush=True)


main()

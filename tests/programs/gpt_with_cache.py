"""A GPT with rotary positions, grouped keys and a cache of them; sampling and beams."""

import math
import sys
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(1337)


def tried(label, run, *args):
    try:
        print(label, run(*args))
    except Exception as error:
        print(label, type(error).__name__, str(error).split("\n")[0])


@dataclass
class Config:
    n = 4
    vocab: int = 17
    block: int = 12
    layers: int = 2
    heads: int = 4
    kv: int = 2
    dim: int = 16


def precompute(dim, end, theta=10000.0):
    freqs = 1.0 / (theta ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim))
    return torch.polar(torch.ones(end, dim // 2), torch.outer(torch.arange(end), freqs))


def rope(q, k, f):
    def one(x):
        c = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(c * f.view(1, f.shape[0], 1, -1)).flatten(3).type_as(x)

    return one(q), one(k)


class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)).type_as(
            x
        ) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.hd = c.dim // c.heads
        self.wq = nn.Linear(c.dim, c.heads * self.hd, bias=False)
        self.wk = nn.Linear(c.dim, c.kv * self.hd, bias=False)
        self.wv = nn.Linear(c.dim, c.kv * self.hd, bias=False)
        self.wo = nn.Linear(c.dim, c.dim, bias=False)
        self.register_buffer("ck", torch.zeros(2, c.block, c.kv, self.hd), persistent=False)
        self.register_buffer("cv", torch.zeros(2, c.block, c.kv, self.hd), persistent=False)

    def forward(self, x, f, pos=None):
        B, T, _ = x.shape
        q, k, v = (
            self.wq(x).view(B, T, self.c.heads, self.hd),
            self.wk(x).view(B, T, self.c.kv, self.hd),
            self.wv(x).view(B, T, self.c.kv, self.hd),
        )
        q, k = rope(q, k, f)
        if pos is not None:
            self.ck[:B, pos : pos + T] = k
            self.cv[:B, pos : pos + T] = v
            k, v = self.ck[:B, : pos + T], self.cv[:B, : pos + T]
        rep = self.c.heads // self.c.kv
        k, v = (
            t[:, :, :, None, :].expand(-1, -1, -1, rep, -1).reshape(B, t.shape[1], self.c.heads, self.hd)
            for t in (k, v)
        )
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        s = q @ k.transpose(2, 3) / math.sqrt(self.hd)
        if T > 1:
            m = torch.triu(torch.full((T, T), float("-inf"), device=x.device), diagonal=1)
            s = s + torch.hstack([torch.zeros((T, s.shape[-1] - T), device=x.device), m]).type_as(q)
        return self.wo((F.softmax(s.float(), -1).type_as(q) @ v).transpose(1, 2).contiguous().view(B, T, -1))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.attn = Attention(c)
        self.n1, self.n2 = RMSNorm(c.dim), RMSNorm(c.dim)
        self.w = nn.ModuleDict(
            {
                "gate": nn.Linear(c.dim, 32, False),
                "up": nn.Linear(c.dim, 32, False),
                "down": nn.Linear(32, c.dim, False),
            }
        )

    def forward(self, x, f, pos=None):
        x = x + self.attn(self.n1(x), f, pos)
        h = self.n2(x)
        return (
            x + self.w.down(F.silu(self.w["gate"](h)) * self.w["up"](h))
            if False
            else x + self.w["down"](F.silu(self.w["gate"](h)) * self.w["up"](h))
        )


class GPT(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.emb = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = RMSNorm(c.dim)
        self.head = nn.Linear(c.dim, c.vocab, bias=False)
        self.emb.weight = self.head.weight
        self.f = precompute(c.dim // c.heads, c.block * 2)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.normal_(m.weight, mean=0.0, std=0.2)

    def forward(self, t, y=None, pos=None):
        f = self.f.to(t.device)[(pos or 0) : (pos or 0) + t.shape[1]]
        x = self.emb(t)
        for b in self.blocks:
            x = b(x, f, pos)
        lg = self.head(self.norm(x)).float()
        return lg, None if y is None else F.cross_entropy(
            lg.view(-1, lg.size(-1)), y.view(-1), ignore_index=-1
        )


m = GPT(Config()).to(dev)
print(m)
print({k: tuple(v.shape) for k, v in m.state_dict().items()})
x = torch.randint(0, 17, (2, 9)).to(dev)
opt = torch.optim.AdamW(m.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
for i in range(3):
    y = torch.roll(x, -1, 1)
    y[:, -1] = -1
    _, l = m(x, y)
    opt.zero_grad(set_to_none=True)
    l.backward()
    nn.utils.clip_grad_value_(m.parameters(), 0.5)
    opt.step()
    print(i, l.item())
m.eval()


@torch.no_grad()
def check():
    full, _ = m(x)
    parts = [m(x[:, :5], pos=0)[0]]
    parts += [m(x[:, t : t + 1], pos=t)[0] for t in range(5, 9)]
    print(
        "cache",
        torch.allclose(full, torch.cat(parts, 1), atol=1e-5),
        (full - torch.cat(parts, dim=1)).abs().max() < 1e-5,
    )


check()


def top_k(lg, k):
    v, _ = torch.topk(lg, min(k, lg.size(-1)))
    lg[lg < v[:, [-1]]] = -float("Inf")
    return lg


def top_p(lg, p):
    s, i = torch.sort(lg, descending=True, dim=-1)
    c = torch.cumsum(F.softmax(s, dim=-1), dim=-1)
    rm = c > p
    rm[..., 1:] = rm[..., :-1].clone()
    rm[..., 0] = 0
    return lg.masked_fill(rm.scatter(1, i, rm), float("-inf"))


def rep_pen(lg, ids, pen=1.3):
    s = torch.gather(lg, 1, ids)
    s = torch.where(s < 0, s * pen, s / pen)
    return lg.scatter(1, ids, s)


g = torch.Generator()
g.manual_seed(4)


@torch.inference_mode()
def generate(ids, n, temperature=0.8, k=8, p=0.9):
    pos = 0
    cur = ids
    for _ in range(n):
        lg = m(cur, pos=pos)[0][:, -1] / temperature
        lg = top_p(top_k(rep_pen(lg, ids), k), p)
        probs = F.softmax(lg, -1)
        nxt = torch.multinomial(probs.cpu(), 1, generator=g).to(dev)
        pos += cur.shape[1]
        cur = nxt
        ids = torch.cat((ids, nxt), dim=1)
    return ids


o = generate(x[:, :3].clone(), 6)
print(o, o.is_inference(), o[:, 3:].unique())


def beam(ids, n, B=3):
    beams = [(ids[0].tolist(), 0.0)]
    for _ in range(n):
        lp = F.log_softmax(m(torch.tensor([b for b, _ in beams]).to(dev))[0][:, -1], -1)
        s, ix = lp.topk(B)
        c = [
            ([*b, ix[i, j].item()], sc + s[i, j].item()) for i, (b, sc) in enumerate(beams) for j in range(B)
        ]
        beams = sorted(c, key=lambda t: -t[1])[:B]
    return beams


print([(b, round(s, 4)) for b, s in beam(x[:1, :2], 3)])
tried("multinomial zero", torch.multinomial, torch.zeros(3), 1)
tried("multinomial neg", torch.multinomial, torch.tensor([0.5, -1.0]), 1)
tried("multinomial many", torch.multinomial, torch.tensor([0.5, 1.0]), 3)
tried("multinomial int", torch.multinomial, torch.tensor([1, 1]), 1)
tried(
    "oov",
    lambda: (
        m.emb(torch.tensor([99]))
        if dev.type == "cpu"
        else F.embedding(torch.tensor([99]), torch.zeros(17, 16))
    ),
)

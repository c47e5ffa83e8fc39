"""Denoising diffusion: a conditioned U-Net with linear attention, its average, and sampling."""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(11)


def exists(x):
    return x is not None


def extract(a, t, shape):
    b, *_ = t.shape
    return a.gather(-1, t).reshape(b, *((1,) * (len(shape) - 1)))


def cosine_beta(T, s=0.008):
    x = torch.linspace(0, T, T + 1, dtype=torch.float64)
    a = torch.cos(((x / T) + s) / (1 + s) * math.pi * 0.5) ** 2
    a = a / a[0]
    return torch.clip(1 - (a[1:] / a[:-1]), 0, 0.999)


class SinPos(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.d = d

    def forward(s, t):
        h = s.d // 2
        e = torch.exp(torch.arange(h, device=t.device) * -(math.log(10000) / (h - 1)))
        e = t[:, None] * e[None, :]
        return torch.cat((e.sin(), e.cos()), dim=-1)


class WSConv(nn.Conv2d):
    def forward(s, x):
        eps = 1e-5 if x.dtype == torch.float32 else 1e-3
        w = s.weight
        mean = w.flatten(1).mean(1).view(-1, 1, 1, 1)
        var = w.flatten(1).var(1, unbiased=False).view(-1, 1, 1, 1)
        return F.conv2d(
            x, (w - mean) * (var + eps).rsqrt(), s.bias, s.stride, s.padding, s.dilation, s.groups
        )


class Res(nn.Module):
    def __init__(s, i, o, td):
        super().__init__()
        s.mlp = nn.Sequential(nn.SiLU(), nn.Linear(td, o * 2))
        s.c1 = WSConv(i, o, 3, padding=1)
        s.c2 = WSConv(o, o, 3, padding=1)
        s.n = nn.GroupNorm(4, o)
        s.r = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(s, x, t):
        sc, sh = s.mlp(t)[..., None, None].chunk(2, dim=1)
        h = F.silu(s.n(s.c1(x)) * (sc + 1) + sh)
        return F.silu(s.n(s.c2(h))) + s.r(x)


class LinAttn(nn.Module):
    def __init__(s, d, heads=2, dh=4):
        super().__init__()
        s.h, s.sc = heads, dh**-0.5
        s.qkv = nn.Conv2d(d, heads * dh * 3, 1, bias=False)
        s.out = nn.Conv2d(heads * dh, d, 1)

    def forward(s, x):
        b, _c, h, w = x.shape
        q, k, v = (t.reshape(b, s.h, -1, h * w) for t in s.qkv(x).chunk(3, dim=1))
        q = q.softmax(dim=-2) * s.sc
        k = k.softmax(dim=-1)
        ctx = torch.einsum("b h d n, b h e n -> b h d e", k, v)
        o = torch.einsum("b h d e, b h d n -> b h e n", ctx, q)
        return s.out(o.reshape(b, -1, h, w))


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.t = nn.Sequential(SinPos(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 16))
        s.inp = nn.Conv2d(2, 8, 7, padding=3)
        s.d1 = Res(8, 8, 16)
        s.a = LinAttn(8)
        s.down = nn.Conv2d(32, 12, 1)
        s.d2 = Res(12, 12, 16)
        s.up = nn.Sequential(nn.Upsample(scale_factor=2, mode="nearest"), nn.Conv2d(12, 8, 3, padding=1))
        s.u1 = Res(16, 8, 16)
        s.o = nn.Conv2d(8, 1, 1)

    def forward(s, x, t, cond=None):
        cond = cond if exists(cond) else torch.zeros_like(x)
        x = s.inp(torch.cat((cond, x), 1))
        t = s.t(t)
        h = s.d1(x, t)
        h = h + s.a(h)
        b, c, H, W = h.shape
        d = h.view(b, c, H // 2, 2, W // 2, 2).permute(0, 1, 3, 5, 2, 4).reshape(b, c * 4, H // 2, W // 2)
        d = s.d2(s.down(d), t)
        u = torch.cat([s.up(d), h], 1)
        return s.o(s.u1(u, t))


class Diffusion(nn.Module):
    def __init__(s, net, T=10):
        super().__init__()
        s.net, s.T = net, T
        b = cosine_beta(T)
        a = 1.0 - b
        ac = torch.cumprod(a, dim=0)
        prev = F.pad(ac[:-1], (1, 0), value=1.0)
        reg = lambda n, v: s.register_buffer(n, v.to(torch.float32))
        reg("betas", b)
        reg("sac", ac.sqrt())
        reg("s1m", torch.sqrt(1 - ac))
        reg("pv", b * (1 - prev) / (1 - ac))
        reg("plv", torch.log((b * (1 - prev) / (1 - ac)).clamp(min=1e-20)))
        reg("c1", b * prev.sqrt() / (1 - ac))
        reg("c2", (1 - prev) * a.sqrt() / (1 - ac))
        snr = ac / (1 - ac)
        reg("lw", torch.minimum(snr, torch.full_like(snr, 5)) / snr)

    def q(s, x, t, n):
        return extract(s.sac, t, x.shape) * x + extract(s.s1m, t, x.shape) * n

    def loss(s, x):
        t = torch.randint(0, s.T, (len(x),)).long().to(dev)
        n = torch.randn(x.shape).to(dev)
        l = F.mse_loss(s.net(s.q(x, t, n), t), n, reduction="none")
        l = l.flatten(1).mean(1) * extract(s.lw, t, (len(x),))
        return l.mean()

    @torch.no_grad()
    def sample(s, sh):
        x = torch.randn(sh).to(dev)
        for i in reversed(range(s.T)):
            t = torch.full((sh[0],), i, device=dev, dtype=torch.long)
            e = s.net(x, t)
            x0 = ((x - extract(s.s1m, t, sh) * e) / extract(s.sac, t, sh)).clamp_(-1.0, 1.0)
            mean = extract(s.c1, t, sh) * x0 + extract(s.c2, t, sh) * x
            x = mean + ((0.5 * extract(s.plv, t, sh)).exp() * torch.randn(sh).to(dev) if i > 0 else 0.0)
        return (x + 1) * 0.5


d = Diffusion(Net()).to(dev)
print(d)
opt = torch.optim.Adam(d.parameters(), 2e-3, betas=(0.9, 0.99))
x = (torch.rand(4, 1, 8, 8) * 2 - 1).to(dev)
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

ema = AveragedModel(d, avg_fn=get_ema_avg_fn(0.99), use_buffers=True)
for i in range(3):
    tot = 0.0
    for k in range(2):
        l = d.loss(x) / 2
        tot += l.item()
        l.backward()
    g = torch.nn.utils.clip_grad_norm_(d.parameters(), 1.0, norm_type=2.0, error_if_nonfinite=True)
    opt.step()
    opt.zero_grad()
    ema.update_parameters(d)
    print(i, round(tot, 5), g)
o = ema.module.sample((2, 1, 8, 8))
print(o.mean(), o.std(), o[0, 0, 0], [b.shape for b in ema.buffers()][:3], ema.n_averaged)
grid = o.mul(255).add_(0.5).clamp_(0, 255).permute(0, 2, 3, 1).to("cpu", torch.uint8).numpy()
print(grid.shape, grid.dtype, int(grid.sum()) // 50)

"""VQ-VAE, masked convolutions, flows, score matching, spikes, capsules, automata."""

import math
import sys

import torch
import torch.distributions as D
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(47)


def tried(label, run):
    try:
        print(label, run())
    except Exception as error:
        print(label, type(error).__name__, str(error).split("\n")[0])


class VQ(nn.Module):
    def __init__(s, K=6, d=4, decay=0.9):
        super().__init__()
        e = torch.randn(K, d)
        s.register_buffer("e", e)
        s.register_buffer("n", torch.zeros(K))
        s.register_buffer("avg", e.clone())
        s.decay = decay

    def forward(s, z):
        zp = z.permute(0, 2, 3, 1).contiguous()
        f = zp.view(-1, s.e.shape[1])
        dist = f.pow(2).sum(1, keepdim=True) + s.e.pow(2).sum(1) - 2 * f @ s.e.t()
        i = dist.argmin(1)
        oh = F.one_hot(i, s.e.shape[0]).type(f.dtype)
        q = F.embedding(i, s.e).view(zp.shape)
        if s.training:
            s.n.data.mul_(s.decay).add_(oh.sum(0), alpha=1 - s.decay)
            s.avg.data.mul_(s.decay).add_(oh.t() @ f.detach(), alpha=1 - s.decay)
            n = s.n.sum()
            w = (s.n + 1e-5) / (n + 6e-5) * n
            s.e.data.copy_(s.avg / w.unsqueeze(1))
        l = 0.25 * F.mse_loss(q.detach(), zp)
        q = zp + (q - zp).detach()
        p = oh.mean(0)
        return q.permute(0, 3, 1, 2).contiguous(), l, torch.exp(-torch.sum(p * torch.log(p + 1e-10))), i


enc = nn.Conv2d(1, 4, 3, 2, 1).to(dev)
dec = nn.ConvTranspose2d(4, 1, 4, 2, 1).to(dev)
vq = VQ().to(dev)
o = torch.optim.Adam([*enc.parameters(), *dec.parameters()], 1e-2)
x = torch.rand(3, 1, 8, 8).to(dev)
for i in range(3):
    q, l, ppl, idx = vq(enc(x))
    loss = F.mse_loss(dec(q), x) + l
    o.zero_grad()
    loss.backward()
    o.step()
    print(loss.item(), ppl.item(), idx.unique().numel(), enc.weight.grad.norm())


class Masked(nn.Conv2d):
    def __init__(s, t, *a, **k):
        super().__init__(*a, **k)
        s.register_buffer("mask", torch.ones_like(s.weight))
        _, _, h, w = s.weight.size()
        s.mask[:, :, h // 2, w // 2 + (t == "B") :] = 0
        s.mask[:, :, h // 2 + 1 :] = 0

    def forward(s, x):
        s.weight.data *= s.mask
        return super().forward(x)


px = nn.Sequential(
    Masked("A", 1, 4, 5, 1, 2, bias=False),
    nn.BatchNorm2d(4),
    nn.ReLU(True),
    Masked("B", 4, 4, 3, 1, 1),
    nn.ReLU(),
    nn.Conv2d(4, 8, 1),
).to(dev)
print(px)
t = (x * 7).long().squeeze(1)
l = F.cross_entropy(px(x), t)
l.backward()
print(l, px[0].weight.grad.ne(0).sum(), px[0].mask[0, 0])
px.eval()
with torch.no_grad():
    s = torch.zeros(1, 1, 4, 4, device=dev)
    for i in range(4):
        for j in range(4):
            s[:, :, i, j] = px(s)[:, :, i, j].argmax(1).float() / 7
print((s * 7).round().int())


class Coupling(nn.Module):
    def __init__(s, d, m):
        super().__init__()
        s.register_buffer("m", m)
        s.s = nn.Sequential(nn.Linear(d, 8), nn.LeakyReLU(), nn.Linear(8, d), nn.Tanh())
        s.t = nn.Sequential(nn.Linear(d, 8), nn.LeakyReLU(), nn.Linear(8, d))

    def forward(s, x):
        xm = x * s.m
        sc, t = s.s(xm) * (1 - s.m), s.t(xm) * (1 - s.m)
        return xm + (1 - s.m) * (x * sc.exp() + t), sc.sum(1)

    def inverse(s, y):
        ym = y * s.m
        sc, t = s.s(ym) * (1 - s.m), s.t(ym) * (1 - s.m)
        return ym + (1 - s.m) * ((y - t) * torch.exp(-sc))


fl = nn.ModuleList([Coupling(2, torch.tensor([i % 2, 1.0 - i % 2])) for i in range(4)]).to(dev)
prior = D.MultivariateNormal(torch.zeros(2, device=dev), torch.eye(2, device=dev))
data = torch.randn(16, 2).to(dev) * torch.tensor([1.0, 0.3]).to(dev)
o = torch.optim.Adam(fl.parameters(), 1e-2)
for i in range(3):
    z, ld = data, 0
    for f in fl:
        z, d = f(z)
        ld = ld + d
    l = -(prior.log_prob(z) + ld).mean()
    o.zero_grad()
    l.backward()
    o.step()
    print(l)
with torch.no_grad():
    z = data
    for f in fl:
        z, _ = f(z)
    for f in reversed(fl):
        z = f.inverse(z)
    print((z - data).abs().max() < 1e-5)


class BVAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Linear(6, 8)
        s.mu, s.ls = nn.Linear(8, 2), nn.Linear(8, 2)
        s.d = nn.Linear(2, 6)

    def forward(s, x, eps):
        h = F.softplus(s.e(x))
        q = D.Normal(s.mu(h), F.softplus(s.ls(h)) + 1e-3)
        z = q.loc + q.scale * eps
        p = D.Independent(D.Bernoulli(logits=s.d(z)), 1)
        return -(
            p.log_prob(x) - D.kl_divergence(q, D.Normal(torch.zeros_like(z), torch.ones_like(z))).sum(-1)
        ).mean(), q


b = BVAE().to(dev)
xb = (torch.rand(5, 6) > 0.5).float().to(dev)
l, q = b(xb, torch.randn(5, 2).to(dev))
l.backward()
print(l, b.mu.weight.grad.norm(), q)


def iwae(k=3):
    h = F.softplus(b.e(xb))
    q = D.Normal(b.mu(h), F.softplus(b.ls(h)))
    z = q.loc + q.scale * torch.randn(k, 5, 2).to(dev)
    lw = (
        D.Bernoulli(logits=b.d(z)).log_prob(xb).sum(-1)
        + D.Normal(0.0, 1.0).log_prob(z).sum(-1)
        - q.log_prob(z).sum(-1)
    )
    return -(torch.logsumexp(lw, 0) - math.log(k)).mean()


print(iwae())
mix = D.MixtureSameFamily(
    D.Categorical(torch.tensor([0.3, 0.7]).to(dev)),
    D.Normal(torch.tensor([-1.0, 1]).to(dev), torch.tensor([0.5, 0.5]).to(dev)),
)
print(mix.log_prob(torch.tensor([0.0, 1.0]).to(dev)), mix.mean, mix.variance, mix)
W = (torch.randn(6, 4) * 0.1).to(dev)
v0 = xb
ph = torch.sigmoid(v0 @ W)
h = (ph.cpu() > torch.rand(5, 4)).float().to(dev)
v1 = torch.sigmoid(h @ W.T)
W += 0.1 * (v0.T @ ph - v1.T @ torch.sigmoid(v1 @ W)) / 5
print(W.norm(), -(v0 * v1.log() + (1 - v0) * (1 - v1).log()).sum(1).mean())
e = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1)).to(dev)
xl = torch.randn(6, 2).to(dev)
for _ in range(3):
    xl.requires_grad_()
    (g,) = torch.autograd.grad(e(xl).sum(), xl)
    xl = (xl - 0.1 * g + 0.01 * torch.randn(6, 2).to(dev)).detach()
print(xl.mean(0), e(xl).mean())
sc = nn.Sequential(nn.Linear(3, 16), nn.Softplus(), nn.Linear(16, 2)).to(dev)
tt = torch.rand(8, 1).to(dev)
sg = 0.1 * (10 / 0.1) ** tt
nz = torch.randn(8, 2).to(dev)
l = ((sc(torch.cat([data[:8] + sg * nz, tt], 1)) * sg + nz) ** 2).sum(-1).mean()
l.backward()
print(l)
xx = data[:3].clone().requires_grad_()
s_ = sc(torch.cat([xx, tt[:3]], 1))
div = sum(torch.autograd.grad(s_[:, i].sum(), xx, create_graph=True)[0][:, i] for i in range(2))
print(div, (0.5 * s_.pow(2).sum(-1) + div).mean())


class LIF(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m):
        ctx.save_for_backward(m)
        return (m > 1).float()

    @staticmethod
    def backward(ctx, g):
        (m,) = ctx.saved_tensors
        return g / (1 + (math.pi * (m - 1)) ** 2)


fc = nn.Linear(4, 3).to(dev)
mem = torch.zeros(2, 3, device=dev)
sp = []
for t in range(5):
    mem = 0.9 * mem + fc(torch.ones(2, 4, device=dev) * 0.5)
    s = LIF.apply(mem + 0.5)
    mem = mem - s.detach()
    sp.append(s)
torch.stack(sp).mean().backward()
print(torch.stack(sp).sum(0), fc.weight.grad)


def bspline(x, g, k=2):
    b = ((x.unsqueeze(-1) >= g[:-1]) & (x.unsqueeze(-1) < g[1:])).to(x.dtype)
    for i in range(1, k + 1):
        b = (x.unsqueeze(-1) - g[: -(i + 1)]) / (g[i:-1] - g[: -(i + 1)]) * b[..., :-1] + (
            g[i + 1 :] - x.unsqueeze(-1)
        ) / (g[i + 1 :] - g[1:-i]) * b[..., 1:]
    return b


print(bspline(torch.linspace(-0.9, 0.9, 4).to(dev), torch.linspace(-2, 2, 9).to(dev)).sum(-1))
u = torch.randn(2, 5, 3, 4).to(dev)
bij = torch.zeros(2, 5, 3, 1, device=dev)
for r in range(3):
    c = F.softmax(bij, dim=2)
    sj = (c * u).sum(1, keepdim=True)
    n2 = (sj**2).sum(-1, keepdim=True)
    vj = n2 / (1 + n2) * sj / torch.sqrt(n2 + 1e-8)
    bij = bij + (u * vj).sum(-1, keepdim=True)
print(vj.norm(dim=-1).squeeze(), c.sum(2).mean())
ca = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False).to(dev)
st = torch.zeros(1, 4, 6, 6, device=dev)
st[..., 3, 3] = 1
for _ in range(3):
    st = st + ca(st)
    alive = F.max_pool2d(st[:, 3:4], 3, 1, 1) > 0.1
    st = st * alive
print(st.sum(), alive.sum())
pr = torch.stack([data[i::4].mean(0) for i in range(4)])
print((-torch.cdist(data, pr).pow(2)).log_softmax(-1).max(-1).indices)
ax = torch.randn(4, 3).to(dev) * 0.1
n = ax.norm(dim=-1, keepdim=True).clamp_min(1e-5)
hp = torch.tanh(n) * ax / n
print(
    torch.acosh(
        1
        + 2 * torch.cdist(hp, hp).pow(2) / ((1 - hp.pow(2).sum(-1))[:, None] * (1 - hp.pow(2).sum(-1))[None])
    )
    .sum()
    .isfinite()
)
tried("gumbel", lambda: F.gumbel_softmax(torch.zeros(2, 3), tau=-1.0, hard=True).shape)
rsm = D.RelaxedOneHotCategorical(torch.tensor(0.5), logits=torch.zeros(3))
print(rsm.log_prob(torch.tensor([0.2, 0.3, 0.5])))

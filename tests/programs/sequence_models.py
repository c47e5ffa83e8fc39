"""State spaces, a CRF, skip-grams, MAML, neural ODEs, attention by blocks, clustering, cells."""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call, grad, jacrev, vjp

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(37)


class Mamba(nn.Module):
    def __init__(s, d=6, n=4, k=3):
        super().__init__()
        s.inp = nn.Linear(d, 2 * d, bias=False)
        s.conv = nn.Conv1d(d, d, k, groups=d, padding=k - 1)
        s.xp = nn.Linear(d, 1 + 2 * n, bias=False)
        s.dt = nn.Linear(1, d)
        s.A = nn.Parameter(torch.log(torch.arange(1, n + 1, dtype=torch.float32).repeat(d, 1)))
        s.D = nn.Parameter(torch.ones(d))
        s.out = nn.Linear(d, d, bias=False)
        s.n = n
        s.A._no_weight_decay = True

    def forward(s, u):
        B, L, d = u.shape
        x, z = s.inp(u).chunk(2, -1)
        x = F.silu(s.conv(x.transpose(1, 2))[..., :L].transpose(1, 2))
        dt, Bm, C = s.xp(x).split([1, s.n, s.n], dim=-1)
        dt = F.softplus(s.dt(dt))
        A = -torch.exp(s.A)
        dA = torch.exp(torch.einsum("bld,dn->bldn", dt, A))
        dB = torch.einsum("bld,bln,bld->bldn", dt, Bm, x)
        h = u.new_zeros(B, d, s.n)
        ys = []
        for i in range(L):
            h = dA[:, i] * h + dB[:, i]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, i]))
        return s.out((torch.stack(ys, 1) + x * s.D) * F.silu(z))


m = Mamba().to(dev)
x = torch.randn(2, 7, 6).to(dev)
y = m(x)
y.pow(2).mean().backward()
print(y[0, -1], {n: round(p.grad.norm().item(), 5) for n, p in m.named_parameters()}, m.A._no_weight_decay)


class CRF(nn.Module):
    def __init__(s, K):
        super().__init__()
        s.tr = nn.Parameter(torch.randn(K, K) * 0.1)
        s.st = nn.Parameter(torch.zeros(K))

    def nll(s, e, y, m):
        B, T, _K = e.shape
        sc = s.st[y[:, 0]] + e[:, 0].gather(1, y[:, :1]).squeeze(1)
        a = s.st + e[:, 0]
        for t in range(1, T):
            sc = sc + (s.tr[y[:, t - 1], y[:, t]] + e[torch.arange(B), t, y[:, t]]) * m[:, t]
            n = torch.logsumexp(a.unsqueeze(2) + s.tr + e[:, t].unsqueeze(1), 1)
            a = torch.where(m[:, t].unsqueeze(1).bool(), n, a)
        return (torch.logsumexp(a, 1) - sc).mean()

    @torch.no_grad()
    def viterbi(s, e):
        a = s.st + e[:, 0]
        bp = []
        for t in range(1, e.shape[1]):
            v, i = (a.unsqueeze(2) + s.tr).max(1)
            a = v + e[:, t]
            bp.append(i)
        best = [a.argmax(-1)]
        for i in reversed(bp):
            best.append(i.gather(1, best[-1].unsqueeze(1)).squeeze(1))
        return torch.stack(best[::-1], 1)


c = CRF(4).to(dev)
e = torch.randn(3, 5, 4).to(dev).requires_grad_()
yy = torch.randint(0, 4, (3, 5)).to(dev)
mk = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0.0]]).to(dev)
l = c.nll(e, yy, mk)
l.backward()
print(l, c.tr.grad, e.grad.norm(), c.viterbi(e))


class SGNS(nn.Module):
    def __init__(s):
        super().__init__()
        s.u = nn.Embedding(20, 4, sparse=False)
        s.v = nn.Embedding(20, 4, _weight=torch.zeros(20, 4) + 0.1)

    def forward(s, a, b, n):
        return -(
            F.logsigmoid((s.u(a) * s.v(b)).sum(1))
            + F.logsigmoid(-torch.bmm(s.v(n), s.u(a).unsqueeze(2))).squeeze(-1).sum(1)
        ).mean()


w = SGNS().to(dev)
o = torch.optim.SparseAdam(w.parameters(), 0.1) if False else torch.optim.Adagrad(w.parameters(), 0.5)
p = (torch.arange(20).float() + 1).pow(0.75)
for i in range(3):
    neg = torch.multinomial(p, 12, replacement=True).view(4, 3).to(dev)
    l = w(torch.tensor([1, 2, 3, 4]).to(dev), torch.tensor([2, 3, 4, 5]).to(dev), neg)
    o.zero_grad()
    l.backward()
    o.step()
    print(i, l.item(), w.u.weight.grad.ne(0).any(1).nonzero().flatten())
# maml functional_call, hypernet, neural ode
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(dev)
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
xs, ys = torch.linspace(-1, 1, 10).view(-1, 1).to(dev), torch.linspace(-1, 1, 10).view(-1, 1).pow(2).to(dev)


def loss(p):
    return F.mse_loss(functional_call(net, p, (xs,)), ys)


for _ in range(2):
    g = torch.autograd.grad(loss(params), params.values(), create_graph=True)
    fast = {k: p - 0.1 * gg for (k, p), gg in zip(params.items(), g)}
    outer = loss(fast)
    go = torch.autograd.grad(outer, list(params.values()))
    params = {k: (p - 0.05 * q).detach().requires_grad_() for (k, p), q in zip(params.items(), go)}
    print(outer.item())
print(
    {k: v.norm() for k, v in grad(loss)(params).items()},
    jacrev(lambda t: t**2)(xs[:2, 0]),
    vjp(torch.sin, xs[:2])[1](torch.ones_like(xs[:2])),
)


def odefunc(t, y):
    return functional_call(net, params, (y,)) - 0.5 * y


def rk4(y, n=5, h=0.1):
    for i in range(n):
        k1 = odefunc(0, y)
        k2 = odefunc(0, y + h * k1 / 2)
        k3 = odefunc(0, y + h * k2 / 2)
        k4 = odefunc(0, y + h * k3)
        y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


y0 = torch.tensor([[0.5]]).to(dev).requires_grad_()
out = rk4(y0)
print(out, torch.autograd.grad(out, y0))
hy = nn.Linear(2, 8 + 8 + 8 + 1).to(dev)
ww = hy(torch.ones(2).to(dev))
w1, b1, w2, b2 = torch.split(ww, [8, 8, 8, 1])
print(F.linear(torch.tanh(F.linear(xs, w1.view(8, 1), b1)), w2.view(1, 8), b2).mean())
# flash-blocked softmax, alibi, retention, linear attention, sinkhorn, kmeans, gmm
q, k, v = (torch.randn(2, 3, 8, 4).to(dev) for _ in range(3))
O = torch.zeros_like(q)
l_ = torch.zeros(2, 3, 8, 1, device=dev)
mx = torch.full((2, 3, 8, 1), -torch.inf, device=dev)
for j in range(0, 8, 4):
    S = q @ k[:, :, j : j + 4].transpose(-1, -2) * 0.5
    mn = torch.maximum(mx, S.amax(-1, keepdim=True))
    P = torch.exp(S - mn)
    al = torch.exp(mx - mn)
    l_ = al * l_ + P.sum(-1, keepdim=True)
    O = O * al + P @ v[:, :, j : j + 4]
    mx = mn
print(torch.allclose(O / l_, F.scaled_dot_product_attention(q, k, v), atol=1e-5))
sl = torch.tensor([2 ** (-8 / 3 * (i + 1)) for i in range(3)]).to(dev)
bias = -(torch.arange(8)[:, None] - torch.arange(8)[None]).abs().to(dev) * sl.view(-1, 1, 1)
print(
    F.scaled_dot_product_attention(q, k, v, attn_mask=bias).sum(),
    F.scaled_dot_product_attention(q, k, v, is_causal=True).sum(),
    F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True).sum() if True else "",
    F.scaled_dot_product_attention(
        q, k, v, attn_mask=torch.ones(8, 8, dtype=torch.bool, device=dev).tril(), scale=0.1
    ).sum(),
)
dec = 0.9 ** (torch.arange(8)[:, None] - torch.arange(8)[None]).clamp(min=0).float().to(dev).tril()
print(((q @ k.mT) * dec.tril() @ v).sum(), (F.elu(q) + 1).mul((F.elu(k) + 1).cumsum(2)).sum(-1)[0, 0])


def sinkhorn(C, eps=0.1, n=20):
    mu = nu = torch.full((C.shape[0],), 1 / C.shape[0], device=C.device)
    u, vv = torch.zeros_like(mu), torch.zeros_like(nu)
    for _ in range(n):
        u = eps * (mu.log() - torch.logsumexp((-C + vv[None]) / eps, 1))
        vv = eps * (nu.log() - torch.logsumexp((-C + u[:, None]) / eps, 0))
    return torch.exp((-C + u[:, None] + vv[None]) / eps)


X = torch.randn(12, 2).to(dev)
pi = sinkhorn(torch.cdist(X[:6], X[6:]) ** 2)
print(pi.sum(), pi.sum(0))
cen = X[:3].clone()
for _ in range(5):
    a = torch.cdist(X, cen).argmin(1)
    cen = torch.stack([X[a == i].mean(0) if (a == i).any() else cen[i] for i in range(3)])
print(a, cen)
mu, var, pi = cen.clone(), torch.ones(3, 2, device=dev), torch.full((3,), 1 / 3, device=dev)
for _ in range(3):
    lp = -0.5 * (((X[:, None] - mu) ** 2 / var) + var.log() + math.log(2 * math.pi)).sum(-1) + pi.log()
    r = lp.softmax(1)
    n = r.sum(0)
    mu = (r.T @ X) / n[:, None]
    var = (r.T @ X**2) / n[:, None] - mu**2 + 1e-3
    pi = n / len(X)
    print(lp.logsumexp(1).mean())
R = torch.zeros(5, 6).to(dev)
R[[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]] = torch.tensor([5.0, 3, 4, 1, 2]).to(dev)
Um, Vm = (torch.rand(5, 2) * 0.1).to(dev).requires_grad_(), (torch.rand(6, 2) * 0.1).to(dev).requires_grad_()
o = torch.optim.Rprop([Um, Vm], lr=0.05)
for i in range(4):
    er = ((R - Um @ Vm.T) * (R > 0)).pow(2).sum() + 0.01 * (Um.norm() + Vm.norm())
    o.zero_grad()
    er.backward()
    o.step()
    print(er.item())


# quantization-aware, pruning, rnn cells, highway
def fq(x, b=8):
    s = x.detach().abs().max() / (2 ** (b - 1) - 1)
    return x + (torch.clamp(torch.round(x / s), -(2 ** (b - 1)), 2 ** (b - 1) - 1) * s - x).detach()


W = torch.randn(3, 4).to(dev).requires_grad_()
fq(W, 4).pow(2).sum().backward()
print(W.grad, fq(W, 2).unique().numel())
from torch.nn.utils import prune

lin = nn.Linear(6, 4).to(dev)
prune.random_unstructured(lin, "weight", 0.3) if False else prune.ln_structured(
    lin, "weight", 0.5, n=2, dim=0
)
print(lin.weight_mask, prune.is_pruned(lin))
prune.remove(lin, "weight")
prune.global_unstructured(
    [(lin, "weight"), (net[0], "weight")], pruning_method=prune.L1Unstructured, amount=5
)
print((lin.weight == 0).sum() + (net[0].weight == 0).sum())
h = torch.zeros(2, 5, device=dev)
cc = torch.zeros(2, 5, device=dev)
lc, rc = nn.LSTMCell(3, 5).to(dev), nn.RNNCell(3, 5).to(dev)
for t in range(3):
    h, cc = lc(torch.ones(2, 3, device=dev) * t, (h, cc))
    h = rc(torch.ones(2, 3, device=dev), h)
print(h, cc.detach())
tr = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(dev)
print(
    tr(
        torch.ones(1, 3, 8).to(dev),
        torch.ones(1, 2, 8).to(dev),
        tgt_mask=tr.generate_square_subsequent_mask(2, device=dev),
        src_key_padding_mask=torch.tensor([[False, False, True]]).to(dev),
    )
    .sum()
    .abs()
    < 1e-3,
    nn.Transformer.generate_square_subsequent_mask(3),
)
ctc = F.ctc_loss(
    torch.randn(6, 2, 4).to(dev).log_softmax(-1),
    torch.tensor([1, 2, 3, 3, 1]).to(dev),
    torch.tensor([6, 5]),
    torch.tensor([3, 2]),
    blank=0,
    reduction="none",
)
print(ctc)

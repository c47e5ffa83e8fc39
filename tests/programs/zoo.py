"""Small models of many kinds, a few steps each: U-Net, VAE, GP, flow, GNN, PINN, MAML, CTC, ... and every optimizer."""

import functools
import itertools
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.nn.utils import parametrizations, prune

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(3)


def R(*s):
    return torch.randn(*s).to(dev)


def fit(name, params, loss_fn, n=4, opt=None, **kw):
    o = (opt or optim.Adam)(params, **(kw or {"lr": 1e-2}))
    ls = []
    for _ in range(n):
        o.zero_grad()
        l = loss_fn()
        l.backward()
        o.step()
        ls.append(round(l.item(), 5))
    print(name, *ls)


# UNet
class DoubleConv(nn.Sequential):
    def __init__(s, i, o):
        super().__init__(
            nn.Conv2d(i, o, 3, padding=1, padding_mode="reflect"),
            nn.GroupNorm(2, o),
            nn.SiLU(),
            nn.Conv2d(o, o, 3, padding="same", dilation=2),
            nn.InstanceNorm2d(o, affine=True),
            nn.PReLU(),
        )


class UNet(nn.Module):
    def __init__(s):
        super().__init__()
        s.d1 = DoubleConv(1, 4)
        s.d2 = DoubleConv(4, 8)
        s.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        s.u1 = DoubleConv(8, 4)
        s.out = nn.Conv2d(4, 2, 1)
        s.pool = nn.MaxPool2d(2)

    def forward(s, x):
        a = s.d1(x)
        b = s.d2(s.pool(a))
        c = F.interpolate(s.up(b), size=a.shape[2:], mode="bilinear", align_corners=True)
        return s.out(s.u1(torch.cat([a, c], dim=1)))


u = UNet().to(dev)
x = R(2, 1, 12, 12)
y = (torch.rand(2, 12, 12) > 0.5).long().to(dev)


def dice():
    o = u(x)
    p = o.softmax(1)[:, 1]
    t = y.float()
    return (
        F.cross_entropy(o, y, weight=torch.tensor([1.0, 2.0], device=dev))
        + 1
        - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)
    )


fit("unet", u.parameters(), dice, opt=optim.RMSprop, lr=1e-3, momentum=0.9)


# VAE
class VAE(nn.Module):
    def __init__(s):
        super().__init__()
        s.e = nn.Linear(10, 8)
        s.mu, s.lv = nn.Linear(8, 2), nn.Linear(8, 2)
        s.d = nn.Sequential(nn.Linear(2, 8), nn.ELU(), nn.Linear(8, 10))

    def forward(s, x):
        h = F.leaky_relu(s.e(x))
        mu, lv = s.mu(h), s.lv(h)
        z = mu + torch.exp(0.5 * lv) * torch.randn(mu.shape).to(mu)
        return s.d(z), mu, lv


v = VAE().to(dev)
xv = torch.rand(6, 10).to(dev)


def elbo():
    r, mu, lv = v(xv)
    return F.binary_cross_entropy_with_logits(r, xv, reduction="sum") - 0.5 * torch.sum(
        1 + lv - mu.pow(2) - lv.exp()
    )


fit("vae", v.parameters(), elbo, opt=optim.NAdam, lr=1e-2)
# policy gradient
pi = nn.Linear(4, 3).to(dev)
s = R(5, 4)
a = torch.tensor([0, 1, 2, 1, 0]).to(dev)
ret = R(5)
fit(
    "reinforce",
    pi.parameters(),
    lambda: (
        -(
            F.log_softmax(pi(s), -1).gather(1, a[:, None]).squeeze(1)
            * (ret - ret.mean())
            / (ret.std() + 1e-8)
        ).mean()
    ),
    opt=optim.RAdam,
    lr=1e-2,
)
q, tq = nn.Linear(4, 3).to(dev), nn.Linear(4, 3).to(dev)
tq.load_state_dict(q.state_dict())


def dqn():
    with torch.no_grad():
        t = ret + 0.9 * tq(s).max(1)[0]
    return F.smooth_l1_loss(q(s).gather(1, a.unsqueeze(1)), t.unsqueeze(1))


fit("dqn", q.parameters(), dqn, opt=optim.Adagrad, lr=1e-2)
# CTC
T, C, N = 12, 5, 2
logits = nn.Parameter(R(T, N, C))
tg = torch.randint(1, C, (N, 4)).to(dev)
fit(
    "ctc",
    [logits],
    lambda: F.ctc_loss(
        logits.log_softmax(2), tg, torch.full((N,), T), torch.full((N,), 4), zero_infinity=True
    ),
    lr=0.1,
)
# Siamese / metric
em = nn.Sequential(nn.Linear(6, 4), nn.Softplus()).to(dev)
A, B, Cn = R(4, 6), R(4, 6), R(4, 6)
fit(
    "triplet",
    em.parameters(),
    lambda: (
        nn.TripletMarginLoss(margin=1.0)(em(A), em(B), em(Cn))
        + nn.CosineEmbeddingLoss()(em(A), em(B), torch.tensor([1, -1, 1, -1], device=dev))
        + F.pairwise_distance(em(A), em(B)).mean()
        + torch.cdist(em(A), em(B)).mean()
    ),
    opt=optim.Adamax,
    lr=1e-2,
)
# PINN
net = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).to(dev)
t = torch.linspace(0, 1, 20).reshape(-1, 1).to(dev).requires_grad_()


def pinn():
    u = net(t)
    (du,) = torch.autograd.grad(u, t, torch.ones_like(u), create_graph=True)
    (d2,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    return ((d2 + u) ** 2).mean() + (net(torch.zeros(1, 1, device=dev)) - 1).square().mean()


fit("pinn", net.parameters(), pinn, opt=optim.Adadelta, lr=1.0)
# MAML
w = R(3, 1).requires_grad_()
X, Y = R(8, 3), R(8, 1)


def maml():
    (g,) = torch.autograd.grad(F.mse_loss(X @ w, Y), w, create_graph=True)
    return F.mse_loss(X @ (w - 0.1 * g), Y)


fit("maml", [w], maml, opt=optim.SGD, lr=0.1)
# GP
ls = torch.tensor(1.0, device=dev, requires_grad=True)
gx = torch.linspace(0, 3, 8).to(dev)
gy = torch.sin(gx)


def gp():
    K = torch.exp(-0.5 * (gx[:, None] - gx[None]) ** 2 / ls**2) + 0.1 * torch.eye(8, device=dev)
    L = torch.linalg.cholesky(K)
    al = torch.cholesky_solve(gy[:, None], L)
    return 0.5 * gy @ al[:, 0] + L.diagonal().log().sum() + 4 * math.log(2 * math.pi)


fit("gp", [ls], gp, lr=0.1)
# flow
Wf = (torch.eye(3) + 0.1 * torch.randn(3, 3)).to(dev).requires_grad_()
fx = R(10, 3)
fit(
    "flow",
    [Wf],
    lambda: (0.5 * (fx @ Wf).pow(2).sum(1) - torch.linalg.slogdet(Wf)[1]).mean() + torch.logdet(Wf @ Wf.T),
    lr=1e-2,
)
# GNN
adj = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]]).to(dev)
h = R(4, 5)
lin = nn.Linear(5, 3).to(dev)


def gcn():
    m = lin(h)[adj[0]]
    o = torch.zeros(4, 3, device=dev).index_add(0, adj[1], m)
    deg = torch.zeros(4, device=dev).scatter_add_(0, adj[1], torch.ones(5, device=dev)).clamp_(min=1)
    o2 = torch.zeros(4, 3, device=dev).scatter_reduce(
        0, adj[1][:, None].expand(-1, 3), m, "amax", include_self=False
    )
    return F.nll_loss(F.log_softmax(o / deg[:, None] + o2, 1), torch.tensor([0, 1, 2, 0], device=dev))


fit("gcn", lin.parameters(), gcn, opt=optim.AdamW, lr=1e-2)
# Spatial transformer
th = torch.tensor([[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]], device=dev, requires_grad=True)
im = R(2, 1, 6, 6)
fit(
    "stn",
    [th],
    lambda: (
        (
            F.grid_sample(
                im,
                F.affine_grid(th.expand(2, 2, 3), im.shape, align_corners=False),
                align_corners=False,
                padding_mode="border",
            )
            - im
        )
        .abs()
        .mean()
    ),
    lr=0.05,
)
# word2vec / EmbeddingBag
eb = nn.EmbeddingBag(10, 4, mode="mean").to(dev)
fc = nn.Linear(4, 3).to(dev)
tok = torch.tensor([1, 2, 4, 5, 4, 3]).to(dev)
off = torch.tensor([0, 2, 3]).to(dev)
fit(
    "bag",
    itertools.chain(eb.parameters(), fc.parameters()),
    lambda: F.multi_margin_loss(fc(eb(tok, off)), torch.tensor([0, 1, 2], device=dev)),
    lr=0.1,
)
# parametrizations, weight norm, prune
pl = parametrizations.orthogonal(nn.Linear(4, 4)).to(dev)
print("orth", torch.allclose(pl.weight @ pl.weight.T, torch.eye(4, device=dev), atol=1e-5))
wn = parametrizations.weight_norm(nn.Linear(4, 2)).to(dev)
fit("wn", wn.parameters(), lambda: wn(R(3, 4)).pow(2).sum(), opt=optim.SGD, lr=1e-2)
prune.l1_unstructured(lin, "weight", amount=0.4)
print("prune", int((lin.weight == 0).sum()), list(dict(lin.named_buffers())))
# schedulers
o = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
for S in (
    functools.partial(optim.lr_scheduler.CosineAnnealingWarmRestarts, T_0=3),
    functools.partial(optim.lr_scheduler.CyclicLR, base_lr=0.1, max_lr=1.0, step_size_up=2),
    functools.partial(optim.lr_scheduler.LambdaLR, lr_lambda=lambda e: 0.9**e),
    functools.partial(optim.lr_scheduler.MultiStepLR, milestones=[1, 3]),
    functools.partial(optim.lr_scheduler.PolynomialLR, total_iters=4),
):
    o = optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0, momentum=0.9)
    sc = S(o)
    l = []
    for _ in range(5):
        o.step()
        sc.step()
        l.append(round(sc.get_last_lr()[0], 6))
    print("sched", l)
pl_ = optim.lr_scheduler.ReduceLROnPlateau(o, "min", patience=0, factor=0.5)
for m in (1.0, 2.0, 3.0):
    pl_.step(m)
print("plateau", pl_.get_last_lr())
# autocast
m = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4)).to(dev)
xa = R(3, 8)
with torch.autocast(dev.type, torch.bfloat16):
    o = m(xa)
    print("amp", o.dtype, m[0](xa).dtype, (o @ o.T).dtype, o.float().sum().item() // 0.05)
# decoder generation
dl = nn.TransformerDecoder(
    nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, norm_first=True, activation="gelu"),
    2,
    norm=nn.LayerNorm(8),
).to(dev)
mem = R(3, 1, 8)
emb = nn.Embedding(6, 8).to(dev)
seq = torch.zeros(1, 1, dtype=torch.long, device=dev)
dl.eval()
with torch.no_grad():
    for _ in range(5):
        o = dl(emb(seq), mem, tgt_mask=nn.Transformer.generate_square_subsequent_mask(len(seq)).to(dev))
        seq = torch.cat([seq, (o[-1] @ emb.weight.T).argmax(-1)[None]])
print("gen", seq.flatten().tolist())
# misc module prints
for k in (
    nn.LSTM(2, 3, batch_first=True),
    nn.Conv1d(2, 4, 3, groups=2),
    nn.BatchNorm3d(2),
    nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.ReLU()}),
    nn.ParameterList([nn.Parameter(torch.zeros(2))]),
    nn.Upsample(scale_factor=2),
    nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3]),
    nn.Bilinear(1, 2, 3),
    nn.Hardtanh(-2, 2),
    nn.Identity(),
    nn.ZeroPad2d(1),
    nn.LPPool2d(2, 3),
):
    print(k)
st = torch.get_rng_state()
a1 = torch.rand(3)
torch.set_rng_state(st)
print(torch.equal(a1, torch.rand(3)), torch.initial_seed())
g = torch.Generator().manual_seed(5)
print(
    torch.randn(2, generator=g),
    torch.multinomial(torch.tensor([0.2, 0.3, 0.5]), 4, replacement=True, generator=g),
    torch.bernoulli(torch.full((4,), 0.5), generator=g),
    torch.normal(0.0, 1.0, (2,), generator=g),
)
au = nn.AdaptiveLogSoftmaxWithLoss(4, 10, [3, 6]).to(dev)
oo, l = au(R(5, 4), torch.tensor([0, 3, 7, 9, 2]).to(dev))
print(oo, l.item())
mp, ix = F.max_pool2d(im, 2, return_indices=True)
print(
    F.max_unpool2d(mp, ix, 2).sum().item(),
    F.pixel_shuffle(R(1, 4, 2, 2), 2).shape,
    F.fold(F.unfold(im, 2, stride=2), (6, 6), 2, stride=2).sub(im).abs().max().item(),
)
print(
    F.gumbel_softmax(torch.zeros(2, 3), hard=True).sum(-1),
    F.kl_div(F.log_softmax(R(2, 3), 1), F.softmax(R(2, 3), 1), reduction="batchmean").item(),
    F.huber_loss(A, B).item(),
    F.gaussian_nll_loss(A, B, torch.ones_like(A)).item(),
    F.poisson_nll_loss(A, B.abs()).item(),
)
print(
    torch.linalg.lstsq(X, Y).solution.flatten(),
    torch.linalg.eigh(X.T @ X).eigenvalues,
    torch.linalg.pinv(X).norm(),
    torch.linalg.matrix_exp(torch.zeros(2, 2)),
    torch.linalg.qr(X).R.abs().diagonal(),
)

"""A conditional GAN with gradient penalties, spectral norms and distributions."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable, grad
from torch.nn.utils import parametrizations, spectral_norm

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(3)


class G(nn.Module):
    def __init__(s, z=6, c=3):
        super().__init__()
        s.emb = nn.Embedding(c, z)
        s.l1 = nn.Sequential(nn.Linear(z * 2, 8 * 2 * 2))
        s.net = nn.Sequential(
            nn.BatchNorm2d(8),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(8, 8, 3, stride=1, padding=1),
            nn.BatchNorm2d(8, 0.8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(s, z, y):
        return s.net(s.l1(torch.cat((z, s.emb(y)), -1)).view(-1, 8, 2, 2))


class MiniBatchStd(nn.Module):
    def forward(s, x):
        _b, c, h, w = x.shape
        y = x.view(2, -1, c, h, w)
        y = (
            (y - y.mean(0, keepdim=True))
            .square()
            .mean(0)
            .add(1e-8)
            .sqrt()
            .mean([1, 2, 3], keepdim=True)
            .repeat(2, 1, h, w)
        )
        return torch.cat([x, y], 1)


class D(nn.Module):
    def __init__(s):
        super().__init__()
        s.c = nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1),
            nn.LeakyReLU(0.2),
            MiniBatchStd(),
            nn.Conv2d(5, 6, 3, 2, 1),
            nn.LeakyReLU(0.2),
        )
        s.adv = nn.Linear(24, 1)
        s.aux = nn.Linear(24, 3)

    def forward(s, x):
        h = s.c(x).flatten(1)
        return s.adv(h), s.aux(h)


def gp(d, real, fake):
    a = torch.rand(real.size(0), 1, 1, 1).to(dev)
    i = (a * real + (1 - a) * fake).requires_grad_(True)
    o = d(i)[0]
    g = grad(
        outputs=o,
        inputs=i,
        grad_outputs=torch.ones(o.size(), device=dev),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((g.view(g.size(0), -1).norm(2, dim=1) - 1) ** 2).mean()


gn, dn = G(), D()


def weights_init(m):
    n = m.__class__.__name__
    if n.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif n.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


gn.apply(weights_init)
dn.apply(weights_init)
gn.to(dev)
dn.to(dev)
print(gn, dn)
og, od = (
    torch.optim.Adam(gn.parameters(), 2e-3, (0.5, 0.9)),
    torch.optim.RMSprop(dn.parameters(), lr=1e-3, centered=True),
)
real = torch.randn(4, 1, 8, 8).to(dev)
y = torch.tensor([0, 1, 2, 1], device=dev)
for it in range(3):
    for p in dn.parameters():
        p.requires_grad = True
    for _ in range(2):
        dn.zero_grad()
        z = torch.randn(4, 6).to(dev)
        with torch.no_grad():
            fake = gn(z, y)
        r, ra = dn(Variable(real.data))
        f, _ = dn(fake.detach())
        pen = gp(dn, real, fake)
        ld = f.mean() - r.mean() + 10 * pen + F.cross_entropy(ra, y)
        ld.backward()
        od.step()
    for p in dn.parameters():
        p.requires_grad_(False)
    og.zero_grad()
    fake = gn(torch.randn(4, 6).to(dev), y)
    f, fa = dn(fake)
    lg = -f.mean() + F.cross_entropy(fa, y)
    lg.backward()
    og.step()
    print(it, ld.item(), pen.item(), lg.item(), [p.grad is None for p in dn.parameters()][:2])
for p in dn.parameters():
    p.requires_grad_(True)
# R1, hinge, lsgan, relativistic
real.requires_grad_()
r, _ = dn(real)
(g,) = grad(r.sum(), real, create_graph=True)
r1 = g.pow(2).reshape(4, -1).sum(1).mean()
r1.backward()
print("r1", r1, dn.adv.weight.grad.norm(), real.grad.norm())
fk = gn(torch.randn(4, 6).to(dev), y)
print(
    F.relu(1 - dn(real)[0]).mean() + F.relu(1 + dn(fk)[0]).mean(),
    F.binary_cross_entropy_with_logits(dn(real)[0] - dn(fk)[0].mean(), torch.ones(4, 1, device=dev)).item(),
)
sn = spectral_norm(nn.Linear(4, 3), n_power_iterations=3).to(dev)
print(sn, sorted(sn.state_dict()))
xx = torch.ones(2, 4).to(dev)
sn(xx).sum().backward()
print(sn.weight_orig.grad, sn.weight_u)
torch.nn.utils.remove_spectral_norm(sn)
print(sorted(sn.state_dict()))
sp = parametrizations.spectral_norm(nn.Conv2d(2, 3, 3)).to(dev)
print(sp, sorted(sp.state_dict()))
sp.eval()
w = sp.weight
print(w.shape, torch.linalg.matrix_norm(w.flatten(1), 2))
torch.nn.utils.parametrize.remove_parametrizations(sp, "weight")
print(sp)


# pathlen / gram
def gram(x):
    b, c, h, w = x.size()
    f = x.view(b * c, h * w)
    return torch.mm(f, f.t()).div(b * c * h * w)


print(gram(fk[:2]), fk.view(4, -1).std(0).mean())
tv = (fk[..., 1:, :] - fk[..., :-1, :]).abs().sum() + (fk[..., 1:] - fk[..., :-1]).abs().sum()
print("tv", tv)
mu, ls = torch.randn(3, 2).to(dev), torch.randn(3, 2).to(dev)
q = torch.distributions.Normal(mu, ls.exp())
p = torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
print(torch.distributions.kl_divergence(q, p), q, q.log_prob(mu), q.entropy().sum(-1), q.cdf(mu))

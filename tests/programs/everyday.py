"""A little of everything: LBFGS, FFT, Function, hooks, shared weights, EMA, errors, functional, prints."""

import copy
import pickle
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

dev = torch.device(sys.argv[1])
torch.manual_seed(7)
# LBFGS
x = torch.linspace(-3, 3, 50).to(dev)
y = torch.sin(x)
p = torch.zeros(6, device=dev, requires_grad=True)
V = torch.stack([x**k for k in range(6)], 1)
opt = torch.optim.LBFGS([p], lr=1, max_iter=20, line_search_fn="strong_wolfe")
for _ in range(3):

    def closure():
        opt.zero_grad()
        l = ((V @ p - y) ** 2).mean()
        l.backward()
        return l

    print("lbfgs", f"{opt.step(closure).item():.5f}")
# FFT convolution
a, k = torch.randn(2, 3, 32).to(dev), torch.randn(4, 3, 5).to(dev)
n = 32 + 5 - 1
af, kf = torch.fft.rfft(a, n), torch.fft.rfft(k.flip(-1), n)
c = torch.fft.irfft(torch.einsum("bif,oif->bof", af, kf), n)[..., 4:32]
print(
    "fft",
    torch.allclose(c, F.conv1d(a, k), atol=1e-4),
    c.sum().item(),
    torch.fft.fftshift(torch.fft.fftfreq(6, d=0.5)),
)
print(torch.fft.fft2(torch.arange(6.0).reshape(2, 3).to(dev)))
s = torch.stft(torch.randn(64).to(dev), 16, 8, window=torch.hann_window(16).to(dev), return_complex=True)
print(s.shape, s.abs().sum().item())
print(torch.istft(s, 16, 8, window=torch.hann_window(16).to(dev)).shape)


# custom function
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, i, scale):
        ctx.save_for_backward(i)
        ctx.scale = scale
        return i * torch.sigmoid(i) * scale

    @staticmethod
    def backward(ctx, g):
        (i,) = ctx.saved_tensors
        s = torch.sigmoid(i)
        if len(i) == 4:
            print("needs", ctx.needs_input_grad)
        return g * ctx.scale * (s * (1 + i * (1 - s))), None


i = torch.randn(4).to(dev).requires_grad_()
o = Swish.apply(i, 2.0)
print(o, o.grad_fn.name())
o.sum().backward()
print(i.grad)
print(
    torch.autograd.gradcheck(
        lambda t: Swish.apply(t, 1.0), torch.randn(3, dtype=torch.double).to(dev).requires_grad_()
    )
)
# hooks
m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to(dev)
seen = []
h1 = m[0].register_forward_hook(lambda mod, inp, out: seen.append(("f", tuple(out.shape))))
h2 = m[2].register_full_backward_hook(
    lambda mod, gi, go: seen.append(("b", gi[0].shape, round(go[0].sum().item(), 4)))
)
h3 = m.register_forward_pre_hook(lambda mod, args: (args[0] * 2,))
h4 = m[0].weight.register_hook(lambda g: g * 0.5)
h5 = m[2].weight.register_post_accumulate_grad_hook(
    lambda q: seen.append(("acc", round(q.grad.sum().item(), 4)))
)
z = torch.randn(5, 3).to(dev)
r = m(z)
r.retain_grad()
r.pow(2).mean().backward()
print(seen, m[0].weight.grad.sum().item(), r.grad.norm().item())
for h in (h1, h2, h3, h4, h5):
    h.remove()
print(len(m[0]._forward_hooks))


# weight sharing
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(7, 5)
        self.d = nn.Linear(5, 7, bias=False)
        self.d.weight = self.e.weight

    def forward(self, t):
        return self.d(self.e(t))


t = Tied().to(dev)
print(t.e.weight is t.d.weight, len(list(t.parameters())), list(t.state_dict()))
F.cross_entropy(t(torch.arange(7).to(dev)), torch.arange(7).to(dev)).backward()
print(t.e.weight.grad.norm().item())
t2 = copy.deepcopy(t)
print(
    t2.e.weight is t2.d.weight,
    t2.e.weight.grad is not None and torch.equal(t2.e.weight.grad, t.e.weight.grad),
)
t3 = pickle.loads(pickle.dumps(t))
print(t3.e.weight is t3.d.weight, t3.e.weight.grad)


# apply, named_*, buffers
def init(mod):
    if type(mod) == nn.Linear:
        mod.weight.data.fill_(1.0)
        print(mod.weight)


net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).to(dev)
print(net.apply(init))
print(
    [n for n, _ in nn.BatchNorm1d(2).named_buffers()],
    net.float() is net,
    next(net.half().parameters()).dtype,
    next(net.double().parameters()).dtype,
)
# EMA
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

base = nn.Linear(3, 1).to(dev)
ema = AveragedModel(base, multi_avg_fn=get_ema_multi_avg_fn(0.9))
o = torch.optim.SGD(base.parameters(), 0.1)
for _ in range(4):
    base(torch.ones(2, 3, device=dev)).sum().backward()
    o.step()
    o.zero_grad()
    ema.update_parameters(base)
print(ema.module.weight, int(ema.n_averaged))
with torch.no_grad():
    for pe, pb in zip(ema.module.parameters(), base.parameters()):
        pe.mul_(0.5).add_(pb, alpha=0.5)
print(ema.module.bias)
# version counter errors
for f in ("inplace", "leaf", "twice", "nograd", "nonscalar"):
    try:
        w = torch.ones(3, device=dev, requires_grad=True)
        if f == "inplace":
            e = w.exp()
            e.add_(1)
            e.sum().backward()
        if f == "leaf":
            w.add_(1)
        if f == "twice":
            q = w.exp().sum()
            q.backward()
            q.backward()
        if f == "nograd":
            torch.ones(2).sum().backward()
        if f == "nonscalar":
            (w * 2).backward()
    except RuntimeError as error:
        print(f, str(error).replace("torch.cuda.FloatTensor", "torch.FloatTensor"))
# functional
from torch.autograd.functional import hessian, jacobian, jvp, vjp

f = lambda v: (v**3).sum()
v = torch.tensor([1.0, 2.0]).to(dev)
print(jacobian(lambda v: v**2, v), hessian(f, v), vjp(f, v), jvp(f, v, torch.ones(2).to(dev)))
# misc prints
print(
    torch.randn(3, 4),
    torch.rand(2, dtype=torch.float64),
    torch.randint(5, (3,)),
    torch.randperm(8),
    torch.arange(1, 4).to(dev).float().mean(),
)
print(
    torch.tensor([1e-8, 1.0, 1e5]),
    torch.tensor([True]),
    torch.complex(torch.tensor(1.0), torch.tensor(-2.0)),
    torch.zeros(0, 3),
    torch.tensor(3),
    torch.arange(2000),
)
print(
    torch.finfo(torch.float16),
    torch.iinfo(torch.int8),
    torch.get_default_dtype(),
    torch.float32,
    torch.Size([1, 2]),
    torch.strided,
)
u, s, vh = torch.linalg.svd(torch.arange(6.0).reshape(2, 3).to(dev), full_matrices=False)
print(s, (u * s) @ vh)
print(
    torch.stack([torch.tensor(1.0), torch.tensor(2.0)]).sum(),
    torch.where(x > 0, x, 0.0).sum(),
    x.clamp(min=0).max(),
    torch.topk(x, 3),
)
print(
    torch.unique(torch.tensor([3, 1, 3]).to(dev), return_counts=True),
    torch.cumsum(torch.ones(3), 0),
    torch.einsum("ij,jk", torch.ones(2, 3), torch.ones(3, 2)),
)
print(
    torch.max(torch.arange(4).reshape(2, 2).to(dev), dim=1),
    torch.sort(torch.tensor([3, 1, 2]).to(dev)),
    torch.median(torch.tensor([3.0, 1.0]).to(dev)),
)
print(
    x.new_full((2,), 3),
    torch.ones_like(x)[:2],
    x.tolist()[:1],
    x.cpu().numpy()[:2],
    x[..., None].shape,
    x[None].T.shape,
    x[::10],
    x[x > 2.5],
)
print(
    torch.nn.functional.one_hot(torch.tensor([0, 2]).to(dev), 3),
    torch.bincount(torch.tensor([1, 1, 3]).to(dev)),
    torch.histc(x, 4),
)
with torch.autograd.detect_anomaly(check_nan=True):
    try:
        q = torch.zeros(1, device=dev, requires_grad=True)
        (q.sqrt() * 0).backward()
    except RuntimeError as e:
        print(e)
with torch.autograd.graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(dev)):
    q = torch.ones(2, device=dev, requires_grad=True)
    (q * q).sum().backward()
    print(q.grad)
print(
    torch.utils.data.default_collate([(torch.ones(1), 2), (torch.zeros(1), 3)]),
    nn.init.calculate_gain("leaky_relu", 0.2),
    nn.utils.parameters_to_vector(base.parameters()).shape,
)

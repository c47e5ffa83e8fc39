"""Graph attention by scatters, a mixture of experts, LoRA by parametrization, contrastive losses."""

import copy
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.nn.utils.parametrize as P

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(13)


def tried(label, run):
    try:
        print(label, run())
    except Exception as error:
        print(label, type(error).__name__, str(error).split("\n")[0])


# PyG-like message passing
def scatter(src, index, dim=0, dim_size=None, reduce="sum"):
    size = list(src.shape)
    size[dim] = dim_size or int(index.max()) + 1
    idx = index.view([-1 if d == dim % src.dim() else 1 for d in range(src.dim())]).expand_as(src)
    if reduce == "sum":
        return src.new_zeros(size).scatter_add_(dim, idx, src)
    if reduce == "mean":
        c = src.new_zeros(size[dim]).scatter_add_(0, index, src.new_ones(len(index))).clamp_(min=1)
        return src.new_zeros(size).scatter_add_(dim, idx, src) / c.view(
            [-1 if d == dim % src.dim() else 1 for d in range(src.dim())]
        )
    return src.new_zeros(size).scatter_reduce_(dim, idx, src, reduce=reduce, include_self=False)


def seg_softmax(x, i, n):
    m = scatter(x.detach(), i, 0, n, "amax")
    e = (x - m.index_select(0, i)).exp()
    return e / (scatter(e, i, 0, n) + 1e-16).index_select(0, i)


class GAT(nn.Module):
    def __init__(s, i, o, h=2):
        super().__init__()
        s.lin = nn.Linear(i, h * o, bias=False)
        s.a = nn.Parameter(torch.empty(1, h, o))
        s.b = nn.Parameter(torch.empty(1, h, o))
        nn.init.xavier_uniform_(s.a)
        nn.init.xavier_uniform_(s.b)
        s.h, s.o = h, o

    def forward(s, x, ei):
        x = s.lin(x).view(-1, s.h, s.o)
        src, dst = ei
        al = F.leaky_relu((x * s.a).sum(-1)[src] + (x * s.b).sum(dim=-1)[dst], 0.2)
        al = seg_softmax(al, dst, x.shape[0])
        return scatter(x[src] * al[..., None], dst, 0, x.shape[0]).flatten(1)


x = torch.randn(7, 5).to(dev)
ei = torch.randint(0, 7, (2, 20)).to(dev)
lbl = torch.tensor([0, 1, 2, 0, 1, 2, 0]).to(dev)
tm = torch.tensor([1, 1, 1, 1, 0, 0, 0], dtype=torch.bool).to(dev)
ei = torch.cat([ei, torch.arange(7, device=dev).repeat(2, 1)], 1)
ei = ei[:, ei[0].mul(7).add(ei[1]).argsort(stable=True)]
key, inv, cnt = torch.unique(ei, dim=1, return_inverse=True, return_counts=True)
print(key, inv, cnt, torch.unique_consecutive(ei[0], return_counts=True))
gnn = nn.ModuleList([GAT(5, 4), GAT(8, 3, 1)]).to(dev)
opt = torch.optim.Adam(gnn.parameters(), 0.02, weight_decay=5e-4)
for e in range(3):
    opt.zero_grad()
    o = gnn[1](F.elu(gnn[0](x, key)), key)
    l = F.cross_entropy(o[tm], lbl[tm])
    l.backward()
    opt.step()
    print(e, l, (o.argmax(-1)[~tm] == lbl[~tm]).sum() / (~tm).sum())
bat = torch.tensor([0, 0, 0, 1, 1, 2, 2]).to(dev)
print(scatter(o, bat, reduce="mean"), scatter(o, bat, reduce="amin"))
deg = torch.bincount(key[1], minlength=7).float()
adj = torch.zeros(7, 7, device=dev)
adj[key[0], key[1]] = 1.0
L = torch.eye(7, device=dev) - deg.pow(-0.5).diag() @ adj @ torch.diag(deg.rsqrt())
L = (L + L.T) / 2
ev = torch.linalg.eigvalsh(L)
print(
    ev,
    adj.nonzero().shape,
    adj.triu(1).nonzero(as_tuple=True)[0][:3],
    torch.linalg.matrix_power(adj, 3).trace(),
)
pad = torch.nn.utils.rnn.pad_sequence(
    torch.split(x, torch.bincount(bat).tolist()), batch_first=True, padding_value=float("nan")
)
print(
    pad.isnan().all(-1),
    pad.nanmean(1),
    pad.nansum((1, 2)),
    pad.nan_to_num(0.0, posinf=1.0).sum(),
    torch.nanquantile(pad, 0.5, dim=1)[0],
)


# MoE
class MoE(nn.Module):
    def __init__(s, d=6, E=4, k=2):
        super().__init__()
        s.gate = nn.Linear(d, E, bias=False)
        s.ex = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 8), nn.GELU("tanh"), nn.Linear(8, d)) for _ in range(E)
        )
        s.k, s.E = k, E

    def forward(s, x):
        sh = x.shape
        x = x.view(-1, sh[-1])
        lg = s.gate(x)
        w = F.softmax(lg, dim=1, dtype=torch.float)
        w, sel = torch.topk(w, s.k, dim=-1)
        w /= w.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(x)
        mask = F.one_hot(sel, num_classes=s.E).permute(2, 1, 0)
        hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
        for e in hit:
            idx, top = torch.where(mask[e].squeeze(0))
            out.index_add_(0, top, s.ex[e](x[None, top].reshape(-1, sh[-1])) * w[top, idx, None])
        me, ce = F.softmax(lg, -1).mean(0), F.one_hot(sel[:, 0], s.E).float().mean(0)
        return out.view(sh), (me * ce).sum() * s.E, torch.logsumexp(lg, -1).square().mean()


m = MoE().to(dev)
xx = torch.randn(2, 5, 6).to(dev).requires_grad_()
y, aux, zl = m(xx)
(y.pow(2).mean() + 0.1 * aux + 1e-3 * zl).backward()
print(
    y.norm(),
    aux,
    zl,
    xx.grad.norm(),
    [None if q.grad is None else round(q.grad.norm().item(), 4) for q in m.parameters()],
)
print(m)


# LoRA by parametrize
class LoRA(nn.Module):
    def __init__(s, i, o, r=2, alpha=4):
        super().__init__()
        s.A = nn.Parameter(torch.zeros((r, o)))
        s.B = nn.Parameter(torch.zeros((i, r)))
        nn.init.normal_(s.A, mean=0, std=1)
        s.sc = alpha / r
        s.enabled = True

    def forward(s, W):
        return W + (s.B @ s.A).view(W.shape) * s.sc if s.enabled else W

    def right_inverse(s, W):
        return W


net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).to(dev)
base = copy.deepcopy(net)
for l in net:
    if isinstance(l, nn.Linear):
        P.register_parametrization(l, "weight", LoRA(*l.weight.shape).to(dev))
print(net, list(net.state_dict()))
[
    p.requires_grad_(False)
    for n, p in net.named_parameters()
    if ".A" not in n and ".B" not in n and not n.endswith(("A", "B"))
]
o = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
print(len(o.param_groups[0]["params"]), torch.equal(net(x), base(x)))
for _ in range(2):
    l = F.mse_loss(net(x), torch.ones(7, 3, device=dev))
    o.zero_grad()
    l.backward()
    o.step()
    print(l.item())
with P.cached():
    print(net[0].weight is net[0].weight)
net[0].parametrizations["weight"][0].enabled = False
print(
    torch.equal(net[0].weight, base[0].weight),
    P.is_parametrized(net),
    P.is_parametrized(net[0], "bias"),
    P.type_before_parametrizations(net[0]),
)
P.remove_parametrizations(net[2], "weight", leave_parametrized=True)
print(net, type(net[0]).__name__, isinstance(net[0], nn.Linear), net[2].weight.sum())


class Sym(nn.Module):
    def forward(s, X):
        return X.triu() + X.triu(1).transpose(-1, -2)


class Exp(nn.Module):
    def forward(s, X):
        return torch.matrix_exp(X)


lay = nn.Linear(3, 3).to(dev)
P.register_parametrization(lay, "weight", Sym())
P.register_parametrization(lay, "weight", Exp())
print(lay, torch.dist(lay.weight, lay.weight.T) < 1e-5)
tried("noinv", lambda: setattr(lay, "weight", torch.ones(3, 3)))
tried("noname", lambda: P.register_parametrization(lay, "nope", Sym()))
tried("shape", lambda: P.register_parametrization(nn.Linear(3, 2), "weight", Sym()))
copy.deepcopy(lay)(x[:, :3]).sum().backward()
tried("pickle", lambda: __import__("pickle").dumps(lay))
# distillation + contrastive
T_, S_ = nn.Linear(5, 3).to(dev).eval(), nn.Linear(5, 3).to(dev)
with torch.no_grad():
    tl = T_(x)
kd = (
    nn.KLDivLoss(reduction="batchmean", log_target=False)(
        F.log_softmax(S_(x) / 3, 1), F.softmax(tl / 3, dim=1)
    )
    * 9
)
print(
    kd,
    F.kl_div(F.log_softmax(S_(x), 1), F.log_softmax(tl, 1), log_target=True, reduction="sum"),
    F.kl_div(F.log_softmax(S_(x), 1), F.softmax(tl, 1)),
)


def nt_xent(z1, z2, t=0.5):
    z = F.normalize(torch.cat([z1, z2]))
    s = z @ z.T / t
    n = len(z1)
    s.fill_diagonal_(-9e15)
    return F.cross_entropy(s, torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(dev))


def barlow(a, b):
    a, b = ((t - t.mean(0)) / t.std(0) for t in (a, b))
    c = a.T @ b / len(a)
    on = torch.diagonal(c).add_(-1).pow_(2).sum()
    off = c.flatten()[:-1].view(2, 4)[:, 1:].flatten().pow_(2).sum()
    return on + 0.005 * off


def vicreg(a):
    std = torch.sqrt(a.var(dim=0) + 1e-4)
    c = (a - a.mean(0)).T.cov()
    return F.relu(1 - std).mean(), c.fill_diagonal_(0).pow(2).sum()


def supcon(f, y):
    s = F.normalize(f) @ F.normalize(f).T / 0.1
    s = s - s.max(1, keepdim=True)[0].detach()
    mk = torch.eq(y[:, None], y[None]).float() * (1 - torch.eye(len(y), device=dev))
    e = s.exp() * (1 - torch.eye(len(y), device=dev))
    lp = s - e.sum(1, keepdim=True).log()
    return -(mk * lp).sum(1) / mk.sum(1).clamp(min=1)


a, b = S_(x), T_(x)
print(
    nt_xent(a, b),
    barlow(a.clone(), b),
    vicreg(a),
    supcon(a, lbl).mean(),
    nn.TripletMarginWithDistanceLoss(distance_function=lambda u, v: 1 - F.cosine_similarity(u, v), swap=True)(
        a, b, a.flip(0)
    ),
    F.pdist(a).sum(),
    torch.cdist(a, b, p=1).min(1),
    F.margin_ranking_loss(a[:, 0], b[:, 0], torch.sign(b[:, 0]), margin=0.1),
    F.multilabel_soft_margin_loss(a, (b > 0).float()),
    F.soft_margin_loss(a, (b > 0).float() * 2 - 1).item(),
)
q = F.normalize(torch.randn(4, 5), dim=1).to(dev)
k = F.normalize(torch.randn(4, 5), dim=1).to(dev)
queue = F.normalize(torch.randn(5, 8), dim=0).to(dev)
lp = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
ln = torch.einsum("nc,ck->nk", [q, queue.clone().detach()])
print(F.cross_entropy(torch.cat([lp, ln], 1) / 0.07, torch.zeros(4, dtype=torch.long).to(dev)))
queue[:, 0:4] = k.T
print(queue.norm(dim=0))

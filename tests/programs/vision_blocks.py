"""Windows that shift, ConvNeXt in channels_last, segmentation losses, SSIM, volume rendering."""

import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
dev = torch.device(sys.argv[1])
torch.manual_seed(31)


def window_partition(x, w):
    B, H, W, C = x.shape
    return x.view(B, H // w, w, W // w, w, C).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, w, w, C)


def window_reverse(win, w, H, W):
    B = int(win.shape[0] / (H * W / w / w))
    return win.view(B, H // w, W // w, w, w, -1).permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WA(nn.Module):
    def __init__(s, d, w, h):
        super().__init__()
        s.h, s.sc = h, (d // h) ** -0.5
        s.t = nn.Parameter(torch.zeros((2 * w - 1) ** 2, h))
        c = torch.stack(torch.meshgrid([torch.arange(w), torch.arange(w)], indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0).contiguous()
        r[:, :, 0] += w - 1
        r[:, :, 1] += w - 1
        r[:, :, 0] *= 2 * w - 1
        s.register_buffer("idx", r.sum(-1))
        s.qkv = nn.Linear(d, d * 3)
        s.proj = nn.Linear(d, d)
        nn.init.trunc_normal_(s.t, std=0.02)

    def forward(s, x, mask=None):
        B, N, C = x.shape
        q, k, v = s.qkv(x).reshape(B, N, 3, s.h, C // s.h).permute(2, 0, 3, 1, 4).unbind(0)
        a = (q * s.sc) @ k.transpose(-2, -1) + s.t[s.idx.view(-1)].view(N, N, -1).permute(
            2, 0, 1
        ).contiguous().unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            a = a.view(B // nW, nW, s.h, N, N) + mask.unsqueeze(1).unsqueeze(0)
            a = a.view(-1, s.h, N, N)
        return s.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(B, N, C))


class Swin(nn.Module):
    def __init__(s, d=8, w=4, H=8, shift=2):
        super().__init__()
        s.n1 = nn.LayerNorm(d)
        s.a = WA(d, w, 2)
        s.n2 = nn.LayerNorm(d)
        s.m = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        s.w, s.shift = w, shift
        m = torch.zeros((1, H, H, 1))
        cnt = 0
        for h in (slice(0, -w), slice(-w, -shift), slice(-shift, None)):
            for u in (slice(0, -w), slice(-w, -shift), slice(-shift, None)):
                m[:, h, u, :] = cnt
                cnt += 1
        mw = window_partition(m, w).view(-1, w * w)
        am = mw.unsqueeze(1) - mw.unsqueeze(2)
        s.register_buffer("mask", am.masked_fill(am != 0, (-100.0)).masked_fill(am == 0, 0.0))

    def forward(s, x):
        _B, H, W, C = x.shape
        sc = x
        x = torch.roll(s.n1(x), shifts=(-s.shift, -s.shift), dims=(1, 2))
        y = s.a(window_partition(x, s.w).view(-1, s.w**2, C), s.mask)
        x = torch.roll(window_reverse(y.view(-1, s.w, s.w, C), s.w, H, W), (s.shift, s.shift), (1, 2)) + sc
        return x + s.m(s.n2(x))


sw = Swin().to(dev)
x = torch.randn(2, 8, 8, 8).to(dev)
o = sw(x)
o.pow(2).mean().backward()
print(o.mean(), sw.a.t.grad.norm(), sw.mask.unique())


class LN2d(nn.LayerNorm):
    def forward(s, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
        s.n = LN2d(d)
        s.p1 = nn.Conv2d(d, 4 * d, 1)
        s.p2 = nn.Conv2d(4 * d, d, 1)
        s.g = nn.Parameter(1e-1 * torch.ones(d))
        s.grn = nn.Parameter(torch.zeros(1, 4 * d, 1, 1))

    def forward(s, x):
        h = F.gelu(s.p1(s.n(s.dw(x))))
        gx = torch.norm(h, p=2, dim=(2, 3), keepdim=True)
        nx = gx / (gx.mean(1, keepdim=True) + 1e-6)
        h = s.grn * (h * nx) + h
        return x + s.g[:, None, None] * s.p2(h)


cn = ConvNeXt(6).to(dev).to(memory_format=torch.channels_last)
im = torch.randn(2, 6, 8, 8).to(dev).contiguous(memory_format=torch.channels_last).requires_grad_()
o = cn(im)
o.square().sum().backward()
print(
    o.is_contiguous(memory_format=torch.channels_last),
    o.stride(),
    im.grad.norm(),
    cn.grn.grad.norm(),
    cn.dw.weight.grad.stride(),
)


class CBAM(nn.Module):
    def __init__(s, c, r=2):
        super().__init__()
        s.mlp = nn.Sequential(
            nn.Conv2d(c, c // r, 1, bias=False), nn.ReLU(), nn.Conv2d(c // r, c, 1, bias=False)
        )
        s.sp = nn.Conv2d(2, 1, 7, padding=3)

    def forward(s, x):
        x = x * torch.sigmoid(s.mlp(F.adaptive_avg_pool2d(x, 1)) + s.mlp(F.adaptive_max_pool2d(x, 1)))
        return x * torch.sigmoid(s.sp(torch.cat([x.mean(1, True), x.max(1, True)[0]], 1)))


class ASPP(nn.Module):
    def __init__(s, c):
        super().__init__()
        s.b = nn.ModuleList(
            [nn.Conv2d(c, 4, 3 if d > 1 else 1, padding=d if d > 1 else 0, dilation=d) for d in (1, 2, 3)]
        )
        s.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, 4, 1))
        s.o = nn.Conv2d(16, 3, 1)

    def forward(s, x):
        return s.o(
            torch.cat(
                [b(x) for b in s.b]
                + [F.interpolate(s.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False)],
                1,
            )
        )


net = nn.Sequential(CBAM(6), ASPP(6)).to(dev)
lg = net(im.detach())
t = torch.randint(0, 3, (2, 8, 8))
t[0, 0, 0] = 255
t = t.to(dev)


def focal(lg, t, g=2.0):
    ce = F.cross_entropy(lg, t, reduction="none", ignore_index=255)
    return ((1 - torch.exp(-ce)) ** g * ce)[t != 255].mean()


def lovasz_grad(gt):
    p = len(gt)
    g = gt.sum()
    i = g - gt.float().cumsum(0)
    u = g + (1 - gt).float().cumsum(0)
    j = 1.0 - i / u
    j[1:p] = j[1:p] - j[0:-1]
    return j


def lovasz(pr, lb):
    C = pr.size(1)
    pr = pr.permute(0, 2, 3, 1).reshape(-1, C)
    lb = lb.view(-1)
    v = lb != 255
    pr, lb = pr[v], lb[v]
    L = []
    for c in range(C):
        fg = (lb == c).float()
        e = (fg - pr[:, c]).abs()
        es, perm = torch.sort(e, 0, descending=True)
        L.append(torch.dot(es, lovasz_grad(fg[perm])))
    return torch.stack(L).mean()


def ohem(lg, t):
    l = F.cross_entropy(lg, t, ignore_index=255, reduction="none").view(-1)
    k = int(0.5 * l.numel())
    return torch.topk(l, k)[0].mean()


l = (
    focal(lg, t)
    + lovasz(F.softmax(lg, 1), t)
    + ohem(lg, t)
    + F.cross_entropy(
        lg, t, ignore_index=255, weight=torch.tensor([1.0, 2, 3], device=dev), label_smoothing=0.05
    )
)
l.backward()
print(l, net[1].o.weight.grad.norm(), net[0].sp.bias.grad)


def gauss(ws, sg):
    g = torch.tensor([math.exp(-((i - ws // 2) ** 2) / float(2 * sg**2)) for i in range(ws)])
    return g / g.sum()


def ssim(a, b, ws=5):
    c = a.size(1)
    k = gauss(ws, 1.5).unsqueeze(1)
    w = k.mm(k.t()).float().unsqueeze(0).unsqueeze(0).expand(c, 1, ws, ws).contiguous().type_as(a)
    f = lambda t: F.conv2d(t, w, padding=ws // 2, groups=c)
    m1, m2 = f(a), f(b)
    s1, s2, s12 = f(a * a) - m1.pow(2), f(b * b) - m2.pow(2), f(a * b) - m1 * m2
    return (
        ((2 * m1 * m2 + 1e-4) * (2 * s12 + 9e-4)) / ((m1.pow(2) + m2.pow(2) + 1e-4) * (s1 + s2 + 9e-4))
    ).mean()


a, b = torch.rand(2, 3, 12, 12).to(dev), torch.rand(2, 3, 12, 12).to(dev)
print(ssim(a, b), -10 * torch.log10(F.mse_loss(a, b)), F.l1_loss(a, b))
sob = torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]]).to(dev)
gx = F.conv2d(a.mean(1, keepdim=True), sob[None, None], padding=1)
gy = F.conv2d(a.mean(1, keepdim=True), sob.t()[None, None], padding=1)
print(torch.hypot(gx, gy).mean(), torch.atan2(gy, gx).std())
rois = torch.tensor([[1.0, 1, 6, 5], [0, 2, 8, 9]]).to(dev)
S = 3
gr = torch.stack(
    [
        torch.stack(
            torch.meshgrid(
                torch.linspace(r[1].item(), r[3].item(), S),
                torch.linspace(r[0].item(), r[2].item(), S),
                indexing="ij",
            )[::-1],
            -1,
        )
        for r in rois
    ]
).to(dev)
print(
    F.grid_sample(
        a[:1].expand(2, -1, -1, -1),
        gr / 11 * 2 - 1,
        align_corners=True,
        mode="bilinear",
        padding_mode="zeros",
    ).sum((1, 2, 3))
)
print(
    [
        F.interpolate(a, scale_factor=1.5, mode=m, **k).mean().item()
        for m, k in (
            ("nearest", {}),
            ("bilinear", {"align_corners": False}),
            ("bicubic", {"align_corners": True}),
            ("area", {}),
            ("nearest-exact", {}),
        )
    ],
    F.interpolate(a, size=5, mode="bilinear", antialias=True).mean(),
    F.interpolate(a[:, :, 0], size=7, mode="linear").mean(),
    F.interpolate(a[:, None], scale_factor=(1, 2, 2), mode="trilinear").shape,
)
p = F.unfold(a, 4, stride=4)
print(
    p.shape,
    F.fold(p, (12, 12), 4, stride=4).equal(a),
    a.unfold(2, 4, 4).unfold(3, 4, 4).shape,
    F.pixel_unshuffle(a, 2).shape,
    F.pad(a, (1, 2, 3, 0), "reflect").sum(),
    F.pad(a, (1, 1, 1, 1), "circular").sum(),
    F.pad(a, (-1, -2)).shape,
    F.max_pool2d(a, 3, 2, 1, return_indices=True)[1].sum(),
    F.lp_pool2d(a, 2, 2).mean(),
    F.avg_pool2d(a, 3, 2, 1, count_include_pad=False, divisor_override=2).mean(),
    F.adaptive_avg_pool2d(a, (5, 7)).sum(),
    F.local_response_norm(a, 3).sum(),
    F.fractional_max_pool2d(
        a, 2, output_ratio=(0.5, 0.5), _random_samples=torch.full((2, 3, 2), 0.3).to(dev)
    ).sum(),
)


def nerf(d=8, n=6):
    o, dr = torch.zeros(d, 3, device=dev), F.normalize(torch.randn(d, 3), dim=-1).to(dev)
    tv = torch.linspace(0.1, 1, n).to(dev).expand(d, n)
    pts = o[:, None] + dr[:, None] * tv[..., None]
    enc = torch.cat(
        [pts] + [fn(2.0**i * math.pi * pts) for i in range(3) for fn in (torch.sin, torch.cos)], -1
    )
    mlp = nn.Sequential(nn.Linear(21, 16), nn.ReLU(), nn.Linear(16, 4)).to(dev)
    raw = mlp(enc)
    dists = torch.cat([tv[:, 1:] - tv[:, :-1], torch.full((d, 1), 1e10, device=dev)], -1)
    al = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
    w = al * torch.cumprod(torch.cat([torch.ones((d, 1), device=dev), 1.0 - al + 1e-10], -1), -1)[:, :-1]
    rgb = (w[..., None] * torch.sigmoid(raw[..., :3])).sum(-2)
    rgb.mean().backward()
    bins = 0.5 * (tv[:, 1:] + tv[:, :-1])
    pdf = w[:, 1:-1].detach() + 1e-5
    cdf = torch.cumsum(pdf / pdf.sum(-1, keepdim=True), -1)
    cdf = torch.cat([torch.zeros_like(cdf[:, :1]), cdf], -1)
    u = torch.linspace(0.0, 1.0, 5).expand(d, 5).contiguous().to(dev)
    i = torch.searchsorted(cdf, u, right=True)
    lo, hi = (i - 1).clamp(min=0), torch.min((cdf.shape[-1] - 1) * torch.ones_like(i), i)
    g = torch.stack([lo, hi], -1)
    cg = torch.gather(cdf.unsqueeze(1).expand(d, 5, cdf.shape[-1]), 2, g)
    print(rgb[0], w.sum(-1)[:3], mlp[0].weight.grad.norm(), cg.sum(), bins.shape)


nerf()

"""A vision transformer, groups of parameters, SequentialLR; the Transformer modules."""

import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

device = sys.argv[1]
torch.manual_seed(42)


class PatchEmbed(nn.Module):
    def __init__(self, img=16, patch=4, c=3, d=24):
        super().__init__()
        self.proj = nn.Conv2d(c, d, patch, patch)
        self.n = (img // patch) ** 2

    def forward(self, x):
        return self.proj(x).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.h, C // self.h).permute(2, 0, 3, 1, 4).unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.norm1 = nn.LayerNorm(d, eps=1e-6)
        self.attn = Attention(d, h)
        self.norm2 = nn.LayerNorm(d, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.0), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    def __init__(self, d=24, depth=2, heads=4, classes=5):
        super().__init__()
        self.patch = PatchEmbed(d=d)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.zeros(1, self.patch.n + 1, d))
        self.blocks = nn.ModuleList([Block(d, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, classes)
        nn.init.trunc_normal_(self.pos, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(self._init)

    def _init(self, m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_uniform_(m.weight)
            if m.bias is not None:
                nn.init.zeros_(m.bias)

    def forward(self, x):
        x = self.patch(x)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        for b in self.blocks:
            x = b(x)
        return self.head(self.norm(x)[:, 0])


m = ViT().to(device)
print(m)
decay = [p for p in m.parameters() if p.ndim >= 2]
rest = [p for p in m.parameters() if p.ndim < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}], lr=1e-3
)
w = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=3)
c = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 5)
s = torch.optim.lr_scheduler.SequentialLR(opt, [w, c], milestones=[3])
for i in range(8):
    x = torch.randn(4, 3, 16, 16).to(device)
    y = torch.randint(5, (4,)).to(device)
    loss = F.cross_entropy(m(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    s.step()
    print(f"{i} {loss:.5f}", [round(v, 8) for v in s.get_last_lr()])
print(opt)
enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2).to(device)
x = torch.randn(2, 5, 8).to(device)
mask = nn.Transformer.generate_square_subsequent_mask(5).to(device)
o = enc(x, mask=mask, is_causal=True)
print(o.sum().item(), o.std().item())
o.pow(2).sum().backward()
print(enc.layers[0].self_attn.in_proj_weight.grad.abs().sum().item())
mha = nn.MultiheadAttention(8, 2, batch_first=True).to(device)
o, wts = mha(x, x, x, key_padding_mask=torch.tensor([[0, 0, 0, 1, 1], [0] * 5]).bool().to(device))
print(o.norm().item(), wts[0, 0])
tr = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0).to(device)
print(tr(torch.randn(5, 2, 8).to(device), torch.randn(3, 2, 8).to(device)).norm().item())

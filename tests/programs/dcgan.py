"""A convolutional GAN with a spectral norm, and a gradient penalty, which is differentiated twice."""

import sys

import torch
import torch.nn as nn
import torch.optim as optim

torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

dev = torch.device(sys.argv[1])
torch.manual_seed(999)
nz, ngf, ndf, nc = 16, 8, 8, 1


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.utils.spectral_norm(nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False)),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, input):
        return self.main(input)


G = Generator().apply(weights_init).to(dev)
D = Discriminator().to(dev)

print(G)
print(D)
criterion = nn.BCELoss()
oD = optim.Adam(D.parameters(), lr=0.0002, betas=(0.5, 0.999))
oG = optim.Adam(G.parameters(), lr=0.0002, betas=(0.5, 0.999))
fixed = torch.randn(4, nz, 1, 1).to(dev)
for i in range(6):
    D.zero_grad()
    real = torch.randn(8, nc, 16, 16).to(dev)
    label = torch.full((8,), 1.0, dtype=torch.float, device=dev)
    out = D(real).view(-1)
    errD_real = criterion(out, label)
    errD_real.backward()
    D_x = out.mean().item()
    noise = torch.randn(8, nz, 1, 1).to(dev)
    fake = G(noise)
    label.fill_(0.0)
    out = D(fake.detach()).view(-1)
    errD_fake = criterion(out, label)
    errD_fake.backward()
    D_G_z1 = out.mean().item()
    errD = errD_real + errD_fake
    oD.step()
    G.zero_grad()
    label.fill_(1.0)
    out = D(fake).view(-1)
    errG = criterion(out, label)
    errG.backward()
    oG.step()
    print(
        "[%d/6] Loss_D: %.4f Loss_G: %.4f D(x): %.4f D(G(z)): %.4f / %.4f"
        % (i, errD.item(), errG.item(), D_x, D_G_z1, out.mean().item())
    )
with torch.no_grad():
    f = G(fixed).detach().cpu()
print(f.shape, f.mean(), f.std())
# gradient penalty (WGAN-GP): double backward
alpha = torch.rand(8, 1, 1, 1).to(dev)
x = (alpha * real + (1 - alpha) * fake.detach()).requires_grad_(True)
d = D.main[:2](x)
(g,) = torch.autograd.grad(d, x, torch.ones_like(d), create_graph=True, retain_graph=True, only_inputs=True)
gp = ((g.view(8, -1).norm(2, dim=1) - 1) ** 2).mean()
D.zero_grad()
gp.backward()
print(gp.item(), D.main[0].weight.grad.norm().item())

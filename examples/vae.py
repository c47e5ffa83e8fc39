"""Learn to draw handwritten digits: a variational autoencoder, an ordinary torch program.

An encoder gives each image (8 x 8 pixels, as scikit-learn ships them) a mean and a variance in a plane of a few
dimensions; a decoder draws the image again from a point nearby. Afterwards points drawn at random are digits too.
"""

import argparse
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, pixels: int = 64, hidden: int = 128, latent: int = 8) -> None:
        super().__init__()
        self.latent = latent
        self.encoder = nn.Sequential(nn.Linear(pixels, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, pixels))

    def forward(self, images: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, logvar = self.encoder(images).chunk(2, dim=1)
        return self.decoder(mean + noise * torch.exp(0.5 * logvar)), mean, logvar


def loss_of(
    logits: torch.Tensor, images: torch.Tensor, mean: torch.Tensor, logvar: torch.Tensor
) -> torch.Tensor:
    """Nats per image: how badly it was drawn, and how far its place is from a standard normal distribution's."""
    drawn = F.binary_cross_entropy_with_logits(logits, images, reduction="sum")
    placed = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
    return (drawn + placed) / len(images)


def train(
    model: VAE, loader: DataLoader[Any], optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> None:
    step = 0
    for epoch in range(args.epochs):
        total, seen = torch.zeros((), device=args.device), 0
        for (images,) in loader:
            # Random numbers come from the CPU's generator, so that every device learns from the same ones.
            noise = torch.randn(len(images), model.latent).to(args.device, non_blocking=True)
            images = images.to(args.device, non_blocking=True)
            logits, mean, logvar = model(images, noise)
            loss = loss_of(logits, images, mean, logvar)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() * len(images)
            seen += len(images)
            if args.every and step % args.every == 0:
                print(f"step {step:4}  loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                return
        print(f"epoch {epoch + 1:2}  loss {total.item() / seen:.4f}")


@torch.no_grad()
def show(model: VAE, count: int, device: str) -> None:
    """Print generated digits as text."""
    drawn = torch.sigmoid(model.decoder(torch.randn(count, model.latent).to(device))).cpu().view(count, 8, 8)
    for row in range(8):
        shades = (drawn[:, row] * 4.99).int().tolist()
        print("   ".join("".join(" .:oO"[shade] * 2 for shade in line) for line in shades))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=0, help="print the loss of every n-th step too")
    parser.add_argument("--tf32", action="store_true", help="let GPUs round what they multiply to TF32")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.manual_seed(args.seed)
    images = torch.from_numpy(load_digits(return_X_y=True)[0]).float() / 16
    loader = DataLoader(
        TensorDataset(images), args.batch_size, shuffle=True, pin_memory=args.device.startswith("cuda")
    )
    model = VAE().to(args.device)
    train(model, loader, torch.optim.Adam(model.parameters(), lr=args.lr), args)
    show(model, 6, args.device)


if __name__ == "__main__":
    main()

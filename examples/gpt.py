"""Learn to write like Python's manual: a character-level GPT, an ordinary torch program.

The text is the documentation that Python itself ships (`pydoc_data.topics`). The model predicts each character
from those before it.
"""

import argparse
import math
from collections.abc import Iterator
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # each (batch, heads, length, width / heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        projected: torch.Tensor = self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return projected


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x


class GPT(nn.Module):
    def __init__(self, symbols: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(symbols, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if name.endswith("proj.weight") else 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(x) + self.places(places))))
        return logits

    @torch.no_grad()
    def write(self, x: torch.Tensor, count: int) -> torch.Tensor:
        """Return x (1, length) with `count` more characters, each drawn from the model's distribution."""
        for _ in range(count):
            odds = torch.softmax(self(x[:, -self.context :])[:, -1], dim=-1)
            x = torch.cat([x, torch.multinomial(odds.cpu(), 1).to(x.device)], dim=1)
        return x


def batches(data: torch.Tensor, args: argparse.Namespace) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Random windows of the text, and the same windows one character later. Drawn on the CPU."""
    for _ in range(args.steps):
        starts = torch.randint(len(data) - args.context, (args.batch_size,))
        windows = data[starts[:, None] + torch.arange(args.context + 1)]
        if args.device.startswith("cuda"):
            windows = windows.pin_memory().to(args.device, non_blocking=True)
        yield windows[:, :-1], windows[:, 1:]


def train(model: GPT, data: torch.Tensor, optimizer: torch.optim.Optimizer, args: argparse.Namespace) -> None:
    for step, (x, y) in enumerate(batches(data, args)):
        logits = model(x)
        loss = F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % args.every == 0 or step == args.steps - 1:
            print(f"step {step:4}  loss {loss.item():.6f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=20, help="print the loss of every n-th step")
    parser.add_argument("--write", type=int, default=200, help="how many characters to write in the end")
    parser.add_argument("--tf32", action="store_true", help="let GPUs round what they multiply to TF32")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.manual_seed(args.seed)
    text = "\n".join(topics[name] for name in sorted(topics))
    symbols = sorted(set(text))
    numbers = {c: i for i, c in enumerate(symbols)}
    data = torch.tensor([numbers[c] for c in text])

    model = GPT(len(symbols), args.context, args.width, args.heads, args.layers).to(args.device)
    train(model, data, torch.optim.AdamW(model.parameters(), lr=args.lr), args)
    start = torch.tensor([[numbers["\n"]]], device=args.device)
    print("".join(symbols[i] for i in model.write(start, args.write)[0].tolist()).strip())


if __name__ == "__main__":
    main()

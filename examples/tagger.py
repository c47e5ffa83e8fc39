"""Colour Python source without a parser: an LSTM tagger, an ordinary torch program.

The lines of some modules of Python's standard library are read character by character, in both directions; each
character is tagged as a part of a keyword, a name, a number, a string, a comment, an operator or of nothing. The right
tags are those of Python's own `tokenize`.
"""

import argparse
import importlib
import inspect
import io
import keyword
import tokenize
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, random_split

MODULES = ["bisect", "heapq", "textwrap", "shlex", "sched", "queue", "string", "colorsys"]
TAGS = ["nothing", "keyword", "name", "number", "string", "comment", "operator"]
PADDING = -100  # a tag that losses ignore
MOST = 60  # characters of a line


def tag_of(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return "keyword" if keyword.iskeyword(token.string) else "name"
    kinds = {
        tokenize.NUMBER: "number",
        tokenize.STRING: "string",
        tokenize.COMMENT: "comment",
        tokenize.OP: "operator",
    }
    return kinds.get(token.type, "nothing")


def tagged_lines(name: str) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (characters, tags) of each line of a module's source that is not empty."""
    text = inspect.getsource(importlib.import_module(name))
    lines = text.splitlines()
    tags = [[0] * len(line) for line in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (top, left), (bottom, right) = token.start, token.end
        for row, line in enumerate(lines[top - 1 : bottom], top):
            start = left if row == top else 0
            end = min(right, len(line)) if row == bottom else len(line)
            tags[row - 1][start:end] = [TAGS.index(tag_of(token))] * (end - start)
    for line, line_tags in zip(lines, tags):
        if line.strip():
            codes = torch.tensor([min(ord(c), 127) for c in line[:MOST]])
            yield codes, torch.tensor(line_tags[:MOST])


class Tagger(nn.Module):
    def __init__(self, width: int = 24, hidden: int = 48) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, width)
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, codes: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.characters(codes), lengths, batch_first=True, enforce_sorted=False)
        read, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        scores: torch.Tensor = self.scores(read)
        return scores


def together(
    lines: list[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lines of several lengths as one batch: codes, tags, and the lengths, which stay on the CPU."""
    codes, tags = zip(*lines)
    lengths = torch.tensor([len(c) for c in codes])
    return pad_sequence(codes, batch_first=True), pad_sequence(tags, True, PADDING), lengths


def train(
    model: Tagger, loader: DataLoader[Any], optimizer: torch.optim.Optimizer, args: argparse.Namespace
) -> None:
    step = 0
    for epoch in range(args.epochs):
        loss = torch.zeros(())
        for codes, tags, lengths in loader:
            codes = codes.to(args.device, non_blocking=True)
            tags = tags.to(args.device, non_blocking=True)
            scores = model(codes, lengths)
            loss = F.cross_entropy(scores.flatten(0, 1), tags.flatten(), ignore_index=PADDING)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if args.every and step % args.every == 0:
                print(f"step {step:4}  loss {loss.item():.6f}")
            step += 1
            if step == args.steps:
                return
        print(f"epoch {epoch + 1:2}  loss {loss.item():.4f}")


@torch.no_grad()
def share_right(model: Tagger, loader: DataLoader[Any], device: str) -> float:
    right = total = 0
    for codes, tags, lengths in loader:
        guesses = model(codes.to(device), lengths).argmax(-1).cpu()
        right += (guesses == tags).sum().item()
        total += (tags != PADDING).sum().item()
    return right / total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=0, help="print the loss of every n-th step too")
    parser.add_argument("--tf32", action="store_true", help="let GPUs round what they multiply to TF32")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.manual_seed(args.seed)
    lines = [line for name in MODULES for line in tagged_lines(name)]
    unseen = len(lines) // 8
    tests, lessons = random_split(lines, [unseen, len(lines) - unseen])
    given = {"collate_fn": together, "pin_memory": args.device.startswith("cuda")}
    model = Tagger().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    train(model, DataLoader(lessons, args.batch_size, shuffle=True, **given), optimizer, args)
    right = share_right(model, DataLoader(tests, 128, **given), args.device)
    print(f"{right:.1%} of the characters of {unseen} unseen lines tagged right")


if __name__ == "__main__":
    main()

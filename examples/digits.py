"""Classify real handwritten digits with a convolutional network on all GPUs: an ordinary torch program.

Each GPU has its part of the 1,797 digits of UCI's set (8 x 8 pixels, as scikit-learn ships them) and its own copy of
the network; after each epoch all go on from the mean of their weights. Batches are copied on a copy
stream while the default stream computes with the batch before; the one `wait_stream` below is what makes that right.
"""

import argparse
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TESTS = 297


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.hidden = nn.Linear(32 * 4 * 4, 64)
        self.scores = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        scores: torch.Tensor = self.scores(F.relu(self.hidden(x.flatten(1))))
        return scores


class Worker:
    """One device: its part of the data, its network, and on a GPU a stream that copies."""

    def __init__(
        self, device: str, data: TensorDataset, start: dict[str, torch.Tensor], args: argparse.Namespace
    ) -> None:
        self.device = torch.device(device)
        on_gpu = self.device.type == "cuda"
        self.loader = DataLoader(data, args.batch_size, shuffle=True, drop_last=True, pin_memory=on_gpu)
        self.copies = torch.cuda.Stream(self.device) if on_gpu else None
        self.net = Net()
        self.net.load_state_dict(start)
        self.net.to(self.device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=args.lr, momentum=0.9)

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each batch of this epoch, on the device."""
        for batch in self.loader:
            with torch.cuda.stream(self.copies):
                images, labels = [t.to(self.device, non_blocking=True) for t in batch]
            if self.copies is not None:
                compute = torch.cuda.current_stream(self.device)
                compute.wait_stream(self.copies)
                images.record_stream(compute)
                labels.record_stream(compute)
            yield images, labels

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.net(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def correct(self, images: torch.Tensor, labels: torch.Tensor) -> int:
        guesses: torch.Tensor = self.net(images.to(self.device)).argmax(1)
        return int((guesses == labels.to(self.device)).sum())


@torch.no_grad()
def average(workers: list[Worker]) -> None:
    """Set the weights of all networks to their mean."""
    for replicas in zip(*[w.net.parameters() for w in workers]):
        first = replicas[0]
        for other in replicas[1:]:
            first += other.to(first.device)
        first /= len(replicas)
        for other in replicas[1:]:
            other.copy_(first)


def train(workers: list[Worker], args: argparse.Namespace) -> None:
    step = 0
    for epoch in range(args.epochs):
        losses = []
        for batches in zip(*[w.batches() for w in workers]):
            losses = [w.step(*batch) for w, batch in zip(workers, batches)]
            if args.every and step % args.every == 0:
                print(f"step {step:4}  loss {losses[0].item():.6f}")
            step += 1
            if step == args.steps:
                return
        average(workers)
        print(f"epoch {epoch + 1:2}  loss {losses[0].item():.4f}")


def main() -> None:
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", nargs="+", default=gpus or ["cpu"])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="stop after so many steps")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=0, help="print the loss of every n-th step too")
    parser.add_argument("--tf32", action="store_true", help="let GPUs round what they multiply to TF32")
    args = parser.parse_args()

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    torch.manual_seed(args.seed)
    pixels, target = load_digits(return_X_y=True)
    order = torch.randperm(len(target))
    images = (torch.from_numpy(pixels).float() / 16).view(-1, 1, 8, 8)[order]
    labels = torch.from_numpy(target)[order]
    tests, answers = images[:TESTS], labels[:TESTS]
    start, count = Net().state_dict(), len(args.devices)
    parts = [TensorDataset(images[TESTS + i :: count], labels[TESTS + i :: count]) for i in range(count)]
    workers = [Worker(device, part, start, args) for device, part in zip(args.devices, parts)]

    train(workers, args)
    shares = zip(workers, tests.chunk(count), answers.chunk(count))
    right = sum(worker.correct(*share) for worker, *share in shares)
    print(f"{right} of {TESTS} unseen digits recognized: {right / TESTS:.1%}")


if __name__ == "__main__":
    main()

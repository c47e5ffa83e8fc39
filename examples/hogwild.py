"""Hogwild: processes train one network concurrently, without a lock, as in PyTorch's multiprocessing best practices.

The parameters lie in shared memory: what one process writes, all others see. The digits are UCI's (8 x 8 pixels, as
scikit-learn ships them), shared too; each process says by a queue what it has reached.
"""

import argparse
from typing import Any

import torch
import torch.multiprocessing as mp
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

TESTS = 297


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


def train(
    rank: int,
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    queue: Any,
    args: argparse.Namespace,
) -> None:
    """Train in one process: the order of the digits and the optimizer are its own, the parameters are shared."""
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        total = 0.0
        for batch in torch.randperm(len(images)).split(args.batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()  # this updates the shared parameters
            total += loss.item() * len(batch)
        queue.put((rank, epoch, total / len(images)))
    queue.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--start-method", default="spawn", choices=mp.get_all_start_methods())
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    context = mp.get_context(args.start_method)
    images, labels = digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for value in (images, labels):
        value.share_memory_()
    model.share_memory()  # the fork method wants it; the others do it when they send the model
    queue = context.Queue()
    data = (images[:-TESTS], labels[:-TESTS])
    processes = [
        context.Process(target=train, args=(rank, model, *data, queue, args))
        for rank in range(args.processes)
    ]
    for process in processes:
        process.start()
    left = len(processes)
    while left:
        told = queue.get()
        if told is None:
            left -= 1
        else:
            print("process {}, epoch {}: loss {:.3f}".format(*told))
    for process in processes:
        process.join()

    with torch.no_grad():
        right = int((model(images[-TESTS:]).argmax(1) == labels[-TESTS:]).sum())
    print(f"{right} of {TESTS} unseen digits recognized: {right / TESTS:.1%}")


if __name__ == "__main__":
    main()

"""Classify handwritten digits by softmax regression on two GPUs, its gradient written out: a torch program.

The 1,797 digits of UCI's set (8 x 8 pixels, as scikit-learn ships them) train a softmax regression, its gradient
written out. Batches travel from pinned memory on a copy stream while a compute stream works on the batch before;
the one `wait_stream` below is what makes that right.
"""

import torch
from sklearn.datasets import load_digits

EPOCHS, BATCH, RATE = 12, 64, 0.5


def pinned_batches(images: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Equal batches in page-locked memory, so that copies to a GPU overlap computation."""
    return [
        (images[i : i + BATCH].pin_memory(), labels[i : i + BATCH].pin_memory())
        for i in range(0, len(images) - BATCH + 1, BATCH)
    ]


class Worker:
    """One GPU: its part of the data, its copy of the weights, a stream to copy and a stream to compute."""

    def __init__(self, index: int, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.device = torch.device("cuda", index)
        self.batches = pinned_batches(images, labels)
        self.copies = torch.cuda.Stream(self.device)
        self.compute = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self.compute):
            self.weights = torch.zeros(images.shape[1], 10, device=self.device)

    def epoch(self) -> None:
        for images, labels in self.batches:
            with torch.cuda.stream(self.copies):
                x = images.to(self.device, non_blocking=True)
                y = labels.to(self.device, non_blocking=True)
            self.compute.wait_stream(self.copies)
            with torch.cuda.stream(self.compute):
                x.record_stream(self.compute)
                y.record_stream(self.compute)
                self.step(x, y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Take one step of gradient descent on the mean cross-entropy: d/dW = x^T (softmax(x W) - y) / n."""
        self.weights -= RATE / len(x) * (x.t() @ (self.probabilities(x) - y))

    def probabilities(self, x: torch.Tensor) -> torch.Tensor:
        scores = x @ self.weights
        scores = (scores - scores.amax(1, keepdim=True)).exp()
        return scores / scores.sum(1, keepdim=True)

    def correct(self, images: torch.Tensor, labels: torch.Tensor) -> int:
        with torch.cuda.stream(self.compute):
            guesses = self.probabilities(images.to(self.device)).argmax(1)
            return int((guesses == labels.to(self.device)).sum())


def average(first: Worker, second: Worker) -> None:
    """Both GPUs go on from the mean of their weights. Copies between GPUs are ordered on both current streams."""
    with torch.cuda.stream(second.compute), torch.cuda.stream(first.compute):
        first.weights += second.weights.to(first.device)
        first.weights /= 2
        second.weights.copy_(first.weights)


def main() -> None:
    pixels, target = load_digits(return_X_y=True)
    torch.manual_seed(0)
    order = torch.randperm(len(pixels))
    images = (torch.from_numpy(pixels).float() / 16)[order]
    images = torch.cat([images, torch.ones(len(images), 1)], 1)  # a constant pixel stands for the bias
    labels = torch.from_numpy(target)[order]
    one_hot = (labels[:, None] == torch.arange(10)).float()

    half, train = 750, 1500
    first = Worker(0, images[:half], one_hot[:half])
    second = Worker(1, images[half:train], one_hot[half:train])
    for _ in range(EPOCHS):
        first.epoch()
        second.epoch()
        average(first, second)

    tests, answers = images[train:], labels[train:]
    middle = len(tests) // 2
    right = first.correct(tests[:middle], answers[:middle]) + second.correct(tests[middle:], answers[middle:])
    print(f"{right} of {len(tests)} unseen digits recognized: {right / len(tests):.1%}")


if __name__ == "__main__":
    main()

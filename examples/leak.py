"""Validation that keeps the graph of every batch alive, until memory runs out.

`flambeau run examples/leak.py` ends with the error, which names the line; `flambeau memory leak.pickle` draws what led
to it; with `--fixed` it runs to its end.
"""

import argparse

import torch


def validate(model: torch.nn.Module, batches: int, fixed: bool) -> torch.Tensor:
    total = torch.zeros((), device="cuda")
    for _ in range(batches):
        x = torch.randn(4096, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        total += loss.detach() if fixed else loss  # the sum's graph leads to those of all batches
    return total / batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fixed", action="store_true", help="add numbers, not what they came from")
    parser.add_argument("--snapshot", default="leak.pickle", help="written when memory runs out")
    args = parser.parse_args()
    torch.manual_seed(0)
    memory = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(512 * 2**20 / memory)  # a small GPU
    torch.cuda.memory._record_memory_history()
    layers = [torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)]
    model = torch.nn.Sequential(*layers).cuda()
    try:
        print(f"mean loss {validate(model, 100, args.fixed).item():.4f}")
    except torch.cuda.OutOfMemoryError:
        torch.cuda.memory._dump_snapshot(args.snapshot)
        raise


if __name__ == "__main__":
    main()

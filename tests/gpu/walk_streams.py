"""Which streams are current in PyTorch's backward functions: random programs on two GPUs beside the rule of the tests.

    python tests/gpu/walk_streams.py [programs]

The exit status is 1 if PyTorch differs from the rule of tests/autograd/streams_programs.py anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from autograd.streams_programs import streams_program


def main() -> int:
    """Run `programs` random programs; print the count of functions and differences."""
    functions = differ = 0
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
        seen, expected = streams_program(torch, seed)
        functions += len(expected)
        differ += sum(seen.get(number) != each for number, each in expected.items())
    print(f"PyTorch {torch.__version__}: {functions} functions, {differ} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())

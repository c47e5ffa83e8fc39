"""On which stream PyTorch accumulates a leaf's gradient: random programs on a GPU beside the reference of the tests.

    python tests/gpu/leaf_streams.py [programs]

PyTorch (2.10 or later) warns where the stream of an `AccumulateGrad` node is not that of the node before it; the reference
of tests/autograd/leaf_programs.py says where. The exit status is 1 if they differ anywhere.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from autograd.leaf_programs import programs


def main() -> int:
    """Compare `programs` random programs, print the count of comparisons and differences."""
    torch.set_warn_always(True)
    tried = crossed = differ = 0
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 200):
        for _, _, crosses, warns in programs(torch, seed):
            tried += 1
            crossed += crosses
            differ += warns() != crosses
    torch.cuda.synchronize()
    print(f"PyTorch {torch.__version__}: {tried} backward passes, {crossed} cross streams, {differ} differ")
    return int(differ > 0 or not crossed)


if __name__ == "__main__":
    sys.exit(main())

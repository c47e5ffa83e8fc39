"""The soundness suite: random programs over the public API, and an independent judge of the race detector's verdict.

`generate(seed)` returns a random `Program` of streams, events, tensors that come and go, pinned memory, graphs,
autocast blocks, several devices, threads or ranks. Its `model` says by CUDA's and PyTorch's rules which steps race.
`Hunt` runs such programs on virtual GPUs and checks that

- the detector's verdict is the model's, and each race that it reports is one of the model's;
- a certified program prints the same bits under other schedules and placements of memory;
- a reported race can be turned into another outcome, or the model says why it cannot;
- a certified program without one of its synchronizations is still judged right.

`python -m flambeau.testing.soundness --seed 1 --count 1000` does that from the command line. See docs/determinism.md.
"""

from flambeau.testing.soundness.generator import FEATURES, generate
from flambeau.testing.soundness.hunt import Hunt
from flambeau.testing.soundness.model import Model
from flambeau.testing.soundness.programs import Program
from flambeau.testing.soundness.steps import Step

__all__ = ["FEATURES", "Hunt", "Model", "Program", "Step", "generate"]

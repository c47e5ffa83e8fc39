"""The soundness suite: random programs over the public API, and an independent model that checks the race detector.

`generate(seed)` returns a random `Program` of streams, events, temporary tensors, pinned memory, graphs, autocast
blocks, several devices, threads or ranks. Its `model` computes by CUDA's and PyTorch's rules which steps race. `Hunt`
runs such programs on virtual GPUs and checks that

- the detector's verdict is the model's, and each race that it reports is one of the model's;
- a certified program prints the same bits under other schedules and placements of memory;
- a reported race can be turned into another outcome, or the model says why it cannot;
- the verdict stays right for a certified program from which one synchronization was deleted.

`python -m flambeau.testing.soundness --seed 1 --count 1000` does that from the command line. See docs/determinism.md.
"""

from flambeau.testing.soundness.hunt import Hunt
from flambeau.testing.soundness.model import Model
from flambeau.testing.soundness.program_generator import FEATURES, generate
from flambeau.testing.soundness.program_steps import Step
from flambeau.testing.soundness.programs import Program

__all__ = ["FEATURES", "Hunt", "Model", "Program", "Step", "generate"]

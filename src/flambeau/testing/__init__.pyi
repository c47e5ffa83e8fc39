# Written by tools/stubs.py. Edit the definitions, and run it again.
"""The names of torch.testing."""


def make_callable(module: str) -> None:
    ...
from flambeau.testing import answers as answers
from flambeau.testing.closeness import assert_allclose as assert_allclose
from flambeau.testing.closeness import assert_close as assert_close
from flambeau.testing import closeness as closeness
from flambeau.testing import conflicts as conflicts
from flambeau.testing import exploration as exploration
from flambeau.testing.explore import explore as explore
from flambeau.testing import failures as failures
from flambeau.testing.random_tensors import make_tensor as make_tensor
from flambeau.testing import orders as orders
from flambeau.testing import outcome as outcome
from flambeau.testing import random_tensors as random_tensors
from flambeau.testing.ranks import ranks as ranks
from flambeau.testing import runs as runs
from flambeau.testing import soundness as soundness

